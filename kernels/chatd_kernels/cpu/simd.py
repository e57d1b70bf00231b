"""Vectors as values in numba code, and the few instructions that the kernels are made of.

A vector is one LLVM value: what is wider than the machine's registers LLVM splits, on AVX2 and Arm too. So a
vector of ``rows * 16`` lanes is also how a kernel keeps a tile of accumulators in registers. Addresses are
plain integers that count bytes. Products of bytes and of bf16 pairs use the machine's own instruction where
`Isa` says it has one, and the same sums spelled out where not.
"""

import functools
import operator
import platform
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import extending, njit
from numba.core import cgutils, types
from numba.extending import models, overload, register_model

from chatd_kernels.cpu.isa import Isa


class _Bfloat(ir.Type):  # type: ignore[misc]
    """llvmlite has no name for it."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


BF16 = _Bfloat()
BIT, BYTE, INT, LONG = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
FLOAT = ir.FloatType()
KINDS = {"f32": FLOAT, "f16": ir.HalfType(), "i32": INT, "i16": ir.IntType(16), "i8": BYTE, "mask": BIT}
SIZES = {"f32": 4, "f16": 2, "i32": 4, "i16": 2, "i8": 1}
LANES = 16
"""Sums of one product instruction: a register of 64 bytes."""

_isa = [Isa.generic()]


def compile_for(isa: Isa) -> None:
    """What instructions kernels compiled from now on may use."""
    _isa[0] = isa


class Vec(types.Type):
    """``n`` elements of ``kind``: f32, f16, i32, i16 (also bf16, as bits), i8, or mask (of a comparison)."""

    def __init__(self, kind: str, n: int) -> None:
        self.kind, self.n = kind, n
        super().__init__(name=f"Vec({kind},{n})")

    @property
    def llvm(self) -> ir.Type:
        return ir.VectorType(KINDS[self.kind], self.n)


@register_model(Vec)
class _VecModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vec: Vec) -> None:
        super().__init__(manager, vec, vec.llvm)


def floats(n: int) -> Vec:
    return Vec("f32", n)


def ints(n: int) -> Vec:
    return Vec("i32", n)


def halves(n: int) -> Vec:
    """bf16, as bits."""
    return Vec("i16", n)


def octets(n: int) -> Vec:
    return Vec("i8", n)


def intrinsic(define: Callable[..., Any]) -> Any:
    """numba's decorator: ``define`` is given types, and returns what `_instruction` does."""
    return extending.intrinsic(define)


def device(function: Callable[..., Any]) -> Any:
    """A function of kernels. Division by zero is no error in it."""
    return njit(error_model="numpy")(function)


Emit = Callable[[Any, Sequence[Any], Any], Any]
"""(builder, arguments, type of the answer) -> value."""


