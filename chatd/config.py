"""Settings: defaults < TOML file < ``CHATD_*`` environment < flags.

`Settings` is the one table. Its fields give the TOML keys, with ``CHATD_`` and capitals the
environment's names, with dashes the flags, and README's table is tested against it. A key nobody
knows is an error, wherever it stands: a misspelt setting must not be a setting ignored.
"""

import difflib
import ipaddress
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import platformdirs

from chatd.config_kinds import (
    AUTO,
    Auto,
    Choice,
    Kind,
    Many,
    Network,
    Number,
    OrAuto,
    PathTo,
    Size,
    Switch,
    Text,
    Whole,
    WrongPart,
)
from chatd.errors import SetupError

ENV_PREFIX = "CHATD_"
ENV_OTHERS = frozenset({"CHATD_CONFIG", "CHATD_KEY"})
"""Ours in the environment, but no settings. Those that begin with ``CHATD_TEST_`` belong to the tests."""

CONFIG_NAME = "chatd.toml"
DEFAULT_MODEL = "smollm2"

_MODEL = Text("smollm2|FILE|FOLDER", r"[^\x00]+", "smollm2 or a path")
_HOST = Text("ADDRESS", r"[0-9A-Za-z.:\-]+", "a host name or an address")
_HOST_NAMES = Many(Text("NAME", r"[0-9A-Za-z.:\-\[\]]+", "a host name"))
_ROOT_PATH = Text("PATH", r"|(/[A-Za-z0-9._~\-]+)+", "nothing or a path such as /chat")


