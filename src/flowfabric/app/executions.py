"""Execution handles: wait for an execution, describe, cancel, override, replay and signal it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from flowfabric import durations, payloads
from flowfabric.app.operations import notify
from flowfabric.app.tails import Attempts, Follower
from flowfabric.engine import attempts, events, executions, streams, waits
from flowfabric.errors import (
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionSkipped,
    FlowFabricError,
)
from flowfabric.ids import ExecutionId, shown
from flowfabric.model import (
    Delivered,
    Description,
    Event,
    Explanation,
    Frame,
    Outcome,
    Progress,
    PublicState,
    Result,
    SignalToSend,
    StepSummary,
    StreamSummary,
    SubmitOutcome,
    Submitted,
    Superseded,
    Trimmed,
)
from flowfabric.payloads.codecs import of_result
from flowfabric.postgres.call import LONGEST_PAGE
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app import App

log = logging.getLogger("flowfabric.app")

IGNORED = ("signal_ignored_matcher_failed", "signal_ignored_not_in_condition", "no_op")

EXPLAINED_WITHIN = 1  # seconds that a caller whose timeout has passed waits for the reason

R = TypeVar("R")
T = TypeVar("T")


class Execution(Generic[R]):
    """The handle of a submitted execution."""

    __slots__ = ("__weakref__", "_app", "_fresh", "_returns", "execution_id")  # many are held at once

    def __init__(self, app: "App", execution_id: ExecutionId, returns: Any = Any, *, fresh: bool = False) -> None:
        self._app = app
        self._returns = returns
        self._fresh = fresh  # just submitted, so it has hardly ended yet
        self.execution_id = execution_id

    @classmethod
    def of(cls, app: "App", submitted: Submitted, returns: Any = Any) -> "Execution[Any]":
        """Return the handle of an execution that this process has just submitted."""
        return cls(app, submitted.execution_id, returns, fresh=submitted.outcome is SubmitOutcome.CREATED)

    def __repr__(self) -> str:
        return f"<execution {self.execution_id}>"

    async def result(self, timeout: str | float | timedelta | None = None) -> R:  # noqa: ASYNC109 - the caller's timeout
        """Wait for the end and return the result; `timeout` is in seconds, or a duration such as `"10m"`.

        Returns as soon as the end has committed. Raises `ExecutionFailed`, or its subclass `ExecutionCancelled`,
        `ExecutionExpired` or `ExecutionSkipped`, with the remote traceback in a note. Raises `TimeoutError` if the
        execution has not ended in time, with the sentence of `explain`; the execution continues.
        """
        timeout = durations.read_duration(timeout).total_seconds() if isinstance(timeout, str | timedelta) else timeout
        try:
            async with asyncio.timeout(timeout) as limit:
                ended = await self._ended()
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(await self._why_late(timeout)) from None
        if ended.outcome is not Outcome.SUCCESS:
            raise await self._failure(ended)
        result = ended.result
        if result is not None:
            result = self._app.codecs.decode(result, ended.encoding, of_result(self.execution_id))
        found: R = payloads.read_result(result, self._returns, f"execution {self.execution_id}")
        return found

    async def wait(self) -> Outcome:
        """Wait until the execution has ended and return its outcome."""
        ended = await self._ended()
        assert ended.outcome is not None
        return ended.outcome

    async def state(self) -> PublicState:
        """Return the public state, such as `suspended`."""
        return (await self.describe()).state.public_state

    async def describe(self) -> Description:
        """Return everything the engine knows about the execution."""
        return await self._app.executions.describe(self.execution_id)

    async def explain(self) -> Explanation:
        """Say in one sentence what the execution waits for and what would release it."""
        return await self._app.executions.explain(self.execution_id)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> PublicState:
        """Cancel the execution; a worker that is running it is notified and cancels the handler."""
        return (await self._app.executions.cancel(self.execution_id, reason=reason, by=by)).public_state

    async def override(
        self, outcome: Literal["success", "failed"], result: object = None, *, reason: str, by: str
    ) -> PublicState:
        """Complete the execution with a result, or fail it for good, without its lease: an act of an operator.

        Works in every unfinished state; a worker that is running it is notified and cancels the handler. The result is
        not checked against the task's return type. Safe to repeat. Raises `ExecutionEnded`, `InvalidBody`.
        """
        moved = await self._app.executions.override(self.execution_id, outcome, reason=reason, by=by, result=result)
        return moved.public_state

    async def replay(
        self, *, by: str, from_step: str | None = None, from_occurrence: int = 1, from_scratch: bool = False
    ) -> PublicState:
        """Run an ended execution again; what was saved from a step on, or `from_scratch` all of it, runs again too.

        So does an execution that is held because its code has changed, with one of the two.

        Raises `ExecutionNotTerminal`, `MaxReplaysExhausted`, `LaneDraining`.
        """
        moved = await self._app.executions.replay(
            self.execution_id,
            by=by,
            from_step=from_step,
            from_occurrence=from_occurrence,
            from_scratch=from_scratch,
        )
        return moved.public_state

    async def signal(
        self, waitpoint: str, payload: object = None, *, token: str, name: str | None = None, source: str = "unknown"
    ) -> Delivered:
        """Send a signal to the waitpoint with this key, with the waitpoint's token; `name` defaults to the key.

        The effect in the answer says whether the signal counts, is kept for a later wait, or is ignored because the
        wait does not count signals of this name; that is logged too. Raises the errors of `App.signal`, such as
        `InvalidToken`, also if no waitpoint has this key.
        """
        signal = SignalToSend(
            execution_id=self.execution_id,
            waitpoint=waitpoint,
            token=token,
            name=waitpoint if name is None else name,
            source_identity=source,
            payload=None if payload is None else payloads.encode(payload),
        )
        answer = await self._app.signal(signal)
        if answer.effect in IGNORED:
            log.warning(
                "signal %s to waitpoint %s of execution %s was ignored: the execution does not wait for a signal of "
                "this name there",
                *(shown(signal.name), shown(waitpoint), self.execution_id),
            )
        return answer

    async def approve(self, name: str, *, by: str, subject: object = None, note: str | None = None) -> Delivered:
        """Approve, as a person whom you have authenticated (`by`); each person counts once.

        `subject` is what the person was shown. Raises `ApprovalDigestMismatch` if the handler asks about another
        subject, `WaitpointNotFound`, `TargetNotSignalable`, `WaitpointClosed`.
        """
        return await self._decide("approve", name, by, subject, note)

    async def reject(self, name: str, *, by: str, subject: object = None, note: str | None = None) -> Delivered:
        """Reject, as a person whom you have authenticated (`by`); one rejection is enough. Raises as `approve` does."""
        return await self._decide("reject", name, by, subject, note)

    async def _decide(self, decision: str, name: str, by: str, subject: object, note: str | None) -> Delivered:
        digest = None if subject is None else sha256(payloads.encode(subject)).digest()
        payload = None if note is None else payloads.encode(note)
        delivered = await self._run(
            lambda conn: waits.deliver_approval(
                conn, self.execution_id, name, decision, by=by, digest=digest, payload=payload, note=note
            )
        )
        notify(self._app, delivered)
        return delivered

    async def events(self, cursor: str = events.OLDEST) -> AsyncIterator[Event]:
        """Yield the events of the execution, past and new, until it has ended."""
        async for event in await self._app.log.subscribe(cursor, events.timeline(self.execution_id)):
            yield event
            if event.kind in ENDS and await self._ended_at(event):
                return

    async def steps(self, *, results: bool = False) -> AsyncIterator[StepSummary]:
        """Yield the steps and sleeps that the handler has saved, in that order, and then the steps that it runs now.

        A step that runs is listed when it has run for about a second. `results` reads the results too,
        as the bytes that were stored.
        """
        cursor: str | None = None
        while True:
            page = await self._app.executions.list_steps(
                self.execution_id, results=results, cursor=cursor, limit=LONGEST_PAGE
            )
            for step in page.items:
                yield step
            if (cursor := page.next_cursor) is None:
                return

    async def frames(
        self, cursor: str | None = None, *, attempts: Attempts = "current", best_effort: bool = True
    ) -> AsyncIterator[Frame | Superseded | Trimmed]:
        """Yield what the execution puts out, past and new, until it has ended.

        Starts with the current attempt, or after the frame with this cursor. `attempts="all"` starts with the first
        attempt; `"valid"` does too, and leaves out what another attempt has replaced; a number reads only that one. If
        another attempt replaces the one that is read, a `Superseded` says which frames stay valid, and the frames of
        the next attempt follow. A slow reader loses no durable frame that the stream still keeps; if retention has
        deleted frames before the reader came to them, it gets a `Trimmed` in their place.

        Raises `ExecutionNotFound`, `InvalidCursor`, and `StreamDisconnected` if the database is unavailable for longer
        than the setting `subscription_timeout`.
        """
        app = self._app
        found = Follower(app.tails, app.log, self.execution_id, cursor, attempts, best_effort=best_effort)
        async for frame in found:
            yield frame

    async def summary(self, *, attempt: int | None = None) -> StreamSummary | None:
        """Return the summary of the current attempt, or of another: a JSON document; `None` if it has none."""
        return await self._run(lambda conn: streams.read_summary(conn, self.execution_id, attempt=attempt))

    async def progress(self) -> Progress | None:
        """Return how far the current attempt is, as its handler has said; `None` if it has not said so."""
        found = await self.summary()
        percent = None if found is None else found.document.get("progress")
        if found is None or not isinstance(percent, int | float) or isinstance(percent, bool):
            return None
        message = found.document.get("message")
        return Progress(
            percent=percent,
            message=message if isinstance(message, str) else None,
            attempt=found.attempt,
            updated_at=found.updated_at,
        )

    async def _ended_at(self, event: Event) -> bool:
        """Whether this event is the last end of the execution, which may have been replayed since."""
        try:
            ended_at = (await self.describe()).ended_at
        except ExecutionNotFound:
            return True
        return ended_at is not None and event.at >= ended_at

    async def _run(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an operation that is safe to repeat."""
        return await self._app.database.run(operation, repeat=True)

    async def _ended(self) -> Result:
        while True:
            await self._app.waiters.wait(self.execution_id, fresh=self._fresh)
            self._fresh = False
            found = await self._app.client.result(self.execution_id)
            if found.outcome is not None:
                return found

    async def _why_late(self, timeout: float | None) -> str:  # noqa: ASYNC109 - the caller's timeout, which has passed
        late = f"execution {self.execution_id} has not ended within {timeout:g} s"
        try:
            async with asyncio.timeout(EXPLAINED_WITHIN):
                return f"{late}: {(await self.explain()).sentence}"
        except (FlowFabricError, TimeoutError, OSError):
            return late

    async def _failure(self, ended: Result) -> ExecutionFailed:
        reason = ended.failure.reason if ended.failure else None
        error = FAILURES[ended.outcome or Outcome.FAILED]
        failure = error(f"{self.execution_id}: {reason or ended.outcome}", self.execution_id, ended.failure)
        traceback = await self._run(self._last_traceback)
        if traceback is not None:
            failure.add_note(f"The last attempt failed with:\n{traceback}")
        return failure

    async def _last_traceback(self, conn: Connection) -> str | None:
        count = (await executions.describe(conn, self.execution_id)).counts.attempts
        tried = await attempts.list_attempts(conn, self.execution_id, cursor=str(max(count - 1, 0)))
        last = tried.items[-1].failure if tried.items else None
        return last.traceback if last else None


FAILURES = {
    Outcome.FAILED: ExecutionFailed,
    Outcome.CANCELLED: ExecutionCancelled,
    Outcome.EXPIRED: ExecutionExpired,
    Outcome.SKIPPED: ExecutionSkipped,
}
ENDS = {"execution_completed", "execution_failed", "execution_cancelled", "execution_expired", "execution_skipped"}
