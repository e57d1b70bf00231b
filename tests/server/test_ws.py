"""The pump over real sockets: answers, bad frames, slow and silent clients, cut connections."""

import asyncio
import base64
import contextlib
import os
import socket
import struct
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from chatd.engine.messages import FinishReason, Queued, StepOutput
from chatd.errors import Overloaded
from chatd.ids import Namespace, ResponseId, Rid
from chatd.server import protocol as wire
from chatd.server.commands import CreateCommand, Started
from chatd.server.service import ChatService, ServiceSettings
from chatd.server.visitors import Visitor
from chatd.server.ws import Pump
from chatd.store.records import ResponseStatus
from tests.server.test_protocol import BAD_FRAMES
from tests.support.chat_lab import ChatLab, until
from tests.support.live_server import Client, LiveServer, bare_server, live_lab
from tests.support.patience import NOISE_S

pytestmark = pytest.mark.usefixtures("blocked_loop")

NO_GRACE = {"by_hand": True, "settings": ServiceSettings(grace_s=0)}


def has_ended(lab: ChatLab) -> bool:
    return lab.service.open_count == 0


async def test_hello(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, _), server.client() as client:
        assert client.socket.subprotocol == wire.SUBPROTOCOL
        await client.send(wire.SessionHello())
        hello = await client.until(wire.SessionCreated)
        assert (hello.model, hello.context_length, hello.currency) == ("toy", 4096, "CNY")
        await client.send(wire.Ping())
        assert await client.receive() == wire.Pong()


async def test_without_the_subprotocol_it_is_closed_and_says_why(data_dir: Path) -> None:
    async with bare_server(data_dir) as server:
        for offered in (None, ["chatd.v2"]):
            async with server.connect(subprotocols=offered) as raw:
                with pytest.raises(ConnectionClosed) as closed:
                    await raw.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, "chatd.v1" in closed.value.rcvd.reason) == (4406, True)


async def test_one_answer_in_the_order_of_the_law(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        created = await client.start("hello", idempotency_key="mine")
        rid = Rid(created.response_id)
        assert created.idempotency_key == "mine"
        lab.service.on_step(StepOutput((Queued(rid, 2),)))
        assert await client.receive() == wire.ResponseQueued(rid, 2)
        lab.hand.say(rid, "Hel", "lo")
        assert isinstance(await client.receive(), wire.ResponsePrefill)
        assert await client.receive() == wire.ResponseDelta(rid, 1, 2, "Hello")
        lab.hand.say(rid, "!")
        assert await client.receive() == wire.ResponseDelta(rid, 3, 3, "!")
        lab.hand.finish(rid, FinishReason.END)
        ending = await client.receive()
        assert isinstance(ending, wire.ResponseCompleted)
        assert (ending.finish_reason, ending.last_seq, ending.usage.output_tokens) == ("end", 3, 3)
        assert ending.cost.total_nano == ending.cost.prompt_nano + ending.cost.output_nano
        updated = await client.receive()
        assert isinstance(updated, wire.ConversationUpdated)
        assert (updated.title, updated.tip_id) == ("hello", created.message_id)
        await client.send(wire.Ping())
        assert await client.receive() == wire.Pong()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (FinishReason.STOP, wire.ResponseCompleted),
        (FinishReason.LENGTH, wire.ResponseIncomplete),
        (FinishReason.CANCELLED, wire.ResponseCancelled),
        (FinishReason.FAILED, wire.ResponseFailed),
    ],
)
async def test_every_ending(data_dir: Path, reason: FinishReason, kind: type[wire.ServerFrame]) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        created = await client.start()
        lab.hand.say(Rid(created.response_id), "x")
        lab.hand.finish(Rid(created.response_id), reason)
        ending = await client.ending(created.response_id)
        assert type(ending) is kind
        assert ending.finish_reason == reason.value


