"""A load over chatd.v1, as the page speaks it: the server keeps the history, a turn sends its text alone."""

import contextlib
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from chatd.bench.answers import Answer, Refused
from chatd.bench.plan import SessionPlan, TurnPlan
from chatd.bench.sockets import BROKEN, Place, ask_json, open_socket
from chatd.bench.words import Wording
from chatd.errors import BadFrame
from chatd.server import protocol as wire


class ChatdTarget:
    """chatd over its own WebSocket, as its page uses it: the server keeps the history."""

    def __init__(
        self, place: Place, wording: Wording, new_key: Callable[[], str], clock: Callable[[], float]
    ) -> None:
        self._place = place
        self.wording = wording
        self._new_key = new_key
        self._clock = clock
        self._made: list[str] = []
        self._sockets: list[ClientConnection] = []

    async def talk(self, session: SessionPlan) -> "ChatdTalk":
        asked = {"title": "chatd bench", "system": self.wording.text(session.system)}
        made = await ask_json(self._place, "POST", "/api/v1/conversations", asked)
        self._made.append(made["id"])
        socket = await open_socket(self._place)
        self._sockets.append(socket)
        return ChatdTalk(socket, made["id"], self.wording, self._new_key, self._clock)

    async def close(self) -> None:
        """Close the sockets, and delete the conversations with their KV: they were never anybody's."""
        sockets, self._sockets = self._sockets, []
        made, self._made = self._made, []
        for socket in sockets:
            await socket.close()
        for conversation_id in made:
            with contextlib.suppress(Refused):  # a server that is gone now has been measured all the same
                await ask_json(self._place, "DELETE", f"/api/v1/conversations/{conversation_id}")


class ChatdTalk:
    def __init__(
        self,
        socket: ClientConnection,
        conversation_id: str,
        wording: Wording,
        new_key: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._conversation_id = conversation_id
        self._socket = socket
        self._wording = wording
        self._new_key = new_key
        self._clock = clock

    async def ask(self, turn: TurnPlan, answer: Answer) -> None:
        params = {"max_tokens": turn.output_len, "temperature": 0, "ignore_eos": True}
        text = self._wording.message(turn.texts)
        create = wire.ResponseCreate(
            self._new_key(), input=text, conversation_id=self._conversation_id, params=params
        )
        frame = wire.encode(create)
        answer.asked_at = self._clock()
        try:
            await self._socket.send(frame, text=True)
            while not self._note(await self._socket.recv(), answer):
                pass
        except ConnectionClosed as error:
            raise Refused(BROKEN, f"the connection was closed: {error}") from None

    def _note(self, frame: str | bytes, answer: Answer) -> bool:
        """Whether the answer is over."""
        try:
            event = wire.decode_server(frame)
        except BadFrame:  # of a newer server
            return False
        match event:
            case wire.ResponseDelta():
                answer.arrivals.append((self._clock(), event.seq - event.from_seq + 1))
            case wire.Error():
                raise Refused(event.code, event.message)
            case wire.ResponseFailed(error=wire.Failure() as failure):
                raise Refused(failure.code, failure.message)
            case wire.ResponseCancelled():
                raise Refused("cancelled", "the answer was stopped")
            case wire.ResponseCompleted() | wire.ResponseIncomplete():
                _note_usage(answer, event)
                return True
        return False


def _note_usage(answer: Answer, ending: wire.Ending) -> None:
    usage, queue_ms = ending.usage, ending.timings.queue_ms
    answer.prompt_tokens, answer.output_tokens = usage.prompt_tokens, usage.output_tokens
    answer.gpu_hit, answer.disk_hit = usage.gpu_hit, usage.disk_hit
    answer.reused = usage.gpu_hit + usage.disk_hit
    answer.queue_s = None if queue_ms is None else queue_ms / 1e3
