"""What a newcomer gets: every default there is, `auto` for weights and kernels, over a restart."""

from pathlib import Path
from typing import Any

import pytest
import torch

from chatd.model.load import open_model, weight_form
from chatd.server import protocol as wire
from tests.cli.servers import ChatdProcess
from tests.e2e.processes import client_of, until_at_rest, verify

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]  # the kernels may have to be compiled first

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


class AsItComes(ChatdProcess):
    """Neither formats nor sizes are chosen."""

    extra = {"CHATD_KERNELS": "auto", "CHATD_WEIGHTS": "auto"}  # noqa: RUF012 - other tests choose here

    def __init__(self, data_dir: Path, model: Path) -> None:
        super().__init__(data_dir, model)
        at = self._options.index("--kv-bytes")
        del self._options[at : at + 2]


async def ask(server: ChatdProcess, text: str, at: str | None = None) -> tuple[wire.AnyEnding, str]:
    async with client_of(server) as client:
        created = await client.start(text, conversation_id=at, params=GREEDY)
        return await client.ending(created.response_id), client.text[created.response_id]


async def test_three_turns_and_a_restart_with_the_defaults(data_dir: Path, model_path: Path) -> None:
    async with AsItComes(data_dir, model_path) as server:
        ready = await server.until("ready")
        form = weight_form("auto", torch.device("cpu"), open_model(model_path))
        assert (ready["kernels"], ready["weights"]) == ("cpu", form.name)
        first, text = await ask(server, "What is the capital of France? Answer briefly.")
        assert "Paris" in text
        at = first.conversation_id
        second, text = await ask(server, "And what is the capital of Italy?", at)
        assert "Rome" in text
        assert second.usage.gpu_hit >= first.usage.total_tokens - 1
        await until_at_rest(server, 10)
        assert await server.end() == 0
    async with AsItComes(data_dir, model_path) as server:
        await server.until("ready")
        third, text = await ask(server, "And of Spain?", at)
        assert "Madrid" in text
        kept = second.usage.total_tokens - 1
        assert third.usage.gpu_hit == 0
        assert third.usage.disk_hit == kept // 64 * 64 > 0  # whole blocks
        assert await server.end() == 0
    verdict = await verify(data_dir)
    assert (verdict["runs"], verdict["responses"]) == (2, 3)
