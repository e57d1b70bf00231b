"""Whose turn it is: start-time fair queueing over owners, so that nobody waits behind another's pile. Pure.

Each request gets a turn when it comes, and requests are served by turn, those of one turn by arrival::

    turn = max(the turn that is being served, the owner's last turn + 1)

An owner alone gets consecutive turns, which is the order of arrival. Who comes while another has fifty
waiting gets the turn that is being served, and goes before all but those of that turn. (P. Goyal, H. Vin,
H. Cheng, "Start-time Fair Queueing", 1996, with every request weighing the same.)

Laws that the scheduler builds on:

- A request's turn never changes, and no request comes with a turn before one that was served already. So
  among those that run, nobody is ever overtaken by a newcomer.
- Before a waiting request there are at most, for each owner, as many as there are turns up to its own.
"""

from collections.abc import Iterable


class TurnOrder:
    """Turns of owners, from the first request on."""

    def __init__(self) -> None:
        self._now = 0
        self._last: dict[str, int] = {}

    def take(self, owner: str) -> int:
        """The turn of a request of ``owner`` that comes now."""
        turn = max(self._now, self._last.get(owner, self._now - 1) + 1)
        self._last[owner] = turn
        return turn

    def serve(self, turn: int) -> None:
        """A request with this turn begins. Owners whose turns are over are forgotten: they begin anew."""
        if turn > self._now:
            self._now = turn
            self._last = {owner: last for owner, last in self._last.items() if last >= turn}

    def leave(self, owner: str, left: Iterable[int]) -> None:
        """A request of ``owner`` goes that never began; ``left`` are the turns of those that still wait."""
        last = max(left, default=self._now)
        self._last[owner] = min(self._last.get(owner, last), last)

    def rest(self) -> None:
        """Nobody waits or runs: what was asked for before weighs no more."""
        self.serve(max(self._last.values(), default=self._now) + 1)
