# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Attention through a page table: one kernel for decode and for ragged chunks, and the merge of its splits.

Online softmax (Milakov and Gimelshein 2018) over tiles as in FlashAttention-2 (Dao 2023); the keys of a
tile may be split over programs, as in Flash-Decoding (Dao et al. 2023). A tile's rows are queries times
the query heads of one KV head, so K and V are read once for all of them. Logarithms are base 2.
"""

import triton
import triton.language as tl

from chatd_kernels.triton.device import LOG2_E, cast, dot, narrow, tanh


@triton.jit
def _find_row(q_starts_ptr, rows, tile, QUERIES: tl.constexpr):
    """The row whose tiles include ``tile``: row i's begin at q_starts[i] // QUERIES + i, spares included.

    A row of n queries has room for at least ceil(n / QUERIES) tiles, so nothing but starts is needed.
    """
    low, high = rows * 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        begin = tl.load(q_starts_ptr + middle) // QUERIES + middle
        low = tl.where(begin <= tile, middle, low)
        high = tl.where(begin <= tile, high, middle)
    return low


@triton.jit
def _load_tile(base, at, dim, inside, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Rows ``at`` of a K or V plane, ``[keys, DIM_BLOCK]``; 0 where nothing may be read."""
    where = base + at[:, None] + dim[None, :]
    if MASKED:
        return tl.load(where, mask=inside[:, None] & (dim < DIM)[None, :], other=0.0)
    if DIM < DIM_BLOCK:
        return tl.load(where, mask=(dim < DIM)[None, :], other=0.0)
    return tl.load(where)