def _instruction(result: Any, arguments: Sequence[Any], emit: Emit) -> Any:
    """What an `intrinsic` returns."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made = emit(builder, args, context.get_value_type(signature.return_type))
        return context.get_dummy_value() if made is None else made

    return result(*arguments), generate


def _pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def _call(builder: Any, name: str, result: Any, args: Sequence[Any]) -> Any:
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _math(builder: Any, name: str, args: Sequence[Any]) -> Any:
    """``llvm.<name>`` over vectors of one type."""
    kind = args[0].type
    element = "f32" if kind.element == FLOAT else f"i{kind.element.width}"
    return _call(builder, f"llvm.{name}.v{kind.count}{element}", kind, args)


def _shuffle(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT, len(lanes)), list(lanes)))


def _pick(builder: Any, vector: Any, lanes: Sequence[int]) -> Any:
    return _shuffle(builder, vector, ir.Constant(vector.type, ir.Undefined), lanes)


def _splat(builder: Any, scalar: Any, n: int) -> Any:
    empty = ir.Constant(ir.VectorType(scalar.type, n), ir.Undefined)
    return _pick(builder, builder.insert_element(empty, scalar, INT(0)), [0] * n)


def _split(builder: Any, vector: Any, width: int) -> list[Any]:
    if vector.type.count == width:
        return [vector]
    return [_pick(builder, vector, range(i, i + width)) for i in range(0, vector.type.count, width)]


def _join(builder: Any, parts: list[Any]) -> Any:
    """Parts of one width, one after the other."""
    width = parts[0].type.count
    padded = parts + [ir.Constant(parts[0].type, ir.Undefined)] * (
        (1 << (len(parts) - 1).bit_length()) - len(parts)
    )
    while len(padded) > 1:
        n = padded[0].type.count
        padded = [
            _shuffle(builder, a, b, range(2 * n)) for a, b in zip(padded[::2], padded[1::2], strict=True)
        ]
    whole = width * len(parts)
    return padded[0] if padded[0].type.count == whole else _pick(builder, padded[0], range(whole))


# --- memory -------------------------------------------------------------------------------------------


@intrinsic
def load(context: Any, kind: Any, address: Any) -> Any:
    """``load(VEC, address)``: a vector from anywhere."""
    vec = kind.instance_type

    def emit(builder: Any, args: Any, result: Any) -> Any:
        return builder.load(_pointer(builder, args[1], result), align=SIZES[vec.kind])

    return _instruction(vec, (kind, address), emit)


@intrinsic
def store(context: Any, address: Any, value: Any) -> Any:
    def emit(builder: Any, args: Any, result: Any) -> Any:
        builder.store(args[1], _pointer(builder, args[0], args[1].type), align=SIZES[value.kind])

    return _instruction(types.void, (address, value), emit)


def _loader(element: Any, result: Any) -> Any:
    @intrinsic
    def read(context: Any, address: Any) -> Any:
        def emit(builder: Any, args: Any, _: Any) -> Any:
            return builder.load(_pointer(builder, args[0], element))

        return _instruction(result, (address,), emit)

    return read


def _storer(element: Any, kind: Any) -> Any:
    @intrinsic
    def write(context: Any, address: Any, value: Any) -> Any:
        def emit(builder: Any, args: Any, _: Any) -> Any:
            builder.store(args[1], _pointer(builder, args[0], element))

        return _instruction(types.void, (address, kind), emit)

    return write


load_i64 = _loader(LONG, types.int64)
load_i32 = _loader(INT, types.int32)
load_f32 = _loader(FLOAT, types.float32)
load_f64 = _loader(ir.DoubleType(), types.float64)
store_i64 = _storer(LONG, types.int64)
store_i32 = _storer(INT, types.int32)
store_f32 = _storer(FLOAT, types.float32)
store_f64 = _storer(ir.DoubleType(), types.float64)


@intrinsic
def load_u8(context: Any, address: Any) -> Any:
    def emit(builder: Any, args: Any, _: Any) -> Any:
        return builder.zext(builder.load(_pointer(builder, args[0], BYTE)), LONG)

    return _instruction(types.int64, (address,), emit)


@intrinsic
def load_f16(context: Any, address: Any) -> Any:
    """As float32."""

    def emit(builder: Any, args: Any, _: Any) -> Any:
        return builder.fpext(builder.load(_pointer(builder, args[0], ir.HalfType()), align=2), FLOAT)

    return _instruction(types.float32, (address,), emit)


@intrinsic
def prefetch(context: Any, address: Any) -> Any:
    """A line of 64 bytes that will be read soon."""

    def emit(builder: Any, args: Any, result: Any) -> Any:
        at = _pointer(builder, args[0], BYTE)
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [at, INT(0), INT(3), INT(1)])

    return _instruction(types.void, (address,), emit)


@intrinsic
def take(context: Any, address: Any) -> Any:
    """Add one to the int64 there, seen by all threads; returns what it was."""

    def emit(builder: Any, args: Any, result: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0], LONG), LONG(1), "monotonic")

    return _instruction(types.int64, (address,), emit)


@intrinsic
def add(context: Any, address: Any, amount: Any) -> Any:
    """As `take`, but in one order with all `add`, `peek` and `swap` of all threads."""

    def emit(builder: Any, args: Any, result: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0], LONG), args[1], "seq_cst")

    return _instruction(types.int64, (address, types.int64), emit)


@intrinsic
def swap(context: Any, address: Any, value: Any) -> Any:
    """Put ``value`` there; returns what was there."""

    def emit(builder: Any, args: Any, result: Any) -> Any:
        return builder.atomic_rmw("xchg", _pointer(builder, args[0], LONG), args[1], "seq_cst")

    return _instruction(types.int64, (address, types.int64), emit)


@intrinsic
def peek(context: Any, address: Any) -> Any:
    """The int64 that other threads change."""

    def emit(builder: Any, args: Any, result: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0], LONG), "seq_cst", 8)

    return _instruction(types.int64, (address,), emit)


@intrinsic
def pause(context: Any) -> Any:
    """Tell the core that this thread spins."""

    def emit(builder: Any, args: Any, result: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            _call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        elif platform.machine() == "aarch64":
            _call(builder, "llvm.aarch64.hint", ir.VoidType(), [INT(1)])

    return _instruction(types.void, (), emit)


@intrinsic
def call(context: Any, body: Any, argument: Any) -> Any:
    """A kernel by its address."""

    def emit(builder: Any, args: Any, result: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [LONG])
        builder.call(_pointer(builder, args[0], kind), [args[1]])

    return _instruction(types.void, (body, argument), emit)


@intrinsic
def futex(context: Any, number: Any, address: Any, operation: Any, value: Any) -> Any:
    """The system call ``number``, futex(2) without a timeout."""

    def emit(builder: Any, args: Any, result: Any) -> Any:
        kind = ir.FunctionType(LONG, [LONG], var_arg=True)
        function = cgutils.get_or_insert_function(builder.module, kind, "chatd_syscall")
        builder.call(function, [*args, LONG(0), LONG(0), LONG(0)])

    return _instruction(types.void, (number, address, types.int64, types.int64), emit)


@intrinsic
def transpose(context: Any, source: Any, stride: Any, to: Any, to_stride: Any) -> Any:
    """16 rows of 16 words, ``stride`` bytes apart: word j of row i becomes word i of row j, at ``to``."""

    def emit(builder: Any, args: Any, _: Any) -> Any:
        source_, stride_, to_, to_stride_ = args

        def row(start: Any, step: Any, i: int) -> Any:
            at = builder.add(start, builder.mul(step, LONG(i)))
            return _pointer(builder, at, ir.VectorType(FLOAT, LANES))

        rows = [builder.load(row(source_, stride_, i), align=4) for i in range(LANES)]
        # A row's number has 4 bits, as a word's has: each round turns the 8 by one.
        for _ in range(4):
            halves_of = zip(rows[: LANES // 2], rows[LANES // 2 :], strict=True)
            rows = [
                _shuffle(builder, a, b, [i // 2 + i % 2 * LANES for i in range(start, start + LANES)])
                for a, b in halves_of
                for start in (0, LANES)
            ]
        for i, made in enumerate(rows):
            builder.store(made, row(to_, to_stride_, i), align=4)

    return _instruction(types.void, (source, types.int64, types.int64, types.int64), emit)


# --- arithmetic ---------------------------------------------------------------------------------------


@intrinsic
def splat(context: Any, kind: Any, value: Any) -> Any:
    """``splat(VEC, scalar)``: it in all lanes."""
    vec = kind.instance_type

    def emit(builder: Any, args: Any, result: Any) -> Any:
        scalar, element = args[1], KINDS[vec.kind]
        if element == FLOAT and isinstance(scalar.type, ir.DoubleType):
            scalar = builder.fptrunc(scalar, FLOAT)
        elif element != FLOAT and scalar.type.width > element.width:
            scalar = builder.trunc(scalar, element)
        return _splat(builder, scalar, vec.n)

    return _instruction(vec, (kind, value), emit)


def _binary(on_floats: str, on_ints: str) -> Any:
    @intrinsic
    def both(context: Any, a: Any, b: Any) -> Any:
        def emit(builder: Any, args: Any, result: Any) -> Any:
            return getattr(builder, on_floats if a.kind == "f32" else on_ints)(*args)

        return _instruction(a, (a, b), emit)

    return both


_OPERATORS = {
    operator.add: _binary("fadd", "add"),
    operator.sub: _binary("fsub", "sub"),
    operator.mul: _binary("fmul", "mul"),
    operator.truediv: _binary("fdiv", "sdiv"),
    operator.and_: _binary("and_", "and_"),
    operator.or_: _binary("or_", "or_"),
    operator.rshift: _binary("lshr", "lshr"),
    operator.lshift: _binary("shl", "shl"),
}


def _overload(symbol: Any, instruction: Any) -> None:
    @overload(symbol)
    def typed(a, b):  # type: ignore[no-untyped-def]  # numba compares these parameters with the answer's
        if isinstance(a, Vec) and a == b:
            return lambda a, b: instruction(a, b)
        return None


for _symbol, _op in _OPERATORS.items():
    _overload(_symbol, _op)


@intrinsic
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    return _instruction(a, (a, b, c), lambda builder, args, _: _math(builder, "fma", args))


def _unary(name: str) -> Any:
    @intrinsic
    def one(context: Any, a: Any) -> Any:
        return _instruction(a, (a,), lambda builder, args, _: _math(builder, name, args))

    return one


roundeven, magnitude, floor = _unary("roundeven"), _unary("fabs"), _unary("floor")


def _choice(name: str, relation: str) -> Any:
    @intrinsic
    def choose(context: Any, a: Any, b: Any) -> Any:
        """With NaN among them: the second."""

        def emit(builder: Any, args: Any, _: Any) -> Any:
            if a.kind == "f32":
                return builder.select(builder.fcmp_ordered(relation, *args), *args)
            return builder.select(builder.icmp_signed(relation, *args), *args)

        return _instruction(a, (a, b), emit)

    choose.__name__ = name
    return choose


larger, smaller = _choice("larger", ">"), _choice("smaller", "<")


@intrinsic
def at_least(context: Any, a: Any, b: Any) -> Any:
    """Mask of lanes where a >= b; not where one is NaN."""

    def emit(builder: Any, args: Any, _: Any) -> Any:
        if a.kind == "f32":
            return builder.fcmp_ordered(">=", *args)
        return builder.icmp_signed(">=", *args)

    return _instruction(Vec("mask", a.n), (a, b), emit)


@intrinsic
def select(context: Any, mask: Any, a: Any, b: Any) -> Any:
    return _instruction(a, (mask, a, b), lambda builder, args, _: builder.select(*args))


@intrinsic
def bits_of(context: Any, mask: Any) -> Any:
    """A mask as an integer, lane 0 lowest; at most 64 lanes."""

    def emit(builder: Any, args: Any, _: Any) -> Any:
        word = builder.bitcast(args[0], ir.IntType(mask.n))
        return word if mask.n == 64 else builder.zext(word, LONG)

    return _instruction(types.int64, (mask,), emit)


@intrinsic
def lowest_bit(context: Any, word: Any) -> Any:
    """Which bit of a word that is not 0."""

    def emit(builder: Any, args: Any, _: Any) -> Any:
        return _call(builder, "llvm.cttz.i64", LONG, [args[0], BIT(1)])

    return _instruction(types.int64, (types.int64,), emit)


def _reduction(name: str, scalar: Any, start: float | None) -> Any:
    @intrinsic
    def reduce(context: Any, a: Any) -> Any:
        def emit(builder: Any, args: Any, _: Any) -> Any:
            vector = args[0]
            full = f"llvm.vector.reduce.{name}.v{vector.type.count}{a.kind}"
            given = [vector] if start is None else [FLOAT(start), vector]
            kind = ir.FunctionType(vector.type.element, [arg.type for arg in given])
            function = cgutils.get_or_insert_function(builder.module, kind, full)
            return builder.call(function, given, fastmath=("reassoc", "nsz"))

        return _instruction(scalar, (a,), emit)

    return reduce


total = _reduction("fadd", types.float32, 0.0)
"""Sum of the lanes, in any order."""
largest = _reduction("fmax", types.float32, None)
"""Of the lanes; NaN is passed over."""


# --- between kinds ------------------------------------------------------------------------------------


@intrinsic
def as_bits(context: Any, a: Any) -> Any:
    """float32 lanes as int32 ones, and the reverse."""
    vec = Vec("i32" if a.kind == "f32" else "f32", a.n)
    return _instruction(vec, (a,), lambda builder, args, result: builder.bitcast(args[0], result))


@intrinsic
def from_bf16(context: Any, a: Any) -> Any:
    """Bits to float32."""
    vec = floats(a.n)

    def emit(builder: Any, args: Any, result: Any) -> Any:
        wide = builder.zext(args[0], ints(a.n).llvm)
        return builder.bitcast(builder.shl(wide, _splat(builder, INT(16), a.n)), result)

    return _instruction(vec, (a,), emit)


def _narrow(builder: Any, value: Any) -> Any:
    n = value.type.count
    if _isa[0].bf16 and n % LANES == 0:
        name, pairs = "llvm.x86.avx512bf16.cvtneps2bf16.512", ir.VectorType(BF16, LANES)
        parts = [_call(builder, name, pairs, [part]) for part in _split(builder, value, LANES)]
        return _join(builder, [builder.bitcast(part, halves(LANES).llvm) for part in parts])
    word = builder.bitcast(value, ints(n).llvm)

    def every(value: int) -> Any:
        return _splat(builder, INT(value), n)

    top = builder.lshr(word, every(16))
    odd = builder.and_(top, every(1))
    rounded = builder.lshr(builder.add(word, builder.add(odd, every(0x7FFF))), every(16))
    quiet = builder.or_(top, every(0x40))
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(nan, quiet, rounded), halves(n).llvm)


@intrinsic
def to_bf16(context: Any, a: Any) -> Any:
    """float32 to bits, to nearest even; NaN stays NaN."""
    return _instruction(halves(a.n), (a,), lambda builder, args, _: _narrow(builder, args[0]))


@intrinsic
def from_f16(context: Any, a: Any) -> Any:
    vec = floats(a.n)
    return _instruction(vec, (a,), lambda builder, args, result: builder.fpext(args[0], result))


@intrinsic
def to_float(context: Any, a: Any) -> Any:
    """Signed integers of any width to float32."""
    vec = floats(a.n)
    return _instruction(vec, (a,), lambda builder, args, result: builder.sitofp(args[0], result))


@intrinsic
def to_int(context: Any, a: Any) -> Any:
    """float32 that is whole to int32."""
    vec = ints(a.n)
    return _instruction(vec, (a,), lambda builder, args, result: builder.fptosi(args[0], result))


@intrinsic
def to_octets(context: Any, a: Any) -> Any:
    """Low bytes of int32 lanes."""
    vec = octets(a.n)
    return _instruction(vec, (a,), lambda builder, args, result: builder.trunc(args[0], result))


@intrinsic
def to_ints(context: Any, a: Any) -> Any:
    """Signed bytes or words to int32."""
    vec = ints(a.n)
    return _instruction(vec, (a,), lambda builder, args, result: builder.sext(args[0], result))


@intrinsic
def interleave(context: Any, a: Any, b: Any) -> Any:
    """a0 b0 a1 b1 ..."""
    vec = Vec(a.kind, 2 * a.n)

    def emit(builder: Any, args: Any, _: Any) -> Any:
        lanes = [i for pair in zip(range(a.n), range(a.n, 2 * a.n), strict=True) for i in pair]
        return _shuffle(builder, args[0], args[1], lanes)

    return _instruction(vec, (a, b), emit)


@intrinsic
def swap_halves(context: Any, a: Any) -> Any:
    lanes = [*range(a.n // 2, a.n), *range(a.n // 2)]
    return _instruction(a, (a,), lambda builder, args, _: _pick(builder, args[0], lanes))


# --- products of narrow numbers -----------------------------------------------------------------------


def _dot_bytes(builder: Any, acc: Any, unsigned: Any, signed: Any) -> Any:
    """acc ``<16 x i32>`` plus four products of ``<64 x i8>`` u8 and s8 to each lane."""
    words = ir.VectorType(INT, LANES)
    if _isa[0].bytes_512:
        args = [acc, builder.bitcast(unsigned, words), builder.bitcast(signed, words)]
        return _call(builder, "llvm.x86.avx512.vpdpbusd.512", words, args)
    if _isa[0].bytes_256:
        half, parts = ir.VectorType(INT, LANES // 2), []
        halves_of = (_split(builder, acc, 8), _split(builder, unsigned, 32), _split(builder, signed, 32))
        for a, u, s in zip(*halves_of, strict=True):
            args = [a, builder.bitcast(u, half), builder.bitcast(s, half)]
            parts.append(_call(builder, "llvm.x86.avx512.vpdpbusd.256", half, args))
        return _join(builder, parts)
    wide = ir.VectorType(INT, 4 * LANES)
    products = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    for lane in range(4):
        acc = builder.add(acc, _pick(builder, products, range(lane, 4 * LANES, 4)))
    return acc


@intrinsic
def dot_bytes(context: Any, acc: Any, weights: Any, x: Any, stride: Any) -> Any:
    """A tile of ``r`` rows: acc ``[r * 16]`` += u8 weights ``[16 * 4]`` times each row's four s8 at
    ``x + row * stride``.
    """

    def emit(builder: Any, args: Any, _: Any) -> Any:
        acc_, weights_, x_, stride_ = args
        rows = []
        for row, part in enumerate(_split(builder, acc_, LANES)):
            at = builder.add(x_, builder.mul(stride_, LONG(row)))
            four = builder.load(_pointer(builder, at, INT), align=1)
            signed = builder.bitcast(_splat(builder, four, LANES), octets(4 * LANES).llvm)
            rows.append(_dot_bytes(builder, part, weights_, signed))
        return _join(builder, rows)

    return _instruction(acc, (acc, weights, types.int64, types.int64), emit)


@intrinsic
def scale_rows(context: Any, acc: Any, sums: Any, scale: Any, minimum: Any, x: Any, stride: Any) -> Any:
    """acc ``[r * 16]`` += sums * (scale * a) + minimum * b, with a row's float32 a and b at
    ``x + row * stride``.
    """

    def emit(builder: Any, args: Any, _: Any) -> Any:
        acc_, sums_, scale_, minimum_, x_, stride_ = args
        rows = []
        parts = zip(_split(builder, acc_, LANES), _split(builder, sums_, LANES), strict=True)
        for row, (part, summed) in enumerate(parts):
            at = builder.add(x_, builder.mul(stride_, LONG(row)))
            pair = [
                _splat(builder, builder.load(_pointer(builder, builder.add(at, LONG(i)), FLOAT)), LANES)
                for i in (0, 4)
            ]
            low = _math(builder, "fma", [minimum_, pair[1], part])
            rows.append(_math(builder, "fma", [summed, builder.fmul(scale_, pair[0]), low]))
        return _join(builder, rows)

    return _instruction(acc, (acc, sums, scale, minimum, types.int64, types.int64), emit)


@intrinsic
def spread(context: Any, kind: Any, row: Any) -> Any:
    """``spread(VEC, row)``: a tile whose rows are all the same."""
    vec = kind.instance_type

    def emit(builder: Any, args: Any, _: Any) -> Any:
        return _pick(builder, args[1], [i % row.n for i in range(vec.n)])

    return _instruction(vec, (kind, row), emit)


@intrinsic
def store_rows(context: Any, kind: Any, address: Any, stride: Any, tile: Any) -> Any:
    """Rows of 16 of a float32 tile to ``address + row * stride``, as ``kind``: float32 or bf16."""
    narrow = kind.instance_type.kind == "i16"

    def emit(builder: Any, args: Any, _: Any) -> Any:
        for row, part in enumerate(_split(builder, args[3], LANES)):
            at = builder.add(args[1], builder.mul(args[2], LONG(row)))
            value = _narrow(builder, part) if narrow else part
            builder.store(value, _pointer(builder, at, value.type), align=2 if narrow else 4)

    return _instruction(types.void, (kind, types.int64, types.int64, tile), emit)


def _dot_pairs(builder: Any, acc: Any, a: Any, b: Any) -> Any:
    """acc ``<16 x float>`` plus two products of bf16, as bits ``<32 x i16>``, to each lane."""
    if _isa[0].bf16:
        pairs = ir.VectorType(BF16, 2 * LANES)
        args = [acc, builder.bitcast(a, pairs), builder.bitcast(b, pairs)]
        return _call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", acc.type, args)
    words = ir.VectorType(INT, LANES)
    a, b = builder.bitcast(a, words), builder.bitcast(b, words)
    for half in ("low", "high"):
        wide = [
            builder.bitcast(
                builder.shl(word, _splat(builder, INT(16), LANES))
                if half == "low"
                else builder.and_(word, _splat(builder, INT(0xFFFF0000), LANES)),
                acc.type,
            )
            for word in (a, b)
        ]
        acc = _math(builder, "fma", [*wide, acc])
    return acc


@intrinsic
def outer_pairs(context: Any, acc: Any, a: Any, b: Any, stride: Any) -> Any:
    """acc ``[columns, a.n / 2]`` += bf16 pairs a times each column's bf16 pair at ``b + column * stride``."""
    wide = a.n // 2

    def emit(builder: Any, args: Any, _: Any) -> Any:
        acc_, a_, b_, stride_ = args
        parts_a, done = _split(builder, a_, 2 * LANES), []
        for column, tile in enumerate(_split(builder, acc_, wide)):
            at = builder.add(b_, builder.mul(stride_, LONG(column)))
            pair = builder.load(_pointer(builder, at, INT), align=4)
            every = builder.bitcast(_splat(builder, pair, LANES), halves(2 * LANES).llvm)
            for part, lanes in zip(_split(builder, tile, LANES), parts_a, strict=True):
                done.append(_dot_pairs(builder, part, lanes, every))
        return _join(builder, done)

    return _instruction(acc, (acc, a, types.int64, types.int64), emit)


