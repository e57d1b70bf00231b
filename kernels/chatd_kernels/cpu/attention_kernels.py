"""Attention that reads pages where they are; see `attention`.

Decode: a query head is a row of a tile, the head's dimension its lanes; K and V go by token by token, widened in
registers. Chunks of queries: 32 rows (query times query head) are the lanes, a tile of keys goes by as
broadcast pairs of bf16, and the softmax runs down the lanes, without sums across them. Both keep a running
maximum, sum and result (online softmax, Milakov and Gimelshein 2018).
"""

from typing import Any

from chatd_kernels.cpu.norm_kernels import SIZES, reader, writer
from chatd_kernels.cpu.simd import (
    LANES,
    at_least,
    device,
    exp,
    floats,
    fma,
    fold_largest,
    fold_total,
    halves,
    interleave,
    larger,
    load,
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    octets,
    outer_floats,
    outer_pairs,
    prefetch,
    row_totals,
    select,
    splat,
    spread,
    store,
    store_f32,
    take,
    times_rows,
    to_bf16,
    to_float,
    transpose,
    weight_of,
)
from chatd_kernels.cpu.store_kernels import KV_SIZES

TILE = 64
"""Tokens whose scores are made before any is used."""
LOWEST = -1e30
"""Below every score; not minus infinity, which less itself is NaN."""
HELD = 256
"""Lanes of a decode tile: with K or V beside them they stay in registers."""
LOG2_E = 1.4426950408889634
PARTIAL = 2
"""Floats before a head's part of a result: maximum and sum."""

QUERIES = 32
KEYS, DIMS = 8, 8
"""Columns of a tile of products: with 32 lanes, 16 registers."""


def kv_reader(kv_dtype: str, dim: int) -> Any:
    """``read(address)`` -> float32 ``[dim]``; of int8 the codes."""
    if kv_dtype != "int8":
        return reader(kv_dtype, dim)
    kind = octets(dim)

    @device
    def read(at):  # type: ignore[no-untyped-def]
        return to_float(load(kind, at))

    return read


def capper(softcap: int, kind: Any) -> Any:
    """softcap * tanh(x / softcap), or x."""

    @device
    def cap(x, most):  # type: ignore[no-untyped-def]
        if softcap:
            # tanh(y) = 1 - 2 / (exp(2 y) + 1)
            grown = exp(kind, x * splat(kind, 2.0 / most)) + splat(kind, 1.0)
            return splat(kind, most) - splat(kind, 2.0 * most) / grown
        return x

    return cap


def heads_at_once(group: int, dim: int) -> int:
    """How many of a KV head's query heads a decode tile holds."""
    return max(n for n in range(1, group + 1) if group % n == 0 and (n == 1 or n * dim <= HELD))


