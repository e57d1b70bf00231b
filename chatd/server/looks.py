"""Looks: what may be asked for that is no turn but takes the server's time all the same: estimates, counts of
tokens, hints. Pure: the time is passed in.
"""

from chatd.errors import RateLimited
from chatd.ids import Namespace
from chatd.server.allowance import Allowance
from chatd.server.visitors import Visitor

LOOKS_A_REQUEST = 10
"""A key may have so many looks a minute for each request a minute; without that limit, any number."""
WARM_BURST, WARM_PER_S = 20, 2.0
"""Conversations of one account that may be warmed over HTTP."""


class Looks:
    def __init__(self) -> None:
        self._by_key: dict[str, Allowance] = {}
        self._warming: dict[Namespace, Allowance] = {}

    def take(self, visitor: Visitor, now: float) -> None:
        """RateLimited if the key has had what it may. ``now`` is monotonic seconds."""
        requests = None if visitor.key is None else visitor.key.limits.requests_per_min
        if requests is None:
            return
        most = LOOKS_A_REQUEST * requests
        allowance = self._by_key.setdefault(visitor.key_id, Allowance(most, most / 60))
        if not allowance.take(now):
            said = f"This key may ask for {most:,} estimates, counts and hints a minute."
            raise RateLimited(f"{said} Wait {allowance.wait_s} s.", allowance.wait_s)

    def may_warm(self, visitor: Visitor, now: float) -> bool:
        """Over HTTP, where there is no connection to be counted by."""
        account = visitor.namespace
        return self._warming.setdefault(account, Allowance(WARM_BURST, WARM_PER_S)).take(now)
