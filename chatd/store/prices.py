"""Prices and the rounding of a bill. Integers only: no float ever touches money."""

from dataclasses import dataclass

from chatd.store.records import Cost

TOKENS_PER_PRICE = 1_000_000
"""Prices are quoted for this many tokens."""


def nano_cost(tokens: int, price: int) -> int:
    """``tokens`` at ``price`` nano-units per million, rounded half up. Neither is negative."""
    return (tokens * price + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE


@dataclass(frozen=True, slots=True)
class PriceBook:
    """What a million tokens of each bucket cost, in nano-units (1e-9) of ``currency``.

    A ``version`` names its prices for ever: a data folder that has seen it refuses other prices
    under the same name. ``valid_from`` is the day (``YYYY-MM-DD``) it was brought in.
    """

    version: str = "default-2026-11"
    currency: str = "CNY"
    valid_from: str = "2026-11-01"
    computed: int = 1_000_000_000
    gpu_hit: int = 100_000_000
    disk_hit: int = 100_000_000
    generated: int = 2_000_000_000

    def __post_init__(self) -> None:
        for name in ("computed", "gpu_hit", "disk_hit", "generated"):
            if getattr(self, name) < 0:
                raise ValueError(f"the price of {name} tokens is negative")

    def cost(self, *, gpu_hit: int, disk_hit: int, computed: int, output: int) -> Cost:
        """The bill of one row: each bucket rounded once."""
        output_nano = nano_cost(output, self.generated)
        prompt = gpu_hit + disk_hit + computed
        return Cost(
            currency=self.currency,
            price_version=self.version,
            gpu_hit_nano=nano_cost(gpu_hit, self.gpu_hit),
            disk_hit_nano=nano_cost(disk_hit, self.disk_hit),
            computed_nano=nano_cost(computed, self.computed),
            output_nano=output_nano,
            without_cache_nano=nano_cost(prompt, self.computed) + output_nano,
        )
