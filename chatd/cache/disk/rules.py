"""What the operator said about records: pins and times to live. Kept in one small file."""

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chatd.cache.disk.files import Files, read_file, replace_file
from chatd.cache.disk.record import KEY_BYTES, checksum
from chatd.ids import Namespace

RULES_NAME = "rules.json"


class Rules:
    """Pins and TTLs, and the file that they are in. `save` must follow a change.

    A TTL counts from the last use of a record or of what is stored under it. Namespaces are as records
    have them (`record.stored_namespace`).
    """

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._path = folder / RULES_NAME
        self.pins: dict[str, frozenset[bytes]] = {}
        self._pinned: Counter[bytes] = Counter()
        self.ttls: dict[Namespace, float] = {}
        self.default_ttl = math.inf
        self.saved = True

    def is_pinned(self, key: bytes) -> bool:
        return key in self._pinned

    def pinned(self) -> list[bytes]:
        """All keys that are pinned. From any thread: the counter is replaced, never changed."""
        return list(self._pinned)

    def ttl(self, namespace: Namespace) -> float:
        """Seconds; infinite if it has none."""
        return self.ttls.get(namespace, self.default_ttl)

    @property
    def any_ttl(self) -> bool:
        return self.default_ttl < math.inf or bool(self.ttls)

    def pin(self, name: str, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Pin these under ``name``, in place of what was pinned under it: that is returned."""
        before = self.unpin(name)
        self.pins[name] = frozenset(keys)
        self._pinned = self._pinned + Counter(self.pins[name])
        self.saved = False
        return before

    def unpin(self, name: str) -> frozenset[bytes]:
        """The keys that were pinned under ``name``; some may still be under another."""
        keys = self.pins.pop(name, frozenset())
        self._pinned = self._pinned - Counter(keys)
        self.saved = False
        return keys

    def set_ttl(self, namespace: Namespace | None, seconds: float | None) -> None:
        """For a namespace, or the default for all that have none of their own. None takes it away."""
        if namespace is None:
            self.default_ttl = math.inf if seconds is None else seconds
        elif seconds is None:
            self.ttls.pop(namespace, None)
        else:
            self.ttls[namespace] = seconds
        self.saved = False

    def save(self) -> None:
        """Replace the file at once. Raises `OSError`, and then the old one stands."""
        if self.saved:
            return
        text = json.dumps(
            {
                "pins": {name: sorted(key.hex() for key in keys) for name, keys in self.pins.items()},
                "ttls": self.ttls,
                "default_ttl": self.default_ttl,
            }
        ).encode()
        replace_file(self._files, self._path, checksum(text).hex().encode() + b"\n" + text)
        self.saved = True

    def load(self) -> bool:
        """Read the file. False if there is one that is damaged: then there are no rules."""
        data = read_file(self._files, self._path)
        if data is None:
            return True
        mark, _, text = data.partition(b"\n")
        if mark != checksum(text).hex().encode():
            return False
        kept: dict[str, Any] = json.loads(text)
        for name, keys in kept["pins"].items():
            self.pin(name, (key for key in map(bytes.fromhex, keys) if len(key) == KEY_BYTES))
        self.ttls = {Namespace(name): seconds for name, seconds in kept["ttls"].items()}
        self.default_ttl = kept["default_ttl"]
        self.saved = True
        return True
