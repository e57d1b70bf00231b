"""What messages of other tools consist of, as text: what is no text becomes a note in square brackets.

Models read the notes too when a conversation goes on: so they know that there was a picture, and say so.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chatd.imports.reading import want
from chatd.store.archive import ROLES

NOT_IMPORTED = ", not imported]"
KINDS = ("image", "audio", "video", "file")
"""What an odd part is called if its type says no more than one of these."""


def note(what: str, name: object = "") -> str:
    """``[image: cat.png, not imported]``; a name that is no text is none."""
    named = _short(name)
    return f"[{what}{': ' if named else ''}{named}{NOT_IMPORTED}"


def _short(name: object) -> str:
    """On one line, for a note; "" for what is no text."""
    return " ".join(name.split())[:100] if isinstance(name, str) else ""


def is_note(text: str) -> bool:
    return text.startswith("[") and text.endswith(NOT_IMPORTED) and "\n" not in text


def joined(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def text_of(content: object, where: str) -> str:
    """A text, or a list of texts and other parts. `WrongFile` if it is neither."""
    if isinstance(content, list):
        return joined(part_text(part) for part in content)
    return want({"content": content or ""}, "content", str, where)


def part_text(part: object) -> str:
    """``{"type": "text", "text"}`` and plain texts say what they say, all others become a note."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return note("attachment")
    text = part.get("text")
    return text if isinstance(text, str) else note(_kind(part), part.get("name"))


def _kind(part: Mapping[str, Any]) -> str:
    named = f"{part.get('content_type') or ''} {part.get('type') or ''}".lower()
    return next((kind for kind in KINDS if kind in named), "attachment")


def attached(files: object) -> Iterator[str]:
    """What a message has beside its text: what is text itself, and notes for the rest."""
    for file in files if isinstance(files, list) else ():
        if not isinstance(file, Mapping):
            yield note("attachment")
            continue
        content = file.get("content")
        if str(file.get("type")).lower() in ("textfile", "context") and isinstance(content, str):
            yield f"[file: {_short(file.get('name')) or 'without a name'}]\n{content}"
        else:
            yield note(_kind(file), file.get("name"))


def voice(role: str, text: str, tool: object = "") -> tuple[str, str]:
    """Role and text as we have them. What a tool said stands in the answer as a note."""
    if role == "developer":
        return "system", text
    if role in ROLES or not role:
        return role, text
    return "assistant", note("tool result", tool)