def default_data_dir() -> Path:
    return Path(platformdirs.user_data_dir("chatd"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be configured: type, kind (how it is read and checked), one line for people."""

    model: Annotated[
        str, _MODEL, "`smollm2` (fetched once), a `.gguf` file, or a Hugging Face folder of the llama family"
    ] = DEFAULT_MODEL
    device: Annotated[
        str, Choice(("auto", "cpu", "cuda")), "Where the model runs; `auto` takes CUDA where there is one"
    ] = "auto"
    weights: Annotated[
        str,
        Choice(("auto", "bf16", "fp32", "int8", "int4")),
        "Format of the weights in memory; `auto` is bf16, but on a CPU that multiplies bytes (VNNI) int4 for "
        "files in 4 bits and int8 for others, and on one that cannot do bf16 either fp32",
    ] = "auto"
    kernels: Annotated[
        str,
        Choice(("auto", "triton", "cpu", "reference")),
        "What computes; `auto` is Triton on a GPU, kernels compiled for the very machine (`cpu`) on a CPU "
        "with AVX-512, plain torch (`reference`) on others",
    ] = "auto"
    no_graphs: Annotated[
        bool, Switch(), "On a GPU, launch every kernel by itself instead of whole decode steps as graphs"
    ] = False
    kv_dtype: Annotated[
        str,
        Choice(("auto", "bf16", "fp32", "int8", "fp8")),
        "Format of the KV pages; `auto` follows the weights, 8 bits hold nearly twice the tokens of bf16",
    ] = "auto"
    kv_bytes: Annotated[
        int | Auto,
        OrAuto(Size(1 << 20)),
        "Memory for KV pages, such as `2GiB`; `auto` takes a share of what is free",
    ] = AUTO
    kv_share: Annotated[
        float,
        Number(0.01, 0.99, "SHARE", "a share"),
        "On a GPU, the part of the memory left by the weights that `--kv-bytes auto` takes",
    ] = 0.85
    page_size: Annotated[
        int, Whole(1, 64, powers_of_two=True), "Tokens in a KV page: a power of two, at most 64"
    ] = 16
    context_length: Annotated[
        int | Auto,
        OrAuto(Whole(16, 1 << 24)),
        "Most tokens of prompt and answer together; `auto` is the model's own",
    ] = AUTO
    step_tokens: Annotated[
        int | Auto,
        OrAuto(Whole(1, 1 << 16)),
        "Most tokens the model computes in one step; `auto` is 128 on a CPU, 2,048 on a GPU",
    ] = AUTO
    max_running: Annotated[int, Whole(1, 4096), "Most answers generated at the same time"] = 64
    temperature: Annotated[
        float, Number(0, 2, "T", "a number"), "Of requests that name none; 0 always takes the likeliest token"
    ] = 0.3
    no_prefix_cache: Annotated[
        bool, Switch(), "Compute every prompt from its first token (to measure against)"
    ] = False
    disk: Annotated[
        str,
        Choice(("write-behind", "write-through", "off")),
        "KV on disk, which outlives memory and restarts: written when idle, at once, or not at all",
    ] = "write-behind"
    disk_bytes: Annotated[
        int | Auto,
        OrAuto(Size(1 << 26)),
        "Most that KV may take on disk; `auto` is 20 GiB, or a tenth of what is free if that is less",
    ] = AUTO
    disk_dir: Annotated[
        Path | None, PathTo("FOLDER"), "Where KV lies on disk; without it in the data folder, as `kv`"
    ] = None
    disk_ttl: Annotated[
        float | None,
        Number(60, 1 << 30),
        "Forget KV on disk that was not used for so long; without it only when there is no room",
    ] = None
    shared_prompts: Annotated[
        tuple[Path, ...],
        Many(PathTo("FILE", exists=True)),
        "Files with system prompts whose KV all users share; can be given more than once",
    ] = ()
    prices: Annotated[
        Path | None, PathTo("FILE", exists=True), "Price book (TOML); without one the built-in prices hold"
    ] = None
    host: Annotated[str, _HOST, "Address to listen on"] = "127.0.0.1"
    port: Annotated[int, Whole(0, 65535, "PORT"), "Port to listen on; 0 takes a free one"] = 8000
    root_path: Annotated[str, _ROOT_PATH, "Path prefix behind a reverse proxy, such as `/chat`"] = ""
    allowed_hosts: Annotated[
        tuple[str, ...],
        _HOST_NAMES,
        "More names this server answers to, such as a proxy's; can be given more than once",
    ] = ()
    allow_public: Annotated[
        bool, Switch(), "Listen beyond this machine without any keys: something in front decides who gets in"
    ] = False
    trusted_proxy: Annotated[
        tuple[str, ...],
        Many(Network()),
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed; can be given more than once",
    ] = ()
    tls_cert: Annotated[
        Path | None,
        PathTo("FILE", exists=True),
        "Certificate (PEM, with its chain), to speak TLS; with `--tls-key`",
    ] = None
    tls_key: Annotated[Path | None, PathTo("FILE", exists=True), "The certificate's private key (PEM)"] = None
    log_level: Annotated[
        str,
        Choice(("debug", "info", "warning", "error")),
        "What goes into the log: from `info` on each API request and answer, from `debug` on the page's too",
    ] = "info"
    metrics_compat: Annotated[
        str, Choice(("off", "vllm")), "Also export the metrics' names that dashboards for vLLM read"
    ] = "off"
    data_dir: Annotated[Path, PathTo("FOLDER"), "Conversations, bills and the lock; one server at a time"] = (
        field(default_factory=default_data_dir)
    )
    retain_days: Annotated[
        float | None,
        Number(0.01, 36500, "DAYS", "a number of days"),
        "Delete conversations that were not used for so long, with their KV; what they cost stays",
    ] = None
    grace: Annotated[float, Number(0, 86400), "How long an answer goes on after its last reader left"] = 60.0
    drain_timeout: Annotated[
        float, Number(0, 3600), "How long a stopping server lets running answers finish"
    ] = 5.0


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One row of the table, with the names it goes by."""

    name: str
    kind: Kind[Any]
    words: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.upper()


def settings_table() -> dict[str, SettingInfo]:
    """Every setting by name, in the order of `Settings`."""
    hints = get_type_hints(Settings, include_extras=True)
    return {f.name: SettingInfo(f.name, *hints[f.name].__metadata__) for f in fields(Settings)}


@dataclass(frozen=True, slots=True)
class _Source:
    values: Mapping[str, object]
    written: Callable[[SettingInfo], str]

    def read(self, info: SettingInfo) -> Any:
        value = self.values[info.name]
        try:
            return info.kind.parse(value)
        except ValueError as error:
            wrong = error.part if isinstance(error, WrongPart) else value
            shown = wrong if isinstance(wrong, str) and wrong else repr(wrong)
            raise SetupError(f"{self.written(info)} is {shown}, {error}.", param=info.name) from None


def load_settings(
    flags: Mapping[str, object], env: Mapping[str, str], config_file: Path | None = None
) -> Settings:
    """Merge and check. ``flags`` holds only what was given; `SetupError` says what to mend and where.

    Without ``config_file`` the data folder's ``chatd.toml`` is read if there is one.
    """
    table = settings_table()
    given = [_Source(flags, lambda info: info.flag), _Source(_environment(env), lambda info: info.variable)]
    file = config_file or _merge([table["data_dir"]], given).data_dir / CONFIG_NAME
    in_file = _toml(file, required=config_file is not None)
    if config_file is None and "data_dir" in in_file:
        raise SetupError(f"data_dir has no effect in {file}: the file is found through it. Use --data-dir.")
    settings = _merge(table.values(), [*given, _Source(in_file, lambda info: f"{info.name} in {file}")])
    _check_together(settings)
    return settings


def _merge(table: Iterable[SettingInfo], sources: Sequence[_Source]) -> Settings:
    """The first source that has a setting decides."""
    values: dict[str, Any] = {}
    for info in table:
        source = next((source for source in sources if info.name in source.values), None)
        if source is not None:
            values[info.name] = source.read(info)
    return Settings(**values)


def _toml(path: Path, *, required: bool) -> dict[str, object]:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise SetupError(f"There is no configuration file {path}.") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SetupError(f"{path} cannot be read as TOML: {error}") from None
    for key in values:
        _check_known(key, settings_table(), f"{path} has an unknown key {key}")
    return values


def _environment(env: Mapping[str, str]) -> dict[str, object]:
    names = {info.variable: info.name for info in settings_table().values()}
    found: dict[str, object] = {}
    for key, value in env.items():
        if key.startswith(ENV_PREFIX) and key not in ENV_OTHERS and not key.startswith("CHATD_TEST_"):
            _check_known(key, names, f"The environment has an unknown variable {key}")
            found[names[key]] = value
    return found


def _check_known(key: str, known: Mapping[str, object], complaint: str) -> None:
    if key not in known:
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
        raise SetupError(f"{complaint}; the nearest known one is {nearest}.", param=key)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach ``host``. A name other than localhost counts as public."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_open_doors(settings: Settings) -> None:
    """What `chatd serve` says while there are no keys, unless only this machine can reach it."""
    if settings.allow_public:
        return
    if is_loopback(settings.host) and not settings.trusted_proxy:
        return
    where, param = f"--host is {settings.host}, which other machines can reach", "host"
    if settings.trusted_proxy:
        where, param = "--trusted-proxy means that others can reach this server", "trusted_proxy"
    raise SetupError(
        f"{where}, and there are no keys: everyone there would be the same user. Make a key first "
        "(`chatd keys create NAME`), listen on 127.0.0.1 alone, or add --allow-public if something in front "
        "of chatd decides who gets in.",
        param=param,
    )


def _check_together(settings: Settings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise SetupError("TLS needs both --tls-cert and --tls-key.", param="tls_cert")
    if settings.step_tokens != AUTO and settings.max_running > settings.step_tokens:
        raise SetupError(
            f"--max-running is {settings.max_running} and --step-tokens {settings.step_tokens}, but every "
            "answer that runs needs a token in each step: raise --step-tokens or lower --max-running.",
            param="max_running",
        )