@intrinsic
def row_totals(context: Any, kind: Any, tile: Any, row: Any) -> Any:
    """``row_totals(VEC, tile, row)``: sum of each tile row times ``row``; lanes without a tile row are 0."""
    vec = kind.instance_type

    def emit(builder: Any, args: Any, result: Any) -> Any:
        answer = ir.Constant(result, [0.0] * vec.n)
        name = f"llvm.vector.reduce.fadd.v{row.n}f32"
        sum_type = ir.FunctionType(FLOAT, [FLOAT, row.llvm])
        for i, part in enumerate(_split(builder, args[1], row.n)):
            function = cgutils.get_or_insert_function(builder.module, sum_type, name)
            product = builder.fmul(part, args[2])
            summed = builder.call(function, [FLOAT(0.0), product], fastmath=("reassoc", "nsz"))
            answer = builder.insert_element(answer, summed, INT(i))
        return answer

    return _instruction(vec, (kind, tile, row), emit)


@intrinsic
def times_rows(context: Any, tile: Any, factors: Any, rows: Any) -> Any:
    """Each of the tile's ``rows.n`` rows times its lane of ``factors``; ``rows`` is any vector type."""
    count = rows.instance_type.n

    def emit(builder: Any, args: Any, _: Any) -> Any:
        width = tile.n // count
        parts = [
            builder.fmul(part, _pick(builder, args[1], [row] * width))
            for row, part in enumerate(_split(builder, args[0], width))
        ]
        return _join(builder, parts)

    return _instruction(tile, (tile, factors, rows), emit)