@triton.jit
def _attend_keys(
    q,  # [ROWS, DIM_BLOCK]
    out,  # [ROWS, DIM_BLOCK] float32: sum of weight * v
    peak,  # [ROWS] float32: largest score so far
    total,  # [ROWS] float32: sum of weights
    k_head,  # this KV head's K in page 0; v_head and the scales likewise
    v_head,
    k_scale_head,
    v_scale_head,
    table,  # the row's page numbers
    first_key,
    end_key,
    position,  # [ROWS]: of each query
    scale,  # times log2(e), unless CAPPED
    softcap,
    window,
    page_stride,
    scale_stride,
    page_shift,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SCALED: tl.constexpr,
):
    """One step of the online softmax over ``KEYS`` keys. Without MASKED every query sees all of them."""
    key = first_key + tl.arange(0, KEYS)
    dim = tl.arange(0, DIM_BLOCK)
    inside = key < end_key
    if MASKED:
        page = tl.load(table + (key >> page_shift), mask=inside, other=0).to(tl.int64)
    else:
        page = tl.load(table + (key >> page_shift)).to(tl.int64)
    slot = key & ((1 << page_shift) - 1)
    at = page * page_stride + slot * DIM
    k = _load_tile(k_head, at, dim, inside, DIM, DIM_BLOCK, MASKED)
    scores = dot(q, tl.trans(cast(k, q.dtype)))
    if SCALED:
        k_scale = tl.load(k_scale_head + page * scale_stride + slot, mask=inside, other=0.0)
        scores *= k_scale[None, :]
    scores *= scale
    if CAPPED:
        scores = softcap * LOG2_E * tanh(scores / softcap)
    if MASKED:
        seen = inside[None, :] & (key[None, :] <= position[:, None])
        if WINDOWED:
            seen = seen & (key[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # A query that has seen nothing yet: infinity less infinity must not be formed.
    level = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - level[:, None])
    shrink = tl.exp2(peak - level)
    total = total * shrink + tl.sum(weights, 1)
    v = _load_tile(v_head, at, dim, inside, DIM, DIM_BLOCK, MASKED)
    if SCALED:
        v_scale = tl.load(v_scale_head + page * scale_stride + slot, mask=inside, other=0.0)
        weights *= v_scale[None, :]
    out = out * shrink[:, None] + dot(narrow(weights, q.dtype), cast(v, q.dtype))
    return out, new_peak, total


@triton.jit(do_not_specialize=["rows", "page_shift", "window"])
def attend_kernel(
    q_ptr,  # [n, kv_heads * GROUP, DIM]
    k_ptr,  # [num_pages, kv_heads, page_size, DIM]
    v_ptr,  # the same
    k_scale_ptr,  # [num_pages, kv_heads, page_size] float32; anything unless SCALED
    v_scale_ptr,  # the same
    table_ptr,  # [rows, max_pages] int32
    kv_lens_ptr,  # [rows] int32
    q_starts_ptr,  # [rows + 1] int32
    out_ptr,  # [n, kv_heads * GROUP, DIM], or with SPLIT float32 [n, kv_heads * GROUP, splits, DIM]
    log_ptr,  # [n, kv_heads * GROUP, splits] float32: log2 of a split's total weight; anything unless SPLIT
    rows,
    kv_heads,
    scale,
    softcap,
    window,
    q_stride,
    page_stride,
    scale_stride,
    table_stride,
    page_shift,  # log2 of page_size
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,  # of a tile
    KEYS: tl.constexpr,  # of a step
    ONE_QUERY: tl.constexpr,  # decode: row i has query i and no other
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SCALED: tl.constexpr,
):
    """softmax(cap(scale * q K^T)) V for one tile, one KV head and one split of its keys: grid in this order.

    Lengths are read here, so that a captured graph with a fixed grid serves every step.
    """
    QUERIES: tl.constexpr = ROWS // GROUP  # noqa: N806
    # The last tiles see most keys: they go first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    if ONE_QUERY:
        row = tile
        q_start, q_len, first = tile, 1, 0
    else:
        row = _find_row(q_starts_ptr, rows, tile, QUERIES)
        q_start = tl.load(q_starts_ptr + row)
        q_len = tl.load(q_starts_ptr + row + 1) - q_start
        first = (tile - (q_start // QUERIES + row)) * QUERIES
        if first >= q_len:
            return
    kv_len = tl.load(kv_lens_ptr + row)
    lane = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM_BLOCK)
    query = first + lane // GROUP
    alive = (lane < QUERIES * GROUP) & (query < q_len)
    position = kv_len - q_len + query
    token = (q_start + query).to(tl.int64)
    head = kv_head * GROUP + lane % GROUP
    real = alive[:, None] & (dim < DIM)[None, :]
    q = tl.load(q_ptr + token[:, None] * q_stride + head[:, None] * DIM + dim[None, :], mask=real, other=0.0)

    begin = 0
    end = tl.minimum(kv_len, kv_len - q_len + first + QUERIES)
    if WINDOWED:
        begin = tl.maximum(kv_len - q_len + first - window + 1, 0) // KEYS * KEYS
    if SPLIT:
        split_len = tl.cdiv(tl.cdiv(end - begin, KEYS), tl.num_programs(2)) * KEYS
        begin += tl.program_id(2) * split_len
        end = tl.minimum(end, begin + split_len)
    # Up to here every query of the tile sees every key.
    clear = begin
    if not WINDOWED:
        clear += tl.maximum(tl.minimum(end, kv_len - q_len + first + 1) - begin, 0) // KEYS * KEYS

    page_size = 1 << page_shift
    k_head = k_ptr + kv_head * page_size * DIM
    v_head = v_ptr + kv_head * page_size * DIM
    k_scale_head = k_scale_ptr + kv_head * page_size
    v_scale_head = v_scale_ptr + kv_head * page_size
    table = table_ptr + row.to(tl.int64) * table_stride
    factor = scale if CAPPED else scale * LOG2_E
    out = tl.zeros([ROWS, DIM_BLOCK], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for key in range(begin, clear, KEYS):
        out, peak, total = _attend_keys(
            q, out, peak, total, k_head, v_head, k_scale_head, v_scale_head, table, key, end, position,
            factor, softcap, window, page_stride, scale_stride, page_shift,
            DIM, DIM_BLOCK, KEYS, False, WINDOWED, CAPPED, SCALED,
        )  # fmt: skip
    for key in range(clear, end, KEYS):
        out, peak, total = _attend_keys(
            q, out, peak, total, k_head, v_head, k_scale_head, v_scale_head, table, key, end, position,
            factor, softcap, window, page_stride, scale_stride, page_shift,
            DIM, DIM_BLOCK, KEYS, True, WINDOWED, CAPPED, SCALED,
        )  # fmt: skip

    # Nothing seen, as in a row without KV, gives zeros.
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    at = token * (kv_heads * GROUP) + head
    if SPLIT:
        at = at * tl.num_programs(2) + tl.program_id(2)
        log = tl.where(total == 0.0, float("-inf"), peak + tl.log2(tl.where(total == 0.0, 1.0, total)))
        tl.store(log_ptr + at, log, mask=alive)
        # Of a split without keys, the logarithm of 0 is enough.
        real = real & (total > 0.0)[:, None]
    tl.store(out_ptr + at[:, None] * DIM + dim[None, :], narrow(out, out_ptr.dtype.element_ty), mask=real)


@triton.jit
def merge_kernel(
    part_ptr,  # [n * heads, splits, DIM] float32
    log_ptr,  # [n * heads, splits] float32
    out_ptr,  # [n * heads, DIM]
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Mean of the splits' outputs, each weighted by its share of the softmax's total."""
    at = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, DIM_BLOCK)
    log = tl.load(log_ptr + at * SPLITS + split)
    peak = tl.max(log, 0)
    share = tl.exp2(log - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(share, 0)
    # NaN of a poisoned row passes; what a split without keys left unwritten does not.
    real = (log != float("-inf"))[:, None] & (dim < DIM)[None, :]
    part = tl.load(part_ptr + (at * SPLITS + split)[:, None] * DIM + dim[None, :], mask=real, other=0.0)
    out = tl.sum(part * share[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + at * DIM + dim, narrow(out, out_ptr.dtype.element_ty), mask=dim < DIM)
