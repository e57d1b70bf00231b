"""From settings to a loaded model and its engine: what a starting server does in a worker thread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import torch

from chatd.cache.prefix_cache import PrefixCache
from chatd.config import DEFAULT_MODEL, Settings
from chatd.config_kinds import AUTO
from chatd.engine.engine import Engine
from chatd.engine.messages import StepOutput
from chatd.engine.runner import TorchRunner
from chatd.engine.scheduler import Scheduler, SchedulerLimits
from chatd.errors import SetupError
from chatd.model.fetch import default_model
from chatd.model.kv_pool import KVPlan, KVPool, auto_kv_bytes, plan_pages
from chatd.model.load import ModelFile, load_weights, open_model, weights_dtype
from chatd.server.service import Backend
from chatd.text.answer import AnswerText
from chatd.text.chat_template import ChatMessage, ChatTemplate
from chatd.text.tokenizer import Tokenizer
from chatd_kernels import load_backend

Progress = Callable[[float, str], None]
"""Told the share that is done, 0 to 1, and what is being done. Called on the loading thread."""

FETCHED, READ = 0.5, 0.95
"""Shares of the whole at which the model is here, and its weights in memory."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine is not started yet. ``device`` and ``weights`` are for people."""

    backend: Backend
    engine: Engine
    kv: KVPlan
    device: str
    weights: str


def load(settings: Settings, post: Callable[[StepOutput], None], progress: Progress) -> Loaded:
    """Fetch, read and put together. Takes seconds to minutes; `SetupError` says what to do."""
    device = choose_device(settings.device)
    file = open_model(_model_path(settings.model, progress))
    progress(FETCHED, "reading the tokenizer")
    tokenizer, template = file.tokenizer(), file.chat_template()
    context_length = _context_length(settings, file)
    dtype, kv_dtype = _dtypes(settings, device)
    if settings.kv_bytes != AUTO:  # too few are refused before the long part
        plan_pages(file.config, kv_dtype, settings.page_size, settings.kv_bytes)

    def weights_progress(share: float, what: str) -> None:
        progress(FETCHED + share * (READ - FETCHED), what)

    weights = load_weights(file, dtype=dtype, device=device, progress=weights_progress)
    kv_bytes = auto_kv_bytes(device) if settings.kv_bytes == AUTO else settings.kv_bytes
    plan = plan_pages(file.config, kv_dtype, settings.page_size, kv_bytes)
    runner = TorchRunner(weights, KVPool(file.config, plan, kv_dtype, device), load_backend("reference"))
    cache = PrefixCache(plan.num_pages, plan.page_size, enabled=not settings.no_prefix_cache)
    for ids in shared_prefixes(settings.shared_prompts, tokenizer, template):
        cache.share(ids)
    scheduler = Scheduler(
        cache,
        SchedulerLimits(settings.step_tokens, settings.max_running, context_length),
        lambda stop: AnswerText(tokenizer, stop),
        tokenizer.special_ids,
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
    )
    return Loaded(backend, engine, plan, str(device), str(dtype).removeprefix("torch."))


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where torch finds it. `SetupError` if CUDA is wanted and not there."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise SetupError("--device is cuda, but torch finds no CUDA device here. Use --device cpu, or auto.")
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")


def _model_path(model: str, progress: Progress) -> Path:
    if model != DEFAULT_MODEL:
        return Path(model).expanduser()

    def fetch_progress(done: int, total: int) -> None:
        progress(FETCHED * done / max(1, total), "fetching the default model")

    return default_model(fetch_progress)


def _dtypes(settings: Settings, device: torch.device) -> tuple[torch.dtype, torch.dtype]:
    """Of the weights and of the KV."""
    kv = settings.weights if settings.kv_dtype == AUTO else settings.kv_dtype
    return weights_dtype(settings.weights, device), weights_dtype(kv, device)


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
    return [_prefix(_prompt_text(file), tokenizer, template) for file in files]


def _prompt_text(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The shared prompt {file} cannot be read: {error}") from None


def _prefix(system: str, tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    """What the prompts of two different first messages have in common."""

    def ids(first: str) -> list[int]:
        messages = [ChatMessage("system", system), ChatMessage("user", first)]
        return tokenizer.encode_prompt(template.render(messages, add_generation_prompt=True))

    one, other = ids("1"), ids("?")
    common = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [mine for mine, _ in common]
