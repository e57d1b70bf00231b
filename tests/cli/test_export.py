"""Conversations out of one data folder and into another."""

import json
import stat
from pathlib import Path

import pytest

from chatd.data_dir import ServerAddress, hold_data_dir, write_address
from chatd.ids import ResponseId
from chatd.store.archive import Archived, archived
from chatd.store.store import DATABASE_NAME, Store
from chatd.store.upgrade import reading
from tests.cli.commands import Run, fill, run
from tests.imports.test_files import chatgpt, llama_cpp, open_webui
from tests.store.scribe import NS, OTHER, Scribe, asked, said

__all__ = ["run"]


async def talk(store: Store, scribe: Scribe) -> None:
    """Branches, a continued answer, every ending, a title in Chinese, another namespace, a hidden history."""
    first = await scribe.answer(asked("r1", *said(("system", "s"), ("user", "面包\n\u2028"))), "one ", "two")
    await scribe.answer(
        asked("r2", conversation_id=first.conversation_id, parent_id=first.user_message_id), "other"
    )
    cut = await scribe.answer(asked("r3", *said(("user", "count"))), "1 2", reason="length")
    await scribe.answer(asked("r4", conversation_id=cut.conversation_id, continues=cut.message_id), " 3")
    for reason in ("cancelled", "failed", "stop"):
        await scribe.answer(asked(f"r-{reason}", *said(("user", reason))), "x", reason=reason)
    await scribe.answer(asked("r5", *said(("user", "bob's"), ns=OTHER), ns=OTHER), "b")
    await scribe.answer(asked("r6", *said(("user", "hidden")), hidden=True), "h")
    await store.create_conversation(NS, "Empty")


def everything(folder: Path) -> list[Archived]:
    with reading(folder / DATABASE_NAME) as connection:
        return list(archived(connection))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    folder = tmp_path / "other"
    folder.mkdir(mode=0o700)
    return folder


def test_a_round_trip_keeps_trees_ids_and_statuses(
    run: Run, data_dir: Path, other: Path, tmp_path: Path
) -> None:
    fill(data_dir, talk)
    file = tmp_path / "all.jsonl"
    code, out, err = run("export", str(file))
    assert (code, out, err) == (0, f"Wrote 7 conversations to {file}.\n", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, out, _ = run("import", str(file))
    assert out == "Stored 0 conversations with 0 messages. 7 were there already and are as they were.\n"
    assert run("import", str(file), folder=other) == (0, "Stored 7 conversations with 14 messages.\n", "")
    assert everything(other) == everything(data_dir)
    assert run("db", "check", folder=other)[0] == 0
    again = tmp_path / "again.jsonl"
    assert run("export", str(again), folder=other)[0] == 0
    assert again.read_text("utf-8").split("\n")[1:] == file.read_text("utf-8").split("\n")[1:]


def test_the_ledger_stays_where_it_is(run: Run, data_dir: Path, other: Path, tmp_path: Path) -> None:
    fill(data_dir, talk)
    file = tmp_path / "all.jsonl"
    run("export", str(file))
    run("import", str(file), folder=other)
    assert json.loads(run("report", "--json", folder=other)[1])["rows"] == []
    assert len(json.loads(run("report", "--json")[1])["rows"]) == 7


def test_an_imported_conversation_goes_on(run: Run, data_dir: Path, other: Path, tmp_path: Path) -> None:
    """Its new turns are on the branch that the tree says."""
    fill(data_dir, talk)
    file = tmp_path / "all.jsonl"
    run("export", str(file))
    run("import", str(file), folder=other)
    one = next(one for one in everything(other) if one.messages and one.messages[0].role == "system")
    answers = [message for message in one.messages if message.role == "assistant"]

    async def go_on(store: Store, scribe: Scribe) -> None:
        for at, answer in enumerate(answers):
            path = await store.path_to(NS, answer.id)
            key = path[-1].chain_key
            assert key is not None
            more = said(("user", "more"), under=key)
            await scribe.answer(
                asked(f"more{at}", *more, conversation_id=one.id, parent_id=answer.id), "and more"
            )

    fill(other, go_on, "later")
    rows = json.loads(run("report", "--by", "branch", "--json", folder=other)[1])["rows"]
    assert [row["branch_id"] for row in rows] == [one.id, answers[1].id]
    assert run("report", "--verify", folder=other)[0] == 0


def test_some_conversations_and_to_standard_output(run: Run, data_dir: Path) -> None:
    fill(data_dir, talk)
    wanted = everything(data_dir)[1]
    code, out, _ = run("export", "-", "--conversation", wanted.id)
    head, line = out.splitlines()
    assert (code, json.loads(head)["format"], json.loads(line)["id"]) == (0, "chatd-conversations", wanted.id)
    beginning = run("export", "-", "--conversation", wanted.id[:8])
    assert (beginning[0], json.loads(beginning[1].splitlines()[1])) == (0, json.loads(line))
    code, _, err = run("export", "-", "--conversation", "")
    assert (code, "give more of the id" in err) == (2, True)
    code, out, err = run("export", "-", "--conversation", "nobody")
    assert (code, out, err) == (2, "", "chatd: There is no conversation nobody.\n")


def test_an_export_replaces_nothing(run: Run, data_dir: Path, tmp_path: Path) -> None:
    fill(data_dir, talk)
    file = tmp_path / "mine.txt"
    file.write_text("mine")
    code, _, err = run("export", str(file))
    assert (code, "is there already" in err, file.read_text()) == (2, True, "mine")


def test_an_answer_that_is_being_written_is_taken_as_far_as_it_is(
    run: Run, data_dir: Path, other: Path, tmp_path: Path
) -> None:
    async def half(store: Store, scribe: Scribe) -> None:
        await scribe.ask(asked("r1", *said(("user", "q"))))
        scribe.admit(ResponseId("r1"))
        scribe.say(ResponseId("r1"), "half an ")
        await scribe.flush()
        file = tmp_path / "half.jsonl"
        assert run("export", str(file))[0] == 0
        scribe.end(ResponseId("r1"))
        await scribe.flush()

    fill(data_dir, half)
    assert run("import", str(tmp_path / "half.jsonl"), folder=other)[0] == 0
    (one,) = everything(other)
    answer = one.messages[-1]
    assert (answer.text, answer.status, answer.token_ids) == ("half an ", "incomplete", None)


def test_other_tools(run: Run, data_dir: Path, tmp_path: Path) -> None:
    files = []
    for number, value in enumerate(([chatgpt()], [open_webui()], llama_cpp())):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(value))
    code, out, _ = run("import", *map(str, files), "--json")
    assert (code, json.loads(out)) == (0, {"added": 3, "known": 0, "messages": 9, "left_out": []})
    assert [one.title for one in everything(data_dir)] == ["Sky", "Greeting", "Llama"]
    assert {one.namespace for one in everything(data_dir)} == {"local"}
    assert run("db", "check")[0] == 0
    assert json.loads(run("import", str(files[0]), "--json")[1])["known"] == 1


