"""The commands, whole: against chatd, against a peer beside it, and on an engine alone."""

import asyncio
import errno
import functools
import io
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chatd.bench.drive import run_of
from chatd.bench.figures import figures
from chatd.bench.load import Load, Range
from chatd.bench.plan import plan
from chatd.bench.sockets import Place, ask_json
from chatd.bench.trial import ClosingTarget, measure
from chatd.bench.words import Wording
from chatd.cli.bench import deliver, show_serve
from chatd.cli.bench_facts import memory_of, server_facts
from chatd.cli.bench_screen import BenchScreen
from chatd.cli.bench_serve import Outcome, Side, as_json, bench, own_side, peer_side
from chatd.cli.bench_start import flags_of, temporary_server
from chatd.cli.connect import at
from chatd.errors import SetupError
from chatd.server.backend import ServiceSettings
from tests.bench_command.peers import peer_of
from tests.cli.commands import Run, run
from tests.cli.terminals import Terminal
from tests.support.accounts import caller
from tests.support.chat_lab import until
from tests.support.engines import ChecksumRunner
from tests.support.live_server import live_lab
from tests.support.toy_serve import toy_load

__all__ = ["run"]

BROKEN = (sys.executable, "-c", "raise SystemExit('chatd: --page-size is 3.')")
TOY = (sys.executable, "-m", "tests.support.toy_serve")
CPU = {"name": "x", "cores": 1, "threads": 1, "avx512": 0, "byte_products": 0, "bf16_products": 0}
FACTS: dict[str, Any] = {
    "server": {"url": "http://here", "model": {"name": "toy"}},
    "machine": {"cpu": CPU | {"matrix_unit": 0}, "gpus": [], "memory": 1 << 30},
}
MODEL = {"name": "toy", "context_length": 4096}
LOAD = Load(sessions=3, turns=2, shared_prefix_len=60, input_len=Range(8, 16), output_len=Range(5, 5), seed=4)
SMALL = ["--sessions", "2", "--turns", "2", "--shared-prefix-len", "50", "--input-len", "8-16"]


