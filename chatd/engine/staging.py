"""What one step sends to the device and gets back from it, in memory that is used again for later steps."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatd.engine.device import Device, copy_bytes

CHUNK_BYTES = 1 << 20
ALIGN_BYTES = 16
_TYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
}


class _Chunk:
    def __init__(self, device: Device, nbytes: int) -> None:
        self.nbytes = nbytes
        self.host = device.host(nbytes)
        self.mirror = device.mirror(self.host)
        self.arrays = {kind: self.host.numpy().view(kind) for kind in _TYPES}
        self.tensors = {kind: self.mirror.view(dtype) for kind, dtype in _TYPES.items()}
        self.used = 0

    @property
    def room(self) -> int:
        return self.nbytes - self.used


class Stage:
    """One step's inputs side by side, so that they go over in one copy; and its ids.

    The host writes with `place` at launch; `upload` is work of the main queue. Not to be cleared before the
    step is over.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._chunks = [_Chunk(device, CHUNK_BYTES)]
        self._ids = device.host(0).view(torch.int64)

    def place(self, array: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
        """A tensor on the device, of the array's shape and type, that holds it once `upload` has run."""
        chunk = self._chunk(array.nbytes)
        begin = chunk.used // array.itemsize
        end = begin + array.size
        chunk.arrays[array.dtype][begin:end] = array.reshape(-1)
        chunk.used += -(-array.nbytes // ALIGN_BYTES) * ALIGN_BYTES
        tensor = chunk.tensors[array.dtype][begin:end]
        return tensor if array.ndim == 1 else tensor.view(array.shape)

    def ids(self, count: int) -> Tensor:
        """int64 ``[count]`` on the host, for the step's ids."""
        if len(self._ids) < count:
            self._ids = self._device.host(8 * max(count, 64)).view(torch.int64)
        return self._ids[:count]

    def upload(self) -> None:
        for chunk in self._chunks:
            if chunk.used:
                copy_bytes(chunk.host[: chunk.used], chunk.mirror[: chunk.used])

    def clear(self) -> None:
        for chunk in self._chunks:
            chunk.used = 0

    def _chunk(self, nbytes: int) -> _Chunk:
        for chunk in self._chunks:
            if chunk.room >= nbytes:
                return chunk
        self._chunks.append(_Chunk(self._device, max(CHUNK_BYTES, -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES)))
        return self._chunks[-1]
