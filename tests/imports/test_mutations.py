"""Files that are nearly right: whatever is wrong in them, what can be read is, and nothing else happens."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatd.ids import Namespace
from chatd.imports.errors import WrongFile
from chatd.imports.files import Found, read_bytes
from tests.imports.test_files import chatgpt, lines, llama_cpp, open_webui

NS = Namespace("local")
NOW = 1_800_000_000_000_000
ODD: list[Any] = [
    None,
    True,
    -1,
    1e300,
    2**70,
    "",
    "x",
    "\x00",
    "q",
    [],
    [[]],
    [None],
    {},
    {"a": 1},
    ["q", 7],
]
GOOD: dict[str, Callable[[], list[Any]]] = {
    "chatgpt": lambda: [chatgpt(), chatgpt() | {"conversation_id": "c-2", "title": "Other"}],
    "open webui": lambda: [open_webui(), open_webui() | {"id": "w-2"}],
    "llama.cpp": lambda: [llama_cpp(), {**llama_cpp(), "conv": {**llama_cpp()["conv"], "id": "l-2"}}],
}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys, at any depth."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def damage(value: Any, dice: random.Random) -> None:
    found = list(places(value))
    if not found:  # all of it was taken away already
        return
    holder, key = dice.choice(found)
    if dice.random() < 0.3:
        del holder[key]
    else:
        holder[key] = dice.choice(ODD)


def read(raw: bytes) -> Found:
    """No error but one, and nothing but what can be stored."""
    try:
        found = read_bytes(raw, NS, NOW)
    except WrongFile as error:
        return Found([], [error.message])
    for one in found.conversations:
        one.check()
        assert all(message.text.strip() for message in one.messages)
    return found


@pytest.mark.parametrize("tool", GOOD)
def test_one_thing_that_is_wrong(tool: str) -> None:
    """The other conversation is whole, whatever became of the first."""
    dice, whole = random.Random(tool), read(json.dumps(GOOD[tool]()).encode())
    assert whole.left_out == []
    for _ in range(400):
        value = GOOD[tool]()
        damage(value[:1], dice)
        found = read(json.dumps(value).encode())
        assert whole.conversations[1] in found.conversations
        assert len(found.left_out) <= 2


@pytest.mark.parametrize("tool", GOOD)
def test_many_things_that_are_wrong(tool: str) -> None:
    dice = random.Random(tool)
    for _ in range(150):
        value = GOOD[tool]()
        for _ in range(dice.randrange(1, 6)):
            damage(value, dice)
        read(json.dumps(value).encode())


def test_bytes_that_are_wrong() -> None:
    dice = random.Random(5)
    files = [*(json.dumps(make()).encode() for make in GOOD.values()), lines().encode()]
    for number in range(400):
        raw = bytearray(files[number % len(files)])
        for _ in range(dice.randrange(1, 4)):
            raw[dice.randrange(len(raw))] = dice.choice(b'\x00\xff"{}[],:\\u7')
        read(bytes(raw[: dice.randrange(len(raw))] if dice.random() < 0.5 else raw))


def test_a_file_that_is_read_twice_is_the_same(tmp_path: Path) -> None:
    """Ids are made of the tool's: an import of the same file again adds nothing."""
    for make in GOOD.values():
        raw = json.dumps(make()).encode()
        assert read(raw) == read(raw)
