"""Commands about the cache: warm, probe, forget, pin, clear, list. On the engine thread; pure."""

from dataclasses import dataclass
from functools import partial

from chatd.cache.block_tier import BLOCK_LEN
from chatd.cache.prefix_cache import Hold, Lease
from chatd.cache.radix_node import ID_BYTES, RadixNode, pack, unpack
from chatd.cache.restoring import Restore
from chatd.cache.tiering import Found
from chatd.engine.messages import (
    CacheCommand,
    CacheDone,
    CachedPath,
    CacheListing,
    ClearCache,
    CountPinned,
    Forget,
    ListCache,
    PinnedKv,
    PinPrefix,
    Probe,
    Probed,
    TierNote,
    TierOutcome,
    UnpinPrefix,
    Warm,
)
from chatd.engine.scheduler import Scheduler
from chatd.ids import Namespace, Rid

MOST_WARMING = 2
PINNED_SHARE = 0.5
"""Of all pages, at most, for pinned prefixes."""
HEAD_IDS = 32
"""Token ids of a path that a listing shows."""


@dataclass(slots=True, eq=False)
class _Pin:
    namespace: Namespace
    key: bytes
    hold: Hold | None = None


class CacheDesk:
    """Answers are among the scheduler's updates. `tend` is to be called between steps."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._cache = scheduler.cache
        self._tiering = scheduler.tiering
        self._say = scheduler.say
        self._warming: list[Restore] = []
        self._pins: dict[str, _Pin] = {}
        scheduler.other_leases = self._leases
        scheduler.make_room = self._make_room

    def take(self, command: CacheCommand, now: float) -> None:
        """Carry out a command, or begin to."""
        match command:
            case Warm(namespace, ids):
                self._warm(namespace, ids, now)
            case Probe():
                self._say(self._probe(command))
            case Forget(rid, namespace, paths):
                self._forget(rid, namespace, paths)
            case PinPrefix():
                self._pin(command, now)
            case UnpinPrefix(rid, name):
                self._unpin(rid, name)
            case ClearCache(rid, namespace, disk):
                self._clear(rid, namespace, disk)
            case ListCache(rid, limit):
                self._say(CacheListing(rid, self._listing(limit)))
            case CountPinned(rid):
                holds = [pin.hold for pin in self._pins.values() if pin.hold is not None]
                self._say(PinnedKv(rid, tuple(sorted(self._cache.held_pages(holds).items()))))

    def tend(self) -> None:
        """End the warmings that are over, and hold what has come of the pinned prefixes."""
        for restore in [restore for restore in self._warming if restore.ended]:
            self._warming.remove(restore)
            self._cache.release(restore.lease, restore.ids, restore.done_len)
        for pin in self._pins.values():
            if pin.hold is None:
                pin.hold = self._cache.hold(pin.key, pin.namespace, exact=True)

    # -- warming

    def _warm(self, namespace: Namespace, ids: tuple[int, ...], now: float) -> None:
        tiering = self._tiering
        if len(self._warming) >= MOST_WARMING or self._scheduler.queues.restoring:
            return
        total_len, paged_len = self._cache.match_lens(ids, namespace)
        found = tiering.look(ids, tiering.chain(ids, namespace), total_len, paged_len)
        if found is None or not self._has_room(found):
            return
        lease = self._cache.acquire(ids, namespace)
        self._warming.append(tiering.restore(ids, lease, found, len(found.blocks), now))

    def _has_room(self, found: Found) -> bool:
        """May it take these pages without getting into anybody's way?"""
        wanted = len(found.blocks) * BLOCK_LEN // self._cache.page_size
        return wanted <= (self._cache.free_pages + self._cache.evictable_pages) // 2

    def _leases(self) -> list[Lease]:
        return [restore.lease for restore in self._warming]

    def _make_room(self) -> bool:
        """A request cannot run for what is held here: let it go."""
        held = [pin for pin in self._pins.values() if pin.hold is not None]
        for pin in held:
            assert pin.hold is not None
            self._cache.let_go(pin.hold)
            pin.hold = None
        warming, self._warming = self._warming, []
        for restore in warming:
            if restore.ended:
                self._cache.release(restore.lease, restore.ids, restore.done_len)
            else:
                self._tiering.restorer.cancel(restore)
        return bool(held or warming)

    # -- estimates

    def _probe(self, probe: Probe) -> Probed:
        ids, tiering = probe.prompt_ids, self._tiering
        total_len, paged_len = self._cache.match_lens(ids, probe.namespace)
        elsewhere = self._cache.elsewhere_len(ids, probe.namespace)
        gpu_len, disk_len, restore_s = total_len, 0, 0.0
        note = TierNote(TierOutcome.NOTHING if tiering.on else TierOutcome.OFF, elsewhere=elsewhere)
        found = tiering.look(ids, tiering.chain(ids, probe.namespace), total_len, paged_len)
        if found is not None:
            loads = tiering.costs.would_load(len(found.blocks), found.tokens)
            note = found.note(TierOutcome.LOADED if loads else TierOutcome.CHEAPER, elsewhere=elsewhere)
            if loads:
                gpu_len, restore_s = paged_len, found.load_s
                disk_len = total_len + found.tokens - paged_len
        costs = tiering.costs
        computed = len(ids) - gpu_len - disk_len
        return Probed(
            rid=probe.rid,
            prompt_tokens=len(ids),
            gpu_hit=gpu_len,
            disk_hit=disk_len,
            computed=computed,
            queue_s=self._scheduler.queue_s(),
            restore_s=restore_s,
            compute_s=costs.compute_s(computed) + costs.step_s,
            tier=note,
        )

    # -- removing

    def _forget(self, rid: Rid, namespace: Namespace, paths: tuple[tuple[int, ...], ...]) -> None:
        tokens = sum(self._cache.forget(pack(ids), namespace) for ids in paths)
        chains = [self._tiering.chain(ids, namespace) for ids in paths]
        own = [[block for block in chain if block.namespace == namespace] for chain in chains]
        self._tiering.forget(own, lambda blocks: self._say(CacheDone(rid, tokens, blocks)))

    def _clear(self, rid: Rid, namespace: Namespace | None, disk: bool) -> None:
        tokens = self._cache.clear(namespace)
        if not disk:
            self._say(CacheDone(rid, tokens))
            return
        self._tiering.clear(namespace, lambda blocks: self._say(CacheDone(rid, tokens, blocks)))

    # -- pins

    def _pin(self, command: PinPrefix, now: float) -> None:
        key = pack(command.prompt_ids)
        key = key[: len(key) // ID_BYTES // BLOCK_LEN * BLOCK_LEN * ID_BYTES]
        pages = sum(len(pin.key) for pin in self._pins.values()) + len(key)
        if not key:
            error = f"A prefix of {len(command.prompt_ids)} tokens is below one block of {BLOCK_LEN}."
            self._say(CacheDone(command.rid, error=error))
        elif pages // ID_BYTES > PINNED_SHARE * self._cache.total_pages * self._cache.page_size:
            error = (
                "Pinned prefixes may take half of the KV pool at most. Unpin others, or enlarge --kv-bytes."
            )
            self._say(CacheDone(command.rid, error=error))
        else:
            self._drop_pin(command.name)
            self._pins[command.name] = _Pin(command.namespace, key)
            ids = unpack(key)
            chain = self._tiering.chain(ids, command.namespace)
            self._tiering.tier.pin(command.name, chain)
            blocks = sum(self._tiering.tier.has(block.key) for block in chain)
            # One token more than the prefix: of a prompt the last token is never taken from the cache.
            self._warm(command.namespace, (*ids, 0), now)
            self.tend()
            self._say(CacheDone(command.rid, len(ids), blocks))

    def _unpin(self, rid: Rid, name: str) -> None:
        tokens = len(self._pins[name].key) // ID_BYTES if name in self._pins else 0
        self._drop_pin(name)
        self._tiering.tier.unpin(name)
        self._say(CacheDone(rid, tokens))

    def _drop_pin(self, name: str) -> None:
        pin = self._pins.pop(name, None)
        if pin is not None and pin.hold is not None:
            self._cache.let_go(pin.hold)

    # -- the listing

    def _listing(self, limit: int) -> tuple[CachedPath, ...]:
        nodes = list(self._cache.nodes())
        kept = sorted(nodes, key=lambda node: -node.last_used)[:limit]
        shown = {above for node in kept for above in _path(node)}
        order = [node for node in nodes if node in shown]
        index = {node: i for i, node in enumerate(order)}
        return tuple(map(partial(self._row, index), order))

    def _row(self, index: dict[RadixNode, int], node: RadixNode) -> CachedPath:
        return CachedPath(
            namespace=node.namespace,
            parent=index.get(node.parent, -1),
            start=node.start_len,
            tokens=node.num_tokens,
            pages=len(node.pages),
            locks=node.lock_ref,
            stored=self._stored_len(node),
            head_ids=tuple(unpack(node.key[: HEAD_IDS * ID_BYTES])),
        )

    def _stored_len(self, node: RadixNode) -> int:
        """Of the edge's tokens, those in blocks that are on disk."""
        tier, stored = self._tiering.tier, 0
        chain = self._tiering.chain(unpack(self._cache.key_to(node)), node.namespace)
        for i in range(node.start_len // BLOCK_LEN, len(chain)):
            if tier.has(chain[i].key):
                stored += min(node.end_len, (i + 1) * BLOCK_LEN) - max(node.start_len, i * BLOCK_LEN)
        return stored


def _path(node: RadixNode) -> list[RadixNode]:
    """``node`` and all above it but the root."""
    path = []
    while node.parent is not node:
        path.append(node)
        node = node.parent
    return path