async def test_many_answers_on_one_socket(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        created = [await client.start(f"question {n}") for n in range(16)]
        for word in range(20):
            for one in created:
                lab.hand.say(Rid(one.response_id), f"{one.response_id}:{word} ")
            await asyncio.sleep(0)
        for one in created:
            lab.hand.finish(Rid(one.response_id), FinishReason.END)
        left = {one.response_id for one in created}
        while left:
            event = await client.receive()
            if isinstance(event, wire.Ending):
                left.remove(event.response_id)
            elif isinstance(event, wire.ResponseDelta):
                assert event.response_id in left
        for one in created:
            assert client.text[one.response_id] == "".join(f"{one.response_id}:{n} " for n in range(20))


async def test_m1_bad_frames_then_a_good_one(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        for name, (frame, code) in BAD_FRAMES.items():
            if name == "surrogate in the text itself":  # not UTF-8: no text frame can carry it
                continue
            await client.socket.send(frame)
            await client.send(wire.Ping())
            error = await client.receive()
            assert isinstance(error, wire.Error), name
            assert error.code == code, name
            assert await client.receive() == wire.Pong(), name
        assert not lab.hand.submitted
        created = await client.start("still here?")
        lab.hand.say(Rid(created.response_id), "yes")
        lab.hand.finish(Rid(created.response_id))
        await client.ending(created.response_id)
        assert client.text[created.response_id] == "yes"


@pytest.mark.parametrize("text", ["", "   \n"])
async def test_l1_empty_text_is_refused_and_the_server_lives(data_dir: Path, text: str) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        await client.send(wire.ResponseCreate("k", text))
        error = await client.receive()
        assert isinstance(error, wire.Error)
        assert (error.code, error.param, error.idempotency_key) == ("invalid_parameter", "input", "k")
        assert not lab.hand.submitted
        await client.start("not empty")


async def test_what_the_transport_refuses(data_dir: Path) -> None:
    async with bare_server(data_dir) as server:
        for frame, code in ((b"x" * (3 << 20), 1009), (b"\xff\xfe", 1007)):
            async with server.connect() as raw:
                with contextlib.suppress(ConnectionClosed):
                    await raw.send(frame, text=True)
                with pytest.raises(ConnectionClosed) as closed:
                    await raw.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == code


async def test_what_a_client_has_is_kept_apart_from_what_was_sent(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client, server.client() as other:
        created = await client.start()
        rid = Rid(created.response_id)

        async def counts() -> tuple[int, int, int]:
            record = await lab.record(ResponseId(rid))
            return record.output_tokens, record.delivered, record.acknowledged

        async def become(*wanted: int) -> None:
            while await counts() != wanted:  # noqa: ASYNC110 - a row in a file has no event
                await asyncio.sleep(0)

        lab.hand.say(rid, "a", "b", "c")
        await client.until(wire.ResponseDelta)
        await become(3, 3, 0)
        await client.send(wire.ResponseAck(rid, 2))
        await become(3, 3, 2)
        await client.send(wire.ResponseAck(rid, 1))
        await client.send(wire.ResponseAck("nothing", 1))
        await other.send(wire.ResponseAck(rid, 3))
        for one in (client, other):
            await one.send(wire.Ping())
            assert await one.receive() == wire.Pong(), "an acknowledgement has no answer"
        lab.hand.say(rid, "d")
        await client.until(wire.ResponseDelta)
        await become(4, 4, 2)
        lab.hand.finish(rid)
        ending = await client.ending(rid)
        await client.send(wire.ResponseAck(rid, ending.last_seq))
        await become(4, 4, 4)
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            body = (await http.get(f"/api/v1/responses/{rid}")).json()
        assert (body["usage"]["output_tokens"], body["sent_tokens"], body["acknowledged_tokens"]) == (4, 4, 4)
        await lab.check()


async def test_cancel(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        created = await client.start()
        lab.hand.say(Rid(created.response_id), "a", "b")
        await client.until(wire.ResponseDelta)
        await client.send(wire.ResponseCancel(created.response_id))
        ending = await client.ending(created.response_id)
        assert isinstance(ending, wire.ResponseCancelled)
        assert ending.usage.output_tokens == 2
        await client.send(wire.ResponseCancel("nothing"))
        error = await client.until(wire.Error)
        assert (error.code, error.response_id) == ("not_found", "nothing")


async def test_b3_cancel_before_the_first_token(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, _), server.client() as client:
        created = await client.start()
        began = time.monotonic()
        await client.send(wire.ResponseCancel(created.response_id))
        ending = await client.ending(created.response_id)
        assert time.monotonic() - began < 1 + NOISE_S
        assert (ending.usage.total_tokens, ending.cost.total_nano, ending.last_seq) == (0, 0, 0)


async def test_q2_the_same_key_gives_the_same_answer(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as client:
        for _ in range(10):
            await client.send(wire.ResponseCreate("same", "hello"))
        created = [await client.until(wire.ResponseCreated) for _ in range(10)]
        assert len({one.response_id for one in created}) == 1
        assert len(lab.hand.submitted) == 1
        rid = Rid(created[0].response_id)
        lab.hand.say(rid, "once")
        lab.hand.finish(rid)
        await client.ending(rid)
        assert client.text[rid] == "once"
        async with server.client() as later:
            again = await later.start("hello", idempotency_key="same")
            assert again.response_id == rid
            await later.ending(rid)
            assert later.text[rid] == "once"
        await client.send(wire.ResponseCreate("same", "something else"))
        assert (await client.until(wire.Error)).code == "conflict"


async def test_o1_cut_at_every_piece_and_resume(data_dir: Path) -> None:
    pieces = [f"{n}," for n in range(20)]
    async with live_lab(data_dir) as (server, lab):
        for cut in range(len(pieces) + 1):
            async with server.client() as first:
                created = await first.start(f"count {cut}")
                rid = Rid(created.response_id)
                lab.hand.say(rid, *pieces[:cut])
                while cut and first.seq.get(rid, 0) < cut:
                    await first.until(wire.ResponseDelta)
                first.reset()
            lab.hand.say(rid, *pieces[cut:])
            lab.hand.finish(rid)
            async with server.client() as second:
                second.seq[rid] = cut
                await second.send(wire.ResponseSubscribe(rid, cut))
                await second.ending(rid)
            assert first.text.get(rid, "") + second.text.get(rid, "") == "".join(pieces)


async def test_two_tabs_hear_the_same_and_of_each_other(data_dir: Path) -> None:
    async with live_lab(data_dir) as (server, lab), server.client() as one, server.client() as two:
        created = await one.start()
        rid = Rid(created.response_id)
        lab.hand.say(rid, "a")
        await one.until(wire.ResponseDelta)
        await two.send(wire.ResponseSubscribe(rid, 0))
        await two.until(wire.ResponseDelta)
        lab.hand.say(rid, "b")
        lab.hand.finish(rid)
        for tab in (one, two):
            await tab.ending(rid)
            assert tab.text[rid] == "ab"
            assert (await tab.until(wire.ConversationUpdated)).conversation_id == created.conversation_id


async def test_before_the_model_is_there(data_dir: Path) -> None:
    async with bare_server(data_dir) as server, server.client() as client:
        await client.send(wire.SessionHello())
        assert (await client.until(wire.SessionCreated)).model is None
        await client.send(wire.ResponseCreate("k", "hello"))
        error = await client.until(wire.Error)
        assert (error.code, error.retryable, error.idempotency_key) == ("not_ready", True, "k")


async def test_heartbeats_in_the_queue_and_in_prefill(data_dir: Path) -> None:
    async with live_lab(data_dir, heartbeat_s=0.05) as (server, lab), server.client() as client:
        created = await client.start()
        rid = Rid(created.response_id)
        lab.service.on_step(StepOutput((Queued(rid, 1),)))
        await client.until(wire.ResponseQueued)
        for _ in range(3):
            assert await client.receive() == wire.Pong()
        lab.hand.say(rid, "x")
        await client.until(wire.ResponseDelta)
        for _ in range(3):
            assert await client.receive() == wire.Pong()


class GatedService(ChatService):
    """Creates nothing until the gate opens."""

    gate: asyncio.Event

    async def create(self, ns: Namespace, command: CreateCommand, by: Visitor | None = None) -> Started:
        await self.gate.wait()
        return await super().create(ns, command, by)


@contextlib.asynccontextmanager
async def gated_lab(data_dir: Path) -> AsyncIterator[tuple[LiveServer, ChatLab, asyncio.Event]]:
    async with live_lab(data_dir) as (server, lab):
        service = lab.service
        service.__class__ = GatedService
        assert isinstance(service, GatedService)
        service.gate = asyncio.Event()
        yield server, lab, service.gate


async def test_reading_never_waits_for_a_creation(data_dir: Path) -> None:
    async with gated_lab(data_dir) as (server, _, gate), server.client() as client:
        for n in range(8):
            await client.send(wire.ResponseCreate(f"k{n}", "hello"))
        for _ in range(3):
            await client.send(wire.Ping())
            assert await client.receive() == wire.Pong()
        gate.set()
        keys = {(await client.until(wire.ResponseCreated)).idempotency_key for _ in range(8)}
        assert keys == {f"k{n}" for n in range(8)}


async def test_a_creation_goes_on_when_its_client_goes(data_dir: Path) -> None:
    async with gated_lab(data_dir) as (server, lab, gate):
        async with server.client() as client:
            await client.send(wire.ResponseCreate("k", "hello"))
            await client.send(wire.Ping())
            await client.until(wire.Pong)
            client.reset()
        gate.set()
        await until(lambda: len(lab.hand.submitted) == 1 and not server.state.connections)
        async with server.client() as client:
            again = await client.start("hello", idempotency_key="k")
            lab.hand.say(Rid(again.response_id), "found")
            await client.until(wire.ResponseDelta)
        assert len(lab.hand.submitted) == 1


async def test_too_many_answers_on_one_socket(data_dir: Path) -> None:
    async with live_lab(data_dir, max_responses=2) as (server, _), server.client() as client:
        for n in range(2):
            await client.start(f"question {n}")
        await client.send(wire.ResponseCreate("k3", "one more"))
        error = await client.until(wire.Error)
        assert (error.code, error.idempotency_key) == (Overloaded.code, "k3")


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_b1_a_client_that_leaves_leaves_nothing(data_dir: Path, how: str) -> None:
    async with live_lab(data_dir, lab=NO_GRACE) as (server, lab):
        for cut in range(10):
            async with server.client() as client:
                created = [await client.start(f"{cut} {n}") for n in range(3)]
                for one in created[: cut % 4]:
                    lab.hand.say(Rid(one.response_id), "x" * cut)
                    await client.until(wire.ResponseDelta)
                if how == "reset":
                    client.reset()
            await until(lambda: has_ended(lab) and not server.state.connections)
            for one in created:
                record = await lab.record(ResponseId(one.response_id))
                assert record.status is ResponseStatus.CANCELLED
        assert not lab.hand.submitted


# --- clients that do not read ---------------------------------------------------------------------


def small_socket(port: int) -> socket.socket:
    """Connected, with a receive buffer of a few kilobytes, so that it soon takes no more."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", port))
    return raw


@contextlib.asynccontextmanager
async def stalled_client(server: LiveServer) -> AsyncIterator[Client]:
    """A client whose library stops reading the socket when its small queue is full."""
    async with server.client(sock=small_socket(server.port), max_queue=2, ping_interval=None) as client:
        yield client
        client.socket.transport.abort()


CHUNKS = 40
"""Of 64 KiB each, in 16 pieces: more than all buffers between here and a stalled client hold."""
MUCH = "".join(f"{chunk:04}.{piece:02}|" * 512 for chunk in range(CHUNKS) for piece in range(16))


def say_much(lab: ChatLab, rid: Rid, chunk: int) -> None:
    """One chunk of it."""
    lab.hand.say(rid, *(f"{chunk:04}.{piece:02}|" * 512 for piece in range(16)))


async def read_much(live: Client, lab: ChatLab, rid: Rid) -> None:
    """All of the text, made as fast as ``live`` takes it."""
    for chunk in range(CHUNKS):
        say_much(lab, rid, chunk)
        while live.seq.get(rid, 0) < 16 * (chunk + 1):
            await live.until(wire.ResponseDelta)


def buffered_bytes(server: LiveServer) -> int:
    """What waits in this process for clients that do not read."""
    transports = [one.transport for one in server.server.server_state.connections]
    pumps = [one for one in server.state.connections if isinstance(one, Pump)]
    return sum(t.get_write_buffer_size() for t in transports) + sum(pump.held_bytes for pump in pumps)


async def test_n3_a_stalled_tab_does_not_slow_a_live_one(data_dir: Path) -> None:
    async with (
        live_lab(data_dir, send_timeout_s=30) as (server, lab),
        server.client() as live,
        stalled_client(server) as stalled,
    ):
        rid = Rid((await live.start()).response_id)
        await stalled.send(wire.ResponseSubscribe(rid, 0))
        await read_much(live, lab, rid)
        assert 0 < buffered_bytes(server) <= 256 << 10
        lab.hand.finish(rid)
        await live.ending(rid)
        assert live.text[rid] == MUCH
        assert len(server.state.connections) == 2  # the stalled one is still open, and behind
        while not isinstance(await stalled.receive(), wire.Ending):  # it wakes up
            pass
        assert stalled.text[rid] == MUCH


async def test_n1_a_stalled_client_is_closed_and_can_resume(data_dir: Path) -> None:
    async with live_lab(data_dir, send_timeout_s=0.3) as (server, lab), server.client() as live:
        rid = Rid((await live.start()).response_id)
        async with stalled_client(server) as stalled:
            await stalled.send(wire.ResponseSubscribe(rid, 0))
            await read_much(live, lab, rid)
            lab.hand.finish(rid)
            await until(lambda: len(server.state.connections) == 1)
            with pytest.raises(ConnectionClosed) as closed:  # it wakes up
                await stalled.ending(rid)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == wire.CloseCode.SLOW_READER
        async with server.client() as back:
            back.seq[rid] = stalled.seq[rid]
            await back.send(wire.ResponseSubscribe(rid, back.seq[rid]))
            await back.ending(rid)
        assert stalled.text[rid] + back.text[rid] == MUCH


async def raw_connection(
    server: LiveServer, extra: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    """A WebSocket by hand: the handshake is done, nothing is answered by itself. Also: the response head."""
    reader, writer = await asyncio.open_connection(sock=small_socket(server.port), limit=1 << 16)
    key = base64.b64encode(os.urandom(16)).decode()
    writer.write(
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: chatd.v1\r\n"
        f"{extra}\r\n".encode()
    )
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 101")
    return reader, writer, head


def masked(opcode: int, payload: bytes, *, fin: bool = True, rsv1: bool = False) -> bytes:
    first = (0x80 if fin else 0) | (0x40 if rsv1 else 0) | opcode
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + struct.pack("!H", size)
    return bytes([first]) + length + b"\0\0\0\0" + payload


async def read_close_code(reader: asyncio.StreamReader) -> int:
    """The code of the close frame; other frames are passed over."""
    while True:
        first, second = await reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await reader.readexactly(2))
        payload = await reader.readexactly(size)
        if first & 0x0F == 8:
            return int(struct.unpack("!H", payload[:2])[0])


@pytest.mark.parametrize("reads", [True, False])
async def test_o6_no_pong(data_dir: Path, reads: bool) -> None:
    """Closed, and its engine work ended, at most interval + time-out + 1 s later."""
    interval_s, timeout_s = 0.4, 0.4
    async with live_lab(data_dir, lab=NO_GRACE, ping_interval_s=interval_s, ping_timeout_s=timeout_s) as (
        server,
        lab,
    ):
        reader, writer, _ = await raw_connection(server)
        began = time.monotonic()
        writer.write(masked(1, wire.encode(wire.ResponseCreate("k", "hello"))))
        await until(lambda: bool(lab.hand.submitted))
        [rid] = lab.hand.submitted
        if reads:
            lab.hand.say(rid, "x")
            assert await read_close_code(reader) == wire.CloseCode.INTERNAL
        else:
            for chunk in range(CHUNKS):
                say_much(lab, rid, chunk)
                await asyncio.sleep(0.01)
        await until(lambda: has_ended(lab) and not server.state.connections)
        assert time.monotonic() - began < interval_s + timeout_s + 1 + NOISE_S
        await until(lambda: not server.server.server_state.connections)
        assert time.monotonic() - began < interval_s + timeout_s + 1 + NOISE_S
        writer.transport.abort()


async def test_x1_compression_is_refused(data_dir: Path) -> None:
    async with bare_server(data_dir) as server:
        async with server.connect(compression="deflate") as offered:
            assert offered.protocol.extensions == []
        before = resident_bytes()
        bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
        payload = (bomb.compress(b" " * (1 << 20)) + bomb.flush(zlib.Z_SYNC_FLUSH))[:-4]
        assert len(payload) < 1100
        offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
        for _ in range(64):
            reader, writer, head = await raw_connection(server, offer)
            assert "sec-websocket-extensions" not in head.lower()
            writer.write(masked(1, payload, rsv1=True))
            assert await read_close_code(reader) == wire.CloseCode.PROTOCOL_ERROR
            writer.close()
        assert resident_bytes() - before < 64 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


async def test_a_flood_of_fragments_is_refused(data_dir: Path) -> None:
    async with bare_server(data_dir) as server:
        reader, writer, _ = await raw_connection(server)
        writer.write(masked(1, b"", fin=False) + masked(0, b"", fin=False) * 5000)
        assert await read_close_code(reader) == wire.CloseCode.TOO_BIG
        writer.close()


async def test_a_flood_of_pings_fills_no_memory(data_dir: Path) -> None:
    """Pongs go out while there is room, and are left out when the client takes none."""
    async with bare_server(data_dir) as server:
        _, writer, _ = await raw_connection(server)
        [protocol] = server.server.server_state.connections
        flood = masked(9, b"p" * 125) * 1000
        for _ in range(60):  # 8 MB
            writer.write(flood)
            await writer.drain()
        assert protocol.transport.get_write_buffer_size() <= 256 * 1024
        writer.transport.abort()
