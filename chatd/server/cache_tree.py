"""The cache's tree by conversation: the stretches of KV that each goes through, and what is shared. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chatd.engine.messages import CachedPath
from chatd.ids import ConversationId, Namespace


@dataclass(frozen=True, slots=True)
class Placed:
    """A conversation of ``tokens``, and what of them the cache has; ``stretches`` index the listing."""

    id: ConversationId
    title: str
    namespace: Namespace
    tokens: int
    in_memory: int
    on_disk: int
    stretches: tuple[int, ...] = ()


def stretches_of(paths: Sequence[CachedPath], ids: Sequence[int], cached_len: int) -> tuple[int, ...]:
    """The stretches that the first ``cached_len`` of ``ids`` go through, from the root down.

    ``paths`` is a listing. Siblings differ within the ids that it shows of each.
    """
    below: dict[int, list[int]] = defaultdict(list)
    for index, path in enumerate(paths):
        below[path.parent].append(index)
    found: list[int] = []
    at = -1
    while (following := _step(paths, below[at], ids, cached_len)) is not None:
        found.append(following)
        at = following
    return tuple(found)


def _step(
    paths: Sequence[CachedPath], children: Sequence[int], ids: Sequence[int], cached_len: int
) -> int | None:
    for index in children:
        path = paths[index]
        shown = path.head_ids[: max(0, cached_len - path.start)]
        if shown and tuple(ids[path.start : path.start + len(shown)]) == shown:
            return index
    return None


def seen_by(paths: Sequence[CachedPath], namespace: Namespace | None) -> list[CachedPath]:
    """What a namespace may know of a listing: its own stretches and what these hang under. None: all."""
    if namespace is None:
        return list(paths)
    shown: set[int] = set()
    for index, path in enumerate(paths):
        at = index if path.namespace == namespace else -1
        while at >= 0 and at not in shown:
            shown.add(at)
            at = paths[at].parent
    order = {old: new for new, old in enumerate(sorted(shown))}
    return [replace(paths[old], parent=order.get(paths[old].parent, -1)) for old in sorted(shown)]
