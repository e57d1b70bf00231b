"""Layers of codes against the same products in float32, and codes against the weights they stand for."""

import numpy as np
import pytest
import torch
from torch import Tensor

from chatd_kernels.cpu import CpuOps
from chatd_kernels.cpu.linear import Codes, linear, pack, quantise, rows_of

GROUP = 32


def weights_of(codes: Codes) -> Tensor:
    """float32 ``[out, in]``."""
    code = codes.codes
    if codes.bits == 4:
        code = np.concatenate((code & 15, code >> 4), -1)
    wide = code * codes.scale.astype(np.float32)[..., None] + codes.minimum.astype(np.float32)[..., None]
    return torch.from_numpy(wide.reshape(len(code), -1))


def rounded(x: Tensor) -> Tensor:
    """Activations in 8 bits, by groups."""
    groups = x.float().view(len(x), -1, GROUP)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return (torch.where(scale > 0, groups / scale, 0.0).round() * scale).view(x.shape)


@pytest.mark.parametrize(("bits", "dtype"), [(4, torch.float32), (8, torch.float32), (4, torch.bfloat16)])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 63])
def test_products(cpu: CpuOps, bits: int, dtype: torch.dtype, rows: int) -> None:
    rng = np.random.default_rng(rows)
    parts = [quantise(rng.standard_normal((out, 160)).astype(np.float32), bits) for out in (48, 16, 32)]
    x, bias = torch.from_numpy(rng.standard_normal((rows, 160))).to(dtype), torch.randn(96)
    x[0, 32:64] = 0
    packed, weight = pack(parts), torch.cat([weights_of(part) for part in parts])
    want = rounded(x) @ weight.T
    limit = 1e-3 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(linear(cpu.library, x, packed, None).float(), want, atol=limit, rtol=0.01)
    torch.testing.assert_close(
        linear(cpu.library, x, packed, bias).float(), want + bias, atol=limit, rtol=0.01
    )


def test_a_row_does_not_depend_on_its_neighbours(cpu: CpuOps) -> None:
    packed = pack([quantise(np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32), 4)])
    x = torch.randn(13, 96)
    whole = linear(cpu.library, x, packed, None)
    for row in range(13):
        assert torch.equal(linear(cpu.library, x[row : row + 1], packed, None)[0], whole[row])


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_weight(cpu: CpuOps, bits: int) -> None:
    codes = quantise(np.random.default_rng(0).standard_normal((80, 96)).astype(np.float32), bits)
    ids = torch.tensor([0, 79, 17, 17])
    torch.testing.assert_close(rows_of(cpu.library, pack([codes]), ids), weights_of(codes)[ids])


@pytest.mark.parametrize(("bits", "step"), [(4, 15), (8, 254)])
def test_rounding_is_to_the_nearest_code(bits: int, step: int) -> None:
    weight = np.random.default_rng(0).standard_normal((32, 320)).astype(np.float32)
    weight[3, 32:64] = 0
    error = (weights_of(quantise(weight, bits)) - torch.from_numpy(weight)).abs().view(32, -1, GROUP).amax(-1)
    groups = torch.from_numpy(weight).view(32, -1, GROUP)
    spread = 2 * groups.abs().amax(-1) if bits == 8 else groups.amax(-1) - groups.amin(-1)
    assert (error <= 0.51 * spread / step + 2e-3 * groups.abs().amax(-1)).all()
