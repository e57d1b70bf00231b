"""What was sent and what arrived, in the views."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SUMS = """
    count(*) AS turns, sum(r.prompt_tokens) AS prompt_tokens, sum(r.gpu_hit) AS gpu_hit,
    sum(r.disk_hit) AS disk_hit, sum(r.computed) AS computed, sum(r.output_tokens) AS output_tokens,
    sum(r.delivered) AS sent_tokens, sum(r.acknowledged) AS acknowledged_tokens,
    sum(r.gpu_hit_nano + r.disk_hit_nano + r.computed_nano + r.output_nano) AS cost_nano,
    sum(r.without_cache_nano) AS without_cache_nano
"""

STATEMENTS = (
    "DROP VIEW v_session_cost",
    "DROP VIEW v_daily_cost",
    f"""
    CREATE VIEW v_session_cost AS
    SELECT r.conversation_id AS session_id, r.namespace, coalesce(max(c.title), '') AS title, b.currency,
           {SUMS}, min(r.opened_at) AS first_at, max(r.ended_at) AS last_at
    FROM responses r
    JOIN price_books b ON b.version = r.price_version
    LEFT JOIN conversations c ON c.id = r.conversation_id
    WHERE r.status <> 'open'
    GROUP BY r.conversation_id, r.namespace, b.currency
    """,
    f"""
    CREATE VIEW v_daily_cost AS
    SELECT date(r.opened_at / 1000000, 'unixepoch') AS day, r.namespace, r.model, b.currency, {SUMS}
    FROM responses r
    JOIN price_books b ON b.version = r.price_version
    WHERE r.status <> 'open'
    GROUP BY 1, r.namespace, r.model, b.currency
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
