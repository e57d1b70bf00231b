"""Pages between the device and host buffers: one block of raw page records a buffer, as many as there are.

    spill      main: gather records into the buffer's device staging   ->  side: staging to host
    restore    mark in main                                            ->  side: host to staging, scatter

A spill's pages may so be overwritten by the same step. A restored page may still be written by the step under
way, which has nothing to do with its new owner any more: hence the mark.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chatd.cache.block_tier import BLOCK_LEN
from chatd.engine.device import Device, Mark, copy_bytes
from chatd.engine.plan import HostBuffer, PageRestore, PageSpill
from chatd.model.kv_pool import KVPool
from chatd_kernels.ops import Ops

BUFFERS = 8
BUFFERS_BYTES = 64 << 20
"""There are as many buffers as this holds, and at least the number above."""


class _Block:
    """A block's bytes on the host, their staging on the device, and the numbers of its pages on both."""

    def __init__(self, device: Device, pages: int, page_bytes: int) -> None:
        self.host = device.host(pages * page_bytes)
        self.staging = device.mirror(self.host)
        self._numbers_host = device.host(8 * pages)
        self._numbers = device.mirror(self._numbers_host)
        self._pages = pages

    def host_records(self, skip: int, count: int) -> Tensor:
        return self.host.view(self._pages, -1)[skip : skip + count]

    def records(self, skip: int, count: int) -> Tensor:
        return self.staging.view(self._pages, -1)[skip : skip + count]

    def numbers(self, pages: Sequence[int]) -> Callable[[], Tensor]:
        """Work that gives the numbers on the device."""
        source = self._numbers_host[: 8 * len(pages)]
        target = self._numbers[: 8 * len(pages)]
        source.view(torch.int64).copy_(torch.tensor(pages))

        def upload() -> Tensor:
            copy_bytes(source, target)
            return target.view(torch.int64)

        return upload


class BlockBuffer:
    """`HostBuffer`: the right to use a block until `release`, which calls ``give_back`` with it once."""

    def __init__(self, block: _Block, give_back: Callable[[_Block], None]) -> None:
        self._held = [block]
        self._give_back = give_back

    @property
    def block(self) -> _Block:
        assert self._held, "a buffer was used after its release"
        return self._held[0]

    @property
    def view(self) -> memoryview:
        return self.block.host.numpy().data.cast("B")

    def release(self) -> None:
        # Popping is atomic: of two threads one finds nothing.
        with contextlib.suppress(IndexError):
            self._give_back(self._held.pop())


class BlockBuffers:
    """A bounded number of buffers, made when they are first needed."""

    def __init__(self, device: Device, page_size: int, page_bytes: int) -> None:
        self._device = device
        self._shape = (BLOCK_LEN // page_size, page_bytes)
        self.block_bytes = self._shape[0] * page_bytes
        self._unmade = max(BUFFERS, BUFFERS_BYTES // self.block_bytes)
        self._free: list[_Block] = []

    def take(self) -> BlockBuffer | None:
        """Called by one thread; buffers may come back from any."""
        try:
            block = self._free.pop()
        except IndexError:
            if not self._unmade:
                return None
            self._unmade -= 1
            block = _Block(self._device, *self._shape)
        return BlockBuffer(block, self._free.append)


class PageMoves:
    """Spills and restores under way, and their tickets in the order in which they began."""

    def __init__(self, pool: KVPool, ops: Ops, device: Device) -> None:
        self._raw = pool.raw
        self._ops = ops
        self._device = device
        self._under_way: deque[tuple[int, Mark]] = deque()
        self.buffers = BlockBuffers(device, pool.page_size, pool.page_bytes)

    def begin(self, spills: Sequence[PageSpill], restores: Sequence[PageRestore]) -> None:
        """Before anything else of the step is given to the main queue."""
        for spill in spills:
            self._spill(spill, _block_of(spill.buffer))
        if restores:
            # After the gathers: a page may be spilled and restored to in one step.
            self._device.side.follow(self._device.main.mark())
        for restore in restores:
            self._restore(restore, _block_of(restore.buffer))

    def done(self, *, wait: bool) -> list[int]:
        """See `Runner.copies_done`."""
        if wait and self._under_way:
            self._under_way[0][1].wait()
        tickets = []
        while self._under_way and self._under_way[0][1].done():
            tickets.append(self._under_way.popleft()[0])
        return tickets

    def _spill(self, spill: PageSpill, block: _Block) -> None:
        device, numbers = self._device, block.numbers(spill.pages)
        records = block.records(0, len(spill.pages))

        def gather() -> None:
            self._ops.gather_pages(self._raw, numbers(), records)

        device.main.run(gather)
        device.side.follow(device.main.mark())
        device.side.run(lambda: copy_bytes(block.staging, block.host))
        self._under_way.append((spill.ticket, device.side.mark()))

    def _restore(self, restore: PageRestore, block: _Block) -> None:
        numbers, count = block.numbers(restore.pages), len(restore.pages)
        source, records = block.host_records(restore.skip, count), block.records(restore.skip, count)

        def scatter() -> None:
            copy_bytes(source, records)
            self._ops.scatter_pages(self._raw, numbers(), records)

        self._device.side.run(scatter)
        self._under_way.append((restore.ticket, self._device.side.mark()))


def _block_of(buffer: HostBuffer) -> _Block:
    assert isinstance(buffer, BlockBuffer), "buffers come from take_buffer"
    return buffer.block