def _fold(relation: str) -> Any:
    @intrinsic
    def fold(context: Any, kind: Any, a: Any) -> Any:
        vec = kind.instance_type

        def emit(builder: Any, args: Any, _: Any) -> Any:
            parts = _split(builder, args[1], vec.n)
            answer = parts[0]
            for part in parts[1:]:
                if relation == "+":
                    answer = builder.fadd(answer, part)
                else:
                    answer = builder.select(builder.fcmp_ordered(">", answer, part), answer, part)
            return answer

        return _instruction(vec, (kind, a), emit)

    return fold


fold_total, fold_largest = _fold("+"), _fold(">")
"""``fold(VEC, a)``: lanes that are a multiple of VEC's apart become one."""


def _row_fold(relation: str) -> Any:
    @intrinsic
    def fold(context: Any, kind: Any, tile: Any) -> Any:
        vec = kind.instance_type

        def join(builder: Any, a: Any, b: Any) -> Any:
            if relation == "+":
                return builder.fadd(a, b)
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        def emit(builder: Any, args: Any, _: Any) -> Any:
            value, width = args[1], tile.n // vec.n
            if width > LANES:
                value = _join(
                    builder,
                    [
                        functools.reduce(functools.partial(join, builder), _split(builder, row, LANES))
                        for row in _split(builder, value, width)
                    ],
                )
            while value.type.count > vec.n:
                even, odd = (range(i, value.type.count, 2) for i in range(2))
                value = join(builder, _pick(builder, value, even), _pick(builder, value, odd))
            return value

        return _instruction(vec, (kind, tile), emit)

    return fold


