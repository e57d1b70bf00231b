"""CacheService: what accounts and the operator may ask of the cache. Answers are the engine's.

Pins live in the store, so that they outlive the engine: `pin_again` tells each new one of them.
"""

import logging

from chatd.engine.messages import (
    CacheDone,
    CachedPath,
    ClearCache,
    CountPinned,
    ListCache,
    PinPrefix,
    Probe,
    Probed,
    UnpinPrefix,
    Warm,
)
from chatd.errors import ChatdError, InvalidParameter
from chatd.ids import ConversationId, Namespace
from chatd.server.backend import Backend
from chatd.server.engine_calls import EngineCalls
from chatd.server.estimates import Estimated
from chatd.server.opening import Planned
from chatd.server.xray import explain
from chatd.store.kv_paths import engine_ids
from chatd.store.records import Pin, StoredMessage
from chatd.store.store import Store
from chatd.text.system_prefix import system_prefix

log = logging.getLogger(__name__)

LEAST_PIN = 64
"""A pin keeps whole blocks of so many tokens."""


class CacheService:
    def __init__(self, store: Store, backend: Backend, calls: EngineCalls) -> None:
        self._store = store
        self._backend = backend
        self._calls = calls

    # -- for accounts

    async def estimate(self, namespace: Namespace, planned: Planned) -> Estimated:
        """Asks the engine. NotReady if it does not answer."""
        ids = planned.prompt.ids
        probed = await self._calls.probe(Probe(self._calls.new_rid(), namespace, ids))
        cost = self._store.prices.cost(
            gpu_hit=probed.gpu_hit, disk_hit=probed.disk_hit, computed=probed.computed, output=0
        )
        return Estimated(
            probed=probed,
            xray=explain(planned.facts, probed),
            cost=cost,
            context_left=self._backend.context_length - len(ids),
            max_tokens=planned.max_tokens,
            dropped_turns=planned.prompt.dropped_turns,
        )

    async def warm(self, namespace: Namespace, conversation_id: ConversationId) -> int:
        """Hint that this conversation goes on soon; how many tokens that is about. NotFound if unknown."""
        ids = await self._tip_ids(namespace, conversation_id)
        if ids:
            self._calls.send(Warm(namespace, tuple(ids)))
        return len(ids)

    async def ids_of(self, namespace: Namespace, conversation_id: ConversationId) -> list[int]:
        """What the engine saw of its newest branch, as far as that is known. NotFound if unknown."""
        return await self._tip_ids(namespace, conversation_id)

    async def look(self, namespace: Namespace, ids: list[int]) -> Probed:
        """What memory and disk have of these ids. Changes nothing; NotReady if the engine does not answer."""
        return await self._calls.probe(Probe(self._calls.new_rid(), namespace, tuple(ids)))

    async def _tip_ids(self, namespace: Namespace, conversation_id: ConversationId) -> list[int]:
        path = await self._tip_path(namespace, conversation_id)
        return engine_ids(path, await self._store.kept_on(path))

    async def _tip_path(self, namespace: Namespace, conversation_id: ConversationId) -> list[StoredMessage]:
        head = await self._store.head(namespace, conversation_id)
        return [] if head.tip_id is None else await self._store.path_to(namespace, head.tip_id)

    # -- for the operator

    async def listing(self, limit: int) -> tuple[CachedPath, ...]:
        """The most recently used paths in memory."""
        return (await self._calls.listing(ListCache(self._calls.new_rid(), limit))).paths

    async def clear(self, namespace: Namespace | None, *, disk: bool) -> CacheDone:
        """Drop all KV that no running request uses: of one namespace, or of all. Pinned records stay."""
        return await self._calls.done(ClearCache(self._calls.new_rid(), namespace, disk))

    async def pin_text(self, name: str, namespace: Namespace, system: str) -> Pin:
        """Keep what all conversations with this system prompt begin with."""
        ids = system_prefix(system, self._backend.tokenizer, self._backend.template)
        return await self._pin(name, namespace, "system prompt", ids)

    async def pin_conversation(self, name: str, conversation_id: ConversationId, *, system_only: bool) -> Pin:
        """Keep a conversation as it stands now, or just its system prompt. NotFound if there is none."""
        namespace = await self._store.owner_of(conversation_id)
        path = await self._tip_path(namespace, conversation_id)
        if not system_only:
            ids = engine_ids(path, await self._store.kept_on(path))
            return await self._pin(name, namespace, f"conversation {conversation_id}", ids)
        if not path or path[0].role != "system":
            raise InvalidParameter("This conversation has no system prompt.", param="system_of")
        return await self.pin_text(name, namespace, path[0].text)

    async def _pin(self, name: str, namespace: Namespace, what: str, ids: list[int]) -> Pin:
        if len(ids) < LEAST_PIN:
            raise InvalidParameter(
                f"That is {len(ids)} tokens; the cache pins whole blocks of {LEAST_PIN}.", param="name"
            )
        pin = await self._store.add_pin(name, namespace, what, ids)
        try:
            await self._send(pin)
        except ChatdError:
            await self._store.remove_pin(name)
            raise
        return pin

    async def _send(self, pin: Pin) -> None:
        command = PinPrefix(self._calls.new_rid(), pin.name, pin.namespace, pin.token_ids)
        await self._calls.done(command)

    async def unpin(self, name: str) -> None:
        """NotFound if there is no such pin."""
        await self._store.remove_pin(name)
        await self._calls.done(UnpinPrefix(self._calls.new_rid(), name))

    async def pins(self) -> list[Pin]:
        """The oldest first."""
        return await self._store.pins()

    async def pinned_pages(self) -> dict[Namespace, int]:
        """Pages of memory that pins hold, by namespace. NotReady if the engine does not answer."""
        if not await self._store.pins():
            return {}
        return dict((await self._calls.pinned(CountPinned(self._calls.new_rid()))).pages)

    async def pin_again(self) -> None:
        """Tell a new engine of the pins there are. Cancelled, some may not be told of."""
        for pin in await self._store.pins():
            try:
                await self._send(pin)
            except ChatdError as error:
                log.warning("pin %s could not be set again: %s", pin.name, error)

    def text_of(self, ids: tuple[int, ...]) -> str:
        """For the operator: what these ids say, without control tokens."""
        tokenizer = self._backend.tokenizer
        return tokenizer.prompt_text(tuple(one for one in ids if one not in tokenizer.special_ids))
