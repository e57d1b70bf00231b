"""The database upgraded, backed up and checked."""

import asyncio
import json
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from chatd.data_dir import ServerAddress, hold_data_dir, write_address
from chatd.resources import migrations_dir
from chatd.store.care import back_up
from chatd.store.store import DATABASE_NAME, Store
from tests.cli.commands import Run, fill, run
from tests.store.scribe import Scribe, asked, opened, said
from tests.store.test_migrate import head_of, make_oldest
from tests.store.test_verify import tamper

__all__ = ["run"]


async def two_answers(store: Store, scribe: Scribe) -> None:
    await scribe.answer(asked("r1", *said(("user", "q"))), "one")
    await scribe.answer(asked("r2", *said(("user", "r"))), "two")


def test_upgrade_from_the_oldest_schema(run: Run, data_dir: Path) -> None:
    make_oldest(data_dir / DATABASE_NAME)
    head = head_of(migrations_dir())
    code, out, err = run("db", "upgrade")
    backup = data_dir / f"{DATABASE_NAME}.schema-0001.backup"
    assert (code, err) == (0, "")
    assert out == f"Upgraded from schema 0001 to {head}. As it was before: {backup}\n"
    assert run("db", "upgrade")[1] == f"The database has the newest schema ({head}) already.\n"
    (row,) = json.loads(run("report", "--json")[1])["rows"]
    assert (row["title"], row["turns"], row["cost_nano"]) == ("Oldest question", 1, 31_000)
    assert run("db", "check")[0] == 0


def test_upgrade_makes_a_new_one_and_is_refused_while_a_server_runs(run: Run, data_dir: Path) -> None:
    with hold_data_dir(data_dir):
        write_address(data_dir, ServerAddress(1234, "http://127.0.0.1:9", "0"))
        code, _, err = run("db", "upgrade")
    assert (code, "is already using the data folder" in err) == (2, True)
    assert not (data_dir / DATABASE_NAME).exists()
    assert json.loads(run("db", "upgrade", "--json")[1])["before"] is None


def test_a_backup_is_one_file_that_holds_everything(run: Run, data_dir: Path, tmp_path: Path) -> None:
    fill(data_dir, two_answers)
    target = tmp_path / "backup.db"
    code, out, _ = run("db", "backup", str(target))
    assert (code, out) == (0, f"Wrote {target}, {target.stat().st_size:,} bytes.\n")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.db", "data"]
    restored = tmp_path / "restored"
    restored.mkdir(mode=0o700)
    target.rename(restored / DATABASE_NAME)
    assert run("db", "check", folder=restored)[0] == 0
    assert run("report", "--csv", folder=restored) == run("report", "--csv")


def test_a_backup_replaces_nothing(run: Run, data_dir: Path, tmp_path: Path) -> None:
    fill(data_dir, two_answers)
    target = tmp_path / "mine"
    target.write_text("mine")
    code, _, err = run("db", "backup", str(target))
    assert (code, "is there already" in err, target.read_text()) == (2, True, "mine")
    (tmp_path / "new.partial").write_text("theirs")
    code, _, err = run("db", "backup", str(tmp_path / "new"))
    assert (code, "another backup is being made" in err) == (2, True)
    assert not (tmp_path / "new").exists()
    code, _, err = run("db", "backup", str(tmp_path / "nowhere" / "x"))
    assert (code, "cannot be written" in err) == (2, True)


def test_a_backup_needs_a_database(run: Run, tmp_path: Path) -> None:
    assert run("db", "backup", str(tmp_path / "x"))[::2] == (2, run("db", "check")[2])


async def test_backups_of_a_busy_database_are_each_one_moment(data_dir: Path, tmp_path: Path) -> None:
    """What is in them verifies, and the writer never had to wait for long."""
    async with opened(data_dir) as store:
        scribe = await Scribe.begin(store)
        done = threading.Event()

        def backups() -> int:
            count = 0
            while not done.is_set():
                back_up(data_dir / DATABASE_NAME, tmp_path / f"{count}.db")
                count += 1
            return count

        running = asyncio.create_task(asyncio.to_thread(backups))
        for n in range(60):
            await scribe.answer(asked(f"r{n}", *said(("user", f"q{n}"))), "answer")
        done.set()
        made = await running
    for number in range(made):
        with closing(sqlite3.connect(tmp_path / f"{number}.db")) as copy:
            copy.execute("PRAGMA journal_mode = DELETE")
        folder = tmp_path / f"folder-{number}"
        folder.mkdir(mode=0o700)
        (tmp_path / f"{number}.db").rename(folder / DATABASE_NAME)
        async with opened(folder, prefix="look") as store:
            report = await store.verify()
            assert report.ok, report.findings
    assert made >= 2


def test_check_says_that_all_is_well(run: Run, data_dir: Path) -> None:
    fill(data_dir, two_answers)
    code, out, _ = run("db", "check")
    first, second = out.splitlines()
    assert (code, first) == (0, "The file is whole, and every reference leads somewhere.")
    assert second == "The ledger is right: 1 run, 2 responses, 4 messages, 2 pieces agree."


@pytest.mark.parametrize(
    ("script", "check"),
    [
        ("UPDATE usage_days SET turns = turns + 1", "rollup"),
        ("UPDATE responses SET output_nano = output_nano + 1 WHERE id = 'r1'", "cost"),
        ("PRAGMA foreign_keys = OFF; DELETE FROM conversations WHERE title = 'q'", "reference"),
    ],
)
def test_check_finds_damage(run: Run, data_dir: Path, script: str, check: str) -> None:
    fill(data_dir, two_answers)
    tamper(data_dir, script)
    code, out, _ = run("db", "check", "--json")
    assert code == 1
    assert check in {finding["check"] for finding in json.loads(out)["findings"]}


def test_check_finds_a_damaged_page(run: Run, data_dir: Path) -> None:
    fill(data_dir, two_answers)
    database = data_dir / DATABASE_NAME
    with closing(sqlite3.connect(database)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'responses_message'"
        ).fetchone()
    with database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\x00" * size)
    code, out, err = run("db", "check")
    assert (code, err) == (1, "")
    assert "integrity  file" in out


def test_rebuild_mends_sums_that_are_wrong(run: Run, data_dir: Path) -> None:
    fill(data_dir, two_answers)
    right = run("report", "--csv")
    tamper(data_dir, "UPDATE usage_branches SET cost_nano = 0; DELETE FROM usage_days")
    assert run("db", "check")[0] == 1
    assert run("db", "rebuild") == (0, "The reports' sums were worked out again from 2 turns.\n", "")
    assert run("db", "check")[0] == 0
    assert run("report", "--csv") == right