@pytest.fixture
def toy_start(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parent.parent.parent
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{root / 'kernels'}")
    started = functools.partial(temporary_server, command=TOY)
    monkeypatch.setattr("chatd.cli.bench.temporary_server", started)


def test_a_server_of_its_own_is_started_measured_and_gone(run: Run, toy_start: None, tmp_path: Path) -> None:
    code, text, err = run(
        "bench", "serve", "--start", *SMALL, "--output-len", "6", "--out", f"{tmp_path}/o.json"
    )
    assert (code, err) == (0, "")
    for words in ("over chatd.v1", "TTFT, later turns", "errors     none", "resident", "TTFT by turn"):
        assert words in text
    found = json.loads((tmp_path / "o.json").read_text("utf-8"))
    result = found["result"]
    assert (result["answered"], result["planned"], result["output_tokens"]) == (4, 4, 24)
    assert sum(result["origins"]["share"][name] for name in ("gpu_hit", "disk_hit", "computed")) == 1
    assert {"p50", "p90", "p99", "mean"} <= set(result["ttft_later"])
    assert found["load"] | {"seed": 0} == {
        "sessions": 2,
        "turns": 2,
        "shared_prefix_len": 50,
        "unique_prefix_len": [0, 0],
        "input_len": [8, 16],
        "output_len": [6, 6],
        "think_time_s": [0, 0],
        "request_rate": "inf",
        "seed": 0,
        "warm_up": 1,
    }
    assert {"chatd", "python", "torch"} <= set(found["versions"])
    assert found["machine"]["cpu"]["cores"] >= 1
    assert found["machine"]["memory"] > 1 << 28
    assert found["memory"]["resident_bytes"] > 1 << 20
    assert found["server"]["model"]["name"] == "toy"
    assert memory_of(found["server"]["pid"]) is None, "it has ended"


READY = """import signal; print('{"status": "ready"}', flush=True); signal.pause()"""
"""A server as far as whoever starts it can see."""


def end_in_the_middle(number: signal.Signals, folders: list[str]) -> None:
    with temporary_server([], lambda text: None, (sys.executable, "-c", READY)) as server:
        folders.append(server.url)
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_benchmark_that_is_ended_ends_its_server(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.cli.bench_start.live_server", lambda folder: at(str(folder)))
    folders: list[str] = []
    with pytest.raises(SystemExit) as end:
        end_in_the_middle(number, folders)
    assert end.value.code == 128 + number
    assert [Path(folder).exists() for folder in folders] == [False]


def test_a_server_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(SetupError, match=r"did not start: --page-size is 3\.$"),
        temporary_server([], lambda text: None, BROKEN),
    ):
        pass


def test_options_become_flags_of_serve() -> None:
    given: dict[str, object] = {"weights": "int8", "no_prefix_cache": True, "no_graphs": None, "disk": None}
    assert flags_of(given) == ["--weights", "int8", "--no-prefix-cache"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "No server has the data folder"),
        (["--url", "http://127.0.0.1:1"], "cannot be reached: nothing listens at that address"),
        (["--url", "http://192.0.2.1:80"], "not on this machine"),
        (["--url", "127.0.0.1:8000"], "no address such as"),
        (["--url", "http://127.0.0.1:1", "--against", "http://example.org"], "--allow-remote"),
        (["--start", "--url", "http://127.0.0.1:1"], "exclude each other"),
        (["--against-model", "m"], "goes with --against"),
        (["--no-prefix-cache"], "--no-prefix-cache is for a server that is started here"),
        (["--input-len", "9-3"], "it is 9-3, but a number or a range such as 32-128"),
        (["--request-rate", "0"], "a number above 0"),
        (["--sessions", "1001"], "1001"),
        (["--start", "--out", "/nowhere/o.json"], "there is no folder /nowhere"),
        (["--sessions", "1000", "--input-len", "900000"], "Take fewer sessions"),
    ],
)
def test_what_cannot_be_is_refused_in_one_message(run: Run, options: list[str], words: str) -> None:
    code, out, err = run("bench", "serve", *options)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())
    assert "Traceback" not in err


async def sides(own: str, peer: str | None, *, websocket: bool = False) -> tuple[Side, Side | None]:
    other = None if peer is None else await peer_side(peer, None)
    return own_side(at(own), "toy", websocket=websocket or peer is None), other


async def measured(own: Side, peer: Side | None, load: Load = LOAD, pairs: int = 2) -> Outcome:
    return await bench(
        load, own, peer, pairs=pairs, server=at(own.url), model=dict(MODEL), screen=BenchScreen()
    )


async def test_a_peer_gets_the_same_load_in_turn_and_is_compared(data_dir: Path) -> None:
    async with live_lab(data_dir, lab={}) as (server, _), peer_of() as other:
        own, peer = await sides(server.url, other.url + "/v1/")
        outcome = await measured(own, peer)
        found = json.loads(json.dumps(as_json(LOAD, own, peer, outcome)))
    console = Console(file=io.StringIO(), width=80, highlight=False)
    show_serve(console, FACTS | found, LOAD, own, peer, outcome)
    assert isinstance(console.file, io.StringIO)
    said = " ".join(console.file.getvalue().split())
    assert "over OpenAI /v1/chat/completions" in said
    assert "peer tiny at http://127.0.0.1:" in said
    assert "pairs 2, the peer first" in said
    assert "E2E p50" in said
    assert found["wire"] == "OpenAI /v1/chat/completions"
    assert (found["pairs"], found["peer"]["model"]) == (2, "tiny")
    assert found["ratios"]["e2e_p50"]["pairs"] == 2
    assert [one["output_tokens"] for side in ("peer", "chatd") for one in found["runs"][side]] == [30] * 4
    prompts = [[one["origins"]["prompt"] for one in found["runs"][side]] for side in ("peer", "chatd")]
    assert prompts[1][0] != prompts[1][1], "each pair has words of its own"
    texts = [body["messages"][0]["content"] for body in other.asked]
    assert len(set(texts)) == 2 + 1 + 2, "probes, the warm-up, and two pairs"


