"""Settings: which source wins, and what a person reads who wrote something wrong."""

import dataclasses
from pathlib import Path

import pytest

from chatd.config import Settings, is_loopback, load_settings, refuse_open_doors, settings_table
from chatd.config_kinds import Size, show_size
from chatd.errors import SetupError


def folder_with(tmp_path: Path, toml: str) -> dict[str, object]:
    (tmp_path / "chatd.toml").write_text(toml)
    return {"data_dir": str(tmp_path)}


def complaint(flags: dict[str, object], env: dict[str, str] | None = None, file: Path | None = None) -> str:
    with pytest.raises(SetupError) as caught:
        load_settings(flags, env or {}, file)
    return caught.value.message


def test_defaults_listen_on_this_machine_only(tmp_path: Path) -> None:
    settings = load_settings({"data_dir": str(tmp_path)}, {})
    assert settings == Settings(data_dir=tmp_path)
    assert is_loopback(settings.host)


def test_each_source_beats_the_one_before(tmp_path: Path) -> None:
    flags = folder_with(tmp_path, "port = 1001\npage_size = 8\nmax_running = 3\n")
    env = {"CHATD_PORT": "1002", "CHATD_PAGE_SIZE": "4"}
    settings = load_settings(flags | {"port": "1003"}, env)
    assert (settings.port, settings.page_size, settings.max_running) == (1003, 4, 3)


def test_a_named_file_replaces_the_data_folders(tmp_path: Path) -> None:
    flags = folder_with(tmp_path, "port = 1001\n")
    other = tmp_path / "other.toml"
    other.write_text("page_size = 2\n")
    settings = load_settings(flags, {}, other)
    assert (settings.port, settings.page_size) == (8000, 2)
    assert str(tmp_path / "missing.toml") in complaint(flags, file=tmp_path / "missing.toml")


def test_data_dir_may_stand_in_a_named_file_only(tmp_path: Path) -> None:
    flags = folder_with(tmp_path, 'data_dir = "/elsewhere"\n')
    assert "--data-dir" in complaint(flags)
    assert load_settings({}, {}, tmp_path / "chatd.toml").data_dir == Path("/elsewhere")


@pytest.mark.parametrize(
    ("toml", "env", "named"),
    [
        ("prot = 1", {}, "port"),
        ("dsk_bytes = 1", {}, "disk_bytes"),
        ("", {"CHATD_MODLE": "x"}, "CHATD_MODEL"),
        ("zzz = 1", {}, "nearest"),
    ],
)
def test_unknown_keys_name_the_nearest_known(
    tmp_path: Path, toml: str, env: dict[str, str], named: str
) -> None:
    assert named in complaint(folder_with(tmp_path, toml), env)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("port", "65536", "0 to 65535"),
        ("port", True, "whole number"),
        ("port", 1.5, "whole number"),
        ("port", "9" * 5000, "whole number"),
        ("page_size", 3, "power of two"),
        ("page_size", 128, "64"),
        ("kv_bytes", "2 bananas", "2GiB"),
        ("kv_bytes", 1024, "1 MiB"),
        ("kv_bytes", "-1GiB", "2GiB"),
        ("device", "tpu", "auto, cpu or cuda"),
        ("weights", "int3", "auto, bf16, fp32, int8 or int4"),
        ("weights", 4, "auto, bf16, fp32, int8 or int4"),
        ("temperature", "2.1", "0 to 2"),
        ("drain_timeout", "nan", "seconds"),
        ("drain_timeout", float("inf"), "seconds"),
        ("no_prefix_cache", "maybe", "true or false"),
        ("shared_prompts", ["/no/such/file"], "no such file"),
        ("prices", "", "path"),
        ("root_path", "chat/", "/chat"),
        ("host", "a b", "host name"),
        ("model", "", "smollm2 or a path"),
        ("model", "x\0y", "smollm2 or a path"),
        ("allowed_hosts", 5, "list"),
    ],
)
def test_wrong_values_say_what_is_wanted(tmp_path: Path, name: str, value: object, wanted: str) -> None:
    message = complaint({"data_dir": str(tmp_path), name: value})
    assert message.startswith("--" + name.replace("_", "-"))
    assert wanted in message


