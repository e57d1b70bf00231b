"""What the stored history says of a prompt before the engine looks at it. Pure."""

from dataclasses import dataclass

from chatd.cache.radix_node import common_len, pack
from chatd.server.prompt import Prompt
from chatd.server.turns import Place
from chatd.server.xray import Earlier, PromptFacts, rewritten_at
from chatd.store.kv_paths import engine_ids
from chatd.store.records import KeptKV, RunId


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Which engine will look: its run, and what its KV is made with."""

    run_id: RunId
    model: str
    formats: str
    cache_on: bool


def facts_of(place: Place, prompt: Prompt, engine: EngineIdentity) -> PromptFacts:
    """Compares the prompt with the ids that the engine saw for the nearest place that is stored."""
    same_len = common_len(pack(prompt.ids), pack(engine_ids(place.known, place.kept)))
    return PromptFacts(
        earlier=tuple(_earlier(one, same_len, engine) for one in place.kept if one.kv_len),
        edited=0 if place.system_changed else place.edited,
        rewritten=None if place.system_changed else rewritten_at(prompt.miss),
        truncated=prompt.dropped_turns > 0,
        cache_on=engine.cache_on,
    )


def _earlier(kept: KeptKV, same_len: int, engine: EngineIdentity) -> Earlier:
    return Earlier(
        length=min(same_len, kept.kv_len),
        this_run=kept.run_id == engine.run_id,
        same_formats=(kept.model, kept.formats) == (engine.model, engine.formats),
    )
