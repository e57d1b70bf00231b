"""Compiled kernels: machine code kept in the user's cache folder, made by a process of its own.

numba takes half a second to import, and 0.2 GB: a server whose kernels are in the cache does without it.
"""

import ctypes
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chatd_kernels.cpu.isa import Isa, host_isa

SOURCES = Path(__file__).parent
ENTRY = "chatd_kernel"
Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Spec:
    """A kernel: what the function ``make`` of the module ``<module>_kernels`` returns for ``args``."""

    module: str
    make: str
    args: tuple[int | str, ...] = ()

    @property
    def name(self) -> str:
        return "-".join([self.module, self.make, *map(str, self.args)])


class Library:
    """Kernels of this machine by their `Spec`. Raises ImportError where llvmlite or numba is missing."""

    def __init__(self, folder: Path | None = None) -> None:
        self.isa = host_isa()
        version("numba")  # the compiler: said now rather than in the middle
        self._folder = cache_folder() if folder is None else folder
        self._machine_key = repr((self.isa, version("numba"), version("llvmlite")))
        self._bodies: dict[Spec, int] = {}
        self._engines: list[Any] = []

    def missing(self, specs: Iterable[Spec]) -> list[Spec]:
        """Those that would have to be compiled."""
        return [
            spec for spec in dict.fromkeys(specs) if not (spec in self._bodies or self._path(spec).exists())
        ]

    def body(self, spec: Spec) -> int:
        """Address of a function of one argument; compiled now if it never was on this machine."""
        address = self._bodies.get(spec)
        if address is None:
            self.compile([spec])
            address = self._bodies[spec] = self._load(self._path(spec).read_bytes())
        return address

    def name_of(self, body: int) -> str:
        """Of a kernel by its address, for profiles."""
        return next(spec.name for spec, address in self._bodies.items() if address == body)

    def compile(self, specs: Iterable[Spec], progress: Progress = lambda share, what: None) -> None:
        """In one other process, whatever is missing. Raises RuntimeError with what it said if it fails."""
        missing = self.missing(specs)
        if not missing:
            return
        self._make_folder()
        lines = [repr((str(self._path(spec)), spec.module, spec.make, spec.args)) for spec in missing]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "chatd_kernels.cpu.compile", *lines],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            for done, _ in enumerate(process.stdout, 1):
                progress(
                    done / len(missing), f"compiling for this CPU, once: kernel {done} of {len(missing)}"
                )
            said = process.stderr.read()
        if process.returncode:
            raise RuntimeError(f"the CPU kernels do not compile here: {said.strip()[-2000:]}")

    def _make_folder(self) -> None:
        """One of this process, where the user's cannot be written: then every start compiles."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(self._folder, os.W_OK):
                return
        except OSError:
            pass
        self._folder = Path(tempfile.mkdtemp(prefix="chatd-kernels-"))

    def _path(self, spec: Spec) -> Path:
        key = hashlib.sha256(self._machine_key.encode())
        for path in _sources(f"{spec.module}_kernels"):
            key.update(_content(path))
        return self._folder / f"{spec.name}-{key.hexdigest()[:16]}.o"

    def _load(self, machine_code: bytes) -> int:
        from llvmlite import binding

        self._symbols  # noqa: B018
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), self._machine)
        engine.add_object_file(binding.ObjectFileRef.from_data(machine_code))
        engine.finalize_object()
        self._engines.append(engine)
        return int(engine.get_function_address(ENTRY))

    @cached_property
    def _machine(self) -> Any:
        return target_machine(self.isa, jit=True)

    @cached_property
    def _symbols(self) -> None:
        """What machine code may call."""
        from llvmlite import binding

        libc = ctypes.CDLL(None)
        there = getattr(libc, "syscall", libc.abort)
        binding.add_symbol("chatd_syscall", ctypes.cast(there, ctypes.c_void_p).value)


@cache
def shared() -> Library:
    """The process's one."""
    return Library()


def target_machine(isa: Isa, *, jit: bool) -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=isa.name, features=isa.features, opt=3, jit=jit
    )


def cache_folder() -> Path:
    """Where programs keep what they can make again."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "chatd" / "kernels"


@cache
def _sources(module: str) -> tuple[Path, ...]:
    """Files whose change changes the kernels of ``module``."""
    found, new = {"compile", "isa", "simd"}, {module}
    while new:
        found |= new
        texts = [_content(SOURCES / f"{name}.py").decode() for name in new]
        new = {name for text in texts for name in _IMPORTED.findall(text)} - found
    return tuple(SOURCES / f"{name}.py" for name in sorted(found))


_IMPORTED = re.compile(r"from chatd_kernels\.cpu\.(\w+_kernels) import")


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()