def make_decode(dtype: str, kv_dtype: str, dim: int, page_size: int, group: int, softcap: int) -> Any:
    """Items are (row, KV head, share of query heads, split of keys); their results are merged at the end."""
    held = heads_at_once(group, dim)
    lanes = 1 << (held - 1).bit_length()
    one, scores, tile, row_kind = floats(LANES), floats(lanes), floats(held * dim), floats(dim)
    rows_of, per_step = floats(held), LANES // lanes
    size, kv_size = SIZES[dtype], KV_SIZES[kv_dtype]
    read_q, read_kv, write = reader(dtype, held * dim), kv_reader(kv_dtype, dim), writer(dtype)
    cap, quantised, shares = capper(softcap, one), kv_dtype == "int8", group // held
    part = (PARTIAL + dim) * 4

    @device
    def fetch(plane, table, page_bytes, token):  # type: ignore[no-untyped-def]
        """Begin to read a token's row: V while K's tile is multiplied, and the next tile's K meanwhile."""
        page, slot = load_i32(table + (token // page_size) * 4), token % page_size
        at = plane + page * page_bytes + slot * dim * kv_size
        for line in range(0, dim * kv_size, 64):
            prefetch(at + line)

    @device
    def attend(  # type: ignore[no-untyped-def]
        q, k, v, k_scale, v_scale, table, page_bytes, scale_bytes, first, last, scale, most, buffer, partial
    ):
        """Keys ``first:last`` of one KV head, for ``held`` query heads."""
        queries = read_q(q) * splat(tile, scale)
        acc = splat(tile, 0.0)
        peak, weight = splat(scores, LOWEST), splat(scores, 0.0)
        for begin in range(first, last, TILE):
            end = min(begin + TILE, last)
            for token in range(begin, end):
                page, slot = load_i32(table + (token // page_size) * 4), token % page_size
                at = k + page * page_bytes + slot * dim * kv_size
                fetch(v, table, page_bytes, token)
                dots = row_totals(scores, queries, read_kv(at))
                if quantised:
                    dots = dots * splat(scores, load_f32(k_scale + page * scale_bytes + slot * 4))
                store(buffer + (token - begin) * lanes * 4, dots)
            if softcap:
                for i in range(0, (end - begin) * lanes * 4, LANES * 4):
                    store(buffer + i, cap(load(one, buffer + i), most))
            for token in range(end, begin + -(-(end - begin) // per_step) * per_step):
                store(buffer + (token - begin) * lanes * 4, splat(scores, 2 * LOWEST))
            tops = splat(one, LOWEST)
            for i in range(0, (end - begin) * lanes * 4, LANES * 4):
                tops = larger(load(one, buffer + i), tops)
            new_peak = larger(fold_largest(scores, tops), peak)
            peaks, sums = spread(one, new_peak), splat(one, 0.0)
            for i in range(0, (end - begin) * lanes * 4, LANES * 4):
                e = exp(one, load(one, buffer + i) - peaks)
                store(buffer + i, e)
                sums = sums + e
            shrink = exp(scores, peak - new_peak)
            weight = weight * shrink + fold_total(scores, sums)
            acc = times_rows(acc, shrink, rows_of)
            peak = new_peak
            for token in range(begin, end):
                page, slot = load_i32(table + (token // page_size) * 4), token % page_size
                at = v + page * page_bytes + slot * dim * kv_size
                if token + TILE < last:
                    fetch(k, table, page_bytes, token + TILE)
                p = buffer + (token - begin) * lanes * 4
                if quantised:
                    store(
                        p, load(scores, p) * splat(scores, load_f32(v_scale + page * scale_bytes + slot * 4))
                    )
                acc = outer_floats(acc, read_kv(at), p, 4)
        store(buffer, peak)
        store(buffer + lanes * 4, weight)
        for head in range(held):
            store_f32(partial + head * part, load_f32(buffer + head * 4))
            store_f32(partial + head * part + 4, load_f32(buffer + (lanes + head) * 4))
        store(buffer, acc)
        for head in range(held):
            store(partial + head * part + 8, load(row_kind, buffer + head * dim * 4))

    @device
    def merge(partials, splits, heads, out):  # type: ignore[no-untyped-def]
        """One head: partials are ``heads * part`` bytes apart."""
        peak = load_f32(partials)
        for i in range(1, splits):
            peak = max(peak, load_f32(partials + i * heads * part))
        acc, weight = splat(row_kind, 0.0), splat(one, 0.0)
        for i in range(splits):
            at = partials + i * heads * part
            share = exp(one, splat(one, load_f32(at) - peak))
            weight = weight + share * splat(one, load_f32(at + 4))
            acc = acc + spread(row_kind, share) * load(row_kind, at + 8)
        write(out, acc / spread(row_kind, weight))

    def decode(p):  # type: ignore[no-untyped-def]
        """In two phases, unless keys are not split: the splits, and what they come to."""
        q, out, k, v = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
        k_scale, v_scale, page_bytes = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72)
        scale_bytes = load_i64(p + 176)
        table, table_stride, lens = load_i64(p + 80), load_i64(p + 88), load_i64(p + 96)
        rows, kv_heads, shape = load_i64(p + 104), load_i64(p + 112), load_i64(p + 120)
        splits, split_len, phase = load_i64(shape), load_i64(shape + 8), load_i64(p + 184)
        window, scale, most = load_i64(p + 128), load_f64(p + 136), load_f64(p + 144)
        partials, buffers, buffer_bytes = load_i64(p + 152), load_i64(p + 160), load_i64(p + 168)
        heads = kv_heads * group
        if phase == 1:
            item = take(p) if splits > 1 else rows * heads
            while item < rows * heads:
                row, head = item // heads, item % heads
                merge(partials + (row * splits * heads + head) * part, splits, heads, out + item * dim * size)
                item = take(p)
            return
        buffer = buffers + take(p) * buffer_bytes
        items = rows * kv_heads * shares * splits
        item = take(p + 8)
        while item < items:
            split, rest = item % splits, item // splits
            share, rest = rest % shares, rest // shares
            kv_head, row = rest % kv_heads, rest // kv_heads
            kv_len = load_i32(lens + row * 4)
            first = max(0, kv_len - window) if window else 0
            begin = first + split * split_len
            head = kv_head * group + share * held
            plane = kv_head * page_size
            attend(
                q + (row * heads + head) * dim * size,
                k + plane * dim * kv_size,
                v + plane * dim * kv_size,
                k_scale + plane * 4,
                v_scale + plane * 4,
                table + row * table_stride,
                page_bytes,
                scale_bytes,
                begin,
                min(begin + split_len, kv_len),
                scale,
                most,
                buffer,
                partials + ((row * splits + split) * heads + head) * part,
            )
            if splits == 1:
                for mine in range(head, head + held):
                    merge(
                        partials + (row * heads + mine) * part,
                        1,
                        heads,
                        out + (row * heads + mine) * dim * size,
                    )
            item = take(p + 8)

    return decode


def make_extend(dtype: str, kv_dtype: str, dim: int, page_size: int, group: int, softcap: int) -> Any:
    """Items are (KV head, block of 32 rows), the blocks listed by the host: see `attention.Blocks`."""
    exact = kv_dtype == "f32"
    size, kv_size, quantised = SIZES[dtype], KV_SIZES[kv_dtype], kv_dtype == "int8"
    f32, bits, row_kind = floats(QUERIES), halves(2 * QUERIES), floats(dim)
    row_bits = halves(dim)
    products, read_q, read_kv, write = (
        floats(KEYS * QUERIES),
        reader(dtype, dim),
        kv_reader(kv_dtype, dim),
        writer(dtype),
    )
    cap = capper(softcap, f32)
    word = 4
    depth = dim if exact else dim // 2
    tile_steps = TILE if exact else TILE // 2
    step = QUERIES * word
    row_bytes = depth * word
    # Parts of a thread's buffer.
    q_at = 0
    k_at = q_at + dim * QUERIES * 4
    v_at = k_at + TILE * dim * 4
    s_at = v_at + TILE * dim * 4
    p_at = s_at + TILE * QUERIES * 4
    o_at = p_at + TILE * QUERIES * 4
    scale_at = o_at + dim * QUERIES * 4
    place_at = scale_at + 2 * TILE * 4

    # K is multiplied where it lies, if a tile's columns lie in one page.
    in_place = kv_dtype == "bf16" and page_size % KEYS == 0
    words = -(-depth // LANES) * LANES

    @device
    def pack_queries(q, heads, first_row, rows, buffer):  # type: ignore[no-untyped-def]
        """Row ``r`` is query ``r // group`` and head ``r % group``: its words go to lane ``r - first_row``."""
        for lane in range(QUERIES):
            row = buffer + o_at + lane * words * 4
            if lane < rows:
                r = first_row + lane
                values = read_q(q + ((r // group) * heads + r % group) * dim * size)
            else:
                values = splat(row_kind, 0.0)
            if exact:
                store(row, values)
            else:
                store(row, to_bf16(values))
        for lane in range(0, QUERIES, LANES):
            for word_at in range(0, words, LANES):
                source = buffer + o_at + (lane * words + word_at) * 4
                transpose(source, words * 4, buffer + q_at + word_at * step + lane * 4, step)

    @device
    def gather_values(v, table, page_bytes, begin, buffer):  # type: ignore[no-untyped-def]
        """V of a whole tile by pairs of rows."""
        for pair in range(TILE // 2):
            token = begin + 2 * pair
            page, slot = load_i32(table + (token // page_size) * 4), token % page_size
            at = v + page * page_bytes + slot * dim * kv_size
            both = interleave(load(row_bits, at), load(row_bits, at + dim * kv_size))
            store(buffer + v_at + pair * dim * 4, both)

    @device
    def gather(k, v, k_scale, v_scale, table, page_bytes, scale_bytes, begin, end, buffer):  # type: ignore[no-untyped-def]
        """Keys ``begin:end`` as they are multiplied: K by rows, V by pairs of rows; zeros up to the tile's end."""
        zero = splat(row_kind, 0.0)
        for pair in range(TILE // 2):
            even, odd = zero, zero
            for i in range(2):
                j = 2 * pair + i
                token, key = begin + j, zero
                value = zero
                if token < end:
                    page, slot = load_i32(table + (token // page_size) * 4), token % page_size
                    at = page * page_bytes + slot * dim * kv_size
                    key, value = read_kv(k + at), read_kv(v + at)
                    if quantised:
                        where = page * scale_bytes + slot * 4
                        store_f32(buffer + scale_at + j * 4, load_f32(k_scale + where))
                        store_f32(buffer + scale_at + (TILE + j) * 4, load_f32(v_scale + where))
                elif quantised:
                    store_f32(buffer + scale_at + j * 4, 0.0)
                    store_f32(buffer + scale_at + (TILE + j) * 4, 0.0)
                if exact:
                    store(buffer + k_at + j * row_bytes, key)
                    store(buffer + v_at + j * row_bytes, value)
                else:
                    store(buffer + k_at + j * row_bytes, to_bf16(key))
                if i == 0:
                    even = value
                else:
                    odd = value
            if not exact:
                store(buffer + v_at + pair * dim * 4, interleave(to_bf16(even), to_bf16(odd)))

    @device
    def multiply(acc, a, b, b_step, b_stride, steps):  # type: ignore[no-untyped-def]
        for i in range(steps):
            if exact:
                acc = outer_floats(acc, load(f32, a + i * step), b + i * b_step, b_stride)
            else:
                acc = outer_pairs(acc, load(bits, a + i * step), b + i * b_step, b_stride)
        return acc

    @device
    def adjust(buffer, begin, masked, window, scale, most, top):  # type: ignore[no-untyped-def]
        """Scores capped, and hidden where not seen. Returns the largest."""
        places = load(f32, buffer + place_at)
        for j in range(TILE):
            at = buffer + s_at + j * QUERIES * 4
            s = load(f32, at)
            if quantised:
                s = s * splat(f32, load_f32(buffer + scale_at + j * 4))
            if softcap:
                s = cap(s * splat(f32, scale), most)
            if masked:
                key = splat(f32, float(begin + j))
                s = select(at_least(places, key), s, splat(f32, 2 * LOWEST))
                if window:
                    s = select(at_least(key, places - splat(f32, window - 1.0)), s, splat(f32, 2 * LOWEST))
            store(at, s)
            top = larger(s, top)
        return top

    @device
    def weigh(buffer, top, scale):  # type: ignore[no-untyped-def]
        """Scores to weights: powers of what they are above ``top``, times ``scale``. Returns their sum."""
        total = splat(f32, 0.0)
        factor = splat(f32, scale if exact else scale * LOG2_E)
        offset = splat(f32, 0.0) - top * factor
        for pair in range(TILE // 2):
            at = buffer + s_at + 2 * pair * QUERIES * 4
            even, odd = load(f32, at), load(f32, at + QUERIES * 4)
            if exact:
                even, odd = exp(f32, (even - top) * factor), exp(f32, (odd - top) * factor)
            else:
                even, odd = (
                    weight_of(f32, fma(even, factor, offset)),
                    weight_of(f32, fma(odd, factor, offset)),
                )
            total = total + (even + odd)
            if quantised:
                even = even * splat(f32, load_f32(buffer + scale_at + (TILE + 2 * pair) * 4))
                odd = odd * splat(f32, load_f32(buffer + scale_at + (TILE + 2 * pair + 1) * 4))
            if exact:
                store(buffer + p_at + 2 * pair * step, even)
                store(buffer + p_at + (2 * pair + 1) * step, odd)
            else:
                store(buffer + p_at + pair * step, interleave(to_bf16(even), to_bf16(odd)))
        return total

    @device
    def block(  # type: ignore[no-untyped-def]
        q,
        out,
        k,
        v,
        k_scale,
        v_scale,
        table,
        page_bytes,
        scale_bytes,
        heads,
        first_row,
        rows,
        place,
        kv_end,
        window,
        scale,
        most,
        buffer,
    ):
        """``place``: position of the row's first query in this batch; ``kv_end``: one past the last one's."""
        pack_queries(q, heads, first_row, rows, buffer)
        for lane in range(QUERIES):
            r = first_row + min(lane, rows - 1)
            store_f32(buffer + place_at + lane * 4, float(place + r // group))
        lowest_place = place + first_row // group
        first = max(0, lowest_place - window + 1) // TILE * TILE if window else 0
        factor = 1.0 if softcap else scale
        peak, weight = splat(f32, LOWEST), splat(f32, 0.0)
        for d in range(dim):
            store(buffer + o_at + d * QUERIES * 4, splat(f32, 0.0))
        for begin in range(first, kv_end, TILE):
            direct = in_place and begin + TILE <= kv_end
            if direct:
                gather_values(v, table, page_bytes, begin, buffer)
            else:
                gather(
                    k,
                    v,
                    k_scale,
                    v_scale,
                    table,
                    page_bytes,
                    scale_bytes,
                    begin,
                    min(begin + TILE, kv_end),
                    buffer,
                )
            tops = peak
            for j in range(0, TILE, KEYS):
                keys = buffer + k_at + j * row_bytes
                if direct:
                    page, slot = load_i32(table + ((begin + j) // page_size) * 4), (begin + j) % page_size
                    keys = k + page * page_bytes + slot * row_bytes
                dots = multiply(splat(products, 0.0), buffer + q_at, keys, 4, row_bytes, depth)
                store(buffer + s_at + j * QUERIES * 4, dots)
                tops = larger(fold_largest(f32, dots), tops)
            masked = window > 0 or begin + TILE > lowest_place + 1
            if masked or quantised or softcap:
                tops = adjust(buffer, begin, masked, window, scale, most, peak)
            total = weigh(buffer, tops, factor)
            shrink = exp(f32, (peak - tops) * splat(f32, factor))
            weight = weight * shrink + total
            peak = tops
            shrinks = spread(products, shrink)
            for d in range(0, dim, DIMS):
                at = buffer + o_at + d * QUERIES * 4
                acc = load(products, at) * shrinks
                acc = multiply(acc, buffer + p_at, buffer + v_at + d * 4, dim * 4, 4, tile_steps)
                store(at, acc)
        inverse = splat(f32, 1.0) / weight
        for d in range(dim):
            at = buffer + o_at + d * QUERIES * 4
            store(at, load(f32, at) * inverse)
        for lane in range(0, QUERIES, LANES):
            for d in range(0, dim, LANES):
                source = buffer + o_at + (d * QUERIES + lane) * 4
                transpose(source, QUERIES * 4, buffer + q_at + (lane * dim + d) * 4, dim * 4)
        for lane in range(rows):
            r, made = first_row + lane, load(row_kind, buffer + q_at + lane * dim * 4)
            write(out + ((r // group) * heads + r % group) * dim * size, made)

    def extend(p):  # type: ignore[no-untyped-def]
        q, out, k, v = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
        k_scale, v_scale, page_bytes = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72)
        scale_bytes = load_i64(p + 160)
        table, table_stride, kv_heads = load_i64(p + 80), load_i64(p + 88), load_i64(p + 96)
        blocks, block_count = load_i64(p + 104), load_i64(p + 112)
        window, scale, most = load_i64(p + 120), load_f64(p + 128), load_f64(p + 136)
        buffer = load_i64(p + 144) + take(p) * load_i64(p + 152)
        heads = kv_heads * group
        item = take(p + 8)
        while item < block_count * kv_heads:
            kv_head, at = item % kv_heads, blocks + (item // kv_heads) * 6 * 8
            row, q_start, first_row = load_i64(at), load_i64(at + 8), load_i64(at + 16)
            rows, place, kv_end = load_i64(at + 24), load_i64(at + 32), load_i64(at + 40)
            plane = kv_head * page_size
            head = (q_start * heads + kv_head * group) * dim * size
            block(
                q + head,
                out + head,
                k + plane * dim * kv_size,
                v + plane * dim * kv_size,
                k_scale + plane * 4,
                v_scale + plane * 4,
                table + row * table_stride,
                page_bytes,
                scale_bytes,
                heads,
                first_row,
                rows,
                place,
                kv_end,
                window,
                scale,
                most,
                buffer,
            )
            item = take(p + 8)

    return extend
