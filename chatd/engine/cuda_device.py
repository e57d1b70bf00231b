"""A CUDA (or ROCm) device behind the seam. Nothing here decides anything."""

import torch
from torch import Tensor

from chatd.engine.device import Mark, Queue, Work


class CudaMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()


class CudaQueue:
    """A stream. Work is launched at once and runs in the stream's time."""

    def __init__(self, where: torch.device) -> None:
        self.stream: torch.cuda.Stream = torch.cuda.Stream(where)  # type: ignore[no-untyped-call]

    def run(self, work: Work) -> None:
        with torch.cuda.stream(self.stream), torch.inference_mode():
            work()

    def mark(self) -> Mark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return CudaMark(event)

    def follow(self, mark: Mark) -> None:
        assert isinstance(mark, CudaMark)
        self.stream.wait_event(mark.event)


class CudaDevice:
    """Neither queue is the default stream, so that neither waits for it.

    Make it after weights and pool: it waits once for all that made them.
    """

    overlaps = True

    def __init__(self, where: torch.device) -> None:
        self._where = where
        self._main = CudaQueue(where)
        self.main: Queue = self._main
        self.side: Queue = CudaQueue(where)
        self._graphs_memory = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(where)

    def host(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def mirror(self, host: Tensor) -> Tensor:
        # From the main stream's memory: what that held before is over once its next work begins.
        with torch.cuda.stream(self._main.stream):
            return torch.empty_like(host, device=self._where)

    def zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        with torch.cuda.stream(self._main.stream):
            return torch.zeros(shape, dtype=dtype, device=self._where)

    def capture(self, work: Work) -> Work:
        # Outside of the capture first: kernels are compiled and libraries make their workspaces then.
        self.main.run(work)
        torch.cuda.synchronize(self._where)
        graph = torch.cuda.CUDAGraph()
        with (
            torch.inference_mode(),
            torch.cuda.graph(
                graph,
                pool=self._graphs_memory,
                stream=self._main.stream,
                capture_error_mode="thread_local",  # others may use CUDA meanwhile
            ),
        ):
            work()
        return graph.replay
