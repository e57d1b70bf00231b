"""The rotation of a step's positions, against float64."""

import torch

from chatd.model.config import Rope
from chatd.model.rope import inverse_frequencies, rotation


def test_rotation_is_exact_to_float32_at_any_position() -> None:
    inverse = inverse_frequencies(Rope(base=100_000.0), 64)
    positions = torch.arange(0, 131_072, 11)
    cos, sin = rotation(inverse, positions)
    angles = (positions[:, None].float() * inverse).double()
    for made, exact in ((cos, (angles.cos(),) * 2), (sin, (-angles.sin(), angles.sin()))):
        assert made.dtype == torch.float32
        torch.testing.assert_close(made.double(), torch.cat(exact, -1), atol=2e-7, rtol=0)


def test_no_positions() -> None:
    cos, sin = rotation(inverse_frequencies(Rope(base=10_000.0), 32), torch.empty(0, dtype=torch.int64))
    assert cos.shape == sin.shape == (0, 32)
