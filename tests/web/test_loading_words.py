"""Every kind of work that a server names while it loads has words in every language of the page."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LOADING = ("chatd/model", "chatd/engine", "chatd/cli/loading.py", "kernels/chatd_kernels")


def sources() -> Iterator[Path]:
    for place in LOADING:
        path = ROOT / place
        yield from path.rglob("*.py") if path.is_dir() else [path]


def said_in(source: str) -> Iterator[str]:
    """The second arguments of calls of ``progress``, with # for what is put in."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="progress"), args=[_, ast.Constant(value=str(words))]):
                yield words
            case ast.Call(func=ast.Name(id="progress"), args=[_, ast.JoinedStr(values=parts)]):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "#" for part in parts)


def test_each_has_its_words() -> None:
    said = {words for path in sources() for words in said_in(path.read_text("utf-8"))}
    assert {"layer # of #", "reading the tokenizer", "compiling for this CPU, once: kernel # of #"} <= said
    for language in ("en", "zh"):
        text = (ROOT / "web/src/text" / f"{language}.ts").read_text("utf-8")
        found = re.search(r"loadingSteps: \{(.*?)\n  \}", text, re.DOTALL)
        assert found
        known = set(re.findall(r'^    "(.+?)":', found[1], re.MULTILINE))
        assert known == said | {"starting"}, language
