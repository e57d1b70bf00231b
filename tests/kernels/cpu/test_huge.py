"""Arrays in large pieces of memory."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from chatd_kernels.cpu.huge import ALIGN, SLAB_BYTES, Slabs


def test_arrays_are_aligned_and_each_its_own() -> None:
    """From several threads, as weights are read, and over the ends of slabs."""
    slabs = Slabs()
    with ThreadPoolExecutor(4) as pool:
        arrays = list(pool.map(lambda i: slabs.empty((7, 11 + i, 4096)), range(60)))
    assert sum(one.nbytes for one in arrays) > 3 * SLAB_BYTES
    for i, one in enumerate(arrays):
        assert one.ctypes.data % ALIGN == 0
        one[...] = i
    assert all((one == i).all() for i, one in enumerate(arrays))


def test_what_is_larger_than_a_slab_has_room() -> None:
    slabs = Slabs()
    small, large = slabs.empty((3,)), slabs.empty((SLAB_BYTES + 1,))
    large[-1], small[0] = 5, 6
    assert large.dtype == np.uint8
    assert (large[-1], small[0]) == (5, 6)
