"""A tiny OpenAI-compatible server that streams what its test wants, and says what it was asked."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from chatd.server.state import ServerSettings
from tests.support.openai_site import serving


@dataclass
class Peer:
    """A word is a token. It ``dislikes`` a field of bodies, stops after ``most`` tokens.
    What it has cached it says in OpenAI's way (``cached``) or in llama.cpp's (``timings``)."""

    dislikes: str = ""
    usage: bool = True
    most: int = 1 << 30
    cached: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "tiny"}]})

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        if self.dislikes in body:
            message = f"Unknown field: {self.dislikes}"
            return JSONResponse({"error": {"message": message, "code": 400}}, 400)
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        yield event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        count = min(self.most, body["max_tokens"])
        for _ in range(count):
            yield event({"choices": [{"delta": {"content": " word"}}]})
        if self.usage:
            prompt = 3 + sum(len(message["content"].split()) for message in body["messages"])
            usage = {"prompt_tokens": prompt, "completion_tokens": count, **self.cached}
            yield event({"choices": [], "usage": usage, "timings": self.timings})
        yield "data: [DONE]\n\n"


def event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


@contextlib.asynccontextmanager
async def peer_of(**options: Any) -> AsyncIterator[Peer]:
    peer = Peer(**options)
    routes = [
        Route("/v1/models", peer.models),
        Route("/v1/chat/completions", peer.completions, methods=["POST"]),
    ]
    async with serving(Starlette(routes=routes), ServerSettings(port=0)) as url:
        peer.url = url
        yield peer
