"""Options that commands share, made from the table of settings."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from chatd.config import SettingInfo, Settings, load_settings, settings_table
from chatd.config_kinds import Many, Switch

Command = TypeVar("Command", bound=Callable[..., Any])


def setting_options(names: Iterable[str]) -> Callable[[Command], Command]:
    """Options for these settings. They reach the command under the setting's name, as they were typed."""

    def add(command: Command) -> Command:
        for info in reversed([settings_table()[name] for name in names]):
            command = _option(info)(command)
        return command

    return add


def _option(info: SettingInfo) -> Callable[[Command], Command]:
    words = info.words.replace("`", "") + "." + _default_words(info)
    if isinstance(info.kind, Switch):
        return click.option(info.flag, info.name, is_flag=True, default=None, help=words)
    many = isinstance(info.kind, Many)
    return click.option(info.flag, info.name, metavar=info.kind.metavar, multiple=many, help=words)


def _default_words(info: SettingInfo) -> str:
    default = getattr(Settings(), info.name)
    return "" if default in (None, (), "", False) else f"  [default: {default}]"


def common_options(command: Command) -> Command:
    """``--config``, ``--data-dir`` and ``--json`` (as ``as_json``), which every command takes."""
    command = click.option("--json", "as_json", is_flag=True, help="Write JSON instead of text for people.")(
        command
    )
    command = setting_options(["data_dir"])(command)
    return click.option(
        "--config",
        "config_file",
        envvar="CHATD_CONFIG",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Configuration file (TOML).  [default: chatd.toml in the data folder]",
    )(command)


def settings_from(flags: Mapping[str, object], config_file: Path | None) -> Settings:
    """Settings with the flags that were given on top."""
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    return load_settings(given, os.environ, config_file)
