"""Migrations from nothing, from the oldest schema with a row, and those that must not happen."""

import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from chatd.errors import SetupError
from chatd.resources import migrations_dir
from chatd.store.migrate import migrate
from chatd.store.schema import metadata
from tests.store.scribe import NS, Scribe, asked, keep_ids, opened, said

OLDEST = Path(__file__).with_name("oldest_schema.sql")

PENDING = '''
"""A later change."""
from alembic import op

revision = "9999"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE conversations ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'")
    {more}
'''


def head_of(scripts: Path) -> str:
    names = sorted(path.name for path in (scripts / "versions").glob("[0-9]*.py"))
    return names[-1][:4]


def scripts_with_one_more(tmp_path: Path, more: str = "pass") -> Path:
    scripts = tmp_path / "later % migrations"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(migrations_dir(), scripts, ignore=ignore)
    text = PENDING.format(head=head_of(scripts), more=more)
    (scripts / "versions" / "9999_later.py").write_text(text)
    return scripts


def make_oldest(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(OLDEST.read_text())


def dump(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return list(connection.iterdump())


def test_from_nothing_without_a_backup(tmp_path: Path) -> None:
    database = tmp_path / "chatd.db"
    assert migrate(database, migrations_dir()) is None
    assert migrate(database, migrations_dir()) is None
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.backup"))


def test_the_queries_know_every_column(tmp_path: Path) -> None:
    database = tmp_path / "chatd.db"
    migrate(database, migrations_dir())
    engine = create_engine(f"sqlite:///{database}")
    made = inspect(engine)
    tables = {name for name in made.get_table_names() if not name.startswith("search")}  # SQLite's own
    assert tables == {*metadata.tables, "alembic_version"}
    for name, table in metadata.tables.items():
        real = {column["name"]: column for column in made.get_columns(name)}
        assert list(real) == [column.name for column in table.columns]
        for column in table.columns:
            if not column.primary_key:
                assert real[column.name]["nullable"] == column.nullable, (name, column.name)
            ours = column.type.compile(engine.dialect).replace("FLOAT", "REAL")
            assert str(real[column.name]["type"]) == ours, (name, column.name)
    engine.dispose()


async def test_from_the_oldest_schema_with_a_row(data_dir: Path) -> None:
    make_oldest(data_dir / "chatd.db")
    async with opened(data_dir, prefix="new") as store:
        page = await store.list_conversations(NS)
        assert [conversation.title for conversation in page.conversations] == ["Oldest question"]
        view = await store.conversation(NS, page.conversations[0].id)
        assert [entry.message.text for entry in view.messages] == ["Be old.", "Oldest question", "Old answer"]
        assert view.messages[2].responses[0].cost.total_nano == 3_000 + 8_000 + 20_000
        report = await store.verify()
        assert report.ok, report.findings
        assert await store.settle(keep_ids) == 0
        scribe = await Scribe.begin(store)
        tip = view.messages[-1].message
        assert tip.chain_key is not None
        question = asked(
            "r-new",
            *said(("user", "more"), under=tip.chain_key),
            conversation_id=page.conversations[0].id,
            parent_id=tip.id,
        )
        await scribe.answer(question, "ok")
        assert (await store.verify()).ok


async def test_a_pending_migration_backs_up_first(data_dir: Path, tmp_path: Path) -> None:
    database = data_dir / "chatd.db"
    make_oldest(database)
    migrate(database, migrations_dir())
    before, head = dump(database), head_of(migrations_dir())
    scripts = scripts_with_one_more(tmp_path)
    backup = migrate(database, scripts)
    assert backup == data_dir / f"chatd.db.schema-{head}.backup"
    assert dump(backup) == before
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT colour FROM conversations").fetchall() == [("blue",)]
    assert migrate(database, scripts) is None


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    database = tmp_path / "chatd.db"
    make_oldest(database)
    migrate(database, migrations_dir())
    before = dump(database)
    scripts = scripts_with_one_more(tmp_path, "op.execute('SELECT broken FROM nowhere')")
    for _ in range(2):
        with pytest.raises(SetupError, match="nowhere"):
            migrate(database, scripts)
        assert dump(database) == before
    assert len(list(tmp_path.glob(f"*.schema-{head_of(migrations_dir())}.backup"))) == 1
    assert not list(tmp_path.glob("*.partial"))


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "chatd.db"
    migrate(database, scripts_with_one_more(tmp_path))
    before = dump(database)
    with pytest.raises(SetupError, match="newer chatd"):
        migrate(database, migrations_dir())
    assert dump(database) == before


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "chatd.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = dump(database)
    with pytest.raises(SetupError, match="not a chatd database"):
        migrate(database, migrations_dir())
    assert dump(database) == before


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "chatd.db"
    database.write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    with pytest.raises(SetupError, match="cannot be used"):
        migrate(database, migrations_dir())