def test_figures_are_shown_although_they_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    shown: list[Console] = []
    assert not deliver({}, tmp_path / "o.json", False, shown.append)
    assert len(shown) == 1


def noted(side: Side, order: list[str]) -> Side:
    """``side``, with a note in ``order`` whenever it is to be driven."""

    def make(wording: Wording) -> ClosingTarget:
        order.append(side.name)
        return side.make(wording)

    return replace(side, make=make)


async def test_the_peer_comes_first_in_each_pair(data_dir: Path) -> None:
    order: list[str] = []
    async with live_lab(data_dir, lab={}) as (server, _), peer_of() as other:
        own, peer = await sides(server.url, other.url, websocket=True)
        assert peer is not None
        outcome = await measured(noted(own, order), noted(peer, order))
    assert own.wire == "chatd.v1"
    assert order[-4:] == ["peer", "chatd", "peer", "chatd"]
    assert outcome.own[0][1].origins.gpu_hit is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dislikes": "ignore_eos"}, r"Unknown field: ignore_eos\. It must take stream_options"),
        ({"usage": False}, "without usage"),
    ],
)
async def test_a_peer_that_cannot_take_the_load_is_told_of_at_once(
    data_dir: Path, options: dict[str, Any], words: str
) -> None:
    async with live_lab(data_dir, lab={}) as (server, _), peer_of(**options) as other:
        own, peer = await sides(server.url, other.url)
        with pytest.raises(SetupError, match=words):
            await measured(own, peer)


