"""``chatd report --verify`` between the death of a server and its next start."""

import signal
from pathlib import Path

from chatd.server import protocol as wire
from tests.cli.terminals import piped
from tests.e2e.processes import ToyProcess, client_of, get


async def test_a_killed_server_is_settled_and_its_ledger_is_right(data_dir: Path) -> None:
    command = ["report", "--verify", "--data-dir", str(data_dir)]
    async with ToyProcess(data_dir, step_s=0.01) as server, client_of(server) as client:
        created = await client.start("count:500")
        while len(client.text.get(created.response_id, "")) < 5:
            await client.until(wire.ResponseDelta)
        await server.end(signal.SIGKILL)
    code, out, err = await piped(command)
    assert (code, err) == (0, "")
    assert out.startswith("The last server was killed. 1 answer it left open: settled now, billed for")
    assert "The ledger is right: 1 run, 1 response, 2 messages" in out
    again = await piped(command)
    assert again[0] == 0
    assert again[1].startswith("The ledger is right: 1 run,")
    async with ToyProcess(data_dir) as server, client_of(server) as client:
        view = await get(server, f"/api/v1/conversations/{created.conversation_id}")
        answer = view["messages"][-1]
        assert len(answer["text"]) >= 5
        assert ("0123456789" * 50).startswith(answer["text"])
        assert answer["responses"][0]["error"]["code"] == "server_died"
        params = {"max_tokens": 2}
        await client.send(wire.ResponseCreate("more", continues=created.message_id, params=params))
        more = await client.until(wire.ResponseCreated)
        prompt_len = answer["responses"][0]["usage"]["prompt_tokens"] + len(answer["text"])
        assert (await client.ending(more.response_id)).usage.prompt_tokens == prompt_len
        follow = await client.start("count:3", conversation_id=created.conversation_id)
        assert isinstance(await client.ending(follow.response_id), wire.ResponseCompleted)
        assert client.text[follow.response_id] == "012"
        assert (await get(server, "/api/v1/report/verify"))["ok"]
