"""Who may import whom (DESIGN 1), read from the syntax trees and, once, from a real interpreter."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"chatd": ROOT / "chatd", "chatd_kernels": ROOT / "kernels" / "chatd_kernels"}

PURE = (
    "chatd.cache",
    "chatd.text",
    "chatd.engine.scheduler",
    "chatd.engine.request",
    "chatd.engine.messages",
    "chatd.engine.plan",
    "chatd.server.session",
    "chatd.server.protocol",
    "chatd.errors",
    "chatd.ids",
    *(f"chatd.bench.{name}" for name in ("load", "plan", "words", "answers", "figures", "charts", "pairs")),
)
WORKERS = ("chatd.cache.disk",)
"""Parts of pure packages that may wait: threads of their own."""
IMPURE = frozenset({"torch", "asyncio", "starlette", "sqlalchemy", "time"})

BARE = ("chatd.engine", "chatd.cache", "chatd.model", "chatd.gpu_check", "chatd_kernels")
COMPILING = ("compile", "simd")
BARE_ALLOWED = frozenset({"torch", "triton", "numpy", "chatd", "chatd_kernels"})

FORBIDDEN = (
    ("chatd_kernels", "chatd"),
    ("chatd.store", "chatd.engine"),
    ("chatd.store", "chatd.server"),
    ("chatd.engine", "chatd.store"),
    ("chatd.engine", "chatd.server"),
    ("chatd.cache", "chatd.server"),
    ("chatd.cache", "chatd.store"),
    ("chatd.model", "chatd.server"),
    ("chatd.model", "chatd.store"),
    ("chatd.text", "chatd.engine"),
    ("chatd.text", "chatd.model"),
    ("chatd.text", "chatd.server"),
    ("chatd.text", "chatd.store"),
    ("chatd.server", "chatd.bench"),
    ("chatd.engine", "chatd.bench"),
    ("chatd.bench", "chatd.store"),
    ("chatd.bench", "torch"),
)
ONLY_CLI = ("chatd.server.app", "chatd.cli")
COMMANDS = ("chatd.cli", "chatd.__main__")


@dataclass(frozen=True)
class Import:
    """``names`` are the dotted names an import statement may mean: ``from a import b`` is a and a.b."""

    module: str
    names: tuple[str, ...]
    line: int
    at_import: bool  # runs when the module is imported, not when a function is called

    def reaches(self, package: str) -> bool:
        return any(within(name, package) for name in self.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *(p for p in parts if p != "__init__")))] = path
    return found


def imports_of(module: str, path: Path) -> list[Import]:
    return list(walk(ast.parse(path.read_text("utf-8")), module, path.name == "__init__.py", at_import=True))


def walk(node: ast.AST, module: str, is_package: bool, *, at_import: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield Import(module, tuple(alias.name for alias in child.names), child.lineno, at_import)
        elif isinstance(child, ast.ImportFrom):
            base = source_of(child, module, is_package)
            names = (base, *(f"{base}.{alias.name}" for alias in child.names))
            yield Import(module, names, child.lineno, at_import)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, module, is_package, at_import=at_import and not is_function)


def source_of(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")[: None if is_package and node.level == 1 else int(is_package) - node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


ALL = [one for name, path in sorted(modules().items()) for one in imports_of(name, path)]


def broken(where: str, what: str) -> list[str]:
    return [f"{i.module}:{i.line}" for i in ALL if within(i.module, where) and i.reaches(what)]


def test_the_walk_sees_every_module() -> None:
    assert {"chatd.config", "chatd.errors", "chatd_kernels"} <= set(modules())
    assert any(i.module == "chatd.config" and i.reaches("chatd.errors.SetupError") for i in ALL)


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_nothing_that_waits_or_computes(module: str) -> None:
    assert any(within(name, module) for name in modules())
    pure = [i for i in ALL if within(i.module, module) and not any(within(i.module, w) for w in WORKERS)]
    impure = [f"{i.module}:{i.line}" for i in pure if any(map(i.reaches, IMPURE))]
    assert impure == []


@pytest.mark.parametrize(("where", "what"), FORBIDDEN)
def test_directions(where: str, what: str) -> None:
    assert broken(where, what) == []


@pytest.mark.parametrize("what", ONLY_CLI)
def test_only_the_commands_put_the_server_together(what: str) -> None:
    others = [i.module for i in ALL if i.reaches(what) and not any(within(i.module, c) for c in COMMANDS)]
    assert others == []


def test_no_back_edges_behind_type_checking() -> None:
    """An import that only type checkers see must not lead to a module that leads back."""
    back = [
        f"{hidden.module}:{hidden.line}"
        for name, path in modules().items()
        for hidden in behind_type_checking(name, path)
        if any(name in reachable(target) for target in modules() if target in hidden.names)
    ]
    assert back == []


def behind_type_checking(module: str, path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from walk(node, module, path.name == "__init__.py", at_import=True)


def reachable(module: str) -> set[str]:
    """Every module of ours that ``module`` imports, directly or not, whenever that happens."""
    found: set[str] = set()
    todo = [module]
    while todo:
        here = todo.pop()
        named = {name for one in ALL if one.module == here for name in one.names if name in modules()}
        todo += named - found
        found |= named
    return found


@pytest.mark.parametrize("package", BARE)
def test_bare_packages_name_only_torch_triton_numpy(package: str) -> None:
    allowed = BARE_ALLOWED | sys.stdlib_module_names
    foreign = [
        f"{i.module}:{i.line} {i.names[0]}"
        for i in ALL
        if within(i.module, package)
        and not compiles(i.module)
        and i.at_import
        and i.names[0].split(".")[0] not in allowed
    ]
    assert foreign == []


BLOCKER = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not on a bare GPU machine")

BLOCKED = frozenset(sys.argv[1].split(","))
sys.meta_path.insert(0, Blocker())
for name in sys.argv[2].split(","):
    importlib.import_module(name)
"""


def compiles(module: str) -> bool:
    """Sources of the CPU's kernels: only the process that compiles them imports them, and it has numba."""
    parts = module.rpartition(".")
    return parts[0] == "chatd_kernels.cpu" and (parts[2] in COMPILING or parts[2].endswith("_kernels"))


def test_bare_packages_import_on_a_bare_gpu_machine() -> None:
    """With everything away that chatd depends on, but for what torch itself brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {
        line.split(";")[0].split("[")[0].split(">")[0].split("<")[0] for line in project["dependencies"]
    }
    blocked = {name.replace("-", "_") for name in needed} - {"torch", "triton", "numpy", "jinja2"}
    bare = [name for name in sorted(modules()) if any(within(name, package) for package in BARE)]
    names = [name for name in bare if not compiles(name)]
    path = f"{ROOT}:{ROOT / 'kernels'}"
    command = [sys.executable, "-c", BLOCKER, ",".join(sorted(blocked)), ",".join(names)]
    done = subprocess.run(
        command, env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
