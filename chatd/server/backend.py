"""What a chat service is made over: a loaded model with its engine, and the server's settings for it."""

from dataclasses import dataclass, field
from typing import Protocol

from chatd.engine.messages import CacheCommand, Submit
from chatd.ids import Rid
from chatd.server.flush import FlushPace
from chatd.text.chat_template import ChatTemplate
from chatd.text.tokenizer import Tokenizer


class EngineHandle(Protocol):
    """What the service asks of `Engine`; no call waits."""

    @property
    def capacity_len(self) -> int: ...
    @property
    def failure(self) -> BaseException | None: ...
    def submit(self, submit: Submit) -> None: ...
    def abort(self, rid: Rid) -> None: ...
    def send(self, command: CacheCommand) -> None: ...
    def stalled_for(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Formats:
    """What KV is made with. Two computations are comparable only if all of it is equal."""

    kernels: str = ""
    device: str = ""
    weights: str = ""
    kv: str = ""
    page_size: int = 0

    @property
    def backend(self) -> str:
        """As the ledger keeps it: `reference/cpu`."""
        return f"{self.kernels}/{self.device}" if self.kernels else ""

    @property
    def text(self) -> str:
        """As the ledger keeps it: `weights=bfloat16 kv=bfloat16 page=16`."""
        return f"weights={self.weights} kv={self.kv} page={self.page_size}" if self.weights else ""


@dataclass(frozen=True, slots=True)
class Backend:
    """A loaded model and its engine. Lengths in tokens; ``temperature`` is for requests that name none;
    ``kv_bytes`` is what the KV pool takes."""

    tokenizer: Tokenizer
    template: ChatTemplate
    engine: EngineHandle
    model_name: str
    context_length: int
    vocab_size: int
    temperature: float = 1.0
    formats: Formats = Formats()
    cache_on: bool = True
    kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """``grace_s``: how long a response nobody reads goes on. ``max_open`` responses may be under way.

    Conversations that were not used for ``retain_s`` are deleted; None: they are kept.
    """

    grace_s: float = 60.0
    max_open: int = 1024
    retain_s: float | None = None
    pace: FlushPace = field(default_factory=FlushPace)
