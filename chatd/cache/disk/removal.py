"""Removing what somebody asked to be removed. It does not come back, after a power cut either."""

from collections.abc import Iterable

from chatd.cache.block_tier import Block
from chatd.cache.disk.index import Entry
from chatd.cache.disk.record import stored_namespace
from chatd.cache.disk.records import Records
from chatd.ids import Namespace


def forget(records: Records, paths: Iterable[Iterable[Block]]) -> int:
    """See `BlockTier.forget`; under the fingerprints of other models too. How many went."""
    before = records.events["removed"]
    ours = records.keys.fingerprint
    foreign = {one.label.fingerprint for one in records.folder.segments.values()} - {ours}
    for path in paths:
        blocks = list(path)
        _forget_keys(records, [block.key for block in blocks])
        for fingerprint in foreign:
            _forget_keys(records, records.keys.under(fingerprint, blocks))
    _sync(records)
    return records.events["removed"] - before


def clear(records: Records, namespace: Namespace | None) -> int:
    """See `BlockTier.clear`. How many went."""
    before = records.events["removed"]
    name = None if namespace is None else stored_namespace(namespace)
    going = [one for one in records.index.entries() if name in (None, one.namespace)]
    _remove_all(records, [one for one in going if not records.rules.is_pinned(one.key)])
    _sync(records)
    return records.events["removed"] - before


def _forget_keys(records: Records, keys: list[bytes]) -> None:
    for key in reversed(keys):
        entry = records.index.get(key)
        if records.index.children(key) or (entry and records.rules.is_pinned(key)):
            return
        if entry:
            records.remove(entry, "removed")


def _remove_all(records: Records, entries: Iterable[Entry]) -> None:
    """A segment of which nothing stays goes as one file."""
    groups: dict[int, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.segment.number, []).append(entry)
    for number, group in groups.items():
        segment = records.folder.segments[number]
        if segment.live > len(group) or not records.drop(segment, group, "removed"):
            for entry in group:
                records.remove(entry, "removed")


def _sync(records: Records) -> None:
    try:
        records.folder.sync()
    except OSError as error:
        records.failures.add("sync", error)