def test_a_message_says_where_the_value_stands(tmp_path: Path) -> None:
    assert complaint({"data_dir": str(tmp_path)}, {"CHATD_PORT": "x"}).startswith("CHATD_PORT is x,")
    assert f"port in {tmp_path / 'chatd.toml'} is x" in complaint(folder_with(tmp_path, 'port = "x"'))
    assert "cannot be read as TOML" in complaint(folder_with(tmp_path, "port = "))


def test_of_a_list_the_wrong_part_is_shown(tmp_path: Path) -> None:
    (there := tmp_path / "there").touch()
    flags: dict[str, object] = {"data_dir": str(tmp_path), "shared_prompts": (str(there), "/nope")}
    assert complaint(flags) == "--shared-prompts is /nope, but there is no such file."


def test_settings_that_do_not_go_together_are_named_as_flags(tmp_path: Path) -> None:
    message = complaint({"data_dir": str(tmp_path), "step_tokens": 512, "max_running": "4096"})
    assert message.startswith("--max-running is 4096")


def test_lists_and_switches_from_every_source(tmp_path: Path) -> None:
    (prompt := tmp_path / "p.txt").write_text("Be brief.")
    flags = folder_with(tmp_path, 'allowed_hosts = ["a", "b"]\nno_prefix_cache = true\n')
    settings = load_settings(flags | {"shared_prompts": (str(prompt),)}, {"CHATD_ALLOW_PUBLIC": "1"})
    assert settings.allowed_hosts == ("a", "b")
    assert settings.shared_prompts == (prompt,)
    assert settings.no_prefix_cache
    assert settings.allow_public
    assert load_settings(flags, {"CHATD_ALLOWED_HOSTS": "x.example, y.example"}).allowed_hosts == (
        "x.example",
        "y.example",
    )


def test_a_public_address_needs_the_explicit_word(tmp_path: Path) -> None:
    flags: dict[str, object] = {"data_dir": str(tmp_path), "host": "0.0.0.0"}
    settings = load_settings(flags, {})
    with pytest.raises(SetupError, match="--allow-public"):
        refuse_open_doors(settings)
    refuse_open_doors(dataclasses.replace(settings, allow_public=True))
    refuse_open_doors(dataclasses.replace(settings, host="127.0.0.1"))
    with pytest.raises(SetupError, match="--trusted-proxy"):
        refuse_open_doors(dataclasses.replace(settings, host="127.0.0.1", trusted_proxy=("10.0.0.0/8",)))


def test_tls_needs_both_files(tmp_path: Path) -> None:
    (cert := tmp_path / "cert.pem").touch()
    assert "--tls-key" in complaint({"data_dir": str(tmp_path), "tls_cert": str(cert)})


def test_networks(tmp_path: Path) -> None:
    flags: dict[str, object] = {"data_dir": str(tmp_path), "trusted_proxy": ("10.0.0.0/8", "::1")}
    assert load_settings(flags, {}).trusted_proxy == ("10.0.0.0/8", "::1/128")
    assert "10.0.0.0/8" in complaint(flags | {"trusted_proxy": ("10.0.0.1/8",)})


def test_a_step_has_room_for_all_that_run(tmp_path: Path) -> None:
    flags: dict[str, object] = {"data_dir": str(tmp_path), "step_tokens": 8}
    assert "--max-running" in complaint(flags)
    assert load_settings(flags | {"max_running": 8}, {}).max_running == 8


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org")],
)
def test_what_counts_as_this_machine(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_every_setting_has_names_and_words() -> None:
    table = settings_table()
    assert list(table) == [f.name for f in dataclasses.fields(Settings)]
    for name, info in table.items():
        assert info.words
        assert not info.words.endswith(".")
        assert info.flag == "--" + name.replace("_", "-")
        assert info.variable == "CHATD_" + name.upper()


def test_defaults_pass_their_own_checks() -> None:
    for name, info in settings_table().items():
        default = getattr(Settings(), name)
        if default is not None:
            assert info.kind.parse(default) == default


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512MiB", 512 << 20), ("2GiB", 2 << 30), ("1.5 gb", 1_500_000_000), ("7B", 7), (9, 9)],
)
def test_sizes(text: object, size: int) -> None:
    assert Size(0).parse(text) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2 << 30, "2 GiB"), (5 << 50, "5120 TiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert show_size(size) == text
