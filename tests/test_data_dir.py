"""One server at a time, whatever became of the last one."""

import fcntl
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chatd.data_dir import ServerAddress, hold_data_dir, live_server, read_address, write_address
from chatd.errors import SetupError

HOLDER = """
import sys
from pathlib import Path
from chatd.data_dir import ServerAddress, hold_data_dir, write_address
with hold_data_dir(Path(sys.argv[1])):
    write_address(Path(sys.argv[1]), ServerAddress(1, "http://127.0.0.1:1", "0"))
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(folder: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    return holder


def end(holder: subprocess.Popen[str], *, kill: bool = False) -> None:
    with holder:
        if kill:
            holder.kill()


def test_the_folder_and_its_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "data"
    with hold_data_dir(folder):
        write_address(folder, ServerAddress(7, "http://127.0.0.1:8000", "0"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {"data": 0o700, "server.lock": 0o600, "server.json": 0o600}


@pytest.mark.parametrize("name", ["server.lock", "chatd.toml"])
def test_an_open_folder_of_ours_is_closed_to_others(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    tmp_path.chmod(0o755)
    with hold_data_dir(tmp_path):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_an_open_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("")
    tmp_path.chmod(0o777)
    with pytest.raises(SetupError, match="chmod 700"), hold_data_dir(tmp_path):
        pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o777
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_second_server_is_told_who_has_the_folder(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    try:
        assert live_server(tmp_path) == ServerAddress(1, "http://127.0.0.1:1", "0")
        with (
            pytest.raises(SetupError, match=rf"Process {holder.pid} .*http://127\.0\.0\.1:1"),
            hold_data_dir(tmp_path),
        ):
            pass
    finally:
        end(holder)
    assert live_server(tmp_path) is None
    assert read_address(tmp_path) is None


def test_a_killed_server_leaves_nothing_to_clean_up(tmp_path: Path) -> None:
    end(start_holder(tmp_path), kill=True)
    assert read_address(tmp_path) is not None
    assert live_server(tmp_path) is None
    with hold_data_dir(tmp_path):
        assert live_server(tmp_path) is None  # and not the dead one's, until this one listens


def test_a_look_at_the_folder_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    end(start_holder(tmp_path), kill=True)
    with (tmp_path / "server.lock").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_EX)
        threading.Timer(0.05, fcntl.flock, (look, fcntl.LOCK_UN)).start()
        with hold_data_dir(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="--data-dir"), hold_data_dir(tmp_path / "file" / "data"):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}'])
def test_a_damaged_address_is_no_address(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    assert read_address(tmp_path) is None