def test_a_wrong_file_is_named_and_the_others_are_stored(run: Run, data_dir: Path, tmp_path: Path) -> None:
    good, half, bad = (tmp_path / f"{name}.json" for name in ("good", "half", "bad"))
    good.write_text(json.dumps([chatgpt()]))
    half.write_text(json.dumps([llama_cpp(), 7, open_webui()])[:-1])
    bad.write_text('[{"mapping": 3}]')
    files = [str(path) for path in (good, half, bad)]
    code, out, err = run("import", *files)
    assert (code, out) == (1, "Stored 3 conversations with 9 messages.\n")
    assert err.splitlines() == [
        f"Left out: {half}: conversation 2 is of no kind that chatd knows (its own, ChatGPT's, Open WebUI's, "
        "llama.cpp's).",
        f"Left out: {half}: it breaks off, or is not JSON, from character {len(half.read_text()) + 1:,} on, "
        "after 3 conversations.",
        f"Left out: {bad} cannot be imported: conversation 1 has a mapping of a wrong kind. "
        "Nothing of it was stored.",
    ]
    before = everything(data_dir)
    again = json.loads(run("import", *files, "--json")[1])
    assert (again["added"], again["known"], again["messages"], len(again["left_out"])) == (0, 3, 0, 3)
    assert everything(data_dir) == before
    assert run("db", "check")[0] == 0


def test_files_that_are_all_wrong_are_an_error(run: Run, data_dir: Path, tmp_path: Path) -> None:
    fill(data_dir, talk)
    before = everything(data_dir)
    bad = tmp_path / "bad.json"
    bad.write_text('[{"mapping": 3}]')
    code, out, err = run("import", str(bad))
    assert (code, out) == (2, "")
    assert "bad.json cannot be imported: conversation 1 has a mapping of a wrong kind" in err
    assert everything(data_dir) == before


def test_a_message_that_is_stored_elsewhere_keeps_its_conversation_out(
    run: Run, data_dir: Path, tmp_path: Path
) -> None:
    fill(data_dir, talk)
    before = everything(data_dir)
    file = tmp_path / "all.jsonl"
    run("export", str(file))
    lines = file.read_text("utf-8").split("\n")
    moved = lines[1].replace(before[0].id, "another")
    new = json.dumps(json.loads(lines[-2]) | {"id": "new", "messages": [], "tip_id": None})
    file.write_text("\n".join([lines[0], moved, new, new]), "utf-8")
    code, out, err = run("import", str(file))
    said = "Stored 1 conversations with 0 messages. 1 were there already and are as they were.\n"
    assert (code, out) == (1, said)
    assert "is stored already, in another conversation." in err
    assert [one for one in everything(data_dir) if one.id != "new"] == before


def test_an_import_is_refused_while_a_server_runs(run: Run, data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps([chatgpt()]))
    with hold_data_dir(data_dir):
        write_address(data_dir, ServerAddress(1234, "http://127.0.0.1:9", "0"))
        code, _, err = run("import", str(file))
    assert code == 2
    assert "is already using the data folder" in err
    assert "http://127.0.0.1:9" in err


def test_token_ids_can_be_left_behind(run: Run, data_dir: Path, other: Path, tmp_path: Path) -> None:
    fill(data_dir, talk)
    file = tmp_path / "all.jsonl"
    run("export", str(file))
    run("import", str(file), "--no-token-ids", folder=other)
    assert {message.token_ids for one in everything(other) for message in one.messages} == {None}
