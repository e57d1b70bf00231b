"""/healthz: the process answers. /readyz: it would take a request now, and if not, why not."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatd.server.http import json_response
from chatd.server.state import AppState, Phase


async def healthz(request: Request) -> Response:
    """200 as long as the event loop turns."""
    return json_response({"status": "ok"})


async def readyz(request: Request) -> Response:
    """200 only when ready. ``progress`` is 0 to 1; ``what`` is for people."""
    state: AppState = request.app.state.chatd
    phase = state.phase
    body = {
        "status": phase.value,
        "progress": state.progress if state.service is None else 1.0,
        "what": _what(state, phase),
    }
    return json_response(body, 200 if phase is Phase.READY else 503)


def _what(state: AppState, phase: Phase) -> str:
    match phase:
        case Phase.LOADING:
            return state.loading
        case Phase.READY:
            return "ready"
        case Phase.STALLED if state.service is not None and not state.service.store_healthy:
            return "the database cannot be written to; the log says why"
        case Phase.STALLED:
            return f"the engine has not finished a step for more than {state.settings.stall_s:g} s"
        case Phase.DRAINING:
            return "shutting down"


ROUTES = [Route("/healthz", healthz), Route("/readyz", readyz)]
