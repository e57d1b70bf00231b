"""M1, X1, L1 to L3, E and F over a WebSocket of the real process; raw frames where no client would do."""

import struct
import zlib
from typing import Any

import pytest

from chatd.server import protocol as wire
from tests.e2e.frames import CONTINUATION, RSV1, frame, opened
from tests.e2e.processes import (
    ToyProcess,
    client_of,
    get,
    raw_socket,
    resident_bytes,
    until_at_rest,
)

MIB = 1 << 20
OFFER = "permessage-deflate; client_max_window_bits"


def close_code(heard: bytes) -> int:
    """Of the last frame."""
    at = heard.rindex(b"\x88")
    return int(struct.unpack("!H", heard[at + 2 : at + 4])[0])


@pytest.mark.parametrize(
    ("raw_frames", "code"),
    [
        ([frame(b"\xff\xfe")], 1007),
        ([frame(b"hi", 3)], 1002),
        ([frame(b"hi", rsv=RSV1)], 1002),
        ([b"\x81\x02hi"], 1002),  # not masked
        ([frame(b"x", CONTINUATION)], 1002),
        ([frame(b"x" * 200, 9)], 1002),  # a ping that is too long
        ([b"\x81\xff" + struct.pack("!Q", 1 << 62) + bytes(4)], 1009),
        ([frame(b"", final=False)] + [frame(b"", CONTINUATION, final=False)] * 2000, 1009),
    ],
)
async def test_m1_what_breaks_the_transport_ends_the_connection(
    toy: ToyProcess, raw_frames: list[bytes], code: int
) -> None:
    async with raw_socket(toy) as raw:
        await opened(toy, raw)
        await raw.send(b"".join(raw_frames))
        assert close_code(await raw.rest()) == code


async def test_x1_deflate_is_not_agreed_to_and_bombs_do_not_go_off(toy: ToyProcess) -> None:
    """64 sockets, frames of 1,000 : 1: refused before anything is inflated."""
    squeeze = zlib.compressobj(9, wbits=-15)
    bomb = squeeze.compress(b'"' + bytes(16 * MIB)) + squeeze.flush(zlib.Z_SYNC_FLUSH)
    before = resident_bytes(toy.pid)
    for _ in range(64):
        async with raw_socket(toy) as raw:
            head = await opened(toy, raw, f"Sec-WebSocket-Extensions: {OFFER}")
            assert b"sec-websocket-extensions" not in head
            await raw.send(frame(bomb, rsv=RSV1))
            assert close_code(await raw.rest()) == 1002
    assert resident_bytes(toy.pid) - before < 64 * MIB


@pytest.mark.parametrize(
    ("text", "params", "code"),
    [
        ("", {}, "invalid_parameter"),
        (" \n\t\u00a0\u3000", {}, "invalid_parameter"),
        ("x", {"max_tokens": 0}, "invalid_parameter"),
        ("x", {"max_tokens": -1}, "invalid_parameter"),
        ("x", {"max_tokens": 2**31}, "invalid_parameter"),
        ("x", {"max_tokens": "5"}, "invalid_parameter"),
        ("x", {"max_tokens": 1.5}, "invalid_parameter"),
        ("x", {"max_tokens": True}, "invalid_parameter"),
        ("x", {"nonsense": 1}, "invalid_parameter"),
        ("x", {"logit_bias": {"260": 1}}, "invalid_parameter"),
        ("x" * 8300, {}, "context_length_exceeded"),
        ("x" * 90_000, {"truncation": "auto"}, "context_length_exceeded"),
    ],
)
async def test_l_what_cannot_be_answered_says_so(
    toy: ToyProcess, text: str, params: dict[str, Any], code: str
) -> None:
    async with client_of(toy) as client:
        await client.send(wire.ResponseCreate("k", text, params=params))
        error = await client.until(wire.Error)
        assert (error.code, error.idempotency_key) == (code, "k")
        if code == "context_length_exceeded":
            assert "8192" in error.message
            assert str(len(text) + len("?user\n??\n?assistant\n") - 1) in error.message


async def test_l2_l3_edges(toy: ToyProcess) -> None:
    around = len("?user\n?\n?assistant\n")
    async with client_of(toy) as client:
        for length, max_tokens, output in (
            (8191 - around, None, 1),
            (8189 - around, None, 3),
            (8189 - around, 2, 2),
            (5, 1, 1),
            (5, 2**31 - 1, None),
        ):
            text = "count:9".ljust(length) if output is None else "y" * length
            created = await client.start(text, params={"max_tokens": max_tokens})
            ending = await client.ending(created.response_id)
            if output is None:
                assert isinstance(ending, wire.ResponseCompleted)
                continue
            assert isinstance(ending, wire.ResponseIncomplete)
            assert ending.finish_reason == "length"
            assert ending.usage.output_tokens == len(client.text[created.response_id]) == output


HARD = "e\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f466 \U0001f1e9\U0001f1ea \u0938\u094d \u6f22"


@pytest.mark.parametrize(
    ("ids", "stop", "text", "reason"),
    [
        (list(HARD.encode()), [], HARD, "end"),  # E1
        ([0x41, 0xE6, 0xBC, 0x42, 0xFF, 0x43], [], "A\ufffdB\ufffdC", "end"),  # E2
        ([0x41, 0xF0, 0x9F, 0x92], [], "A\ufffd", "end"),  # ends within a character
        (list(b"abc DEF GHI"), ["DEF G"], "abc ", "stop"),  # F1
        (list(b"abc XY"), ["XYZ"], "abc XY", "end"),  # F2
        (list(b"aaab"), ["aab"], "a", "stop"),  # F3
        (list("caf\u00e9 au lait".encode()), ["\u00e9"], "caf", "stop"),
        (list(b"x" * 40), ["y", "xxxxx"], "", "stop"),
    ],
)
async def test_e_f_text_over_the_wire(
    toy: ToyProcess, ids: list[int], stop: list[str], text: str, reason: str
) -> None:
    """Deltas, what is stored, and what a later subscriber is told are one text."""
    async with client_of(toy) as client:
        created = await client.start("ids:" + ",".join(map(str, ids)), params={"stop": stop})
        ending = await client.ending(created.response_id)
        assert (client.text.get(created.response_id, ""), ending.finish_reason) == (text, reason)
    view = await get(toy, f"/api/v1/conversations/{created.conversation_id}")
    assert view["messages"][-1]["text"] == text
    for seq in range(ending.last_seq + 1):
        async with client_of(toy) as client:
            await client.send(wire.ResponseSubscribe(created.response_id, seq))
            assert await client.ending(created.response_id) == ending
            assert text.endswith(client.text.get(created.response_id, ""))
        if seq > 8:
            break


async def test_nothing_is_left_of_all_this(toy: ToyProcess) -> None:
    await until_at_rest(toy, 10)
    assert (await get(toy, "/api/v1/report/verify"))["findings"] == []
