# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Drawing an id per row without a sort; the formula is in `Ops.sample`, one program does one row.

Floors of top-k and top-p are found by bisection. Weights are not negative, so their bits are ordered like
the weights themselves. After one pass that counts above four levels, what lies between two of them, few
values as a rule, is packed together; the rest of the bisection reads only that.
"""

import triton
import triton.language as tl

from chatd_kernels.triton.device import LOG2_E

ONE_BITS = tl.constexpr(0x3F800000)
"""The bits of 1.0: the largest weight."""


@triton.jit
def _weights(source, first, vocab, peak, temperature, BLOCK: tl.constexpr):
    """exp((logit - peak) / temperature) of a block, 0 past the end."""
    at = first + tl.arange(0, BLOCK)
    x = tl.load(source + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
    # The peak goes first: tiny temperatures then give 0 and minus infinity, nothing undefined.
    return tl.exp2(tl.div_rn(x - peak, temperature) * LOG2_E)


@triton.jit
def _bits(weights):
    return weights.to(tl.int32, bitcast=True)


@triton.jit
def _measure(weights, least_bits, BY_MASS: tl.constexpr):
    """What each weight adds to a sum over those of at least ``least_bits``."""
    amount = weights if BY_MASS else tl.full(weights.shape, 1.0, tl.float32)
    return tl.where(_bits(weights) >= least_bits, amount, 0.0)


@triton.jit
def _edit(
    logits, edited, rows_ptr, tokens_ptr, repetition_ptr, offset_ptr, edits, vocab, BLOCK: tl.constexpr
):
    """``edited`` float32 ``[vocab]`` = this program's row of logits with its edits; rows are ascending."""
    for first in range(0, vocab, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < vocab, other=0.0).to(tl.float32)
        tl.store(edited + at, x, mask=at < vocab)
    row = tl.program_id(0)
    begin = _first_not_below(rows_ptr, row, edits)
    end = _first_not_below(rows_ptr, row + 1, edits)
    tl.debug_barrier()
    for first in range(begin, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        token = tl.load(tokens_ptr + at, mask=at < end, other=0)
        old = tl.load(edited + token, mask=at < end, other=0.0)
        repetition = tl.load(repetition_ptr + at, mask=at < end, other=1.0)
        new = tl.where(old > 0.0, tl.div_rn(old, repetition), old * repetition)
        new += tl.load(offset_ptr + at, mask=at < end, other=0.0)
        tl.store(edited + token, new, mask=at < end)
    tl.debug_barrier()


@triton.jit
def _first_not_below(rows_ptr, row, edits):
    low, high = edits * 0, edits
    while low < high:
        middle = (low + high) // 2
        below = tl.load(rows_ptr + middle) < row
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    return low


@triton.jit
def _peak(source, vocab, BLOCK: tl.constexpr):
    """The largest logit, the lowest id that has it, and how many logits are NaN."""
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_at = tl.full([BLOCK], 0, tl.int32)
    nans = tl.full([BLOCK], 0, tl.int32)
    for first in range(0, vocab, BLOCK):
        at = first + lane
        x = tl.load(source + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        nans += (x != x).to(tl.int32)
        best_at = tl.where(x > best, at, best_at)
        best = tl.where(x > best, x, best)
    peak = tl.max(best, 0)
    return peak, tl.min(tl.where(best == peak, best_at, vocab), 0), tl.sum(nans, 0)


@triton.jit
def _pack(source, target, count, low, high, peak, temperature, LOGITS: tl.constexpr, BLOCK: tl.constexpr):
    """Weights with bits in low..high-1 to the front of ``target``, which may be ``source``; how many."""
    packed = count * 0
    for first in range(0, count, BLOCK):
        if LOGITS:
            weights = _weights(source, first, count, peak, temperature, BLOCK)
        else:
            at = first + tl.arange(0, BLOCK)
            weights = tl.load(source + at, mask=at < count, other=0.0)
        keep = (_bits(weights) >= low) & (_bits(weights) < high)
        # All of the block is read before any of it is overwritten.
        tl.debug_barrier()
        place = packed + tl.cumsum(keep.to(tl.int32), 0) - 1
        tl.store(target + place, weights, mask=keep)
        packed += tl.sum(keep.to(tl.int32), 0)
    tl.debug_barrier()
    return packed


@triton.jit
def _levels(source, vocab, low, high, wanted, peak, temperature, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """low, high narrowed to between two of 2^-3, 2^-8, 2^-14 and 2^-24; and the measure from high up."""
    a = tl.zeros([BLOCK], tl.float32)
    b = tl.zeros([BLOCK], tl.float32)
    c = tl.zeros([BLOCK], tl.float32)
    d = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocab, BLOCK):
        weights = _weights(source, first, vocab, peak, temperature, BLOCK)
        a += _measure(weights, tl.maximum(low, (127 - 3) << 23), BY_MASS)
        b += _measure(weights, tl.maximum(low, (127 - 8) << 23), BY_MASS)
        c += _measure(weights, tl.maximum(low, (127 - 14) << 23), BY_MASS)
        d += _measure(weights, tl.maximum(low, (127 - 24) << 23), BY_MASS)
    above = wanted * 0.0
    low, high, above = _halve(low, high, above, tl.maximum(low, (127 - 3) << 23), tl.sum(a, 0), wanted)
    low, high, above = _halve(low, high, above, tl.maximum(low, (127 - 8) << 23), tl.sum(b, 0), wanted)
    low, high, above = _halve(low, high, above, tl.maximum(low, (127 - 14) << 23), tl.sum(c, 0), wanted)
    return _halve(low, high, above, tl.maximum(low, (127 - 24) << 23), tl.sum(d, 0), wanted)


@triton.jit
def _halve(low, high, above, middle, measure, wanted):
    """One decision: ``measure`` is of all weights from ``middle`` up, ``above`` of those from ``high`` up."""
    inside = (middle > low) & (middle < high)
    enough = measure >= wanted
    new_low = tl.where(inside & enough, middle, low)
    new_high = tl.where(inside & (measure < wanted), middle, high)
    return new_low, new_high, tl.where(inside & (measure < wanted), measure, above)


@triton.jit
def _floor(
    source, packed, vocab, low, wanted, peak, temperature, BY_MASS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The largest weight, as bits, from which up weights of at least ``low`` number, or sum to, ``wanted``.

    ``low`` itself if not even all of them do.
    """
    high = low * 0 + ONE_BITS + 1
    low, high, above = _levels(source, vocab, low, high, wanted, peak, temperature, BY_MASS, BLOCK)
    count = _pack(source, packed, vocab, low, high, peak, temperature, True, BLOCK)
    while (high - low > 1) & (count > BLOCK):
        middle = low + (high - low) // 2
        sums = tl.zeros([BLOCK], tl.float32)
        for first in range(0, count, BLOCK):
            at = first + tl.arange(0, BLOCK)
            sums += _measure(tl.load(packed + at, mask=at < count, other=0.0), middle, BY_MASS)
        low, high, above = _halve(low, high, above, middle, above + tl.sum(sums, 0), wanted)
        count = _pack(packed, packed, count, low, high, peak, temperature, False, BLOCK)
    at = tl.arange(0, BLOCK)
    weights = tl.load(packed + at, mask=at < count, other=0.0)
    base = above
    while high - low > 1:
        middle = low + (high - low) // 2
        measure = base + tl.sum(_measure(weights, middle, BY_MASS), 0)
        low, high, above = _halve(low, high, above, middle, measure, wanted)
    return low


@triton.jit
def _mass(source, vocab, least_bits, peak, temperature, BLOCK: tl.constexpr):
    sums = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocab, BLOCK):
        sums += _measure(_weights(source, first, vocab, peak, temperature, BLOCK), least_bits, True)
    return tl.sum(sums, 0)


@triton.jit
def _reach(source, vocab, floor, share, peak, temperature, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """First id whose running sum of weights of at least ``floor`` exceeds ``share`` of their total.

    The last id with any weight if rounding keeps the sum below. Sums of blocks are added in float64.
    """
    block = tl.arange(0, BLOCKS)
    sums = tl.zeros([BLOCKS], tl.float32)
    for first in range(0, vocab, BLOCK):
        weights = _weights(source, first, vocab, peak, temperature, BLOCK)
        sums = tl.where(block == first // BLOCK, tl.sum(tl.where(weights >= floor, weights, 0.0), 0), sums)
    running = tl.cumsum(sums.to(tl.float64), 0)
    target = share * tl.max(running, 0)
    last = tl.max(tl.where(sums > 0.0, block, 0), 0)
    found = tl.minimum(tl.min(tl.where(running > target, block, BLOCKS), 0), last)
    before = tl.sum(tl.where(block == found - 1, running, 0.0), 0)
    weights = _weights(source, found * BLOCK, vocab, peak, temperature, BLOCK)
    weights = tl.where(weights >= floor, weights, 0.0)
    inside = before + tl.cumsum(weights, 0).to(tl.float64)
    lane = tl.arange(0, BLOCK)
    # A weightless id can never be the first to exceed anything, but for rounding.
    hit = tl.min(tl.where((inside > target) & (weights > 0.0), lane, BLOCK), 0)
    last = tl.max(tl.where(weights > 0.0, lane, 0), 0)
    return found * BLOCK + tl.minimum(hit, last)


@triton.jit
def _uniform(seed, position):
    """The first word of Philox4x32-10 (Salmon et al. 2011) over 2^32, float64."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    word, _, _, _ = tl.philox(seed, low, high, low * 0, low * 0)
    return word.to(tl.float64) * (1.0 / 4294967296.0)


@triton.jit(do_not_specialize=["edits"])
def sample_kernel(
    logits_ptr,  # [rows, vocab]
    edited_ptr,  # [rows, vocab] float32, scratch; anything unless EDIT
    packed_ptr,  # [rows, vocab] float32, scratch; anything unless FILTER
    edit_rows_ptr,  # [edits] int64, ascending; the four are anything unless EDIT
    edit_tokens_ptr,  # [edits] int64
    repetition_ptr,  # [edits] float32
    offset_ptr,  # [edits] float32
    temperature_ptr,  # [rows] float32
    top_k_ptr,  # [rows] int64
    top_p_ptr,  # [rows] float32
    min_p_ptr,  # [rows] float32
    seeds_ptr,  # [rows] int64
    positions_ptr,  # [rows] int64
    ids_ptr,  # [rows] int64
    logprobs_ptr,  # [rows] float32; anything unless LOGPROBS
    edits,
    vocab,
    logits_stride,
    EDIT: tl.constexpr,
    DRAW: tl.constexpr,
    FILTER: tl.constexpr,
    LOGPROBS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,  # a power of two >= vocab / BLOCK
):
    row = tl.program_id(0).to(tl.int64)
    source = logits_ptr + row * logits_stride
    if EDIT:
        edited = edited_ptr + row * vocab
        _edit(source, edited, edit_rows_ptr, edit_tokens_ptr, repetition_ptr, offset_ptr, edits, vocab, BLOCK)
        source = edited
    peak, answer, nans = _peak(source, vocab, BLOCK)
    good = (nans == 0) & (peak > float("-inf")) & (peak < float("inf"))
    if DRAW:
        temperature = tl.load(temperature_ptr + row)
        if good & (temperature > 0.0):
            floor = 0.0
            if FILTER:
                packed = packed_ptr + row * vocab
                top_k = tl.load(top_k_ptr + row)
                top_p = tl.load(top_p_ptr + row)
                bits = answer * 0
                if (top_k > 0) & (top_k < vocab):
                    wanted = top_k.to(tl.float32)
                    bits = _floor(source, packed, vocab, bits, wanted, peak, temperature, False, BLOCK)
                if top_p < 1.0:
                    wanted = top_p * _mass(source, vocab, bits, peak, temperature, BLOCK)
                    bits = _floor(source, packed, vocab, bits, wanted, peak, temperature, True, BLOCK)
                floor = tl.maximum(bits.to(tl.float32, bitcast=True), tl.load(min_p_ptr + row))
            share = _uniform(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
            answer = _reach(source, vocab, floor, share, peak, temperature, BLOCK, BLOCKS)
    tl.store(ids_ptr + row, tl.where(good, answer, -1).to(tl.int64))
    if LOGPROBS:
        total = _mass(source, vocab, 0, peak, 1.0, BLOCK)
        logit = tl.load(source + tl.where(good, answer, 0)).to(tl.float32)
        logprob = logit - peak - tl.log(tl.where(good, total, 1.0))
        tl.store(logprobs_ptr + row, tl.where(good, logprob, float("nan")))
