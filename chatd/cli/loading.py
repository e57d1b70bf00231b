"""From settings to a loaded model and its engine: what a starting server does in a worker thread."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from chatd.cache.block_tier import BLOCK_LEN
from chatd.cache.disk.tier import DiskTier
from chatd.cache.prefix_cache import PrefixCache
from chatd.cli.disk_setup import open_disk, tiering_over
from chatd.config import DEFAULT_MODEL, Settings
from chatd.config_kinds import AUTO, show_size
from chatd.engine.engine import Engine
from chatd.engine.messages import StepOutput
from chatd.engine.prepare import RunnerSettings, backend_name, prepare
from chatd.engine.scheduler import Scheduler, SchedulerLimits
from chatd.errors import SetupError
from chatd.model.fetch import default_model
from chatd.model.fingerprint import KVForm
from chatd.model.kv_pool import KVPlan, kv_dtype, plan_pages
from chatd.model.load import ModelFile, WeightForm, load_weights, open_model, weight_form
from chatd.model.memory import free_memory, out_of_memory_says
from chatd.server.backend import Backend, Formats
from chatd.text.answer import AnswerText
from chatd.text.chat_template import ChatTemplate
from chatd.text.system_prefix import system_prefix
from chatd.text.tokenizer import Tokenizer

Progress = Callable[[float, str], None]
"""Told the share that is done, 0 to 1, and what is being done. Called on the loading thread."""

STEP_TOKENS = {"cpu": 128, "gpu": 2048}

FETCHED, READ, READY = 0.5, 0.95, 0.99
"""Shares of the whole at which the model is here, its weights in memory, and steps can be run."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine is not started yet. What follows the first three is for people; see also `Prepared`."""

    backend: Backend
    engine: Engine
    kv: KVPlan
    device: str
    weights: str
    kernels: str = "reference"
    kv_dtype: str = ""
    graphs: tuple[int, ...] = ()
    graph_bytes: int = 0
    disk: DiskTier | None = None


def check(settings: Settings) -> None:
    """Refuse in a moment, before a port is opened, what `load` would refuse: a model that is missing, unsafe
    or of the wrong kind, memory that is not there. Raises `SetupError`.
    """
    device = choose_device(settings.device)
    _check_memory(settings, device)
    backend_name(settings.kernels, device)
    if settings.model != DEFAULT_MODEL:
        _check_fit(settings, open_model(_own_model(settings.model)), device)


