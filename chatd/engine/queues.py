"""Where every request is: waiting, restoring or running, each by rank. Pure."""

from bisect import insort
from collections.abc import Iterator

from chatd.engine.request import Req
from chatd.ids import Rid


def rank(req: Req) -> tuple[int, int]:
    return req.rank


class Queues:
    """A request is in one of the lists from `add` until `remove`.

    ``waiting``: no lease. ``restoring``: its lease is being filled from disk. ``running``: it has a lease and
    ids to compute.
    """

    def __init__(self) -> None:
        self.waiting: list[Req] = []
        self.restoring: list[Req] = []
        self.running: list[Req] = []
        self._by_rid: dict[Rid, Req] = {}

    def __iter__(self) -> Iterator[Req]:
        yield from self.running
        yield from self.restoring
        yield from self.waiting

    def __bool__(self) -> bool:
        return bool(self._by_rid)

    @property
    def active(self) -> list[Req]:
        """Those that hold pages."""
        return [*self.running, *self.restoring]

    def get(self, rid: Rid) -> Req | None:
        return self._by_rid.get(rid)

    def add(self, req: Req) -> None:
        """A new request waits."""
        self._by_rid[req.rid] = req
        insort(self.waiting, req, key=rank)

    def remove(self, req: Req) -> None:
        """It is over. No error if it is not here."""
        if self._by_rid.get(req.rid) is req:
            del self._by_rid[req.rid]
            self._list_of(req).remove(req)

    def move(self, req: Req, to: list[Req]) -> None:
        """To another of the lists. Its lease and restore are those of the list where it is."""
        self._list_of(req).remove(req)
        insort(to, req, key=rank)

    def _list_of(self, req: Req) -> list[Req]:
        if req.lease is None:
            return self.waiting
        return self.running if req.restore is None else self.restoring

    def check(self) -> None:
        """Each request is where its lease and restore say; raises AssertionError."""
        assert set(self._by_rid) == {req.rid for req in self}
        for queue in (self.running, self.restoring, self.waiting):
            assert all(self._list_of(req) is queue for req in queue)
            assert [req.rank for req in queue] == sorted(req.rank for req in queue)
