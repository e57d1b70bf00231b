"""What a benchmark was run on and with: its figures mean nothing without."""

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chatd import __version__
from chatd.cli.connect import KEY_VARIABLE, ServerRefused, get_json
from chatd.data_dir import ServerAddress
from chatd.errors import NotFound, SetupError

PROC = Path("/proc")


def date() -> str:
    """Now, in UTC."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def versions() -> dict[str, str]:
    found = {"chatd": __version__, "python": platform.python_version()}
    return found | {name: version(name) for name in ("torch", "numpy")}


def machine() -> dict[str, Any]:
    """This one. Takes about half a second, and a second for torch."""
    from chatd.cli.machine import look

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return asdict(look()) | {"memory": total, "system": f"{platform.system()} {platform.release()}"}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a process that are in memory, now and at most so far."""

    resident: int
    most_resident: int


def memory_of(pid: int, proc: Path = PROC) -> Memory | None:
    """None where the system does not say, or there is no such process."""
    try:
        lines = (proc / str(pid) / "status").read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    found = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in lines)
        if name in ("VmRSS", "VmHWM")
    }
    return Memory(found["VmRSS"], found["VmHWM"]) if len(found) == 2 else None


def server_facts(server: ServerAddress) -> dict[str, Any]:
    """What the server says of itself: only the model's name where our key does not open its status."""
    try:
        status = get_json(server, "/api/v1/status")
        known = {"version": status["version"], "model": status["model"]}
    except (ServerRefused, NotFound):
        known = {"version": None, "model": {"name": _first_model(server)}}
    return {"url": server.url, "pid": server.pid or None, **known}


def _first_model(server: ServerAddress) -> str:
    """What any key may know. `SetupError` if there is none."""
    try:
        return str(get_json(server, "/v1/models")["data"][0]["id"])
    except ServerRefused as error:
        raise SetupError(
            f"The server at {server.url} lets nobody in: {error.message} It is taken from {KEY_VARIABLE}."
        ) from None


def memory_facts(pid: int, kv_bytes: int | None) -> dict[str, Any]:
    """A process's memory, unknown for ``pid`` 0, and the size of its KV pool."""
    memory = memory_of(pid) if pid else None
    return {
        "resident_bytes": memory and memory.resident,
        "most_resident_bytes": memory and memory.most_resident,
        "kv_bytes": kv_bytes,
    }
