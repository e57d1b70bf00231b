"""From logits to an id, a row on a thread; see `sampling`.

Top-k and top-p look at few tokens: weights at least a threshold are put aside, largest weights first in
mind, and only they are sorted. The threshold falls until enough were put aside.
"""

from typing import Any

from chatd_kernels.cpu.norm_kernels import reader
from chatd_kernels.cpu.simd import (
    LANES,
    at_least,
    bits_of,
    device,
    exp,
    floats,
    larger,
    largest,
    load,
    load_f32,
    load_f64,
    load_i64,
    lowest_bit,
    select,
    splat,
    store,
    store_f32,
    store_f64,
    store_i64,
    take,
    total,
)

NOTHING = float("-inf")
BLOCK = 256
"""As in `reference`: running sums go over sums of blocks, then within one."""
FIRST_FLOOR = 2.0**-5
NEXT_FLOOR = 2.0**-3
"""Weights put aside at first, and by how much the threshold falls when they do not suffice."""


def make_sample(dtype: str) -> Any:
    """Argument: see `sampling.sample`."""
    f32 = floats(LANES)
    size = 2 if dtype == "bf16" else 4
    read = reader(dtype, LANES)

    @device
    def widen(logits, vocab, out):  # type: ignore[no-untyped-def]
        """To float32. ``vocab`` is a multiple of 16."""
        for i in range(0, vocab, LANES):
            store(out + i * 4, read(logits + i * size))

    @device
    def edit(out, tokens, repetition, offset, begin, end):  # type: ignore[no-untyped-def]
        for i in range(begin, end):
            at = out + load_i64(tokens + i * 8) * 4
            old, factor = load_f32(at), load_f32(repetition + i * 4)
            new = old / factor if old > 0 else old * factor
            store_f32(at, new + load_f32(offset + i * 4))

    @device
    def peak_of(values, vocab):  # type: ignore[no-untyped-def]
        """Minus infinity if there is a NaN."""
        top, bad = splat(f32, NOTHING), splat(f32, 0.0)
        for i in range(0, vocab, LANES):
            x = load(f32, values + i * 4)
            top = larger(x, top)
            bad = select(at_least(x, x), bad, splat(f32, 1.0))
        if total(bad) > 0:
            return total(bad) * NOTHING
        return largest(top)

    @device
    def first_of(values, vocab, peak):  # type: ignore[no-untyped-def]
        """Lowest index whose value is at least ``peak``."""
        for i in range(0, vocab, LANES):
            found = bits_of(at_least(load(f32, values + i * 4), splat(f32, peak)))
            if found:
                return i + lowest_bit(found)
        return 0

    @device
    def weigh(values, vocab, peak, warmth):  # type: ignore[no-untyped-def]
        """In place: weights, of which the largest is 1."""
        for i in range(0, vocab, LANES):
            x = load(f32, values + i * 4) - splat(f32, peak)
            store(values + i * 4, exp(f32, x / splat(f32, warmth)))

    @device
    def block_sum(values, begin, end, floor):  # type: ignore[no-untyped-def]
        """Of the weights that are at least ``floor``, all of one block."""
        summed, least, none = splat(f32, 0.0), splat(f32, floor), splat(f32, 0.0)
        for i in range(begin, end, LANES):
            x = load(f32, values + i * 4)
            summed = summed + select(at_least(x, least), x, none)
        return float(total(summed))

    @device
    def sum_of(values, vocab, floor):  # type: ignore[no-untyped-def]
        summed = 0.0
        for begin in range(0, vocab, BLOCK):
            summed += block_sum(values, begin, min(begin + BLOCK, vocab), floor)
        return summed

    @device
    def put_aside(values, vocab, floor, below, out, count):  # type: ignore[no-untyped-def]
        """Weights from ``floor`` to less than ``below`` behind the ``count`` that are there; how many then are."""
        for i in range(0, vocab, LANES):
            x = load(f32, values + i * 4)
            found = bits_of(at_least(x, splat(f32, floor)))
            while found:
                value = load_f32(values + (i + lowest_bit(found)) * 4)
                found &= found - 1
                if value < below:
                    store_f32(out + count * 4, value)
                    count += 1
        return count

    @device
    def sink(heap, at, count):  # type: ignore[no-untyped-def]
        value = load_f32(heap + at * 4)
        while True:
            child = 2 * at + 1
            if child >= count:
                break
            if child + 1 < count and load_f32(heap + (child + 1) * 4) < load_f32(heap + child * 4):
                child += 1
            if load_f32(heap + child * 4) >= value:
                break
            store_f32(heap + at * 4, load_f32(heap + child * 4))
            at = child
        store_f32(heap + at * 4, value)

    @device
    def sort_down(values, count):  # type: ignore[no-untyped-def]
        """Largest first (Williams' heapsort)."""
        for at in range(count // 2 - 1, -1, -1):
            sink(values, at, count)
        for last in range(count - 1, 0, -1):
            top = load_f32(values)
            store_f32(values, load_f32(values + last * 4))
            store_f32(values + last * 4, top)
            sink(values, 0, last)

    @device
    def ranked_floor(values, vocab, top_k, top_p, aside):  # type: ignore[no-untyped-def]
        """The higher of the floors of top-k and, of what that leaves, of top-p."""
        whole = sum_of(values, vocab, 0.0)
        floor, below, count = FIRST_FLOOR, 2.0, 0
        k_floor = 0.0
        while True:
            # Each time what was put aside before is sorted and larger than what comes.
            more = put_aside(values, vocab, floor, below, aside, count)
            sort_down(aside + count * 4, more - count)
            count = more
            enough = True
            kept = whole
            if top_k < vocab:
                enough = count >= top_k
                if enough:
                    k_floor = load_f32(aside + (top_k - 1) * 4)
                    kept = 0.0
                    for i in range(count):
                        if load_f32(aside + i * 4) >= k_floor:
                            kept += load_f32(aside + i * 4)
            if enough:
                if top_p >= 1:
                    return k_floor
                wanted, summed = top_p * kept, 0.0
                for i in range(count):
                    summed += load_f32(aside + i * 4)
                    if summed >= wanted:
                        return max(k_floor, load_f32(aside + i * 4))
            if floor <= 0:
                return max(k_floor, load_f32(aside + (count - 1) * 4)) if count else 0.0
            below = floor
            floor = floor * NEXT_FLOOR if floor > 1e-30 else 0.0

    @device
    def reach(values, vocab, floor, target):  # type: ignore[no-untyped-def]
        """First index whose running sum of kept weights exceeds ``target``; the last one kept if none does."""
        before, last = 0.0, 0
        for begin in range(0, vocab, BLOCK):
            end = min(begin + BLOCK, vocab)
            here = block_sum(values, begin, end, floor)
            if here > 0:
                last = begin
            if before + here > target:
                return within(values, begin, end, floor, before, target)
            before += here
        return within(values, last, min(last + BLOCK, vocab), floor, before, before)

    @device
    def within(values, begin, end, floor, before, target):  # type: ignore[no-untyped-def]
        last = begin
        for i in range(begin, end):
            weight = load_f32(values + i * 4)
            if weight >= floor and weight > 0:
                before += weight
                last = i
                if before > target:
                    return i
        return last

    @device
    def log_sum(values, vocab, peak):  # type: ignore[no-untyped-def]
        summed = 0.0
        for begin in range(0, vocab, LANES):
            x = load(f32, values + begin * 4) - splat(f32, peak)
            summed += total(exp(f32, x))
        return summed

    def sample(p):  # type: ignore[no-untyped-def]
        logits, stride, vocab, rows = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
        temperature, top_k, top_p, min_p = (
            load_i64(p + 56),
            load_i64(p + 64),
            load_i64(p + 72),
            load_i64(p + 80),
        )
        uniform, ids, sums, peaks = load_i64(p + 88), load_i64(p + 96), load_i64(p + 104), load_i64(p + 112)
        edits, tokens, repetition, offset = (
            load_i64(p + 120),
            load_i64(p + 128),
            load_i64(p + 136),
            load_i64(p + 144),
        )
        buffer, chosen = load_i64(p + 152), load_i64(p + 160)
        values = buffer + take(p + 8) * vocab * 8
        aside = values + vocab * 4
        row = take(p)
        while row < rows:
            widen(logits + row * stride, vocab, values)
            if edits:
                edit(
                    values,
                    tokens,
                    repetition,
                    offset,
                    load_i64(edits + row * 8),
                    load_i64(edits + row * 8 + 8),
                )
            peak = peak_of(values, vocab)
            found = -1
            if peak - peak == 0:
                found = first_of(values, vocab, peak)
                warmth = load_f32(temperature + row * 4)
                if sums:
                    store_f64(sums + row * 8, log_sum(values, vocab, peak))
                    store_f32(peaks + row * 4, peak)
                if warmth > 0:
                    weigh(values, vocab, peak, warmth)
                    floor = load_f32(min_p + row * 4)
                    k, share = load_i64(top_k + row * 8), load_f32(top_p + row * 4)
                    k = min(k, vocab) if k > 0 else vocab
                    if k < vocab or share < 1:
                        floor = max(floor, ranked_floor(values, vocab, k, share, aside))
                    whole = sum_of(values, vocab, floor)
                    found = reach(values, vocab, floor, load_f64(uniform + row * 8) * whole)
                    if sums:
                        # The weights are in the logits' place by now.
                        widen(logits + row * stride, vocab, values)
                        if edits:
                            edit(
                                values,
                                tokens,
                                repetition,
                                offset,
                                load_i64(edits + row * 8),
                                load_i64(edits + row * 8 + 8),
                            )
                if sums:
                    store_f32(chosen + row * 4, load_f32(values + found * 4))
            store_i64(ids + row * 8, found)
            row = take(p)

    return sample
