"""The main job: one command, a chat of several turns, a report; and an orderly end."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from chatd.data_dir import read_address
from tests.cli.servers import ChatdProcess
from tests.cli.terminals import Terminal, piped

QUESTION = "What is the capital of France? Answer briefly."
BRIEF = ["--temperature", "0", "--max-tokens", "16"]

pytestmark = [pytest.mark.model, pytest.mark.timeout(150)]


async def chat(data_dir: Path, text: str, *options: str) -> list[dict[str, object]]:
    code, out, err = await piped(["chat", "--json", "--data-dir", str(data_dir), *options], text)
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


async def test_from_nothing_to_a_verified_bill(data_dir: Path, model_path: Path) -> None:
    folder = ["--data-dir", str(data_dir)]
    async with ChatdProcess(data_dir, model_path) as server:
        await server.until("listening")
        ready = await server.until("ready")
        shares = [line["progress"] for line in server.lines if line["status"] == "loading"]
        assert shares == sorted(shares)
        assert ready["bytes_per_token"] == 23_040
        assert ready["kv_tokens"] * 23_040 <= 256 << 20 < (ready["kv_tokens"] + 16) * 23_040

        first = (await chat(data_dir, QUESTION, *BRIEF))[-1]
        assert first["usage"]["prompt_tokens"] == 40  # type: ignore[index]
        second = (await chat(data_dir, "And of Italy?", "--last", *BRIEF))[-1]
        assert second["conversation_id"] == first["conversation_id"]
        kept = first["usage"]["total_tokens"] - 1  # type: ignore[index]
        assert second["usage"]["gpu_hit"] == kept  # type: ignore[index]

        live = json.loads((await piped(["report", "--json", *folder]))[1])
        code, out, _ = await piped(["report", "--verify", *folder])
        assert (code, out.startswith("The ledger is right")) == (0, True)
        assert await server.end() == 0
    assert read_address(data_dir) is None
    assert live["rows"][0]["title"] == QUESTION
    assert live["rows"][0]["turns"] == 2
    code, out, err = await piped(["report", "--json", *folder])
    assert (code, json.loads(out), err) == (0, live, "")
    code, out, _ = await piped(["report", "--verify", "--json", *folder])
    assert (code, json.loads(out)["findings"]) == (0, [])


async def test_sigterm_ends_it_while_it_loads(data_dir: Path, model_path: Path) -> None:
    async with ChatdProcess(data_dir, model_path) as server:
        await server.until("loading")
        assert await server.end() == 0
        with pytest.raises(AssertionError, match="it ended"):
            await server.until("ready")
        assert "Traceback" not in await server.errors()


async def test_it_ends_in_order_when_nobody_hears_it_any_more(data_dir: Path, model_path: Path) -> None:
    """Its pipe was closed: writing fails."""
    async with ChatdProcess(data_dir, model_path) as server:
        await server.until("listening")
        server.stop_reading()
        assert await asyncio.wait_for(server.end(), 30) == 0
        assert await server.errors() == ""
    assert read_address(data_dir) is None


async def test_a_folder_has_one_server(data_dir: Path, model_path: Path) -> None:
    async with ChatdProcess(data_dir, model_path) as server:
        await server.until("listening")
        code, _, err = await piped(["serve", "--port", "0", "--data-dir", str(data_dir)])
        assert code == 2
        assert f"Process {server.pid} is already using" in err


async def test_a_terminal_shows_where_everything_is(data_dir: Path, model_path: Path) -> None:
    options = ["--model", str(model_path), "--port", "0", "--data-dir", str(data_dir)]
    async with Terminal("serve", *options) as person:
        await person.until("listens on http://127.0.0.1:")
        for name in ("page", "terminal", "OpenAI", "model", "device", "KV pool", "disk", "data"):
            await person.until(name)
        await person.until("Ctrl-C stops it")
        person.press_ctrl_c()
        await person.until("Stopping")
        assert await person.exit_code() == 0


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--model", "/no/such/file.gguf"], "--model is /no/such/file.gguf, but there is no such file"),
        (["--model", "pytorch_model.bin"], "no such file"),
        (["--kv-bytes", "900TiB"], "of memory free"),
        (["--host", "192.0.2.1", "--allow-public"], "this machine has no such address"),
        (["--host", "0.0.0.0"], "--allow-public"),
        (["--weights", "int3"], "one of auto, bf16, fp32, int8 or int4"),
        (["--disc", "off"], "No such option"),
    ],
)
async def test_what_cannot_start_says_so_in_one_message(
    data_dir: Path, model_path: Path, options: list[str], wanted: str
) -> None:
    given = ["--data-dir", str(data_dir), "--port", "0", "--model", str(model_path), *options]
    code, out, err = await piped(["serve", *given])
    assert code == 2
    assert wanted in err
    assert len(err.splitlines()) <= 4
    assert "Traceback" not in err
    assert "listens on" not in out


async def test_a_failed_start_leaves_the_folder_free(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = await piped(["serve", "--port", port, "--data-dir", str(data_dir)])
    assert code == 2
    assert f"127.0.0.1:{port}" in err
    assert (await piped(["report", "--data-dir", str(data_dir)]))[0] == 0