row_sums, row_peaks = _row_fold("+"), _row_fold(">")
"""``fold(VEC, tile)``: a lane for each of the tile's rows, which are as many as VEC has lanes. All rows go
through the same few instructions, where `total` and `largest` take as many for each.
"""


@intrinsic
def outer_floats(context: Any, acc: Any, a: Any, b: Any, stride: Any) -> Any:
    """acc ``[columns, a.n]`` += a times each column's float32 at ``b + column * stride``."""

    def emit(builder: Any, args: Any, _: Any) -> Any:
        acc_, a_, b_, stride_ = args
        done = []
        for column, tile in enumerate(_split(builder, acc_, a.n)):
            at = builder.add(b_, builder.mul(stride_, LONG(column)))
            every = _splat(builder, builder.load(_pointer(builder, at, FLOAT)), a.n)
            done.append(_math(builder, "fma", [a_, every, tile]))
        return _join(builder, done)

    return _instruction(acc, (acc, a, types.int64, types.int64), emit)


# --- functions ----------------------------------------------------------------------------------------


@device
def exp(kind, x):  # type: ignore[no-untyped-def]
    """e to the power of each lane, to about 1e-7 of itself (Cephes' polynomial); 0 below -87.7.

    ``kind`` is the vector's type.
    """
    n = roundeven(smaller(x, splat(kind, 88.0)) * splat(kind, 1.44269504088896341))
    n = larger(n, splat(kind, -127.0))
    r = fma(n, splat(kind, -0.693359375), larger(splat(kind, -88.0), x))  # in this order NaN stays
    r = fma(n, splat(kind, 2.12194440e-4), r)
    p = fma(splat(kind, 1.9875691500e-4), r, splat(kind, 1.3981999507e-3))
    p = fma(p, r, splat(kind, 8.3334519073e-3))
    p = fma(p, r, splat(kind, 4.1665795894e-2))
    p = fma(p, r, splat(kind, 1.6666665459e-1))
    p = fma(p, r, splat(kind, 5.0000001201e-1))
    p = fma(p, r * r, r + splat(kind, 1.0))
    return p * two_to(n)


