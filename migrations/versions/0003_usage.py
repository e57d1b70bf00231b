"""What reports stand on: roll-ups by day and by branch, the branch of a turn, prices by model.

The roll-ups are made empty: the store fills them from the ledger when it opens.
"""

from alembic import op
from sqlalchemy import text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SUMS = """
        turns INTEGER NOT NULL CHECK (turns > 0),
        prompt_tokens INTEGER NOT NULL,
        gpu_hit INTEGER NOT NULL,
        disk_hit INTEGER NOT NULL,
        computed INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        preemptions INTEGER NOT NULL,
        recomputed INTEGER NOT NULL,
        cost_nano INTEGER NOT NULL,
        without_cache_nano INTEGER NOT NULL
"""

STATEMENTS = (
    "ALTER TABLE price_books ADD COLUMN details TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE responses ADD COLUMN branch_id TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE responses ADD COLUMN key_id TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE responses ADD COLUMN acknowledged INTEGER NOT NULL DEFAULT 0 CHECK (acknowledged >= 0)",
    # All that a view of prices asks of a turn, without the rest of its row.
    """
    CREATE INDEX responses_bills ON responses (
        opened_at, namespace, key_id, model, price_version, prompt_tokens, gpu_hit, disk_hit, output_tokens
    ) WHERE status <> 'open'
    """,
    f"""
    CREATE TABLE usage_days (
        day INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        key_id TEXT NOT NULL,
        model TEXT NOT NULL,
        price_version TEXT NOT NULL REFERENCES price_books (version),
        {SUMS},
        timed INTEGER NOT NULL,
        timed_tokens INTEGER NOT NULL,
        timed_us INTEGER NOT NULL,
        timed_product INTEGER NOT NULL,
        timed_squares INTEGER NOT NULL,
        latencies BLOB NOT NULL CHECK (length(latencies) % 6 = 0),
        UNIQUE (day, namespace, key_id, model, price_version),
        CHECK (prompt_tokens = gpu_hit + disk_hit + computed)
    )
    """,
    # The rows are small, and are read by their key alone.
    f"""
    CREATE TABLE usage_branches (
        conversation_id TEXT NOT NULL,
        branch_id TEXT NOT NULL,
        day INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        key_id TEXT NOT NULL,
        model TEXT NOT NULL,
        price_version TEXT NOT NULL REFERENCES price_books (version),
        {SUMS},
        first_at INTEGER NOT NULL,
        last_at INTEGER NOT NULL,
        latencies BLOB NOT NULL CHECK (length(latencies) % 6 = 0),
        PRIMARY KEY (conversation_id, branch_id, day, namespace, key_id, model, price_version),
        CHECK (prompt_tokens = gpu_hit + disk_hit + computed)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE usage_sessions (
        conversation_id TEXT PRIMARY KEY NOT NULL,
        namespace TEXT NOT NULL,
        first_at INTEGER NOT NULL,
        last_at INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    "CREATE INDEX usage_sessions_newest ON usage_sessions (last_at, conversation_id)",
    "CREATE INDEX usage_sessions_of ON usage_sessions (namespace, last_at, conversation_id)",
    """
    CREATE TABLE storage_days (
        day INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        tier TEXT NOT NULL CHECK (tier IN ('pinned', 'disk')),
        price_version TEXT NOT NULL REFERENCES price_books (version),
        byte_seconds INTEGER NOT NULL CHECK (byte_seconds >= 0),
        UNIQUE (day, namespace, tier, price_version)
    )
    """,
    # For people with a SQL shell: ended turns, in whole nano-units; nothing is ever rounded again.
    """
    CREATE VIEW v_session_cost AS
    SELECT r.conversation_id AS session_id, r.namespace, coalesce(max(c.title), '') AS title, b.currency,
           count(*) AS turns, sum(r.prompt_tokens) AS prompt_tokens, sum(r.gpu_hit) AS gpu_hit,
           sum(r.disk_hit) AS disk_hit, sum(r.computed) AS computed, sum(r.output_tokens) AS output_tokens,
           sum(r.gpu_hit_nano + r.disk_hit_nano + r.computed_nano + r.output_nano) AS cost_nano,
           sum(r.without_cache_nano) AS without_cache_nano,
           min(r.opened_at) AS first_at, max(r.ended_at) AS last_at
    FROM responses r
    JOIN price_books b ON b.version = r.price_version
    LEFT JOIN conversations c ON c.id = r.conversation_id
    WHERE r.status <> 'open'
    GROUP BY r.conversation_id, r.namespace, b.currency
    """,
    """
    CREATE VIEW v_daily_cost AS
    SELECT date(r.opened_at / 1000000, 'unixepoch') AS day, r.namespace, r.model, b.currency,
           count(*) AS turns, sum(r.prompt_tokens) AS prompt_tokens, sum(r.gpu_hit) AS gpu_hit,
           sum(r.disk_hit) AS disk_hit, sum(r.computed) AS computed, sum(r.output_tokens) AS output_tokens,
           sum(r.gpu_hit_nano + r.disk_hit_nano + r.computed_nano + r.output_nano) AS cost_nano,
           sum(r.without_cache_nano) AS without_cache_nano
    FROM responses r
    JOIN price_books b ON b.version = r.price_version
    WHERE r.status <> 'open'
    GROUP BY 1, r.namespace, r.model, b.currency
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
    connection = op.get_bind()
    branches: dict[str, str] = {}
    seen: set[tuple[str, str | None]] = set()
    rows = connection.execute(text("SELECT id, conversation_id, parent_id FROM messages ORDER BY seq")).all()
    for message_id, session, parent_id in rows:
        is_first = (session, parent_id) not in seen
        seen.add((session, parent_id))
        above = session if parent_id is None else branches[parent_id]
        branches[message_id] = above if is_first else message_id
    # Of deleted conversations nothing is known any more: their turns are on one branch.
    connection.execute(text("UPDATE responses SET branch_id = conversation_id"))
    for message_id, branch_id in branches.items():
        values = {"branch": branch_id, "message": message_id}
        connection.execute(
            text("UPDATE responses SET branch_id = :branch WHERE message_id = :message"), values
        )
