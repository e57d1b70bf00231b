"""Linear layers whose weights are 4 or 8 bits, in groups of 32 along the input; see `linear`.

A block is 16 outputs. Of a group of a block: the codes, then 16 scales and 16 minima in float16. With 4 bits, byte
``64 t + 4 o + i`` of the codes holds inputs ``4 t + i`` (low half) and ``16 + 4 t + i`` (high half) of output
``o``; with 8 bits, byte ``64 t + 4 o + i`` is input ``4 t + i``.
"""

from typing import Any

from chatd_kernels.cpu.norm_kernels import reader
from chatd_kernels.cpu.simd import (
    LANES,
    Vec,
    at_least,
    device,
    dot_bytes,
    floats,
    from_f16,
    halves,
    interleave,
    ints,
    load,
    load_f16,
    load_i64,
    load_u8,
    magnitude,
    octets,
    roundeven,
    row_peaks,
    row_sums,
    scale_rows,
    select,
    splat,
    spread,
    store,
    store_f32,
    store_rows,
    take,
    times_rows,
    to_float,
    to_int,
    to_octets,
)

GROUP = 32
FEW_ROWS = 16
"""So few that rounding them costs a thread less than waiting for another: some microseconds."""
AT_ONCE = 6
"""Groups of x that are rounded together. 128 rows of 576: 10 microseconds; one at a time 32 (a Zen 5 core)."""
CHUNK_BLOCKS = 4
"""Blocks a thread takes at once."""
ROWS = 8
"""Rows of a full tile: 8 accumulators, 8 sums and a group's codes fill the registers."""


def quantiser(dtype: str) -> Any:
    """Rows of x to s8 codes with a float32 scale and scale * sum of codes for each group of 32."""
    size = 2 if dtype == "bf16" else 4

    def several(count: int) -> Any:
        read, each = reader(dtype, count * GROUP), floats(count)

        @device
        def quantise(x, codes, scales):  # type: ignore[no-untyped-def]
            values, none = read(x), splat(each, 0.0)
            peaks = row_peaks(each, magnitude(values))
            nothing = at_least(none, peaks)
            inverse = select(nothing, none, splat(each, 127.0) / peaks)
            rounded = roundeven(times_rows(values, inverse, each))
            store(codes, to_octets(to_int(rounded)))
            scale = peaks / splat(each, 127.0)
            store(scales, interleave(scale, scale * row_sums(each, rounded)))

        return quantise

    one, many = several(1), several(AT_ONCE)

    @device
    def quantise(x, codes, scales, width):  # type: ignore[no-untyped-def]
        groups = width // GROUP
        whole = groups // AT_ONCE * AT_ONCE
        for group in range(0, whole, AT_ONCE):
            many(x + group * GROUP * size, codes + group * GROUP, scales + group * 8)
        for group in range(whole, groups):
            one(x + group * GROUP * size, codes + group * GROUP, scales + group * 8)

    return quantise


