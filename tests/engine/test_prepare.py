"""What a start decides: kernels, the pool's size, graphs; and what is said where memory does not suffice."""

from typing import Any

import pytest
import torch

import chatd.engine.prepare as module
from chatd.engine.prepare import RunnerSettings, backend, backend_name, prepare
from chatd.engine.runner import TorchRunner
from chatd.errors import SetupError
from chatd.model.memory import AUTO_CPU_BYTES, GPU_RESERVE_BYTES, auto_kv_bytes, step_bytes
from chatd.model.weights import Weights
from chatd_kernels import has_fast_cpu_kernels
from chatd_kernels.reference import ReferenceOps
from tests.support.driving import CPU, weights_of
from tests.support.late_device import LateDevice
from tests.support.tiny_models import write_folder

CUDA = torch.device("cuda")
SETTINGS = RunnerSettings(
    torch.float32, context_length=256, step_tokens=32, max_running=6, kv_bytes=1 << 20, kernels="reference"
)


class CapturingOps(ReferenceOps):
    """Passes for a backend that reads nothing back: a graph is replayed by running its work again."""

    captures = True


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return weights_of(write_folder(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card: a device that overlaps, and kernels that can be captured."""
    monkeypatch.setattr(module, "device_for", lambda where: LateDevice(1))
    monkeypatch.setattr(module, "load_backend", lambda name: CapturingOps())


def told(progress: list[tuple[float, str]]) -> Any:
    return lambda share, what: progress.append((share, what))


def test_kernels_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert backend_name("reference", CPU) == "reference"
    assert backend_name("auto", CPU) == ("cpu" if has_fast_cpu_kernels() else "reference")
    assert backend_name("auto", CUDA) == backend_name("triton", CUDA) == "triton"
    assert backend_name("reference", CUDA) == "reference"
    with pytest.raises(SetupError, match=r"--kernels is triton.*on a CPU.*reference"):
        backend_name("triton", CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend_name("triton", CPU) == "triton"


def test_kernels_that_cannot_be_loaded_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError("no module named triton")

    monkeypatch.setattr(module, "load_backend", refuse)
    with pytest.raises(SetupError, match=r"triton kernels cannot be used here: no module.*--kernels ref"):
        backend("auto", CUDA)


def test_on_a_cpu_a_first_step_is_run_over_the_scratch_page(weights: Weights) -> None:
    progress: list[tuple[float, str]] = []
    prepared = prepare(weights, SETTINGS, told(progress))
    assert (prepared.kernels, prepared.graphs, prepared.graph_bytes) == ("reference", (), 0)
    assert [what for _, what in progress] == ["running a first step"]
    assert not prepared.runner.pool.raw[: prepared.kv.num_pages].any()
    assert prepared.runner.pool.raw[prepared.kv.num_pages].any()
    assert prepared.kv.num_pages == (1 << 20) // prepared.runner.pool.page_bytes
    assert not prepared.runner.overlaps


@pytest.mark.usefixtures("card")
def test_on_a_card_a_step_is_run_and_decodes_are_captured(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([1000, 900])
    monkeypatch.setattr(module, "free_memory", lambda where: next(free))
    progress: list[tuple[float, str]] = []
    prepared = prepare(weights, SETTINGS, told(progress))
    assert prepared.graphs == (1, 2, 4, 6)
    assert prepared.graph_bytes == 100
    assert [what for _, what in progress] == [
        "running a first step",
        *(f"capturing decode steps, graph {i} of 4" for i in (1, 2, 3, 4)),
    ]
    assert [share for share, _ in progress] == sorted(share for share, _ in progress)
    assert prepared.runner.overlaps


@pytest.mark.usefixtures("card")
def test_graphs_only_where_wanted_and_possible(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    without = RunnerSettings(torch.float32, 256, 32, 6, kv_bytes=1 << 20, graphs=False)
    assert prepare(weights, without, told([])).graphs == ()
    monkeypatch.setattr(module, "load_backend", lambda name: ReferenceOps())
    assert prepare(weights, SETTINGS, told([])).graphs == ()


def test_the_pool_takes_a_share_and_leaves_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < auto_kv_bytes(CPU, 0.85, 0) <= AUTO_CPU_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 << 30, 140 << 30))
    assert auto_kv_bytes(CUDA, 0.85, 1 << 30) == int(0.85 * (100 << 30))
    assert auto_kv_bytes(CUDA, 0.99, 4 << 30) == (96 << 30) - GPU_RESERVE_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 28, 140 << 30))
    assert auto_kv_bytes(CUDA, 0.85, 0) == 0


def test_a_steps_tensors_are_counted(weights: Weights) -> None:
    small = step_bytes(weights.config, torch.float32, 1, 1)
    assert step_bytes(weights.config, torch.float32, 2, 1) > small
    assert step_bytes(weights.config, torch.float32, 1, 2) - small == 300 * (4 + 8)


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("where", "method", "doing"),
    [
        ("KVPool", "__init__", "the KV pool was made"),
        ("TorchRunner", "__init__", "the KV pool was made"),
        ("TorchRunner", "warm_up", "the first step was run"),
        ("TorchRunner", "capture", "decode steps were captured"),
    ],
)
def test_running_out_of_memory_says_when_and_what_to_lower(
    weights: Weights, monkeypatch: pytest.MonkeyPatch, where: str, method: str, doing: str
) -> None:
    def run_out(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(getattr(module, where), method, run_out)
    with pytest.raises(SetupError) as caught:
        prepare(weights, SETTINGS, told([]))
    message = caught.value.message
    assert f"while {doing}" in message
    assert "MiB are free" in message
    for flag in ("--kv-bytes", "--kv-share", "--context-length", "--max-running"):
        assert flag in message
    assert ("--no-graphs" in message) == (method == "capture")


@pytest.mark.usefixtures("card")
def test_a_share_that_holds_no_two_pages_says_so(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "auto_kv_bytes", lambda where, share, needed: 0)
    settings = RunnerSettings(torch.float32, 256, 32, 6)
    with pytest.raises(SetupError, match=r"0 bytes are there for KV.*two pages"):
        prepare(weights, settings, told([]))


@pytest.mark.usefixtures("card")
def test_a_failure_that_is_not_memory_is_not_hidden(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("misaligned address")

    monkeypatch.setattr(TorchRunner, "warm_up", fail)
    with pytest.raises(RuntimeError, match="misaligned"):
        prepare(weights, SETTINGS, told([]))
