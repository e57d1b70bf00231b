"""Tries a stranger's chat template in a child process before it is let in.

The sandbox prices what a template does; this is for what nobody thought of: a crash of the compiler, a
loop in C. The child can write nothing, may use `MEMORY_BYTES` and `CPU_S` of processor time, and imports
Jinja alone (about 0.1 s). Its answer is a line of text that says what was wrong, or nothing.
"""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from chatd.errors import TemplateError

CPU_S = 0.5
MEMORY_BYTES = 256 << 20
PATIENCE_S = 20.0
"""Wall time before a child is given up: it cannot sleep, so this is for a machine that stands still."""

SAMPLE_UNITS = 200_000
_START = "import sys; sys.path[:0] = sys.argv[1:]; from chatd.text.template_vet import child; child()"

_USER, _ANSWER = {"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}
_SYSTEM = {"role": "system", "content": "Be brief."}
SAMPLES: tuple[list[dict[str, str]], ...] = ([_USER], [_USER, _ANSWER, _USER], [_SYSTEM, _USER, _ANSWER])
"""A template must render the first; it may refuse the others by ``raise_exception``."""


def vet(source: str, *, bos: str, eos: str) -> None:
    """Raises `TemplateError` unless the child compiled the template and rendered the samples."""
    task = json.dumps({"source": source, "bos": bos, "eos": eos}).encode()
    command = [sys.executable, "-I", "-S", "-c", _START, *_import_folders()]
    try:
        done = subprocess.run(command, input=task, capture_output=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        raise TemplateError(
            "the model's chat template could not be tried in time; is the machine overloaded?"
        ) from None
    if done.returncode in (-signal.SIGPROF, -signal.SIGXCPU, -signal.SIGKILL):
        raise TemplateError("the model's chat template runs too long; it was stopped and is not used")
    problem = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode != 0 or problem:
        raise TemplateError(
            f"the model's chat template is not usable: {problem[:500] or 'it crashed when tried'}"
        )


def _import_folders() -> Iterable[str]:
    """Where the child finds Jinja, MarkupSafe and chatd. It runs no site hooks, so it has to be told."""
    import jinja2
    import markupsafe

    modules = (Path(__file__).parents[1], Path(jinja2.__file__).parent, Path(markupsafe.__file__).parent)
    return dict.fromkeys(str(folder.parent) for folder in modules)


def child() -> None:
    """The child's main. Prints what is wrong with the template on stdin."""
    task = json.load(sys.stdin.buffer)
    _confine()
    with contextlib.suppress(BrokenPipeError):
        print(_problem(task["source"], task["bos"], task["eos"]), flush=True)


def _confine() -> None:
    import resource

    from chatd.text import sandbox  # noqa: F401  (loaded before the limits hold)

    # The default action of SIGPROF ends the process whatever code it is in, and no handler is set.
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    limits = {"AS": MEMORY_BYTES, "CPU": 2, "FSIZE": 0, "CORE": 0, "NOFILE": 32, "NPROC": 0}
    for name, limit in limits.items():
        with contextlib.suppress(ValueError, OSError):  # not every system has each of them
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


def _problem(source: str, bos: str, eos: str) -> str:
    from chatd.text.sandbox import Sandbox, TemplateFailure, TemplateRefusal, render_variables

    try:
        sandbox = Sandbox(source, now=datetime.now)
        for messages in SAMPLES:
            with contextlib.suppress(*[TemplateRefusal] if messages is not SAMPLES[0] else []):
                sandbox.render(render_variables(messages, bos, eos, True), SAMPLE_UNITS)
    except TemplateRefusal as refusal:
        return f"it refuses a plain question: {refusal}"
    except TemplateFailure as failure:
        return str(failure)
    return ""
