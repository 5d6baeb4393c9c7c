"""The handle of an execution: what whoever submitted it holds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flowfabric import payloads
from flowfabric.db import Database
from flowfabric.engine import attempts, events, executions
from flowfabric.hints import Hint, Hints
from flowfabric.ids import ExecutionId
from flowfabric.model import Description, Event, Explanation, Outcome, PublicState, Result

if TYPE_CHECKING:
    from flowfabric.app import App

R = TypeVar("R")

SHORTEST_PAUSE = 0.005
LONGEST_PAUSE = 1.0


class ExecutionFailed(Exception):
    """The execution ended in failure; a note has the traceback of the last attempt."""


class ExecutionCancelled(ExecutionFailed):
    """The execution was cancelled."""


class ExecutionExpired(ExecutionFailed):
    """The execution ran out of time."""


class Ends:
    """Wakes those who wait for executions to end."""

    def __init__(self, hints: Hints) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self.forget: Callable[[], None] = hints.listen(self._heard)

    @contextmanager
    def watch(self, execution_id: ExecutionId) -> Iterator[asyncio.Event]:
        """An event that is set when the execution may have ended, from before the first look."""
        ended = asyncio.Event()
        waiting = self._waiting.setdefault(str(execution_id), set())
        waiting.add(ended)
        try:
            yield ended
        finally:
            waiting.discard(ended)
            if not waiting:
                self._waiting.pop(str(execution_id), None)

    def tell(self, execution_ids: Iterable[str]) -> None:
        """Wake those in this process who wait for these."""
        for execution_id in execution_ids:
            for ended in self._waiting.get(execution_id, ()):
                ended.set()

    def _heard(self, hint: Hint) -> None:
        self.tell(hint.ended)


class Execution(Generic[R]):
    """One piece of work that was submitted."""

    def __init__(self, app: "App", execution_id: ExecutionId, returns: Any = Any) -> None:
        self._app = app
        self._returns = returns
        self.execution_id = execution_id

    def __repr__(self) -> str:
        return f"<execution {self.execution_id}>"

    async def result(self, timeout: float | None = None) -> R:  # noqa: ASYNC109 - the caller's patience, not ours
        """What it returned, as soon as its end has committed.

        Raises `ExecutionFailed` with the remote traceback, `ExecutionCancelled`, `ExecutionExpired`, and `TimeoutError`
        when it has not ended in so many seconds; it goes on then.
        """
        async with asyncio.timeout(timeout):
            ended = await self._ended()
        if ended.outcome is not Outcome.SUCCESS:
            raise await self._failure(ended)
        return payloads.decode(ended.result, self._returns)  # type: ignore[no-any-return]

    async def state(self) -> PublicState:
        """Where it stands, in one word."""
        return (await self.describe()).state.public_state

    async def describe(self) -> Description:
        """All there is to know of it."""
        return await self._database.run(lambda conn: executions.describe(conn, self.execution_id), repeat=True)

    async def explain(self) -> Explanation:
        """What it waits for and what would release it, in one sentence."""
        return await self._database.run(lambda conn: executions.explain(conn, self.execution_id), repeat=True)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> PublicState:
        """End it because it is no longer wanted; whoever runs it learns at its next call."""
        ended = await self._database.run(
            lambda conn: executions.cancel(conn, self.execution_id, reason=reason, by=by), repeat=True
        )
        self._app.hints.send(ended=[str(self.execution_id)])
        return ended

    async def events(self, cursor: str = events.OLDEST) -> AsyncIterator[Event]:
        """Its life so far and as it goes on, one event after the other."""
        subscription = await self._app.log.subscribe(cursor, events.timeline(self.execution_id))
        async for event in subscription:
            yield event

    @property
    def _database(self) -> Database:
        return self._app.database

    async def _ended(self) -> Result:
        pause = SHORTEST_PAUSE
        with self._app.ends.watch(self.execution_id) as ended:
            while True:
                ended.clear()
                found = await self._database.run(
                    lambda conn: executions.get_result(conn, self.execution_id), repeat=True
                )
                if found.outcome is not None:
                    return found
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await ended.wait()
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _failure(self, ended: Result) -> ExecutionFailed:
        reason = ended.failure.reason if ended.failure else None
        kind = FAILURES.get(ended.outcome or Outcome.FAILED, ExecutionFailed)
        failure = kind(f"{self.execution_id}: {reason or ended.outcome}")
        tried = await self._database.run(
            lambda conn: attempts.list_attempts(conn, self.execution_id, limit=1_000), repeat=True
        )
        last = tried.items[-1].failure if tried.items else None
        if last is not None and last.traceback is not None:
            failure.add_note(f"The last attempt failed with:\n{last.traceback}")
        return failure


FAILURES = {Outcome.CANCELLED: ExecutionCancelled, Outcome.EXPIRED: ExecutionExpired}
