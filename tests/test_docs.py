"""README says what the code does: an undocumented setting, command, event or error fails here."""

from pathlib import Path

import pytest

from chatd.cli.main import cli
from chatd.config import SettingInfo, Settings, settings_table
from chatd.server.protocol_tables import markdown

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def row(info: SettingInfo) -> str:
    """A setting's line in README's table."""
    values = info.kind.metavar.replace("|", " \\| ")
    return f"| `{info.flag}` | {values} | {default(info)} | {info.words} |"


def default(info: SettingInfo) -> str:
    value = getattr(Settings(), info.name)
    if info.name == "data_dir":
        return "the user's data folder"
    if value in ((), "", None):
        return ""
    if value is False:
        return "off"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


@pytest.mark.parametrize("info", settings_table().values(), ids=lambda info: info.name)
def test_every_setting_is_documented(info: SettingInfo) -> None:
    assert row(info) in README.splitlines()


def test_no_setting_is_documented_that_does_not_exist() -> None:
    documented = [line for line in README.splitlines() if line.startswith("| `--")]
    assert documented == [row(info) for info in settings_table().values()]


def test_the_wire_is_documented() -> None:
    assert markdown() in README


def test_every_command_is_documented() -> None:
    assert [name for name in cli.commands if f"chatd {name}" not in README] == []


def test_the_two_commands_open_it() -> None:
    lines = [line.strip() for line in README.splitlines() if line.startswith("    ")]
    assert lines[0].startswith("pip install -e . && chatd serve")
    assert lines[1].startswith("pip install -e '.[test]' && pytest")
