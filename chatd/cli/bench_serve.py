"""A benchmark of running servers: chatd alone, or run after run beside another."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from chatd.bench.answers import Refused, Run
from chatd.bench.drive import run_of
from chatd.bench.figures import Figures, figures
from chatd.bench.load import Load
from chatd.bench.on_chatd import ChatdTarget
from chatd.bench.on_openai import PATH, OpenAITarget
from chatd.bench.pairs import Compared, compare
from chatd.bench.plan import plan, warm_up_plan
from chatd.bench.sockets import BROKEN, Place, ask_json
from chatd.bench.trial import MakeTarget, learn, measure, warm_up
from chatd.bench.words import Wording
from chatd.cli.bench_facts import memory_facts
from chatd.cli.bench_screen import BenchScreen
from chatd.cli.connect import credentials, in_words, is_local, tls_of
from chatd.cli.ids import new_id
from chatd.data_dir import ServerAddress
from chatd.errors import SetupError

PEER_KEY_VARIABLE = "CHATD_PEER_KEY"
"""The peer's own: chatd's key is nothing for another server to know."""
OWN = "chatd"
WEBSOCKET, OPENAI = "chatd.v1", "OpenAI /v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Side:
    """A server that takes part. ``model`` is what it calls its model."""

    name: str
    url: str
    model: str
    wire: str
    make: MakeTarget


@dataclass(slots=True)
class Outcome:
    """What was measured. ``pairs`` are of (peer, own), whole ones only."""

    wording: Wording
    own: list[tuple[Run, Figures]] = field(default_factory=list)
    peers: list[tuple[Run, Figures]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        return [run for run, _ in (*self.peers, *self.own)]

    @property
    def pairs(self) -> list[tuple[Figures, Figures]]:
        both = zip(self.peers, self.own, strict=False)
        return [
            (peer, own)
            for (peer_run, peer), (run, own) in both
            if not (peer_run.interrupted or run.interrupted)
        ]

    @property
    def compared(self) -> list[Compared]:
        return compare(self.pairs)

    @property
    def interrupted(self) -> bool:
        return any(run.interrupted for run in self.runs)


def own_side(server: ServerAddress, model: str, *, websocket: bool) -> Side:
    place = Place(server.url, credentials(server), tls_of(server))

    def over_socket(wording: Wording) -> ChatdTarget:
        return ChatdTarget(place, wording, new_id, time.perf_counter)

    def over_http(wording: Wording) -> OpenAITarget:
        return OpenAITarget(place, model, wording, time.perf_counter)

    wire, make = (WEBSOCKET, over_socket) if websocket else (OPENAI, over_http)
    return Side(OWN, server.url, model, wire, make)


async def peer_side(url: str, model: str | None) -> Side:
    """The OpenAI-compatible server at ``url``. `SetupError` if there is none."""
    place = Place(url.rstrip("/").removesuffix("/v1"), _peer_headers())
    try:
        name = model or await _first_model(place)
    except Refused as refused:
        raise explained("peer", place.url, refused) from None
    return Side(
        "peer", place.url, name, OPENAI, lambda words: OpenAITarget(place, name, words, time.perf_counter)
    )


def _peer_headers() -> dict[str, str]:
    key = os.environ.get(PEER_KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


async def _first_model(place: Place) -> str:
    found = await ask_json(place, "GET", "/v1/models")
    models = found.get("data") if isinstance(found, dict) else None
    if not models:
        raise Refused("no_model", "it names no model under /v1/models; say which with --against-model")
    return str(models[0]["id"])


def check_local(*urls: str, allow_remote: bool) -> None:
    """A load is for machines that are one's own."""
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SetupError(f"{url} is no address such as http://127.0.0.1:8000.")
        if not is_local(url) and not allow_remote:
            raise SetupError(
                f"{url} is not on this machine. A load can bring a server down: if that one is yours, or its "
                "owner agrees, say --allow-remote."
            )


