"""Where each prompt's tokens came from and why; what is to be forgotten; what is pinned.

``purges`` is an outbox: a deleted conversation's token ids are put there in the transaction that deletes
it, and taken out once the engine has removed their KV from every tier, whatever happens in between.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE responses ADD COLUMN history_len INTEGER NOT NULL DEFAULT 0 CHECK (history_len >= 0)",
    "ALTER TABLE responses ADD COLUMN kv_len INTEGER NOT NULL DEFAULT 0 CHECK (kv_len >= 0)",
    "ALTER TABLE responses ADD COLUMN cause TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE responses ADD COLUMN backend TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE responses ADD COLUMN formats TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE responses ADD COLUMN xray_json TEXT NOT NULL DEFAULT ''",
    """
    CREATE TABLE purges (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        namespace TEXT NOT NULL,
        token_ids BLOB NOT NULL CHECK (length(token_ids) % 4 = 0)
    )
    """,
    """
    CREATE TABLE pins (
        name TEXT PRIMARY KEY NOT NULL,
        namespace TEXT NOT NULL,
        what TEXT NOT NULL,
        token_ids BLOB NOT NULL CHECK (length(token_ids) % 4 = 0),
        created_at INTEGER NOT NULL
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
