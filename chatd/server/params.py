"""What a request may ask of the sampler and of an ending, checked. Pure; one for both wires.

Everything that is not exactly right is refused with `InvalidParameter` naming the field: a number
in a string, a fraction where a count is wanted, NaN, a boolean for a number, a list too long. Sizes are
looked at before contents, so that a refusal costs no more than a good request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from chatd.engine.messages import SamplingParams
from chatd.errors import InvalidParameter

MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**63 - 1
MAX_LOGIT_BIASES = 300
MAX_STOPS = 16
MAX_STOP_CHARS = 256

Truncation = Literal["disabled", "auto"]


@dataclass(frozen=True, slots=True)
class RequestParams:
    """``max_tokens`` None means as many as the context has room for. ``sampling.seed`` is always set."""

    sampling: SamplingParams
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    truncation: Truncation = "disabled"


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float


NUMBERS: Mapping[str, _Range] = {
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1),
    "min_p": _Range(0, 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0.1, 10),
}
INTEGERS = ("max_tokens", "top_k", "seed")
OTHERS = ("stop", "logit_bias", "ignore_eos", "truncation")
NAMES = frozenset({*NUMBERS, *INTEGERS, *OTHERS})
"""All that ``params`` may hold. A null anywhere means the default."""


def parse_params(
    params: Mapping[str, object], *, vocab_size: int, new_seed: Callable[[], int], temperature: float = 1.0
) -> RequestParams:
    """Check ``params``. ``temperature`` and ``new_seed`` (0..2^63-1) are for a request that names none."""
    for name in params:
        if name not in NAMES:
            raise InvalidParameter(f"Unknown parameter {_shown(name)}.", param=_shown(name))
    given: dict[str, object] = {"temperature": temperature}
    given |= {name: value for name, value in params.items() if value is not None}
    sampling = SamplingParams(
        **{name: _number(name, given[name], NUMBERS[name]) for name in NUMBERS if name in given},
        top_k=_integer("top_k", given.get("top_k", 0), 0, vocab_size),
        logit_bias=_logit_bias(given.get("logit_bias", {}), vocab_size),
        seed=_integer("seed", given["seed"], 0, MAX_SEED) if "seed" in given else new_seed(),
    )
    return RequestParams(
        sampling=replace(sampling, top_k=1, top_p=1.0) if sampling.top_p == 0 else sampling,
        max_tokens=_integer("max_tokens", given["max_tokens"], 1, MAX_TOKENS)
        if "max_tokens" in given
        else None,
        stop=_stop(given.get("stop", ())),
        ignore_eos=_boolean("ignore_eos", given.get("ignore_eos", False)),
        truncation=_truncation(given.get("truncation", "disabled")),
    )


def _shown(name: str) -> str:
    """A name from outside, short and printable enough for an error."""
    return name[:64].encode("ascii", "replace").decode()


def _number(name: str, value: object, bounds: _Range) -> float:
    """NaN fails the comparison, so it is refused with the rest."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not bounds.low <= value <= bounds.high
    ):
        raise InvalidParameter(f"{name} must be a number from {bounds.low:g} to {bounds.high:g}.", param=name)
    return float(value)


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameter(f"{name} must be a whole number from {low} to {high}.", param=name)
    return value


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidParameter(f"{name} must be true or false.", param=name)
    return value


def _truncation(value: object) -> Truncation:
    match value:
        case "disabled" | "auto":
            return value
        case _:
            raise InvalidParameter('truncation must be "disabled" or "auto".', param="truncation")


def _stop(value: object) -> tuple[str, ...]:
    """One string or a list of them; an empty list is none."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or len(stops) > MAX_STOPS:
        raise InvalidParameter(f"stop must be a string or a list of at most {MAX_STOPS}.", param="stop")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidParameter(
                f"Each stop must be a string of 1 to {MAX_STOP_CHARS} characters.", param="stop"
            )
        check_text(stop, "stop")
    return tuple(stops)


def _logit_bias(value: object, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """``{"token id": bias}`` as on OpenAI's wire, where JSON makes every key a string."""
    if not isinstance(value, Mapping) or len(value) > MAX_LOGIT_BIASES:
        raise InvalidParameter(
            f"logit_bias must be an object of at most {MAX_LOGIT_BIASES} entries.", param="logit_bias"
        )
    biases = {_token_id(key, vocab_size): _bias(bias) for key, bias in value.items()}
    if len(biases) != len(value):
        raise InvalidParameter("logit_bias names a token id twice.", param="logit_bias")
    return tuple(sorted(biases.items()))


def _token_id(key: object, vocab_size: int) -> int:
    digits = isinstance(key, str) and len(key) <= 10 and key.isascii() and key.isdecimal()
    token_id = int(key) if isinstance(key, str) and digits else key
    if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
        raise InvalidParameter(
            f"The keys of logit_bias must be token ids from 0 to {vocab_size - 1}.", param="logit_bias"
        )
    return token_id


def _bias(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
        raise InvalidParameter("The values of logit_bias must be from -100 to 100.", param="logit_bias")
    return float(value)


def check_text(text: str, param: str) -> None:
    """Half a surrogate pair is no text: it could neither be stored nor sent on."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(f"{param} holds half a surrogate pair.", param=param) from error
