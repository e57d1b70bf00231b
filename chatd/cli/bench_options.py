"""Options that describe a load, and what they are read as."""

import math
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import click

from chatd.bench.load import MOST_LEN, MOST_RATE, MOST_SECONDS, MOST_SESSIONS, MOST_TURNS, Load, Range

Command = TypeVar("Command", bound=Callable[..., Any])

MOST_SEED, NEW_SEEDS = 2**31 - 1, 10**6
PARTS = ("decode", "prefill", "turns")
"""Of `chatd bench engine`."""


Reader = Callable[[click.Context, click.Parameter, str], Any]
"""A callback of click: the text that was typed, as a value. Raises `BadParameter`."""


def reads_range(most: float, *, least: float = 0, whole: bool = True) -> Reader:
    """``64``, or ``32-128``: as likely one as another."""

    def read(ctx: click.Context, param: click.Parameter, text: str) -> Range:
        try:
            return Range.parse(text, most, least=least, whole=whole)
        except ValueError as error:
            raise click.BadParameter(f"it is {text}, {error}.", ctx, param) from None

    return read


def read_rate(ctx: click.Context, param: click.Parameter, text: str) -> float:
    """A number above 0, or ``inf``."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (0 < rate <= MOST_RATE or rate == math.inf):
        wanted = f"a number above 0 and up to {MOST_RATE:,g}, or inf, is wanted"
        raise click.BadParameter(f"it is {text}, but {wanted}.", ctx, param)
    return rate


def reads_counts(most: int) -> Reader:
    """Whole numbers with commas between them, such as ``1,4,16``, each once."""

    def read(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isascii() and part.isdigit() and 1 <= int(part[:9]) <= most for part in parts):
            wanted = f"numbers from 1 to {most:,} such as 1,4,16 are wanted"
            raise click.BadParameter(f"it is {text}, but {wanted}.", ctx, param)
        return tuple(dict.fromkeys(map(int, parts)))

    return read


def number(flag: str, least: int, most: int, default: int, words: str) -> Callable[[Command], Command]:
    """An option with one whole number."""
    kind, words = click.IntRange(least, most), f"{words}  [default: {default}]"
    return click.option(flag, type=kind, default=default, metavar="N", help=words)


def numbers(flag: str, most: int, default: str, words: str) -> Callable[[Command], Command]:
    """An option with some of them."""
    read, words = reads_counts(most), f"{words}  [default: {default}]"
    return click.option(flag, callback=read, default=default, metavar="N,N,..", help=words)


_LENGTH, _SOME_LENGTH = reads_range(MOST_LEN), reads_range(MOST_LEN, least=1)
_SECONDS = reads_range(MOST_SECONDS, whole=False)
_OPTIONS: dict[str, tuple[str, click.IntRange | None, Reader | None, str]] = {
    "sessions": ("N", click.IntRange(1, MOST_SESSIONS), None, "Conversations."),
    "turns": ("N", click.IntRange(1, MOST_TURNS), None, "Turns of each."),
    "shared_prefix_len": (
        "N",
        click.IntRange(0, MOST_LEN),
        None,
        "Tokens of a system prompt that all of them begin with.",
    ),
    "unique_prefix_len": (
        "N or A-B",
        None,
        _LENGTH,
        "Tokens of its own that each goes on with, in its first message.",
    ),
    "input_len": ("N or A-B", None, _SOME_LENGTH, "New tokens in each turn."),
    "output_len": (
        "N or A-B",
        None,
        _SOME_LENGTH,
        "Tokens of each answer; the model does not end it before.",
    ),
    "think_time": ("S or A-B", None, _SECONDS, "Seconds between an answer and the next turn."),
    "request_rate": (
        "R",
        None,
        read_rate,
        "Sessions that arrive a second, at random (a Poisson process); inf: all at once.",
    ),
    "warm_up": (
        "N",
        click.IntRange(0, MOST_SESSIONS),
        None,
        "Sessions of other words that come before and do not count.",
    ),
}
SEED_WORDS = (
    "The same seed draws the same load, word by word; a server that saw it before may still have it in its "
    "cache.  [default: a new one]"
)


def load_options(command: Command) -> Command:
    """The options of a `Load`, for `load_from`."""
    command = click.option("--seed", type=click.IntRange(0, MOST_SEED), metavar="N", help=SEED_WORDS)(command)
    for name, (metavar, kind, reader, words) in reversed(_OPTIONS.items()):
        default = str(getattr(Load(), name))
        command = click.option(
            "--" + name.replace("_", "-"),
            type=kind or str,
            callback=reader,
            default=default,
            metavar=metavar,
            help=f"{words}  [default: {default}]",
        )(command)
    return command


def load_from(options: dict[str, Any]) -> Load:
    """Takes what it needs out of ``options``. `UsageError` for a load too large."""
    given = {name: options.pop(name) for name in (*_OPTIONS, "seed")}
    if given["seed"] is None:
        given["seed"] = secrets.randbelow(NEW_SEEDS)
    load = Load(**given)
    try:
        load.check()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return load