async def test_a_key_may_load_its_server_and_who_has_none_is_told_where_it_goes(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHATD_KEY", raising=False)
    async with live_lab(data_dir, lab={}) as (server, _):
        ann = await caller(server, "ann")
        with pytest.raises(SetupError, match=r"lets nobody in: .*taken from CHATD_KEY"):
            await asyncio.to_thread(server_facts, at(server.url))
        monkeypatch.setenv("CHATD_KEY", ann.secret)
        about = await asyncio.to_thread(server_facts, at(server.url))
        own, _ = await sides(server.url, None)
        outcome = await measured(own, None)
    assert about["model"] == {"name": "toy"}
    assert outcome.own[0][1].answered == 6


async def test_answers_that_end_early_are_counted(data_dir: Path) -> None:
    async with live_lab(data_dir, lab={}) as (server, _), peer_of(most=3) as other:
        own, peer = await sides(server.url, other.url)
        outcome = await measured(own, peer, pairs=1)
    assert (outcome.peers[0][1].short, outcome.own[0][1].short) == (6, 0)


async def test_no_peer_and_no_model_there_are_told_apart() -> None:
    with pytest.raises(SetupError, match=r"peer at http://127\.0\.0\.1:1 failed: nothing listens"):
        await peer_side("http://127.0.0.1:1", None)
    async with peer_of() as other:
        with pytest.raises(SetupError, match="http_404"):
            await peer_side(other.url + "/elsewhere", None)


async def test_a_load_beyond_the_context_is_refused_before_it_runs(data_dir: Path) -> None:
    async with live_lab(data_dir, lab={}) as (server, _):
        own, _ = await sides(server.url, None)
        with pytest.raises(SetupError, match="the model's context has 4,096"):
            await measured(own, None, Load(turns=40, input_len=Range(100, 100)))


async def test_refusals_while_it_runs_are_counted_by_code(data_dir: Path) -> None:
    runner = ChecksumRunner(1024, 16)
    runner.before_step = lambda plan: time.sleep(0.005)
    lab = {"runner": runner, "settings": ServiceSettings(max_open=1)}
    async with live_lab(data_dir, lab=lab) as (server, _):
        own, _ = await sides(server.url, None)
        outcome = await measured(own, None, replace(LOAD, sessions=5))
    ((run, found),) = outcome.own
    assert set(found.errors) == {"overloaded"}
    assert found.answered + found.errors["overloaded"] + found.skipped == 10 == run.over
    assert as_json(LOAD, own, None, outcome)["messages"]["overloaded"]


async def test_ctrl_c_ends_a_run_with_what_was_seen(data_dir: Path) -> None:
    runner = ChecksumRunner(1024, 16)
    runner.before_step = lambda plan: time.sleep(0.005)
    sessions = plan(replace(LOAD, output_len=Range(60, 60), turns=20))
    run = run_of(sessions)
    async with live_lab(data_dir, lab={"runner": runner}) as (server, _):
        own, _ = await sides(server.url, None)
        measuring = asyncio.create_task(measure(sessions, own.make(Wording()), run))
        await until(lambda: len(run.good) >= 3 and any(one.ended_at is None for one in run.answers))
        os.kill(os.getpid(), signal.SIGINT)
        await measuring
        left = await ask_json(Place(server.url), "GET", "/api/v1/conversations")
    assert run.interrupted
    found = figures(run)
    assert 3 <= found.answered < 60
    assert 1 <= found.unfinished <= 3
    assert left["conversations"] == []


@pytest.mark.full
async def test_ctrl_c_at_a_terminal(data_dir: Path) -> None:
    runner = ChecksumRunner(1024, 16)
    runner.before_step = lambda plan: time.sleep(0.01)
    options = ["--output-len", "150", "--turns", "8", "--sessions", "2", "--shared-prefix-len", "0"]
    async with (
        live_lab(data_dir, lab={"runner": runner}) as (server, _),
        Terminal("bench", "serve", "--url", server.url, *options) as person,
    ):
        await person.until("2/16")
        person.press_ctrl_c()
        await person.until("Interrupted")
        await person.until("unfinished")
        assert await person.exit_code() == 130


@pytest.fixture
def toy_engine_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatd.cli.loading.load", toy_load)


ENGINE = ["--batches", "1,3", "--decode-context", "40", "--decode-len", "10", "--prefill", "20,90", *SMALL]


def test_an_engine_is_measured_without_a_server(run: Run, toy_engine_load: None) -> None:
    code, out, err = run("bench", "engine", *ENGINE, "--output-len", "6", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert [(one["batch"], one["context_len"]) for one in found["decode"]] == [(1, 40), (3, 40)]
    assert all(one["tokens_per_s"] > 0 and one["steps"] >= 8 for one in found["decode"])
    assert [one["tokens"] for one in found["prefill"]] == [20, 90]
    turns = found["turns"]
    assert (turns["answered"], turns["output_tokens"]) == (4, 24)
    later = 2 * (50 + 6 - 1)
    assert turns["origins"]["gpu_hit"] >= later, "lengths are exact, and later turns hit"
    assert found["model"]["name"] == "toy"
    assert found["memory"]["resident_bytes"] > 1 << 20


def test_an_engines_parts_can_be_chosen(run: Run, toy_engine_load: None) -> None:
    code, out, _ = run("bench", "engine", *ENGINE, "--only", "prefill")
    assert code == 0
    assert "Prefill" in out
    assert "Decode" not in out
    assert "TTFT" not in out


def test_an_engine_bench_that_does_not_fit_is_refused(run: Run, toy_engine_load: None) -> None:
    code, _, err = run("bench", "engine", *ENGINE[:-8], "--prefill", "90000")
    assert code == 2
    assert "The part prefill wants 90,001 tokens" in " ".join(err.split())
    code, _, err = run("bench", "engine", "--batches", "60", "--decode-context", "4000", "--only", "decode")
    assert code == 2
    assert "the pool holds 65,536" in " ".join(err.split())
