"""A load over ``/v1/chat/completions``, streamed: the client sends the whole history with each turn."""

import json
from collections.abc import Callable

from chatd.bench.answers import Answer, Refused
from chatd.bench.plan import SessionPlan, TurnPlan
from chatd.bench.sockets import BROKEN, HttpLine, Place, refusal
from chatd.bench.words import Wording

NO_USAGE = "no_usage"
PATH = "/v1/chat/completions"


class OpenAITarget:
    """Any server with ``/v1/chat/completions``; the client sends the whole history each time."""

    def __init__(self, place: Place, model: str, wording: Wording, clock: Callable[[], float]) -> None:
        self.place = place
        self.model = model
        self.wording = wording
        self.clock = clock

    async def talk(self, session: SessionPlan) -> "OpenAITalk":
        return OpenAITalk(self, self.wording.text(session.system))

    async def close(self) -> None:
        """Each turn closed its connection, and what a server keeps of its history it keeps."""


class OpenAITalk:
    def __init__(self, target: OpenAITarget, system: str) -> None:
        self._target = target
        self._messages = [{"role": "system", "content": system}] if system else []

    async def ask(self, turn: TurnPlan, answer: Answer) -> None:
        target = self._target
        self._messages.append({"role": "user", "content": target.wording.message(turn.texts)})
        body = {
            "model": target.model,
            "messages": self._messages,
            "max_tokens": turn.output_len,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        line = HttpLine(target.place)
        await line.open()
        try:
            answer.asked_at = target.clock()
            status = await line.send("POST", PATH, body)
            if status != 200:
                raise refusal(status, await line.body())
            text = await _read(line, answer, target.clock)
        finally:
            line.close()
        self._messages.append({"role": "assistant", "content": text})
        if answer.prompt_tokens is None:
            raise Refused(NO_USAGE, "the stream ended without usage, although include_usage was asked for")


async def _read(line: HttpLine, answer: Answer, clock: Callable[[], float]) -> str:
    """The answer's text; its arrivals and its usage are noted."""
    text, lines = [], Lines()
    async for chunk in line.chunks():
        now = clock()
        for data in lines.feed(chunk):
            if said := _note_event(answer, data):
                answer.arrivals.append((now, 1))
                text.append(said)
    return "".join(text)


class Lines:
    """The ``data:`` lines of a stream of events, from chunks that may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        return [line[5:].strip() for line in whole if line.startswith(b"data:")]


def _note_event(answer: Answer, data: bytes) -> str:
    """The text that one event of the stream brings; usage goes into ``answer``. `Refused` for an error."""
    if data == b"[DONE]":
        return ""
    try:
        event = json.loads(data)
    except ValueError:
        raise Refused(BROKEN, "an event of the stream is no JSON") from None
    if not isinstance(event, dict):
        raise Refused(BROKEN, "an event of the stream is no object")
    if "error" in event:
        raise refusal(200, event)
    if usage := event.get("usage"):
        details = usage.get("prompt_tokens_details") or {}
        answer.prompt_tokens = usage.get("prompt_tokens")
        answer.output_tokens = usage.get("completion_tokens")
        answer.reused = details.get("cached_tokens", answer.reused)
    if (cached := (event.get("timings") or {}).get("cache_n")) is not None and answer.reused is None:
        answer.reused = cached  # llama.cpp's word for it
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
    return "".join(delta.get("content") or "" for delta in deltas)
