"""What is refused before the long part of loading, and what all conversations share."""

from pathlib import Path

import pytest
import torch

from chatd.cli.loading import READY, check, choose_device, load, model_name, shared_prefixes, step_tokens
from chatd.config import Settings
from chatd.errors import SetupError
from chatd.model.load import open_model
from chatd.text.chat_template import ChatMessage


class Told:
    """A listener to progress that remembers, and may have enough."""

    def __init__(self, enough: float = 2.0) -> None:
        self.shares: list[float] = []
        self._enough = enough

    def __call__(self, share: float, what: str) -> None:
        self.shares.append(share)
        if share >= self._enough:
            raise KeyboardInterrupt


@pytest.mark.model
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"context_length": 1_000_000}, "--context-length"),
        ({"kv_bytes": 1 << 20, "page_size": 64}, "--kv-bytes"),
        (
            {"kv_bytes": 900 << 40},
            r"--kv-bytes is 900 TiB, but this machine has [0-9.]+ [GMT]iB of memory free",
        ),
        ({"model": "/no/such/model.gguf"}, "--model is /no/such/model.gguf"),
        ({"model": "smollm3"}, "did you mean smollm2"),
    ],
)
def test_what_cannot_work_is_refused_before_weights_are_read(
    model_path: Path, wrong: dict[str, object], named: str
) -> None:
    settings = Settings(**{"model": str(model_path)} | wrong)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match=named):
        check(settings)
    with pytest.raises(SetupError, match=named):
        load(settings, lambda out: None, told := Told())
    assert max(told.shares, default=0.0) <= 0.5


def test_a_pickle_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(SetupError, match=r"model\.bin: this is a pickle"):
        check(Settings(model=str(tmp_path / "model.bin")))


@pytest.mark.model
def test_weights_that_do_not_fit_say_so(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("chatd.cli.loading.load_weights", run_out)
    with pytest.raises(
        SetupError, match=r"while the weights were loaded: [0-9,]+ MiB are free\. Take a smaller"
    ):
        load(Settings(model=str(model_path), disk="off"), lambda out: None, Told())


def test_kernels_that_a_device_cannot_run_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for refuse in (check, lambda settings: load(settings, lambda out: None, Told())):
        with pytest.raises(SetupError, match="--kernels is triton"):
            refuse(Settings(device="cpu", kernels="triton"))


@pytest.mark.model
def test_loading_tells_how_far_it_is_and_can_be_stopped(model_path: Path) -> None:
    settings = Settings(
        model=str(model_path), kv_bytes=16 << 20, context_length=100, weights="fp32", disk="off"
    )
    loaded = load(settings, lambda out: None, told := Told())
    assert told.shares == sorted(told.shares)
    assert told.shares[-1] == READY
    assert (loaded.backend.context_length, loaded.weights, loaded.device) == (100, "float32", "cpu")
    with pytest.raises(KeyboardInterrupt):
        load(settings, lambda out: None, stopped := Told(enough=0.6))
    assert stopped.shares[-1] < 0.7


def test_a_step_is_short_on_a_cpu_and_has_room_for_all_that_run() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [step_tokens(Settings(), device) for device in (cpu, gpu)] == [128, 2048]
    assert step_tokens(Settings(max_running=300), cpu) == 300
    assert step_tokens(Settings(step_tokens=777), gpu) == 777


def test_cuda_is_wanted_only_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(SetupError, match="--device cpu"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda")
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.model
def test_a_shared_prompt_is_what_every_conversation_with_it_begins_with(
    tmp_path: Path, model_path: Path
) -> None:
    (prompt := tmp_path / "system.txt").write_text("You are terse. " * 20 + "\n")
    file = open_model(model_path)
    tokenizer, template = file.tokenizer(), file.chat_template()
    (prefix,) = shared_prefixes([prompt], tokenizer, template)
    for first in ("Hello", "你好", "1 + 1?", "?!"):
        messages = [ChatMessage("system", prompt.read_text().strip()), ChatMessage("user", first)]
        ids = tokenizer.encode_spans(template.render(messages, add_generation_prompt=True))
        assert list(ids[: len(prefix)]) == prefix
    assert len(prefix) > 80


def test_a_shared_prompt_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (prompt := tmp_path / "system.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(SetupError, match=r"system\.txt"):
        shared_prefixes([prompt], None, None)  # type: ignore[arg-type]


def test_models_are_named_after_their_files(tmp_path: Path) -> None:
    assert model_name(tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf") == "SmolLM2-135M-Instruct.Q4_1"
    assert model_name(tmp_path / "Llama-3.2-1B") == "Llama-3.2-1B"
