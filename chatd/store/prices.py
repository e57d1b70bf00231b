"""Prices, the rules of a tariff, and the rounding of a bill. Integers only: no float ever touches money."""

from dataclasses import dataclass, field

from chatd.store.records import Cost

TOKENS_PER_PRICE = 1_000_000
"""Prices are quoted for this many tokens."""


def nano_cost(tokens: int, price: int) -> int:
    """``tokens`` at ``price`` nano-units per million, rounded half up. Neither is negative."""
    return (tokens * price + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE


BYTE_SECONDS_PER_PRICE = 2**30 * 3600
"""Storage is priced by the GiB-hour."""


def storage_cost(byte_seconds: int, price: int) -> int:
    """Bytes kept, times seconds, at ``price`` nano-units for a GiB-hour, rounded half up."""
    return (byte_seconds * price + BYTE_SECONDS_PER_PRICE // 2) // BYTE_SECONDS_PER_PRICE


@dataclass(frozen=True, slots=True)
class Prices:
    """Nano-units for a million tokens of each bucket; None where the book has no price.

    ``write`` comes on top of ``computed`` for prompts long enough to be cached.
    """

    computed: int | None
    gpu_hit: int | None
    disk_hit: int | None
    output: int | None
    write: int = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"the price of {name} tokens is negative")

    @property
    def missing(self) -> tuple[str, ...]:
        """The buckets without a price."""
        return tuple(name for name in self.__slots__ if getattr(self, name) is None)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a tariff counts as reused: nothing below ``least_hit_len`` tokens, and then whole units.

    Tokens that were reused and that the tariff does not count are billed as computed.
    """

    least_hit_len: int = 0
    unit_len: int = 1

    def __post_init__(self) -> None:
        if self.least_hit_len < 0 or self.unit_len < 1:
            raise ValueError("a unit has at least one token, and the least hit is not negative")

    def counted(self, hit_len: int) -> int:
        """How many of ``hit_len`` reused tokens are billed as such."""
        return hit_len // self.unit_len * self.unit_len if hit_len >= self.least_hit_len else 0


@dataclass(frozen=True, slots=True)
class PriceBook:
    """What a million tokens of each bucket cost, in nano-units (1e-9) of ``currency``.

    ``models`` have prices of their own, all others those of the book itself. A ``version`` names its
    prices for ever: a data folder that has seen it refuses other prices under the same name.
    ``valid_from`` is the day (``YYYY-MM-DD``) it was brought in. ``storage`` is for a GiB of KV on disk or
    pinned that is kept for an hour; None: it has no price.
    """

    version: str = "default-2026-11"
    currency: str = "CNY"
    valid_from: str = "2026-11-01"
    computed: int | None = 1_000_000_000
    gpu_hit: int | None = 100_000_000
    disk_hit: int | None = 100_000_000
    generated: int | None = 2_000_000_000
    write: int = 0
    storage: int | None = None
    models: tuple[tuple[str, Prices], ...] = ()
    rules: Rules = Rules()
    note: str = field(default="", compare=False)
    """For people; says nothing about the prices themselves."""

    def __post_init__(self) -> None:
        for name in ("computed", "gpu_hit", "disk_hit", "generated", "write", "storage"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"the price of {name} is negative")

    @property
    def default(self) -> Prices:
        return Prices(self.computed, self.gpu_hit, self.disk_hit, self.generated, self.write)

    def prices_of(self, model: str) -> Prices:
        for name, prices in self.models:
            if name == model:
                return prices
        return self.default

    def cost(self, *, gpu_hit: int, disk_hit: int, computed: int, output: int, model: str = "") -> Cost:
        """The bill of one row: each bucket rounded once. ValueError if the book lacks a price for it."""
        cost = self.quote(
            self.prices_of(model), gpu_hit=gpu_hit, disk_hit=disk_hit, computed=computed, output=output
        )
        if cost is None:
            raise ValueError(f"price book {self.version} has no price for {model or 'every bucket'}")
        return cost

    def quote(
        self, prices: Prices, *, gpu_hit: int, disk_hit: int, computed: int, output: int
    ) -> Cost | None:
        """The bill at ``prices`` under this book's rules; None without a price for each bucket."""
        if prices.computed is None or prices.gpu_hit is None or prices.disk_hit is None:
            return None
        if prices.output is None:
            return None
        counted = self.rules.counted(gpu_hit + disk_hit)
        from_gpu = min(gpu_hit, counted)
        prompt = gpu_hit + disk_hit + computed
        # A prompt that is long enough to be found again is written to the cache, and pays for that.
        write = prices.write if prompt >= self.rules.least_hit_len else 0
        output_nano = nano_cost(output, prices.output)
        return Cost(
            currency=self.currency,
            price_version=self.version,
            gpu_hit_nano=nano_cost(from_gpu, prices.gpu_hit),
            disk_hit_nano=nano_cost(counted - from_gpu, prices.disk_hit),
            computed_nano=nano_cost(prompt - counted, prices.computed + write),
            output_nano=output_nano,
            without_cache_nano=nano_cost(prompt, prices.computed) + output_nano,
        )
