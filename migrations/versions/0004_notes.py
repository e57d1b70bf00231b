"""What an API wants to remember of a response, for as long as its conversation is there."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

STATEMENTS = (
    # The ledger's row stays when a conversation is deleted; what a person wrote must not.
    """
    CREATE TABLE response_notes (
        response_id TEXT PRIMARY KEY NOT NULL REFERENCES responses (id),
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        note TEXT NOT NULL,
        withdrawn INTEGER NOT NULL CHECK (withdrawn IN (0, 1))
    ) WITHOUT ROWID
    """,
    "CREATE INDEX response_notes_of ON response_notes (conversation_id)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
