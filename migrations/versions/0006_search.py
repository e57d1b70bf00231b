"""Search in titles and texts, and pinned conversations.

One index of three characters each answers any query. Two more characters end each text, so that every one
of its characters begins a term: a query of one or two characters asks for a range of terms. Triggers keep it,
in the transaction of whatever changes a message or a title; what is hidden is never in it.

A title's row is `TITLES` above its conversation's: titles come before texts, and the newest first.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TITLES = 1 << 48
END = "char(31, 31)"

MESSAGE_COUNTS = """
    new.role <> 'system' AND new.text <> ''
    AND (SELECT hidden FROM conversations WHERE id = new.conversation_id) = 0
"""
TITLE_COUNTS = "new.title <> '' AND new.hidden = 0"


def _is_in(row: str) -> str:
    return f"EXISTS (SELECT 1 FROM search_docsize WHERE id = {row})"


def _put(row: str, text: str) -> str:
    return f"INSERT INTO search (rowid, text) VALUES ({row}, {text} || {END});"


def _take(row: str, text: str) -> str:
    return f"INSERT INTO search (search, rowid, text) VALUES ('delete', {row}, {text} || {END});"


def _trigger(name: str, when: str, holds: str, what: str) -> str:
    return f"CREATE TRIGGER {name} AFTER {when} WHEN {holds} BEGIN {what} END"


def _triggers(table: str, row: str, text: str, counts: str) -> tuple[str, ...]:
    """Of ``table``: ``row`` is a row's place in the index, ``counts`` whether a new row belongs there."""
    old_row, new_row = row.format("old"), row.format("new")
    old_text, new_text = f"old.{text}", f"new.{text}"
    changed = f"UPDATE OF {text} ON {table}"
    differs = f"{old_text} <> {new_text}"
    return (
        _trigger(f"search_{table}_in", f"INSERT ON {table}", counts, _put(new_row, new_text)),
        _trigger(f"search_{table}_out", f"DELETE ON {table}", _is_in(old_row), _take(old_row, old_text)),
        # In one trigger: the order of two would not be defined.
        _trigger(
            f"search_{table}_changed",
            changed,
            differs,
            f"INSERT INTO search (search, rowid, text) SELECT 'delete', {old_row}, {old_text} || {END}"
            f" WHERE {_is_in(old_row)};"
            f"INSERT INTO search (rowid, text) SELECT {new_row}, {new_text} || {END} WHERE {counts};",
        ),
    )


STATEMENTS = (
    "ALTER TABLE conversations ADD COLUMN pinned_at INTEGER",
    "CREATE INDEX conversations_pinned ON conversations (namespace, pinned_at) WHERE pinned_at IS NOT NULL",
    # Which texts have a term, not where: half the size, and a third of the time to write.
    "CREATE VIRTUAL TABLE search USING fts5 (text, content = '', tokenize = 'trigram', detail = none)",
    "CREATE VIRTUAL TABLE search_terms USING fts5vocab (search, 'row')",
    "CREATE VIRTUAL TABLE search_places USING fts5vocab (search, 'instance')",
    *_triggers("messages", "{0}.seq", "text", MESSAGE_COUNTS),
    *_triggers("conversations", f"{{0}}.seq + {TITLES}", "title", TITLE_COUNTS),
    f"""
    INSERT INTO search (rowid, text)
    SELECT m.seq, m.text || {END} FROM messages m JOIN conversations c ON c.id = m.conversation_id
    WHERE m.role <> 'system' AND m.text <> '' AND c.hidden = 0 ORDER BY m.seq
    """,
    f"""
    INSERT INTO search (rowid, text)
    SELECT seq + {TITLES}, title || {END} FROM conversations WHERE title <> '' AND hidden = 0 ORDER BY seq
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
