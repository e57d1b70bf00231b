"""Reading every record in full, to find damage before somebody needs what is damaged."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from chatd.cache.disk.index import Entry
from chatd.cache.disk.records import Records
from chatd.ids import Namespace


@dataclass(frozen=True, slots=True)
class Damage:
    """``removed``: it did not hold what it should. Else it could not be read this time: ``cause``."""

    key: bytes
    namespace: Namespace
    file: str
    slot: int
    removed: bool
    cause: str


@dataclass(frozen=True, slots=True)
class Checked:
    """``done`` of ``total`` records, ``nbytes`` of bodies so far, and what was wrong with the last."""

    done: int
    total: int
    nbytes: int
    damage: Damage | None


def verify(
    records: Records, run: Callable[[Callable[[], Damage | None]], Damage | None]
) -> Iterator[Checked]:
    """Check every record that is stored now, by ``run``, which carries a check out where it may be."""
    entries = sorted(records.index.entries(), key=lambda one: (one.segment.number, one.slot))
    nbytes = 0
    for done, entry in enumerate(entries, 1):
        damage = run(partial(check, records, entry))
        nbytes += entry.segment.label.body_len
        yield Checked(done, len(entries), nbytes, damage)


def check(records: Records, entry: Entry) -> Damage | None:
    """Read one record. Removes it if it is damaged; one that has gone meanwhile is no damage."""
    if records.index.get(entry.key) is not entry:
        return None
    file, slot = entry.segment.name, entry.slot
    try:
        whole = records.read(entry, memoryview(bytearray(entry.segment.label.body_len)))
    except FileNotFoundError:
        records.lost(entry.segment)
        return Damage(entry.key, entry.namespace, file, slot, True, "the file is gone")
    except OSError as error:
        name = records.failures.add("read", error)
        return Damage(entry.key, entry.namespace, file, slot, False, name)
    if whole is not None:
        return None
    records.discard(entry)
    return Damage(entry.key, entry.namespace, file, slot, True, "damaged")