@device
def weight_of(kind, x):  # type: ignore[no-untyped-def]
    """2 to the power of each lane, none above 0, to about 3e-6 of itself: of what is then rounded to bf16."""
    n = roundeven(x)
    r = x - n
    p = fma(splat(kind, 9.58282e-3), r, splat(kind, 5.590637e-2))
    p = fma(p, r, splat(kind, 2.4024099e-1))
    p = fma(p, r, splat(kind, 6.931242e-1))
    p = fma(p, r, splat(kind, 1.0))
    return times_two_to(p, n)


@intrinsic
def times_two_to(context: Any, a: Any, n: Any) -> Any:
    """a * 2^n for whole n up to 0; below -126 about 0. NaN stays NaN."""

    def emit(builder: Any, args: Any, _: Any) -> Any:
        if _isa[0].wide and a.n % LANES == 0:
            name, full = "llvm.x86.avx512.mask.scalef.ps.512", ir.IntType(16)(0xFFFF)
            parts = zip(_split(builder, args[0], LANES), _split(builder, args[1], LANES), strict=True)
            return _join(builder, [
                _call(builder, name, one.type, [one, by, one, full, INT(4)]) for one, by in parts
            ])  # fmt: skip
        least = _splat(builder, FLOAT(-127.0), a.n)
        bounded = builder.select(builder.fcmp_ordered(">", args[1], least), args[1], least)
        whole = builder.fptosi(bounded, ints(a.n).llvm)
        biased = builder.add(whole, _splat(builder, INT(127), a.n))
        power = builder.bitcast(builder.shl(biased, _splat(builder, INT(23), a.n)), args[0].type)
        return builder.fmul(args[0], power)

    return _instruction(a, (a, n), emit)


@intrinsic
def two_to(context: Any, n: Any) -> Any:
    """2 to the power of whole lanes from -127 (which gives 0) to 127."""

    def emit(builder: Any, args: Any, result: Any) -> Any:
        whole = builder.fptosi(args[0], ints(n.n).llvm)
        biased = builder.add(whole, _splat(builder, INT(127), n.n))
        return builder.bitcast(builder.shl(biased, _splat(builder, INT(23), n.n)), result)

    return _instruction(n, (n,), emit)
