"""Stored answers computed again: what is the same, what rounding explains, what is wrong, what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chatd.cli.replay import LOGIT_TOLERANCE, Replayer, StoredTurn
from chatd.cli.replay_model import open_replayer, stored_turn
from chatd.config import load_settings
from chatd.engine.messages import SamplingParams
from chatd.engine.plan import StepPlan
from chatd.errors import SetupError
from chatd.ids import ResponseId, Rid
from chatd.model.weights import Weights
from chatd.store.records import ReplayTurn
from chatd.store.store import Store
from chatd_kernels import load_backend
from tests.cli.servers import ChatdProcess
from tests.cli.terminals import piped
from tests.store.scribe import NS, Scribe, asked, ids_of, opened, said
from tests.support.driving import Driver, weights_of
from tests.support.tiny_models import write_folder

PROMPT = [7, 50, 3, 41, 120, 8, 250, 11] * 5
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.7, seed=11)
EDITED = SamplingParams(temperature=0.7, seed=3, repetition_penalty=1.3, logit_bias=((17, 2.0),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"))


def generated(weights: Weights, params: SamplingParams, count: int = 40) -> StoredTurn:
    """An answer as an engine makes it: the prompt in chunks, then one token a step."""
    driver = Driver(weights, 1, 256)
    ids = list(PROMPT)
    [token] = _step(driver, ids, 0, len(ids), params)
    for _ in range(count):
        ids.append(token)
        [token] = _step(driver, ids, len(ids) - 1, 1, params)
    return StoredTurn(ResponseId("r"), tuple(ids), len(PROMPT), params)


def _step(driver: Driver, ids: list[int], start: int, count: int, params: SamplingParams) -> list[int]:
    row = replace(driver.row(0, ids, start, count, params, prompt_len=len(PROMPT)), rid=Rid("r"))
    return driver.runner.launch(StepPlan([], [row])).wait()


def replayer(weights: Weights, *, exact: bool) -> Replayer:
    return Replayer(weights, weights.dtype, load_backend("reference"), 16, exact=exact)


@pytest.mark.parametrize("params", [GREEDY, DRAWN, EDITED], ids=["greedy", "drawn", "edited"])
def test_in_float32_every_id_is_the_same(folder: Path, params: SamplingParams) -> None:
    weights = weights_of(folder)
    turn = generated(weights, params)
    assert replayer(weights, exact=True).compare(turn) == []


def test_long_prompts_go_in_chunks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of(folder)
    turn = generated(weights, DRAWN)
    for chunk in (1, 7, len(PROMPT), len(PROMPT) + 1):
        monkeypatch.setattr("chatd.cli.replay.CHUNK", chunk)
        assert replayer(weights, exact=True).compare(turn) == []


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_changed_id_is_wrong_and_named(folder: Path, params: SamplingParams) -> None:
    weights = weights_of(folder)
    turn = generated(weights, params)
    at = turn.prompt_len + 20
    ids = list(turn.ids)
    ids[at] = (ids[at] + 1) % 300
    [first, *_] = replayer(weights, exact=True).compare(replace(turn, ids=tuple(ids)))
    assert (first.position, first.stored, first.computed) == (at, ids[at], turn.ids[at])
    assert first.is_wrong


def test_what_rounding_may_do_is_bounded(folder: Path) -> None:
    """In bf16 an id may differ where the logits are close, and nowhere else."""
    weights = weights_of(folder, torch.bfloat16)
    coarse = replayer(weights, exact=False)
    turns = [generated(weights, params) for params in (GREEDY, DRAWN, replace(DRAWN, seed=5))]
    assert not [one for turn in turns for one in coarse.compare(turn) if one.is_wrong]
    turn = turns[0]
    far = [one for token in range(0, 300, 30) for one in coarse.compare(_with(turn, token))]
    wrong = [one for one in far if one.position == len(turn.ids) - 1 and one.is_wrong]
    assert len(wrong) >= 8
    assert all(one.distance > 2 * LOGIT_TOLERANCE == one.allowed for one in wrong)


def _with(turn: StoredTurn, last: int) -> StoredTurn:
    return replace(turn, ids=(*turn.ids[:-1], last))


def test_filters_are_known() -> None:
    turn = StoredTurn(ResponseId("r"), (1, 2), 1, DRAWN)
    filters: list[dict[str, Any]] = [{"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}]
    assert not turn.has_filters
    assert all(replace(turn, params=replace(DRAWN, **one)).has_filters for one in filters)
    assert not any(replace(turn, params=replace(GREEDY, **one)).has_filters for one in filters)


# -- which answers, and with what


PARAMS = (
    '{"temperature":0.5,"top_p":1.0,"top_k":0,"min_p":0.0,"repetition_penalty":1.0,"presence_penalty":0.0,'
    '"frequency_penalty":0.0,"logit_bias":{"5":1.5},"seed":9,"max_tokens":4,"stop":[],"miss":""}'
)


async def stored(store: Store, name: str, *, model: str, formats: str) -> ReplayTurn:
    scribe = await Scribe.begin(store)
    question = replace(
        asked(name, *said(("user", "0123456789"))),
        model=model,
        backend="reference/cpu",
        formats=formats,
        params_json=PARAMS,
    )
    await scribe.answer(question, "abcd", reason="length")
    [turn] = await store.newest_turns(1)
    return turn


async def test_turns_come_with_their_ids(data_dir: Path) -> None:
    async with opened(data_dir) as store:
        turn = await stored(store, "r1", model="toy", formats="f")
        assert turn.token_ids == ids_of("0123456789abcd")
        assert turn.answer_len == 4
        made = stored_turn(turn)
        assert (made.prompt_len, made.params.seed, made.params.logit_bias) == (10, 9, ((5, 1.5),))
        scribe = await Scribe.begin(store)
        more = await scribe.answer(asked("r2", *said(("user", "0123456789"))), "xy", reason="cancelled")
        assert [one.response.id for one in await store.newest_turns(9)] == ["r2", "r1"]
        await store.delete(NS, more.conversation_id)
        assert [one.response.id for one in await store.newest_turns(9)] == ["r1"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda model, formats: ("other", formats), "the model"),
        (lambda model, formats: (model, formats.replace("float32", "bfloat16", 1)), "the formats"),
        (lambda model, formats: (model, ""), "unknown then"),
    ],
    ids=["model", "formats", "before they were kept"],
)
async def test_a_mismatch_is_refused(
    data_dir: Path, folder: Path, change: Callable[[str, str], tuple[str, str]], named: str
) -> None:
    settings = load_settings(
        {"model": str(folder), "weights": "fp32", "kernels": "reference", "data_dir": str(data_dir)}, {}
    )
    right = (folder.name, "weights=float32 kv=float32 page=16")
    async with opened(data_dir) as store:
        good = await stored(store, "r1", model=right[0], formats=right[1])
        assert open_replayer(settings, [good], lambda share, what: None).exact
        model, formats = change(*right)
        bad = replace(good, response=replace(good.response, model=model, formats=formats))
        with pytest.raises(SetupError, match=named):
            open_replayer(settings, [good, bad], lambda share, what: None)


@pytest.mark.full
@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["fp32", "bf16"])
async def test_a_real_chat_computed_again(data_dir: Path, model_path: Path, form: str) -> None:
    """Turns that hit memory, turns that came back from disk, greedy ones and drawn ones."""
    folder = ["--data-dir", str(data_dir)]
    for _ in range(2):
        async with ChatdProcess(data_dir, model_path, "--weights", form) as server:
            await server.until("ready")
            for options in (["--temperature", "0"], ["--temperature", "1"], ["--last"]):
                asked = ["chat", *folder, "--max-tokens", "60", *options]
                assert (await piped(asked, "Tell me a long story about the sea. "))[0] == 0
            assert await server.end() == 0
    replay = ["cache", "verify", "--replay", "6", "--json", "--model", str(model_path), "--weights", form]
    code, out, err = await piped([*replay, *folder])
    assert code == 0, out + err
    replayed = json.loads(out)["replay"]
    assert (replayed["turns"], replayed["exact"]) == (6, form == "fp32")
    assert replayed["tokens"] > 200
    if replayed["exact"]:
        assert replayed["differing"] == []