def make_linear(bits: int, dtype: str) -> Any:
    """Argument: see `linear.Call`."""
    quantise = quantiser(dtype)
    group_bytes = GROUP * LANES * bits // 8 + 4 * LANES
    codes64, f16, f32 = octets(64), Vec("f16", LANES), floats(LANES)
    out_kind = halves(LANES) if dtype == "bf16" else floats(LANES)
    out_size = 2 if dtype == "bf16" else 4

    def tile(rows: int) -> Any:
        acc_kind, sum_kind = floats(rows * LANES), ints(rows * LANES)

        @device
        def run(block, codes, scales, groups, bias, out, out_stride):  # type: ignore[no-untyped-def]
            acc = splat(acc_kind, 0.0)
            code_stride, scale_stride = groups * GROUP, groups * 8
            for group in range(groups):
                at = block + group * group_bytes
                x = codes + group * GROUP
                sums = splat(sum_kind, 0)
                if bits == 4:
                    for t in range(4):
                        packed = load(codes64, at + 64 * t)
                        low = packed & splat(codes64, 15)
                        high = (packed >> splat(codes64, 4)) & splat(codes64, 15)
                        sums = dot_bytes(sums, low, x + 4 * t, code_stride)
                        sums = dot_bytes(sums, high, x + 16 + 4 * t, code_stride)
                else:
                    for t in range(8):
                        sums = dot_bytes(sums, load(codes64, at + 64 * t), x + 4 * t, code_stride)
                tail = at + group_bytes - 4 * LANES
                scale = from_f16(load(f16, tail))
                minimum = from_f16(load(f16, tail + 2 * LANES))
                acc = scale_rows(acc, to_float(sums), scale, minimum, scales + group * 8, scale_stride)
            if bias:
                acc = acc + spread(acc_kind, load(f32, bias))
            store_rows(out_kind, out, out_stride, acc)

        return run

    one, two, four, eight = tile(1), tile(2), tile(4), tile(ROWS)

    @device
    def block_rows(block, codes, scales, groups, bias, out, out_stride, rows):  # type: ignore[no-untyped-def]
        row = 0
        while rows - row >= 8:
            eight(
                block,
                codes + row * groups * GROUP,
                scales + row * groups * 8,
                groups,
                bias,
                out + row * out_stride,
                out_stride,
            )
            row += 8
        if rows - row >= 4:
            four(
                block,
                codes + row * groups * GROUP,
                scales + row * groups * 8,
                groups,
                bias,
                out + row * out_stride,
                out_stride,
            )
            row += 4
        if rows - row >= 2:
            two(
                block,
                codes + row * groups * GROUP,
                scales + row * groups * 8,
                groups,
                bias,
                out + row * out_stride,
                out_stride,
            )
            row += 2
        if rows - row >= 1:
            one(
                block,
                codes + row * groups * GROUP,
                scales + row * groups * 8,
                groups,
                bias,
                out + row * out_stride,
                out_stride,
            )

    x_size = 2 if dtype == "bf16" else 4

    def linear(p):  # type: ignore[no-untyped-def]
        """In two phases, the rows' rounding and the products, unless rows are few."""
        next_row, next_chunk = p, p + 8
        x, weights, bias, out = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
        codes, scales = load_i64(p + 56), load_i64(p + 64)
        rows, groups, blocks = load_i64(p + 72), load_i64(p + 80), load_i64(p + 88)
        phase = load_i64(p + 96)
        width = groups * GROUP
        if rows <= FEW_ROWS:
            # Each thread for itself, which takes less than waiting for each other.
            own = take(next_row)
            codes += own * rows * width
            scales += own * rows * groups * 8
            for row in range(rows):
                quantise(x + row * width * x_size, codes + row * width, scales + row * groups * 8, width)
        elif phase == 0:
            row = take(next_row)
            while row < rows:
                quantise(x + row * width * x_size, codes + row * width, scales + row * groups * 8, width)
                row = take(next_row)
            return
        chunk = take(next_chunk)
        while chunk * CHUNK_BLOCKS < blocks:
            for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
                column = block * LANES
                block_rows(
                    weights + block * groups * group_bytes,
                    codes,
                    scales,
                    groups,
                    bias + column * 4 if bias else 0,
                    out + column * out_size,
                    blocks * LANES * out_size,
                    rows,
                )
            chunk = take(next_chunk)

    return linear


def make_rows(bits: int) -> Any:
    """Argument: see `linear.rows_of`."""
    group_bytes = GROUP * LANES * bits // 8 + 4 * LANES

    @device
    def value(at, lane, i):  # type: ignore[no-untyped-def]
        """Code of input ``i`` of the group."""
        if bits == 8:
            return load_u8(at + 64 * (i // 4) + 4 * lane + i % 4)
        byte = load_u8(at + 64 * (i % 16 // 4) + 4 * lane + i % 4)
        return byte & 15 if i < 16 else byte >> 4

    def rows(p):  # type: ignore[no-untyped-def]
        ids, weights, out = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40)
        count, groups = load_i64(p + 48), load_i64(p + 56)
        row = take(p)
        while row < count:
            index = load_i64(ids + row * 8)
            lane = index % LANES
            for group in range(groups):
                at = weights + ((index // LANES) * groups + group) * group_bytes
                tail = at + group_bytes - 4 * LANES + 2 * lane
                scale, minimum = load_f16(tail), load_f16(tail + 2 * LANES)
                for i in range(GROUP):
                    store_f32(
                        out + ((row * groups + group) * GROUP + i) * 4, scale * value(at, lane, i) + minimum
                    )
            row = take(p)

    return rows
