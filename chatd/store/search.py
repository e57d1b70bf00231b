"""Search in the titles and texts of one namespace: titles first, in each the newest first.

    search          rows by the terms in them: three characters each, see migration 0006
    search_terms    how many rows have a term
    search_places   the rows that have a term

Three or more characters are looked up by all the terms in them. One or two are a range of terms: those that
begin so. Where that is most of what there is, the newest texts are simply read, for they have it too. What
comes out is compared with the text itself in every case, so the index only has to leave nothing out.

Other namespaces can make a search slower, but change nothing in what it finds.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text

from chatd.errors import InvalidParameter
from chatd.ids import ConversationId, MessageId, Namespace
from chatd.store.search_query import Part, has_all, snippet, terms_of, whole

MAX_PAGE = 100
MOST_LOOKED_AT = 20_000
MOST_READ = 4_000_000
"""Texts that one page may look at, and their characters: it may be empty and yet have a `SearchPage.next`."""
STEP = 200
MOST_PLACES = 30_000
"""Places of short terms up to which they are listed; beyond, the newest texts are read one by one."""
MOST_GRAMS = 24
TITLES = 1 << 48
"""Rows of titles begin here, as the migration says."""
END = "\U0010ffff"
"""After every character: the end of a range of terms."""

_TITLE_ROWS = """
    SELECT {row} AS row, c.id AS conversation_id, c.title, NULL AS message_id, NULL AS role,
           c.title AS text, c.updated_at AS at
    FROM {source} JOIN conversations c ON c.seq = {row} - {titles}
    WHERE {holds} {row} < :before AND {row} >= {titles} AND c.namespace = :namespace AND c.hidden = 0
    ORDER BY {row} DESC LIMIT :step
"""
_MESSAGE_ROWS = """
    SELECT {row} AS row, c.id AS conversation_id, c.title, m.id AS message_id, m.role, m.text,
           m.created_at AS at
    FROM {source} JOIN messages m ON m.seq = {row} JOIN conversations c ON c.id = m.conversation_id
    WHERE {holds} {row} < :before AND {row} < {titles} AND c.namespace = :namespace AND c.hidden = 0
    ORDER BY {row} DESC LIMIT :step
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """A title (``message_id`` and ``role`` None) or a message. ``at``: when it was written, or used last."""

    conversation_id: ConversationId
    title: str
    message_id: MessageId | None
    role: str | None
    at: int
    snippet: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class SearchPage:
    """``next`` is the ``before`` of the following page, None on the last."""

    hits: tuple[Hit, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows of the index that may be hits: a table with a column of rows, and what must hold there."""

    table: str
    row: str
    holds: str
    params: Mapping[str, object]

    def rows(self, conn: Connection, namespace: Namespace, before: int) -> Iterator[Row[Any]]:
        """Those of the namespace below ``before``, the highest first; read step by step."""
        for form in (_TITLE_ROWS, _MESSAGE_ROWS):
            query = text(form.format(row=self.row, source=self.table, holds=self.holds, titles=TITLES))
            while True:
                params = {"before": before, "namespace": namespace, "step": STEP, **self.params}
                found = conn.execute(query, params).all()
                yield from found
                if len(found) < STEP:
                    break
                before = found[-1].row


def search(conn: Connection, namespace: Namespace, query: str, limit: int, before: str | None) -> SearchPage:
    """InvalidParameter for a query, a limit or a ``before`` that cannot be."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidParameter(f"limit must be between 1 and {MAX_PAGE}", param="limit")
    terms, row = terms_of(query), _row_of(before)
    hits: list[Hit] = []
    looked_at = read = 0
    for found in _source(conn, terms).rows(conn, namespace, row):
        if len(hits) == limit or looked_at == MOST_LOOKED_AT or read > MOST_READ:
            return SearchPage(tuple(hits), str(row))
        looked_at, read, row = looked_at + 1, read + len(found.text), found.row
        if has_all(found.text, terms):
            hits.append(_hit(found, terms))
    return SearchPage(tuple(hits), None)


def _row_of(cursor: str | None) -> int:
    if cursor is None:
        return 2 * TITLES
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidParameter("before must be the `next` of an earlier page", param="before")
    return int(cursor)


def _hit(row: Row[Any], terms: Sequence[str]) -> Hit:
    is_title = row.message_id is None
    return Hit(
        conversation_id=ConversationId(row.conversation_id),
        title=row.title,
        message_id=None if is_title else MessageId(row.message_id),
        role=row.role,
        at=row.at,
        snippet=(whole if is_title else snippet)(row.text, terms),
    )


def _source(conn: Connection, terms: Sequence[str]) -> _Source:
    grams = dict.fromkeys(
        term[at : at + 3] for term in terms if len(term) >= 3 for at in range(len(term) - 2)
    )
    if grams:
        match = " AND ".join(f'"{_doubled(gram)}"' for gram in list(grams)[:MOST_GRAMS])
        return _Source("search", "search.rowid", "search MATCH :match AND", {"match": match})
    term = max(terms, key=len)
    ends = {"first": term, "end": term + END}
    places = text("SELECT total(doc) FROM search_terms WHERE term >= :first AND term < :end")
    if conn.execute(places, ends).scalar_one() > MOST_PLACES:
        return _Source("search_docsize", "search_docsize.id", "", {})
    rows = text("SELECT DISTINCT doc FROM search_places WHERE term >= :first AND term < :end")
    listed = json.dumps([row.doc for row in conn.execute(rows, ends)])
    return _Source("json_each(:rows)", "json_each.value", "", {"rows": listed})


def _doubled(gram: str) -> str:
    return gram.replace('"', '""')
