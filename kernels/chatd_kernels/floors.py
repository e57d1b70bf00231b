"""The fewest bytes and operations of each kernel in a step of a real model, and the least time they take.

    python -m chatd_kernels.floors

prints the tables of kernels/README.md. Each input is counted once, each output once; caches are not counted
on. A step's floor is the sum of its kernels' floors: they run one after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from chatd_kernels.shapes import LLAMA_3_8B, SMOLLM2_135M, ModelShape

BYTES_PER_S = 4.3e12
"""Copy bandwidth measured on an H200: bytes read plus bytes written."""
OPERATIONS_PER_S = 790e12
"""bf16 matrix rate measured there on random data."""
MODELS = (LLAMA_3_8B, SMOLLM2_135M)
BATCHES = (1, 16, 128)
CONTEXTS = (512, 4096, 32768)
BF16 = 2
SCALE = 4


@dataclass(frozen=True, slots=True)
class Work:
    """``moved`` bytes through device memory, ``operations`` on the matrix units (a multiply-add is two)."""

    moved: float
    operations: float = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.moved + other.moved, self.operations + other.operations)

    def __mul__(self, count: int) -> "Work":
        return Work(self.moved * count, self.operations * count)

    @property
    def floor_s(self) -> float:
        return max(self.moved / BYTES_PER_S, self.operations / OPERATIONS_PER_S)


def kv_token_bytes(m: ModelShape, kv_bytes: int = BF16) -> int:
    """K and V of one token in one layer; int8 and fp8 both count a byte, int8's scales come on top."""
    return 2 * m.kv_heads * m.dim * kv_bytes


def attention(m: ModelShape, rows: int, q_len: int, kv_len: int, token_bytes: int) -> Work:
    """One layer; ``kv_len`` includes the queries, which see what is before them and themselves."""
    pairs = q_len * kv_len - q_len * (q_len - 1) // 2
    activations = 2 * q_len * m.heads * m.dim * BF16
    return Work(kv_len * token_bytes + activations, 4 * pairs * m.heads * m.dim) * rows


def rms_norm(m: ModelShape, n: int) -> Work:
    """With residual add: x and residual in, residual and output out."""
    return Work((4 * n + 1) * m.hidden * BF16)


def rope_store(m: ModelShape, n: int) -> Work:
    heads = m.heads + 2 * m.kv_heads
    return Work(n * (2 * heads * BF16 + 2 * 4) * m.dim)


def silu_mul(m: ModelShape, n: int) -> Work:
    return Work(3 * n * m.ffn * BF16)


def linear(n: int, inner: int, outer: int) -> Work:
    return Work((inner * outer + n * (inner + outer)) * BF16, 2 * n * inner * outer)


def sample(m: ModelShape, rows: int) -> Work:
    return Work(rows * m.vocab * BF16)


def move_pages(m: ModelShape, tokens: int) -> Work:
    """Gather, scatter, or copy: read and written once."""
    return Work(2 * tokens * m.layers * kv_token_bytes(m))


def linears(m: ModelShape, n: int) -> list[Work]:
    """Of one layer, in order: qkv, attention's output, gate and up, down."""
    q = m.heads * m.dim
    return [
        linear(n, m.hidden, q + 2 * m.kv_heads * m.dim),
        linear(n, q, m.hidden),
        linear(n, m.hidden, 2 * m.ffn),
        linear(n, m.ffn, m.hidden),
    ]


def step(m: ModelShape, rows: int, q_len: int, kv_len: int) -> dict[str, list[Work]]:
    """Every launch of a step, by kernel."""
    n = rows * q_len
    token_bytes = kv_token_bytes(m)
    return {
        "attention": [attention(m, rows, q_len, kv_len, token_bytes)] * m.layers,
        "rope and store": [rope_store(m, n)] * m.layers,
        "norms": [rms_norm(m, n)] * (2 * m.layers + 1),
        "silu-mul": [silu_mul(m, n)] * m.layers,
        "sampling": [sample(m, rows)],
        "linears": linears(m, n) * m.layers + [linear(rows, m.hidden, m.vocab)],
    }


def total(works: list[Work]) -> Work:
    return sum(works, Work(0))


def floor_ms(works: list[Work]) -> float:
    return 1e3 * sum(work.floor_s for work in works)


def step_table() -> Iterator[str]:
    """Markdown: decode steps."""
    yield (
        "| model | batch | context | attention, GB | attention, GFLOP | attention, ms | other kernels, ms "
        "| linears, ms | step, ms | tokens/s | attention on 8-bit KV, ms |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for m in MODELS:
        for batch in BATCHES:
            for context in CONTEXTS:
                works = step(m, batch, 1, context)
                narrow = kv_token_bytes(m, 1) + 2 * m.kv_heads * SCALE
                attended = total(works["attention"])
                others = sum(floor_ms(works[k]) for k in works if k not in ("attention", "linears"))
                whole = sum(map(floor_ms, works.values()))
                yield (
                    f"| {m.name} | {batch} | {context} | {attended.moved / 1e9:.3f} "
                    f"| {attended.operations / 1e9:.1f} | {floor_ms(works['attention']):.3f} | {others:.4f} "
                    f"| {floor_ms(works['linears']):.3f} | {whole:.3f} | {1e3 * batch / whole:,.0f} "
                    f"| {floor_ms([attention(m, batch, 1, context, narrow)] * m.layers):.3f} |"
                )


def kernel_table() -> Iterator[str]:
    """Markdown: each kernel alone, one launch, at the shapes that `check` times."""
    yield "| kernel | Llama-3-8B shape | MB | GFLOP | floor, us |"
    yield "|---|---|---|---|---|"
    m = LLAMA_3_8B
    narrow = kv_token_bytes(m, 1)
    for kernel, shape, work in (
        ("decode attention", "batch 32, 4k context, bf16", attention(m, 32, 1, 4096, kv_token_bytes(m))),
        ("decode attention", "batch 32, 4k context, fp8", attention(m, 32, 1, 4096, narrow)),
        (
            "decode attention",
            "batch 32, 4k context, int8",
            attention(m, 32, 1, 4096, narrow + 2 * m.kv_heads * SCALE),
        ),
        ("extend attention", "2k queries on 8k", attention(m, 1, 2048, 8192, kv_token_bytes(m))),
        ("rope and store", "2k tokens", rope_store(m, 2048)),
        ("add, norm", "2k tokens", rms_norm(m, 2048)),
        ("silu-mul", "2k tokens", silu_mul(m, 2048)),
        ("gather pages", "2k tokens", move_pages(m, 2048)),
        ("sampling", "batch 128", sample(m, 128)),
    ):
        yield (
            f"| {kernel} | {shape} | {work.moved / 1e6:.1f} | {work.operations / 1e9:.1f} "
            f"| {1e6 * work.floor_s:.1f} |"
        )


def main() -> None:
    print("\n".join(kernel_table()), "\n".join(step_table()), sep="\n\n")


if __name__ == "__main__":
    main()
