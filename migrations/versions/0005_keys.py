"""Accounts: keys with their limits, the pages that are logged in with them, and what a turn reserves.

A key's name stands in the ledger's rows, so a key is revoked and never deleted.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE api_keys (
        name TEXT PRIMARY KEY NOT NULL CHECK (name <> ''),
        account TEXT NOT NULL CHECK (account <> ''),
        prefix TEXT NOT NULL UNIQUE,
        salt BLOB NOT NULL,
        hash BLOB NOT NULL,
        scopes TEXT NOT NULL,
        requests_per_min INTEGER CHECK (requests_per_min > 0),
        tokens_per_min INTEGER CHECK (tokens_per_min > 0),
        turns INTEGER CHECK (turns > 0),
        budget_nano INTEGER CHECK (budget_nano >= 0),
        budget_period TEXT CHECK (budget_period IN ('day', 'month')),
        budget_currency TEXT,
        created_at INTEGER NOT NULL,
        revoked_at INTEGER,
        CHECK ((budget_nano IS NULL) = (budget_period IS NULL)),
        CHECK ((budget_nano IS NULL) = (budget_currency IS NULL))
    ) WITHOUT ROWID
    """,
    # Without a key: the operator's own page.
    """
    CREATE TABLE logins (
        hash BLOB PRIMARY KEY NOT NULL,
        key_name TEXT REFERENCES api_keys (name),
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    "ALTER TABLE responses ADD COLUMN max_tokens INTEGER NOT NULL DEFAULT 0 CHECK (max_tokens >= 0)",
    "ALTER TABLE responses ADD COLUMN reserved_nano INTEGER NOT NULL DEFAULT 0 CHECK (reserved_nano >= 0)",
    "CREATE INDEX conversations_unused ON conversations (updated_at)",
    "CREATE INDEX responses_of_key ON responses (key_id, opened_at) WHERE key_id <> ''",
    "CREATE INDEX responses_open_of_key ON responses (key_id, opened_at) WHERE status = 'open'",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
