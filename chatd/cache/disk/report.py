"""What the disk tier tells of itself. Frozen values, made from any thread; the worker is not waited for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chatd.cache.disk.index import Entry, Index
from chatd.cache.disk.rates import Rate
from chatd.cache.disk.record import HEADER_BYTES
from chatd.cache.disk.rules import Rules
from chatd.ids import Namespace


@dataclass(frozen=True, slots=True)
class TierStats:
    """``nbytes`` is what the files take up, at most ``quota_bytes``; ``blocks`` of them can be hit.

    ``foreign_blocks`` belong to other models or layouts. ``events`` are counts since the start: stored,
    evicted, expired, damaged, removed, moved. ``failures`` are counts such as "write ENOSPC".
    ``suspended`` is why writing is suspended, ``fault`` an error of ours that ended all work; mostly "".
    """

    blocks: int
    foreign_blocks: int
    pinned_blocks: int
    nbytes: int
    quota_bytes: int
    segments: int
    block_bytes: int
    queued_reads: int
    queued_writes: int
    suspended: str
    fault: str
    read: Rate
    write: Rate
    events: Mapping[str, int]
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """Records of a namespace; times are seconds of the wall clock: the first written, the last used.

    ``current`` False: of another model or layout, whose blocks cannot be hit now.
    """

    namespace: Namespace
    current: bool
    blocks: int
    nbytes: int
    oldest: int
    newest: int


@dataclass(frozen=True, slots=True)
class PathUse:
    """All that is stored under one first block, ``key``. ``depth`` blocks is the longest path."""

    key: bytes
    namespace: Namespace
    current: bool
    blocks: int
    nbytes: int
    depth: int
    last_used: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class PinUse:
    """A pin and how many of its blocks are stored now."""

    name: str
    blocks: int
    stored: int


def namespaces(entries: Iterable[Entry], fingerprint: bytes) -> list[NamespaceUse]:
    """Those of the model that runs first, then by name."""
    groups: dict[tuple[bool, Namespace], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((not _current(entry, fingerprint), entry.namespace), []).append(entry)
    return [
        NamespaceUse(
            name,
            not foreign,
            len(group),
            sum(map(_nbytes, group)),
            min(one.written_at for one in group),
            max(one.last_used for one in group),
        )
        for (foreign, name), group in sorted(groups.items())
    ]


def paths(entries: Iterable[Entry], fingerprint: bytes, rules: Rules) -> list[PathUse]:
    """By first block, the most recently used first. Blocks whose path has lost its beginning are left out."""
    below: dict[bytes, list[Entry]] = {}
    for entry in entries:
        below.setdefault(entry.parent, []).append(entry)
    found = [_path(head, below, fingerprint, rules) for head in below.get(b"", ())]
    return sorted(found, key=lambda one: -one.last_used)


def _path(head: Entry, below: dict[bytes, list[Entry]], fingerprint: bytes, rules: Rules) -> PathUse:
    blocks = nbytes = depth = 0
    layer = [head]
    while layer:
        depth += 1
        blocks += len(layer)
        nbytes += sum(map(_nbytes, layer))
        layer = [child for one in layer for child in below.get(one.key, ())]
    pinned = rules.is_pinned(head.key)
    current = _current(head, fingerprint)
    return PathUse(head.key, head.namespace, current, blocks, nbytes, depth, head.last_used, pinned)


def pin_uses(rules: Rules, index: Index) -> list[PinUse]:
    """By name."""
    return [
        PinUse(name, len(keys), sum(index.get(key) is not None for key in keys))
        for name, keys in sorted(rules.pins.items())
    ]


def _current(entry: Entry, fingerprint: bytes) -> bool:
    return entry.segment.label.fingerprint == fingerprint


def _nbytes(entry: Entry) -> int:
    return entry.segment.label.body_len + HEADER_BYTES
