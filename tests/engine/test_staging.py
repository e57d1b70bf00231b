"""Inputs of a step: what is placed arrives, and nothing lies on anything else."""

import numpy as np
import torch

from chatd.engine.device import Device, InlineDevice
from chatd.engine.staging import ALIGN_BYTES, CHUNK_BYTES, Stage
from tests.support.late_device import LateDevice

SHAPES = ((3,), (0,), (7, 5), (1,), (CHUNK_BYTES // 8 - 1,), (2, CHUNK_BYTES // 4), (1, 1), (4096,))
KINDS = (np.int64, np.int32, np.float32)


def arrays(seed: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    random = np.random.default_rng(seed)
    found = [random.integers(1, 1000, shape).astype(KINDS[i % 3]) for i, shape in enumerate(SHAPES)]
    return [*found, np.arange(20).reshape(4, 5)[:, ::2]]


def test_what_is_placed_arrives_with_the_upload() -> None:
    """More than a chunk of it, twice in the same memory, on a device of its own memory and on one without."""
    devices: list[Device] = [InlineDevice(), LateDevice(0)]
    for device in devices:
        stage = Stage(device)
        for seed in (1, 2):
            stage.clear()
            sent = arrays(seed)
            tensors = [stage.place(array) for array in sent]
            stage.upload()
            for array, tensor in zip(sent, tensors, strict=True):
                assert tensor.shape == array.shape
                assert np.array_equal(tensor.numpy(), array)
                assert tensor.data_ptr() % ALIGN_BYTES == 0


def test_a_device_with_its_own_memory_has_nothing_before_the_upload() -> None:
    stage = Stage(LateDevice(0))
    tensor = stage.place(np.arange(5))
    assert tensor.tolist() != [0, 1, 2, 3, 4]
    stage.upload()
    assert tensor.tolist() == [0, 1, 2, 3, 4]


def test_ids_have_room_for_any_number() -> None:
    stage = Stage(InlineDevice())
    for count in (3, 100, 1, 0):
        ids = stage.ids(count)
        assert (ids.shape, ids.dtype) == ((count,), torch.int64)
    assert stage.ids(100).data_ptr() == stage.ids(1).data_ptr()
