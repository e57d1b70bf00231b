"""KV in 8 bits: rounding on store, and pages widened to float32 before attention; see `LayerKV`."""

import torch
from torch import Tensor

from chatd_kernels.ops import LayerKV

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in the pool's dtype, int8 apart. fp8 saturates."""
    return (x.float().clamp(-FP8_MAX, FP8_MAX) if dtype == FP8 else x).to(dtype)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes ``[..., d]`` and float32 scales ``[...]``."""
    x = x.float()
    peak = x.abs().amax(-1)
    inverse = torch.where(peak == 0, 0.0, 127.0 / peak)
    return torch.floor(x * inverse[..., None] + 0.5).to(torch.int8), peak / 127.0


def is_narrow(kv: LayerKV) -> bool:
    return kv.k.dtype in (FP8, torch.int8)


def used_pages(table: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct pages of a table, int64, and the table in numbers of that list, int32."""
    pages, renumbered = torch.unique(table, return_inverse=True)
    return pages.long(), renumbered.int()


def widen(kv: LayerKV, pages: Tensor) -> LayerKV:
    """Those pages in float32, ``[len(pages), kvh, ps, d]``."""
    return LayerKV(_widen(kv.k, kv.k_scale, pages), _widen(kv.v, kv.v_scale, pages))


def _widen(plane: Tensor, scale: Tensor | None, pages: Tensor) -> Tensor:
    # As bytes: indexing does not know fp8.
    wide = plane.view(torch.uint8)[pages].view(plane.dtype).float()
    return wide if scale is None else wide * scale[pages][..., None]
