"""Kinds of settings: from what a person wrote (TOML value, environment text, flag) to a checked value.

Each ``parse`` takes a TOML value or a string and raises `ValueError` whose text completes the
sentence "port in chatd.toml is 99999, ...".
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, Literal, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Auto = Literal["auto"]
AUTO: Final[Auto] = "auto"

UNITS: Final = {"": 1, "B": 1}
UNITS.update(
    {f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)} | {f"{p}B": 1000**n for n, p in enumerate("KMGT", 1)}
)


class WrongPart(ValueError):
    """One of several values is wrong: ``part``."""

    def __init__(self, part: object, why: str) -> None:
        super().__init__(why)
        self.part = part


class Kind(Protocol[T_co]):
    @property
    def metavar(self) -> str: ...

    def parse(self, raw: object) -> T_co: ...


@dataclass(frozen=True)
class Text:
    """Any text; with ``pattern`` the whole of it has to match, which ``wanted`` says in words."""

    metavar: str = "TEXT"
    pattern: str = r"[^\x00]*"
    wanted: str = "text"

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str) or not re.fullmatch(self.pattern, raw):
            raise ValueError(f"but {self.wanted} is wanted")
        return raw


@dataclass(frozen=True)
class Choice:
    """One of ``names``."""

    names: tuple[str, ...]

    @property
    def metavar(self) -> str:
        return "|".join(self.names)

    def parse(self, raw: object) -> str:
        allowed = " or ".join([", ".join(self.names[:-1]), self.names[-1]])
        if not isinstance(raw, str) or raw not in self.names:
            raise ValueError(f"but one of {allowed} is wanted")
        return raw


@dataclass(frozen=True)
class Network:
    """An address, or all addresses that begin with some bits, such as 10.0.0.0/8."""

    metavar: str = "CIDR"

    def parse(self, raw: object) -> str:
        try:
            if not isinstance(raw, str):
                raise ValueError
            return str(ipaddress.ip_network(raw))
        except ValueError:
            raise ValueError("but an address or a network such as 10.0.0.0/8 is wanted") from None


@dataclass(frozen=True)
class Whole:
    low: int
    high: int
    metavar: str = "N"
    powers_of_two: bool = False

    def parse(self, raw: object) -> int:
        value = int(raw) if isinstance(raw, str) and re.fullmatch(r"-?[0-9]{1,18}", raw) else raw
        what = "a power of two" if self.powers_of_two else "a whole number"
        if isinstance(value, bool) or not isinstance(value, int) or not self._fits(value):
            raise ValueError(f"but {what} from {self.low} to {self.high} is wanted")
        return value

    def _fits(self, value: int) -> bool:
        return self.low <= value <= self.high and (not self.powers_of_two or value.bit_count() == 1)


@dataclass(frozen=True)
class Number:
    """``wanted`` says in words what is counted."""

    low: float
    high: float
    metavar: str = "SECONDS"
    wanted: str = "a number of seconds"

    def parse(self, raw: object) -> float:
        value = (
            float(raw) if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", raw) else raw
        )
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self.low <= value <= self.high
        ):
            raise ValueError(f"but {self.wanted} from {self.low:g} to {self.high:g} is wanted")
        return float(value)


@dataclass(frozen=True)
class Size:
    """Bytes: a whole number, or text such as 512MiB, 2GiB, 1.5 GB."""

    low: int
    metavar: str = "SIZE"

    def parse(self, raw: object) -> int:
        value = raw
        if isinstance(raw, str):
            match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", raw)
            unit = match and {u.lower(): n for u, n in UNITS.items()}.get(match[2].lower())
            value = int(float(match[1]) * unit) if match and unit else None
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("but a size such as 512MiB or 2GiB is wanted")
        if value < self.low:
            raise ValueError(f"but at least {show_size(self.low)} is wanted")
        return value


def show_size(size: int) -> str:
    """1536 -> '1.5 KiB'."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f}".removesuffix(".0") + f" {unit}"


@dataclass(frozen=True)
class OrAuto(Generic[T]):
    """The word ``auto``, or what ``kind`` takes."""

    kind: Kind[T]

    @property
    def metavar(self) -> str:
        return f"auto|{self.kind.metavar}"

    def parse(self, raw: object) -> T | Auto:
        try:
            return AUTO if raw == AUTO else self.kind.parse(raw)
        except ValueError as error:
            raise ValueError(f"{error} (or auto)") from None


@dataclass(frozen=True)
class Switch:
    metavar: str = ""
    words: Mapping[str, bool] = field(
        default_factory=lambda: {
            "1": True,
            "true": True,
            "yes": True,
            "0": False,
            "false": False,
            "no": False,
        }
    )

    def parse(self, raw: object) -> bool:
        value = self.words.get(raw.lower()) if isinstance(raw, str) else raw
        if not isinstance(value, bool):
            raise ValueError("but true or false is wanted")
        return value


@dataclass(frozen=True)
class PathTo:
    """A path; ``~`` is the home folder. ``exists`` asks for a file that can be found now."""

    metavar: str
    exists: bool = False

    def parse(self, raw: object) -> Path:
        if not isinstance(raw, str | Path) or not str(raw).strip() or "\x00" in str(raw):
            raise ValueError("but a path is wanted")
        path = Path(raw).expanduser()
        if self.exists and not path.is_file():
            raise ValueError("but there is no such file")
        return path.absolute()


@dataclass(frozen=True)
class Many(Generic[T]):
    """A list: an array in TOML, commas in the environment, the flag given more than once."""

    kind: Kind[T]

    @property
    def metavar(self) -> str:
        return self.kind.metavar

    def parse(self, raw: object) -> tuple[T, ...]:
        if isinstance(raw, str):
            raw = [part.strip() for part in raw.split(",") if part.strip()]
        if not isinstance(raw, Sequence):
            raise ValueError("but a list is wanted")
        return tuple(self._part(part) for part in raw)

    def _part(self, part: object) -> T:
        try:
            return self.kind.parse(part)
        except ValueError as error:
            raise WrongPart(part, str(error)) from None
