"""The one list of operations a backend implements.

`reference` (plain torch) is the specification: every other backend computes the same formulas and is
tested against it. Operations see base pointers, strides and explicit batches; nothing is global and
nothing is remembered between calls. Offsets into the KV pool exceed 32 bits: strides are int64.

Shapes: ``n`` tokens of a step, ``r`` rows (requests), ``h`` query heads, ``g`` query heads per KV head,
``kvh`` KV heads, ``d`` head dimension, ``ps`` slots of a page, ``v`` vocabulary.

The law of the pool: a slot at or past ``kv_lens[r]``, a page not in row ``r``'s part of the table and
padding of the table never influence row ``r``, whatever they hold, NaN included.
"""

from dataclasses import dataclass
from typing import NewType, Protocol

from torch import Tensor

BAD_ROW = -1
"""In `sample`'s answer: NaN or plus infinity among the row's logits, or nothing finite."""


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's K and V inside the page pool: views ``[num_pages, kvh, ps, d]``.

    Within a page heads, slots and dimensions are contiguous in this order; the stride between pages
    (of all layers) is a multiple of ``ps * d``, but for int8.

    float8_e4m3fn K and V are rounded to nearest and saturate at 448. int8 ones have scales, float32
    views ``[num_pages, kvh, ps]`` into the page's record: for each token and head
    scale = max|x| / 127 and code = floor(x * (127 / max|x|) + 1/2), 0 for a row of zeros;
    x is read back as scale * code. A NaN makes the scale NaN.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Which rows attend to which pages.

    ``page_table`` int32 ``[r, max_pages]``, padded with any valid page; ``kv_lens`` int32 ``[r]``: tokens
    with KV including this step's own; ``q_starts`` int32 ``[r + 1]``: row ``i``'s queries are
    ``q_starts[i]:q_starts[i + 1]`` and are the row's last tokens. The maxima are host-side copies that
    spare a device synchronisation.
    """

    page_table: Tensor
    kv_lens: Tensor
    q_starts: Tensor
    max_kv_len: int
    max_q_len: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What is fixed for a model: score = cap(scale * q.k), where cap(x) = softcap * tanh(x / softcap).

    ``window`` > 0: a query at position ``p`` sees keys at positions ``> p - window`` only. 0 switches off
    either of the two.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class SampleParams:
    """How ``r`` rows draw. Tensors ``[r]`` on the logits' device; see `Ops.sample` for the formula.

    ``temperature``, ``top_p``, ``min_p`` float32; ``top_k`` int64 (0: off); ``seeds`` int64 (64 bits,
    reinterpreted); ``positions`` int64: the position the drawn token will have. ``all_greedy`` and
    ``any_filter`` are host-side hints that spare work: they must be true if in doubt about the latter and
    false if in doubt about the former.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor
    all_greedy: bool
    any_filter: bool


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Sparse changes to logits, as distinct (row, token) pairs.

    ``rows``, ascending, and ``tokens`` int64 ``[m]``; ``repetition`` and ``offset`` float32 ``[m]``. A
    positive logit is divided by ``repetition``, any other multiplied by it; then ``offset`` is added (bias
    less presence and frequency penalties).
    """

    rows: Tensor
    tokens: Tensor
    repetition: Tensor
    offset: Tensor


DecodePlan = NewType("DecodePlan", object)
"""Made by a backend once a step, used by it in every layer. Only that backend looks inside."""

ExtendPlan = NewType("ExtendPlan", object)


class Ops(Protocol):
    """Outputs are fresh tensors in the dtype of the first argument unless said otherwise."""

    name: str
    captures: bool
    """Operations read nothing back from the device, so that a step can be captured in a graph."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension, float32 inside. x ``[n, hidden]``."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual += x in place; returns rms_norm(residual)."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up. gate_up ``[n, 2 * ffn]``, gate first; returns ``[n, ffn]``."""
        ...

    def rope_store_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv: LayerKV,
        slot_pages: Tensor,
        slot_offsets: Tensor,
    ) -> Tensor:
        """Rotate q and k, write k and v to their slots, return q ``[n, h, d]``.

        qkv ``[n, (h + 2 * kvh) * d]``; cos and sin float32 ``[n, d]`` with the first half of ``sin`` negated,
        so that rotated = x * cos + swap_halves(x) * sin. Token ``i`` goes to page ``slot_pages[i]``, slot
        ``slot_offsets[i]`` (int64). All K of the step is stored before attention reads it.
        """
        ...

    def plan_decode(self, batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> DecodePlan:
        """Whatever is common to all layers of a step in which each row has one query.

        ``kv`` is any layer of the pool, for its shape and strides.
        """
        ...

    def decode_attention(self, q: Tensor, kv: LayerKV, plan: DecodePlan, out: Tensor | None = None) -> Tensor:
        """softmax(cap(scale * q K^T)) V over each row's own tokens. q ``[r, h, d]``; returns the same shape,
        in ``out`` if there is one: contiguous, of q's dtype.

        Scores and softmax in float32; query head ``i`` uses KV head ``i // g``.
        """
        ...

    def plan_extend(self, batch: PagedBatch, kv: LayerKV, spec: AttentionSpec) -> ExtendPlan:
        """As `plan_decode`, for rows with any number of queries."""
        ...

    def extend_attention(self, q: Tensor, kv: LayerKV, plan: ExtendPlan, out: Tensor | None = None) -> Tensor:
        """Causal attention of a ragged batch over cached prefix and own tokens. q ``[n, h, d]``; returns the
        same shape, in ``out`` as above.

        Query ``j`` of ``m`` in row ``i`` is at position ``kv_lens[i] - m + j`` and sees all tokens up to
        itself.
        """
        ...

    def copy_slots(self, pool: Tensor, src: int, dst: int, slots: int, scales: Tensor | None = None) -> None:
        """First ``slots`` slots of page ``src`` to page ``dst``, all layers.

        pool ``[num_pages, layers, 2, kvh, ps, d]``; ``scales``, of an int8 pool, the same without ``d``.
        """
        ...

    def gather_pages(self, pool: Tensor, pages: Tensor, out: Tensor | None = None) -> Tensor:
        """Records of ``pages`` (int64 ``[m]``) as one contiguous tensor ``[m, ...]``: ``out``, if given.

        pool ``[num_pages, ...]``, contiguous within a page: K and V planes, or the bytes of whole records
        (`layout.PagePool.raw`), scales included.
        """
        ...

    def scatter_pages(self, pool: Tensor, pages: Tensor, records: Tensor) -> None:
        """The inverse of `gather_pages`; ``pages`` are distinct."""
        ...

    def sample(
        self,
        logits: Tensor,
        params: SampleParams,
        edits: LogitEdits | None,
        logprobs: Tensor | None = None,
    ) -> Tensor:
        """One id per row, int64 ``[r]``, or `BAD_ROW`. logits ``[r, v]`` are left as they are.

        ``logprobs``, float32 ``[r]``, is filled, if given, with log softmax of the edited logits (temperature
        1, nothing filtered) at the answer; NaN for a bad row.

        1. In float32: repetition, then offsets of ``edits``. 2. A row whose maximum is not finite is bad.
        3. Temperature 0: the lowest id among the largest logits. 4. Otherwise weight =
        exp((logit - max) / temperature). Filters are floors on the weight, so that ties stay together: the
        ``top_k``-th largest; the one at which what ``top_k`` left, added up largest first, reaches
        ``top_p`` of its sum; ``min_p``. 5. u = x / 2^32, where x is the first word of Philox4x32-10 with
        key = seed and counter = position (both low word first, the rest 0); the answer is the first id in
        vocabulary order whose running sum of kept weights exceeds u times their total.

        A row's answer depends on nothing but its own logits and parameters.
        """
        ...
