"""O1, O7, Q2, P3 and D6 on the real process: cuts, doubled requests, tabs that race, a stalled engine."""

import asyncio
import json
import random

from chatd.server import protocol as wire
from tests.e2e.processes import ToyProcess, client_of, completion, engine_of, get, post, raw_socket
from tests.support.patience import NOISE_S

CUTS = 12


async def test_o1_cut_again_and_again(paced: ToyProcess) -> None:
    """A client whose connection is reset every few pieces gets each piece once."""
    draw = random.Random(1)
    before = (await engine_of(paced))["counters"]["submitted"]
    create = wire.ResponseCreate("key", "count:300")
    text, seq, response_id = "", 0, ""
    for cut in range(CUTS):
        async with client_of(paced) as client:
            if cut < 3:  # as if the confirmation had never come
                await client.send(create)
                response_id = (await client.until(wire.ResponseCreated)).response_id
                text, seq = "", 0
            else:
                await client.send(wire.ResponseSubscribe(response_id, seq))
            enough = seq + draw.randrange(1, 9)
            while client.seq.get(response_id, 0) < enough:
                if isinstance(await client.receive(), wire.AnyEnding):  # sooner than a slow machine cut it
                    break
            client.reset()
        text, seq = text + client.text.get(response_id, ""), client.seq.get(response_id, seq)
    async with client_of(paced) as client:
        await client.send(wire.ResponseSubscribe(response_id, seq))
        ending = await client.ending(response_id)
    assert text + client.text.get(response_id, "") == "0123456789" * 30
    view = await get(paced, f"/api/v1/conversations/{ending.conversation_id}")
    assert view["messages"][-1]["text"] == "0123456789" * 30
    assert len(view["messages"]) == 2
    assert (await engine_of(paced))["counters"]["submitted"] == before + 1


async def test_q2_one_key_ten_times_over_two_sockets(paced: ToyProcess) -> None:
    """One response, one charge; the same after a reconnect, and for HTTP with its header."""
    before = (await engine_of(paced))["counters"]["submitted"]
    create = wire.ResponseCreate("same", "count:30")
    async with client_of(paced) as one, client_of(paced) as two:
        for _ in range(5):
            await one.send(create)
            await two.send(create)
        created = [await client.until(wire.ResponseCreated) for client in (one, two) for _ in range(5)]
        assert len(set(created)) == 1
        response_id = created[0].response_id
        endings = [await client.ending(response_id) for client in (one, two)]
        assert endings[0] == endings[1]
        assert one.text[response_id] == two.text[response_id] == "0123456789" * 3
    async with client_of(paced) as back:
        await back.send(create)
        assert await back.ending(response_id) == endings[0]
        assert back.text[response_id] == "0123456789" * 3
        await back.send(wire.ResponseCreate("same", "count:31"))
        assert (await back.until(wire.Error)).code == "conflict"

    async def ask() -> str:
        async with raw_socket(paced) as raw:
            body = {"messages": [{"role": "user", "content": "count:20"}]}
            await raw.send(post(paced, "/v1/chat/completions", body, **{"idempotency-key": "h"}))
            answer = await raw.until(lambda heard: heard.endswith(b"}"))
            return str(json.loads(answer.partition(b"\r\n\r\n")[2])["id"])

    assert len(set(await asyncio.gather(*(ask() for _ in range(10))))) == 1
    assert (await engine_of(paced))["counters"]["submitted"] == before + 2


async def test_p3_two_tabs_and_a_third_that_edits(paced: ToyProcess) -> None:
    """Whatever they write at once into one conversation: nothing is lost, and every parent is there."""
    async with client_of(paced) as client:
        first = await client.start("count:1")
        await client.ending(first.response_id)
    accepted: list[str] = []

    async def tab(name: str, rounds: int) -> None:
        async with client_of(paced) as client:
            for number in range(rounds):
                place = (
                    {"edit": first.user_message_id}
                    if name == "c"
                    else {"conversation_id": first.conversation_id}
                )
                key, text = f"{name}{number}", f"say:{name}{number}"
                await client.send(wire.ResponseCreate(key, text, **place))
                while not isinstance(event := await client.receive(), wire.Error | wire.ResponseCreated):
                    pass
                if isinstance(event, wire.ResponseCreated):
                    accepted.append(f"{name}{number}")
                    await client.ending(event.response_id)
                else:
                    assert event.code == "conflict", event

    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            tasks.create_task(tab(name, 20))
    view = await get(paced, f"/api/v1/conversations/{first.conversation_id}")
    by_id = {message["id"]: message for message in view["messages"]}
    said = [m["text"].removeprefix("say:") for m in view["messages"] if m["role"] == "user"]
    assert sorted(said[1:]) == sorted(accepted)
    answers = [m for m in view["messages"] if m["role"] == "assistant"]
    assert len(answers) == len(said)
    for message in answers[1:]:
        assert "say:" + message["text"] == by_id[message["parent_id"]]["text"]
    assert all(m["parent_id"] in by_id for m in view["messages"] if m["parent_id"] is not None)
    assert sum(name[0] == "c" for name in accepted) == 20


async def test_d6_health_tells_the_truth(paced: ToyProcess) -> None:
    """Not ready while the engine stands still with work to do; ready again by itself; the answer is whole."""
    paced.hold.touch()
    async with client_of(paced) as client:
        created = await client.start("count:20")
        async with asyncio.timeout(15):
            while (status := await readiness(paced)) == "ready":  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert status == "stalled"
        await client.send(wire.Ping())
        await client.until(wire.Pong)
        paced.hold.unlink()
        await client.ending(created.response_id)
        assert client.text[created.response_id] == "0123456789" * 2
    assert await readiness(paced) == "ready"


async def readiness(server: ToyProcess) -> str:
    async with raw_socket(server) as raw:
        host = server.url.removeprefix("http://")
        await raw.send(f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await raw.rest()).partition(b"\r\n\r\n")
    found = json.loads(body)
    assert (b" 200 " in head.splitlines()[0]) == (found["status"] == "ready")
    return str(found["status"])


async def test_o7_a_stream_over_http_ends_with_its_client(paced: ToyProcess) -> None:
    for end in ("close", "reset"):
        async with raw_socket(paced) as raw:
            await raw.send(completion(paced, "long", max_tokens=4000, ignore_eos=True))
            await raw.until(lambda heard: heard.count(b"data: ") > 3)
            if end == "reset":
                raw.reset()
        async with asyncio.timeout(1 + NOISE_S):
            while (await engine_of(paced))["running"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    verdict = await get(paced, "/api/v1/report/verify")
    assert verdict["ok"], verdict["findings"]
