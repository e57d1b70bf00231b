"""EngineCalls: commands about the cache, each with its answer, over the engine's inbox and outbox."""

import asyncio
from collections.abc import Callable

from chatd.engine.messages import (
    CacheAnswer,
    CacheCommand,
    CacheDone,
    CacheListing,
    ClearCache,
    CountPinned,
    Forget,
    ListCache,
    PinnedKv,
    PinPrefix,
    Probe,
    Probed,
    UnpinPrefix,
)
from chatd.errors import ChatdError, NotReady
from chatd.ids import Rid

ANSWER_S = 20.0
"""A step takes a tenth of a second, and a large cache is cleared in less than one."""


class EngineCalls:
    """``send`` hands a command to the engine and never waits. Belongs to the event loop."""

    def __init__(
        self, send: Callable[[CacheCommand], None], new_id: Callable[[], str], answer_s: float = ANSWER_S
    ) -> None:
        self.send = send
        self._new_id = new_id
        self._answer_s = answer_s
        self._waiting: dict[Rid, asyncio.Future[CacheAnswer]] = {}
        self._failure: ChatdError | None = None

    def new_rid(self) -> Rid:
        """For a command; no response has it."""
        return Rid(f"cache-{self._new_id()}")

    async def probe(self, command: Probe) -> Probed:
        answer = await self._ask(command)
        assert isinstance(answer, Probed)
        return answer

    async def listing(self, command: ListCache) -> CacheListing:
        answer = await self._ask(command)
        assert isinstance(answer, CacheListing)
        return answer

    async def pinned(self, command: CountPinned) -> PinnedKv:
        answer = await self._ask(command)
        assert isinstance(answer, PinnedKv)
        return answer

    async def done(self, command: Forget | PinPrefix | UnpinPrefix | ClearCache) -> CacheDone:
        """Raises NotReady if the engine could not do it."""
        answer = await self._ask(command)
        assert isinstance(answer, CacheDone)
        if answer.error:
            raise NotReady(answer.error)
        return answer

    def take(self, answer: CacheAnswer) -> None:
        """What the engine said. Answers that nobody waits for any more are dropped."""
        waiting = self._waiting.pop(answer.rid, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail(self, error: ChatdError) -> None:
        """The engine will not answer any more: neither these nor later ones."""
        self._failure = error
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
        self._waiting.clear()

    async def _ask(
        self, command: Probe | Forget | PinPrefix | UnpinPrefix | ClearCache | ListCache | CountPinned
    ) -> CacheAnswer:
        """NotReady if no answer comes in time. Cancelled or late, the command is carried out all the same."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # else it grows with each call
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[command.rid] = waiting
        try:
            self.send(command)
            async with asyncio.timeout(self._answer_s):
                answer: CacheAnswer = await waiting
                return answer
        except TimeoutError:
            raise NotReady(
                f"The engine did not answer within {self._answer_s:g} s. Is it in a long step? Try again."
            ) from None
        finally:
            self._waiting.pop(command.rid, None)