async def bench(
    load: Load,
    own: Side,
    peer: Side | None,
    *,
    pairs: int,
    server: ServerAddress,
    model: dict[str, Any],
    screen: BenchScreen,
) -> Outcome:
    """Learn, warm up, measure. With a peer, ``pairs`` times (peer, chatd), each pair with words of its own.

    `SetupError` if a side cannot take the load at all. Ctrl-C ends it with what there is.
    """
    sides = [own] if peer is None else [peer, own]
    with screen.waiting("learning what words come to"):
        wordings = {side.name: await _learnt(side) for side in sides}
    outcome = Outcome(wordings[own.name])
    _check_fit(load, outcome.wording, model)
    with screen.waiting("warming up"):
        for side in sides:
            await _warmed(side, load, outcome.wording)
    for number in range(pairs if peer else 1):
        one = replace(load, seed=load.seed + number)
        for side in sides:
            title = f"pair {number + 1} of {pairs}: {side.name}" if peer else side.name
            runs = outcome.peers if side is peer else outcome.own
            run = await _measured(side, one, outcome.wording, title, screen)
            runs.append((run, figures(run)))
            if run.interrupted:
                break
        if outcome.interrupted:
            break
    pid = server.pid if is_local(server.url) else 0
    outcome.memory = memory_facts(pid, model.get("kv_bytes"))
    return outcome


async def _learnt(side: Side) -> Wording:
    try:
        return await learn(side.make)
    except Refused as refused:
        raise explained(side.name, side.url, refused) from None


async def _warmed(side: Side, load: Load, wording: Wording) -> None:
    if not load.warm_up:
        return
    try:
        await warm_up(warm_up_plan(load), side.make(wording))
    except Refused as refused:
        raise explained(side.name, side.url, refused) from None


async def _measured(side: Side, load: Load, wording: Wording, title: str, screen: BenchScreen) -> Run:
    sessions = plan(load)
    run = run_of(sessions)
    try:
        async with screen.running(title, run):
            await measure(sessions, side.make(wording), run)
    except Refused as refused:
        raise explained(side.name, side.url, refused) from None
    return run


def _check_fit(load: Load, wording: Wording, model: dict[str, Any]) -> None:
    context, needed = model.get("context_length"), load.longest + round(wording.template_tokens)
    if context is not None and needed > context:
        raise SetupError(
            f"A session of this load comes to {needed:,} tokens or more, but the model's context has "
            f"{context:,}. Take fewer turns or shorter texts."
        )


def explained(name: str, url: str, refused: Refused) -> SetupError:
    """Why a server cannot take part, and what to do."""
    cause, what = refused.__cause__, f"{'server' if name == OWN else name} at {url}"
    if refused.code == BROKEN:
        words = in_words(cause) if isinstance(cause, OSError) else refused.message
        return SetupError(f"The connection to the {what} failed: {words}.")
    said = refused.message.rstrip(".")
    hint = ""
    if refused.code in ("http_404", "not_found") and name != OWN:
        hint = f" It must have {PATH}, and a model of that name (--against-model)."
    elif refused.code.startswith("http_4") or "ignore_eos" in said:
        hint = f" It must take stream_options, temperature and ignore_eos in the body of {PATH}."
    return SetupError(f"The {what} does not take the load ({refused.code}): {said}.{hint}")


def as_json(load: Load, own: Side, peer: Side | None, outcome: Outcome) -> dict[str, Any]:
    """The part of the document that was measured."""
    body: dict[str, Any] = {
        "load": load.as_json(),
        "wire": own.wire,
        "words": asdict(outcome.wording),
        "interrupted": outcome.interrupted,
        "memory": outcome.memory,
        "messages": _messages(outcome.runs),
    }
    if peer is None:
        return body | {"result": outcome.own[0][1].as_json()}
    return body | {
        "peer": {"url": peer.url, "model": peer.model},
        "runs": {
            "peer": [found.as_json() for _, found in outcome.peers],
            "chatd": [found.as_json() for _, found in outcome.own],
        },
        "pairs": len(outcome.pairs),
        "ratios": {one.name: asdict(one) | {"better": one.better} for one in outcome.compared},
    }


def _messages(runs: Sequence[Run]) -> dict[str, str]:
    return {code: message for run in runs for code, message in run.messages.items()}
