"""Keys on a real process: made by the command, exact after `kill -9`, and in no log."""

import asyncio
import contextlib
import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from chatd.cli import keys_offline
from chatd.cli.connect import ask_operator, tls_of
from chatd.config import Settings
from chatd.server import protocol as wire
from chatd.store.keys import BRAND
from tests.e2e.processes import ToyProcess, address_of, client_of, verify

pytestmark = pytest.mark.timeout(150)

TLS = Path(__file__).parent / "tls"
"""A certificate that nobody trusts, and its key, for these tests alone."""


async def create(data_dir: Path, name: str, **limits: Any) -> str:
    """The secret of a key that is made while no server runs."""
    made = await asyncio.to_thread(keys_offline.create, Settings(data_dir=data_dir), {"name": name, **limits})
    return str(made["secret"])


async def use_of(data_dir: Path) -> dict[str, int]:
    """Of the only key there is."""
    (key,) = (await asyncio.to_thread(keys_offline.listing, Settings(data_dir=data_dir)))["keys"]
    use: dict[str, int] = key["use"]
    return use


async def ask(server: ToyProcess, method: str, path: str, body: object = None) -> Any:
    """As the commands do it."""
    return await asyncio.to_thread(ask_operator, address_of(server), method, path, body)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_a_budget_after_kill_9(data_dir: Path) -> None:
    """What was stored when it died is spent, to the nano-unit; nothing is held any more. (With a key the
    server may listen anywhere.)"""
    budget = {"nano": 10**9, "period": "day"}
    headers = bearer(await create(data_dir, "ann", budget=budget, turns=4))
    async with (
        ToyProcess(data_dir, "--grace", "30", "--host", "0.0.0.0", step_s=0.005) as server,
        client_of(server, additional_headers=headers) as client,
    ):
        started = [await client.start(f"count:{900 + n}", params={"max_tokens": 1000}) for n in range(4)]
        await client.send(wire.ResponseCreate("fifth", "hello"))
        error = await client.until(wire.Error)
        assert (error.code, error.idempotency_key) == ("rate_limited", "fifth")
        await client.until(wire.ResponseDelta)
        before = await use_of(data_dir)
        assert before["turns"] == len(started)
        assert before["reserved_nano"] > 0
        await server.end(signal.SIGKILL)
    verdict = await verify(data_dir)  # settles
    assert verdict["settled"] == 4
    after = await use_of(data_dir)
    assert (after["turns"], after["reserved_nano"]) == (0, 0)
    with contextlib.closing(sqlite3.connect(data_dir / "chatd.db")) as database:
        costs = "gpu_hit_nano + disk_hit_nano + computed_nano + output_nano"
        found = database.execute(
            f"SELECT count(*), sum({costs}) FROM responses WHERE key_id = 'ann'"
        ).fetchone()
    assert found == (4, after["spent_nano"])
    assert after["spent_nano"] > 0


async def test_no_secret_is_logged(data_dir: Path) -> None:
    """A whole session over TLS at the loudest level, with what is right and what is wrong."""
    ann, bob = [await create(data_dir, name) for name in ("ann", "bob")]
    secrets = [ann, bob]
    options = ["--log-level", "debug", "--tls-cert", str(TLS / "cert.pem"), "--tls-key", str(TLS / "key.pem")]
    async with ToyProcess(data_dir, *options) as server:
        assert server.url.startswith("https://")
        trust = tls_of(address_of(server))
        assert trust is not None
        secrets.append(address_of(server).token)
        token = (await ask(server, "POST", "/api/v1/admin/logins", {"key": "ann"}))["token"]
        secrets.append(token)
        async with httpx.AsyncClient(base_url=server.url, verify=trust, trust_env=False) as http:
            origin = {"origin": server.url}
            assert (
                await http.post("/api/v1/login", json={"token": token}, headers=origin)
            ).status_code == 200
            secrets += list(dict(http.cookies).values())
            assert (await http.get("/api/v1/conversations")).status_code == 200
            ticket = await http.post("/api/v1/ticket", json={"origin": "https://a.example"}, headers=origin)
            secrets.append(ticket.json()["ticket"])
            for wrong in (f"{ann}x", f"{BRAND}wrong-secret", bob[:20]):
                assert (await http.get("/v1/models", headers=bearer(wrong))).status_code == 401
                secrets.append(wrong)
            body = {"model": "x", "messages": [{"role": "user", "content": "say:hello"}]}
            answer = await http.post("/v1/chat/completions", json=body, headers=bearer(bob) | origin)
            assert answer.status_code == 200
            strange = await http.post("/api/v1/login", json={"key": ann, "x": 1}, headers=origin)
            assert strange.status_code == 400
        uri = f"ws{server.url.removeprefix('http')}/ws?ticket={secrets[5]}"
        async with client_of(server, uri=uri, origin="https://a.example", ssl=trust) as client:
            await client.send(wire.Ping())
            await client.until(wire.Pong)
            await ask(server, "DELETE", "/api/v1/admin/keys/ann")
        await server.end()
        said = "\n".join(json.dumps(line) for line in server.lines) + await server.errors()
    assert "request" in said
    assert [secret for secret in secrets if secret in said] == []
    assert all(secret[20:] not in said for secret in secrets[:2])
