"""``chatd cache`` as a person runs it: through a running server, and on the files of one that is gone."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chatd.cli.main import cli
from chatd.data_dir import read_address
from chatd.errors import ChatdError
from tests.cli.terminals import piped
from tests.e2e.processes import ToyProcess

SENTENCE = "say:The quick brown fox jumps over the lazy dog. "
PROMPT = "Speak like a lighthouse keeper who has not seen a ship for seven years. " * 3

pytestmark = pytest.mark.timeout(150)


async def cache(data_dir: Path, *args: str, code: int = 0) -> Any:
    """The JSON that a command prints; with a ``code`` that is not 0, what it says of the error.

    In a thread of this process, which saves half a second of imports each time.
    """
    command = ["cache", *args, "--json", "--data-dir", str(data_dir)]
    found = await asyncio.to_thread(CliRunner().invoke, cli, command)
    error = found.exception
    said = error.message if isinstance(error, ChatdError) else found.output
    assert (2 if isinstance(error, ChatdError) else found.exit_code) == code, said
    return json.loads(found.stdout) if code == 0 else said


async def ask(data_dir: Path, text: str, *options: str) -> Any:
    _, out, _ = await piped(["chat", "--json", "--data-dir", str(data_dir), *options], text)
    return json.loads(out.splitlines()[-1])


def damage(data_dir: Path) -> None:
    """Flip a bit in a record's body."""
    segment = next((data_dir / "kv").glob("*.seg"))
    raw = bytearray(segment.read_bytes())
    raw[-100] ^= 1
    segment.write_bytes(raw)


async def test_what_the_operator_may_do(data_dir: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)
    async with ToyProcess(data_dir, "--disk", "write-through") as server:
        address = read_address(data_dir)
        assert address is not None
        assert len(address.token) > 30
        first = await ask(data_dir, SENTENCE * 3)
        await ask(data_dir, "say:more", "--last")
        conversation = first["conversation_id"]

        stats = await cache(data_dir, "stats")
        assert stats["counters"]["gpu_hit"] > 100
        assert stats["disk"]["quota_bytes"] > 0
        assert stats["predictions"] == stats["predictions"] | {"made": 2, "exact": 2}
        listing = await cache(data_dir, "ls")
        assert any("The quick brown fox" in path["head"] for path in listing["paths"])

        made = await cache(data_dir, "pin", "keeper", "--prompt", str(prompt))
        assert (made["what"], made["tokens"] > len(PROMPT)) == ("system prompt", True)
        made = await cache(data_dir, "pin", "talk", "--conversation", conversation[:6])
        assert made["what"] == f"conversation {conversation}"
        assert "keeper" in await cache(data_dir, "pin", "keeper", "--prompt", str(prompt), code=2)
        assert [one["name"] for one in (await cache(data_dir, "pins"))["pins"]] == ["keeper", "talk"]
        await cache(data_dir, "unpin", "talk")
        assert "talk" in await cache(data_dir, "unpin", "talk", code=2)

        verified = await cache(data_dir, "verify")
        assert verified["records"]["damages"] == []
        assert verified["records"]["records"] == stats["disk"]["blocks"] > 0
        assert "stop it first" in await cache(data_dir, "verify", "--replay", "1", code=2)

        cleared = await cache(data_dir, "clear", "--yes", "--memory-only")
        assert (cleared["tokens"] > 0, cleared["blocks"]) == (True, 0)
        assert await server.end() == 0
        said = json.dumps(server.lines) + await server.errors()
    assert address.token not in said + repr(address)

    stats = await cache(data_dir, "stats")
    assert (stats["live"], stats["pins"], stats["disk"]["blocks"]) == (
        False,
        1,
        verified["records"]["records"],
    )
    assert stats["causes"] == [
        {"cause": "new_text", "responses": 2, "computed": stats["causes"][0]["computed"]}
    ]
    assert (await cache(data_dir, "ls"))["disk"][0]["namespace"] == "local"
    assert (await cache(data_dir, "verify"))["records"] == verified["records"]
    damage(data_dir)
    code, out, _ = await piped(["cache", "verify", "--json", "--data-dir", str(data_dir)])
    [damaged] = json.loads(out)["records"]["damages"]
    assert (code, damaged["removed"]) == (1, True)
    await cache(data_dir, "unpin", "keeper")
    assert (await cache(data_dir, "pins"))["pins"] == []
    assert "nobody" in await cache(data_dir, "clear", "--yes", "--namespace", "nobody", code=2)
    cleared = await cache(data_dir, "clear", "--yes", "--namespace", "local")
    assert cleared == {"tokens": 0, "blocks": verified["records"]["records"] - 1}
    assert (await cache(data_dir, "ls"))["disk"] == []


async def test_clearing_asks_first(data_dir: Path) -> None:
    data_dir.joinpath("chatd.toml").touch()
    args = ["cache", "clear", "--data-dir", str(data_dir)]
    code, out, err = await piped(args, "n\n")
    assert (code, "Forgotten" in out, "Forget all KV" in err) == (130, False, True)
    code, out, _ = await piped(args, "y\n")
    assert (code, "Forgotten: 0 tokens" in out) == (0, True)


async def test_what_goes_wrong_is_said_in_words(data_dir: Path, tmp_path: Path) -> None:
    assert "chatd serve" in await cache(data_dir, "pin", "a", "--conversation", "c", code=2)
    code, _, err = await piped(["cache", "pin", "a", "--data-dir", str(data_dir)])
    assert (code, "--system-of" in err) == (2, True)
    assert "no data folder" in await cache(tmp_path / "nowhere", "stats", code=2)
    assert "--memory-only" not in await cache(data_dir, "clear", "--yes", "--memory-only", code=2)
    replayed = await cache(data_dir, "verify", "--replay", "3")
    assert replayed["replay"]["turns"] == 0
