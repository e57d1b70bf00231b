"""Threads of our own, and lists of kernels that are run again in one call."""

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from chatd_kernels.cpu import CpuOps, crew, team
from tests.kernels.cpu.conftest import REFERENCE

pytestmark = pytest.mark.skipif(not crew.can_help(), reason="no such threads on this system")


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    team.use_own_threads(True)
    yield
    torch.set_num_threads(before)
    team.use_own_threads(True)


def product(cpu: CpuOps, x: torch.Tensor) -> torch.Tensor:
    return cpu.silu_mul(cpu.silu_mul(x))


def right(x: torch.Tensor) -> torch.Tensor:
    return REFERENCE.silu_mul(REFERENCE.silu_mul(x))


def many(seed: int = 0) -> torch.Tensor:
    """Enough for more than one thread."""
    return torch.randn(64, 1024, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_any_number_of_threads(cpu: CpuOps, count: int) -> None:
    torch.set_num_threads(count)
    for seed in range(20):
        torch.testing.assert_close(product(cpu, many(seed)), right(many(seed)))


def test_callers_on_several_threads(cpu: CpuOps) -> None:
    """Who finds the helpers taken works alone."""
    wrong: list[int] = []

    def work(seed: int) -> None:
        torch.set_num_threads(2)
        x = many(seed)
        want = right(x)
        wrong.extend(seed for _ in range(200) if not torch.allclose(product(cpu, x), want, atol=1e-5))

    callers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_a_recording_is_run_again_over_what_its_inputs_hold_then(cpu: CpuOps) -> None:
    x = many()
    with team.recording(team.Arena()) as calls:
        out = product(cpu, x)
    torch.testing.assert_close(out, right(x))
    for seed in (1, 2):
        x.copy_(many(seed))
        calls.replay()
        torch.testing.assert_close(out, right(x))


def test_memory_of_a_recording_is_used_again_when_no_view_of_it_is_left() -> None:
    arena = team.Arena()
    first = arena.empty((100, 50), torch.float32)
    at, view = first.data_ptr(), first[3:].view(-1)
    del first
    assert arena.empty((100, 50), torch.float32).data_ptr() != at
    del view
    assert arena.empty((5000,), torch.bfloat16).data_ptr() != at  # of another size
    assert arena.empty((50, 100), torch.float32).data_ptr() == at


def test_a_child_process_begins_helpers_of_its_own(cpu: CpuOps) -> None:
    x, want = many(), right(many())
    torch.testing.assert_close(product(cpu, x), want)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(product(cpu, x).isfinite().all(), torch.tensor(True)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_torchs_own_threads_do_as_well(cpu: CpuOps) -> None:
    team.use_own_threads(False)
    torch.testing.assert_close(product(cpu, many()), right(many()))
    with pytest.raises(AssertionError), team.recording(team.Arena()):
        pass
