"""Texts of so many tokens for a server whose tokenizer is not known. Pure.

Common words are one token each for most tokenizers; how many they really are is learnt from two prompts of
different length, whose tokens the server counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from chatd.bench.plan import TextPlan

_TEXT = """
the of and to in is that it was for on are as with his they at be this have from or one had by
word but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into time has look
two more write go see number no way could people my than first water been call who oil its now
find long down day did get come made may part over new sound take only little work know place
year live me back give most very after thing our just name good sentence man think say great
where help through much before line right too mean old any same tell boy follow came want show
also around form three small set put end does another well
"""
WORDS = tuple(_TEXT.split())

PROBES = (len(WORDS), 2 * len(WORDS))
"""Words of the two prompts that tokens are learnt from: they differ by each of our words once."""


def words(seed: str, count: int) -> str:
    """``count`` of them, in rounds in which each comes once: that keeps the tokens of long texts close."""
    random, drawn = Random(seed), list[str]()
    while len(drawn) < count:
        drawn += random.sample(WORDS, len(WORDS))
    return " ".join(drawn[:count])


@dataclass(frozen=True, slots=True)
class Wording:
    """``tokens_per_word`` of our words; a prompt of one message has ``template_tokens`` beside its text."""

    tokens_per_word: float = 1.0
    template_tokens: float = 0.0

    @classmethod
    def learnt(cls, short_tokens: int, long_tokens: int) -> "Wording":
        """From the tokens of prompts with so many words as `PROBES` says. Raises ValueError if they cannot be
        right: an answer's usage that does not grow with its prompt."""
        short, long = PROBES
        rate = (long_tokens - short_tokens) / (long - short)
        if not 0.2 <= rate <= 20:
            raise ValueError(
                f"prompts of {short} and {long} words were counted as {short_tokens} and {long_tokens} tokens"
            )
        return cls(rate, short_tokens - rate * short)

    def text(self, plan: TextPlan) -> str:
        """At least one word, unless nothing is wanted."""
        if not plan.tokens:
            return ""
        return words(plan.seed, max(1, round(plan.tokens / self.tokens_per_word)))

    def message(self, plans: Iterable[TextPlan]) -> str:
        return " ".join(self.text(plan) for plan in plans)
