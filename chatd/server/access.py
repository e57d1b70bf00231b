"""What a path asks of a key. Pure. A path that is not in the list is for the operator: nothing is open, or
open to all keys, because somebody forgot it here.
"""

from collections.abc import Collection
from enum import Enum

from chatd.store.key_records import KeyScope


class Need(Enum):
    NOTHING = "nothing"
    ANY_KEY = "any key"
    CHAT = KeyScope.CHAT
    REPORT = KeyScope.REPORT
    ADMIN = KeyScope.ADMIN


NEEDS = {
    "/healthz": Need.NOTHING,
    "/readyz": Need.NOTHING,
    "/api/v1/login": Need.NOTHING,
    "/api/v1/logout": Need.NOTHING,
    "/api/v1/session": Need.ANY_KEY,
    "/api/v1/ticket": Need.CHAT,
    "/api/v1/conversations": Need.CHAT,
    "/api/v1/search": Need.CHAT,
    "/api/v1/export": Need.CHAT,
    "/api/v1/import": Need.CHAT,
    "/api/v1/cache": Need.CHAT,
    "/api/v1/operator": Need.ADMIN,
    "/api/v1/responses": Need.CHAT,
    "/api/v1/report": Need.REPORT,
    "/api/v1/report/verify": Need.ADMIN,
    "/api/v1/reports": Need.REPORT,
    "/openapi.json": Need.ANY_KEY,
    "/v1": Need.CHAT,
    "/ws": Need.CHAT,
}
"""By path; it holds for all that is below a path too, unless that has a line of its own."""


def need_of(path: str, page: Collection[str]) -> Need:
    """``path`` begins with a slash, without a proxy's prefix; ``page`` are the names of the page's files."""
    if path == "/" or path.split("/")[1] in page:
        return Need.NOTHING
    parts = path.split("/")
    for end in range(len(parts), 1, -1):
        if (need := NEEDS.get("/".join(parts[:end]))) is not None:
            return need
    return Need.ADMIN
