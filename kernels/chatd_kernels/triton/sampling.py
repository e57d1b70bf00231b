"""Host side of sampling: scratch and one launch."""

import torch
from torch import Tensor

from chatd_kernels.ops import LogitEdits, SampleParams
from chatd_kernels.triton.launch import Launcher, Target, ceil_div, next_power
from chatd_kernels.triton.sampling_kernels import sample_kernel


def sample(
    launch: Launcher,
    target: Target,
    logits: Tensor,
    params: SampleParams,
    edits: LogitEdits | None,
    logprobs: Tensor | None,
) -> Tensor:
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    scratch = torch.empty(2, rows, vocab, dtype=torch.float32, device=logits.device)
    # The larger one spills on sm_90 with Triton 3.6, the smaller one on sm_80 with 3.9.
    block = 128 if target.kind == "interpreter" else 4096 if target.arch == 80 else 2048
    launch(
        sample_kernel,
        (rows,),
        num_warps=16,
        logits_ptr=logits,
        edited_ptr=scratch[0],
        packed_ptr=scratch[1],
        edit_rows_ptr=ids if edits is None else edits.rows,
        edit_tokens_ptr=ids if edits is None else edits.tokens,
        repetition_ptr=scratch if edits is None else edits.repetition,
        offset_ptr=scratch if edits is None else edits.offset,
        temperature_ptr=params.temperature,
        top_k_ptr=params.top_k,
        top_p_ptr=params.top_p,
        min_p_ptr=params.min_p,
        seeds_ptr=params.seeds,
        positions_ptr=params.positions,
        ids_ptr=ids,
        logprobs_ptr=scratch if logprobs is None else logprobs,
        edits=0 if edits is None else len(edits.rows),
        vocab=vocab,
        logits_stride=logits.stride(0),
        EDIT=edits is not None,
        DRAW=not params.all_greedy,
        FILTER=params.any_filter and not params.all_greedy,
        LOGPROBS=logprobs is not None,
        BLOCK=block,
        BLOCKS=next_power(ceil_div(vocab, block)),
    )
    return ids
