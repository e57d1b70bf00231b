"""What the worker does when nobody waits for it: syncing, expiring, saving, giving space back."""

from collections.abc import Callable

from chatd.cache.disk.files import Files
from chatd.cache.disk.recency import save_recency
from chatd.cache.disk.reclaim import Reclaimer
from chatd.cache.disk.store import Store

SYNC_S = 1.0
SYNC_BYTES = 32 << 20
"""Under load: what a slow disk (100 MB/s) writes in 0.3 s, which is the longest that a read waits for it."""
EXPIRE_S = 30.0
RECENCY_S = 60.0
RETRY_S = 10.0
"""After something failed, and for removals that the disk refused."""

Task = Callable[[], float]
"""Does one piece; the seconds until it wants to be called again, 0 for at once."""


class Housekeeping:
    """Pieces that are due, one at a time, so that a read that comes meanwhile waits for one at most."""

    def __init__(self, store: Store, files: Files, timer: Callable[[], float]) -> None:
        self._store = store
        self._files = files
        self._timer = timer
        self._reclaimer = Reclaimer(store)
        self._saved_state = self._state()
        self._due: dict[tuple[str, Task], float] = {
            ("save", self._save_rules): 0.0,
            ("remove", self._bury): 0.0,
            ("expire", self._expire): 0.0,
            ("reclaim", self._reclaim): 0.0,
            ("sync", self._sync): timer() + SYNC_S,
            ("save", self._save_recency): timer() + RECENCY_S,
        }

    def step(self) -> float:
        """Do one thing that is due. Seconds until the next is, 0 if one is due now."""
        now = self._timer()
        for (action, task), due in self._due.items():
            if due <= now:
                self._due[action, task] = now + self._try(action, task)
                break
        return max(0.0, min(self._due.values()) - now)

    def soon(self) -> None:
        """Something was done that may have left work."""
        self._due["reclaim", self._reclaim] = 0.0
        self._due["save", self._save_rules] = 0.0

    def after_write(self) -> None:
        """Sync if much was written since the last time: no more than that is ever on its way to the disk."""
        if self._store.folder.unsynced_bytes >= SYNC_BYTES:
            self._due["sync", self._sync] = self._timer() + self._try("sync", self._sync)

    def finish(self) -> None:
        """All that must be on the disk before the end."""
        self._try("remove", self._bury)
        self._try("sync", self._sync)
        self._try("save", self._save_rules)
        self._try("save", self._save_recency)

    def _try(self, action: str, task: Task) -> float:
        try:
            return task()
        except OSError as error:
            self._store.failures.add(action, error)
            return RETRY_S

    def _sync(self) -> float:
        if not self._store.folder.synced:
            self._store.folder.sync()
        return SYNC_S

    def _bury(self) -> float:
        self._store.folder.bury_again()
        return RETRY_S

    def _expire(self) -> float:
        if self._store.rules.any_ttl:
            self._store.expire()
        return EXPIRE_S

    def _reclaim(self) -> float:
        return 0.0 if self._reclaimer.step() else EXPIRE_S

    def _save_rules(self) -> float:
        self._store.rules.save()
        return EXPIRE_S

    def _save_recency(self) -> float:
        if self._state() != self._saved_state:
            state = self._state()
            save_recency(self._files, self._store.folder.folder, self._store.index.entries())
            self._saved_state = state
        return RECENCY_S

    def _state(self) -> tuple[int, int]:
        """Changes whenever there is another recency to save."""
        return self._store.events.total(), self._store.index.uses