def load(settings: Settings, post: Callable[[StepOutput], None], progress: Progress) -> Loaded:
    """Fetch, read and put together. Takes seconds to minutes; `SetupError` says what to do."""
    device = choose_device(settings.device)
    _check_memory(settings, device)
    backend_name(settings.kernels, device)
    file = open_model(model_path(settings.model, progress))
    progress(FETCHED, "reading the tokenizer")
    tokenizer, template = file.tokenizer(), file.chat_template()
    context_length = _check_fit(settings, file, device)
    form, kv = forms(settings, device, file)

    def weights_progress(share: float, what: str) -> None:
        progress(FETCHED + share * (READ - FETCHED), what)

    with out_of_memory_says("the weights were loaded", device, "Take a smaller model, or --device cpu."):
        weights = load_weights(
            file, dtype=form.dtype, bits=form.bits, device=device, progress=weights_progress
        )
    prepared = prepare(
        weights,
        runner_settings(settings, device, kv, context_length),
        lambda share, what: progress(READ + share * (READY - READ), what),
    )
    plan, runner = prepared.kv, prepared.runner
    progress(READY, "opening the disk tier")
    kv_form = KVForm(form.name, kv, settings.page_size, runner.block_bytes * settings.page_size // BLOCK_LEN)
    disk = open_disk(settings, file, tokenizer, kv_form)
    cache = PrefixCache(plan.num_pages, plan.page_size, enabled=not settings.no_prefix_cache)
    for ids in shared_prefixes(settings.shared_prompts, tokenizer, template):
        cache.share(ids)
    scheduler = Scheduler(
        cache,
        SchedulerLimits(step_tokens(settings, device), settings.max_running, context_length),
        lambda stop: AnswerText(tokenizer, stop),
        tokenizer.special_ids,
        tiering_over(disk, cache, runner, settings),
    )
    engine = Engine(scheduler, runner, post)
    backend = Backend(
        tokenizer,
        template,
        engine,
        model_name(file.path),
        context_length,
        file.config.vocab_size,
        settings.temperature,
        Formats(prepared.kernels, str(device), form.name, short_name(kv), settings.page_size),
        cache_on=not settings.no_prefix_cache,
        kv_bytes=plan.nbytes,
    )
    return Loaded(
        backend,
        engine,
        plan,
        str(device),
        form.name,
        prepared.kernels,
        short_name(kv),
        prepared.graphs,
        prepared.graph_bytes,
        disk,
    )


def runner_settings(
    settings: Settings, device: torch.device, kv: torch.dtype, context_length: int
) -> RunnerSettings:
    return RunnerSettings(
        kv_dtype=kv,
        context_length=context_length,
        step_tokens=step_tokens(settings, device),
        max_running=settings.max_running,
        page_size=settings.page_size,
        kv_bytes=None if settings.kv_bytes == AUTO else settings.kv_bytes,
        kv_share=settings.kv_share,
        kernels=settings.kernels,
        graphs=not settings.no_graphs,
    )


def short_name(dtype: torch.dtype) -> str:
    """float32, bfloat16, ..."""
    return str(dtype).removeprefix("torch.")


def step_tokens(settings: Settings, device: torch.device) -> int:
    """A step's bound. ``auto`` keeps a step on two cores near 0.1 s: nobody waits longer for a stop, or for
    the next token while another's prompt is read. SmolLM2 prefills as fast in chunks of 128 as of 512.
    """
    if settings.step_tokens != AUTO:
        return settings.step_tokens
    return max(STEP_TOKENS["cpu" if device.type == "cpu" else "gpu"], settings.max_running)


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where torch finds it. `SetupError` if CUDA is wanted and not there."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise SetupError("--device is cuda, but torch finds no CUDA device here. Use --device cpu, or auto.")
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")


def model_path(model: str, progress: Progress) -> Path:
    """Of ``--model``; the default one is fetched if need be."""
    if model != DEFAULT_MODEL:
        return _own_model(model)

    def fetch_progress(done: int, total: int) -> None:
        progress(FETCHED * done / max(1, total), "fetching the default model")

    return default_model(fetch_progress)


def _own_model(model: str) -> Path:
    path = Path(model).expanduser()
    if not path.exists():
        hint = (
            f"; did you mean {DEFAULT_MODEL}?" if difflib.get_close_matches(model, [DEFAULT_MODEL]) else "."
        )
        raise SetupError(f"--model is {model}, but there is no such file or folder{hint}", param="model")
    return path


def _check_memory(settings: Settings, device: torch.device) -> None:
    if settings.kv_bytes != AUTO and settings.kv_bytes > (free := free_memory(device)):
        asked, there = show_size(settings.kv_bytes), show_size(free)
        where = "this machine" if device.type == "cpu" else "the device"
        raise SetupError(
            f"--kv-bytes is {asked}, but {where} has {there} of memory free. Use less, or auto.",
            param="kv_bytes",
        )


def _check_fit(settings: Settings, file: ModelFile, device: torch.device) -> int:
    """The context length to serve. What does not go with this model is refused before the long part."""
    if settings.kv_bytes != AUTO:
        plan_pages(file.config, forms(settings, device, file)[1], settings.page_size, settings.kv_bytes)
    return _context_length(settings, file)


def forms(settings: Settings, device: torch.device, file: ModelFile) -> tuple[WeightForm, torch.dtype]:
    """Of the weights and of the KV."""
    weights = weight_form(settings.weights, device, file)
    return weights, kv_dtype(settings.kv_dtype, weights.kv_dtype, device)


def model_name(path: Path) -> str:
    """What people know the model by: the file's or the folder's name. What files say inside varies."""
    return path.resolve().name.removesuffix(".gguf")


def _context_length(settings: Settings, file: ModelFile) -> int:
    own = file.config.context_length
    if settings.context_length == AUTO:
        return own
    if settings.context_length > own:
        raise SetupError(
            f"--context-length is {settings.context_length}, but this model was made for {own} at most."
        )
    return settings.context_length


def shared_prefixes(files: Sequence[Path], tokenizer: Tokenizer, template: ChatTemplate) -> list[list[int]]:
    """For each file with a system prompt, the ids that every conversation with it begins with."""
    return [system_prefix(_prompt_text(file), tokenizer, template) for file in files]


def _prompt_text(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The shared prompt {file} cannot be read: {error}") from None
