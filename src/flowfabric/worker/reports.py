"""Reports: the calls a worker makes to the engine for its runs, concurrent ones merged into batches."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar, assert_never
from uuid import UUID

from flowfabric.app import App
from flowfabric.app.tasks import ChildCall, Task
from flowfabric.engine import attempts, claims, clock, flows, holds, steps, waits
from flowfabric.errors import (
    DatabaseUnavailable,
    ExecutionNotActive,
    ExecutionNotFound,
    Fenced,
    FlowFabricError,
    ShuttingDown,
    Unavailable,
)
from flowfabric.handler.journal import Place
from flowfabric.handler.runtime import Amounts, RunningStep
from flowfabric.ids import ExecutionId
from flowfabric.model import (
    Appended,
    Begin,
    ChangedCode,
    Claim,
    Completion,
    CreatedWaitpoint,
    Delay,
    Delayed,
    ExecutionToSuspend,
    FailureClass,
    FailureReport,
    Fence,
    FrameToAppend,
    JournalEntry,
    Reserved,
    Settled,
    Step,
    Suspension,
    Usage,
    UsageReport,
    Wish,
)
from flowfabric.model import Completed as CompletedExecution
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.batching import Batch
from flowfabric.postgres.driver import Connection
from flowfabric.worker.budgets import Budgets
from flowfabric.worker.children import Children
from flowfabric.worker.decoding import decode_claim, decode_journal
from flowfabric.worker.frames import Frames
from flowfabric.worker.leased import PAUSE, LeasedCalls
from flowfabric.worker.observer import Observer
from flowfabric.worker.run import Changed, Completed, Failed, Lost, Outcome, Postponed, Suspended
from flowfabric.worker.running import Running
from flowfabric.worker.threads import Threads
from flowfabric.worker.transactions import Transactions, finished, saved_before

log = logging.getLogger("flowfabric.worker")

T = TypeVar("T")
Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST_CHILDREN = 10_000
MOST_WAITS = 1_000
MOST_NAMED = 100
SOON = timedelta(seconds=5)


class Reports:
    """The calls a worker makes under its leases. If the database is unavailable, they retry while the lease lasts."""

    def __init__(
        self,
        app: App,
        leased: LeasedCalls,
        *,
        threads: Threads,
        running: Running,
        observer: Observer,
        due: Callable[[datetime], None],
    ) -> None:
        self._app = app
        self._threads = threads
        self._running = running
        self._observer = observer
        self._due = due
        limit = app.config.payload_limit
        # No batch waits for a lock; only the report of the execution that is locked is sent again.
        self._complete = self._batch(partial(attempts.complete_many, result_limit=limit, wait=False))
        self._fail = self._batch(partial(attempts.fail_many, wait=False))
        self._delay = self._batch(partial(attempts.delay_many, wait=False))
        self._hold = self._batch(partial(holds.hold_changed_many, wait=False))
        self._suspend = self._batch(partial(waits.suspend_many, wait=False))
        self._mark_begun = self._batch(partial(claims.mark_begun_many, wait=False))
        self._save = self._batch(partial(steps.save_step_many, result_limit=limit, wait=False))
        self._leased = leased
        self._children = Children(app, self._leased)
        self._frames = Frames(app, self._leased)
        self._budgets = Budgets(app, self._leased, self._notify_ended)
        self._transactions = Transactions(app, self._leased)
        self._timers: set[asyncio.Task[None]] = set()
        self._reporting: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Return when every report has been answered."""
        for batch in (self._complete, self._fail, self._delay, self._hold, self._suspend, self._mark_begun, self._save):
            await batch.close()
        await self._frames.close()
        await self._children.close()
        await self._budgets.close()
        for timer in tuple(self._timers):
            timer.cancel()

    @property
    def notifying(self) -> bool:
        """Whether parent executions are being notified that children have ended."""
        return self._children.notifying

    def send(self, claim: Claim, outcome: Outcome, reported: Callable[[Claim], None]) -> None:
        """Report the outcome of a run in the background, then call `reported`.

        A result costs no task, unless the answer is not the usual one.
        """
        if not isinstance(outcome, Completed):
            self._report_in_task(claim, outcome, reported)
            return

        def answered(answer: CompletedExecution | Exception) -> None:
            if isinstance(answer, Exception):
                self._report_in_task(claim, outcome, reported, answer)
            else:
                self._notify_ended(claim, answer.lanes, answer.ended)
                reported(claim)

        try:
            self._complete.send(_completion(claim, outcome), answered)
        except ShuttingDown as closed:
            answered(closed)

    def _report_in_task(
        self, claim: Claim, outcome: Outcome, reported: Callable[[Claim], None], first: Exception | None = None
    ) -> None:
        def ended(reporting: asyncio.Task[None]) -> None:
            self._reporting.discard(reporting)
            reported(claim)

        name = f"report {claim.task} {claim.execution_id}"
        self._reporting.add(reporting := asyncio.create_task(self.report(claim, outcome, first), name=name))
        reporting.add_done_callback(ended)

    async def report(self, claim: Claim, outcome: Outcome, first: Exception | None = None) -> None:
        """Report the outcome of a run; if the engine refuses it, report a failure instead.

        `first` is the error of a first report of the same outcome.
        """
        try:
            await self._report(claim, outcome, first)
        except (Fenced, ExecutionNotFound) as refused:
            log.info(
                "lost the lease of %s %s; its outcome is dropped: %s",
                *(claim.task, claim.execution_id, refused),
            )
        except Exception as error:
            if isinstance(outcome, Failed):
                log.exception(
                    "could not report the failure of %s %s; it runs again when its lease has expired",
                    *(claim.task, claim.execution_id),
                )
                return
            refused_for_good = isinstance(error, FlowFabricError) and not isinstance(error, Unavailable)
            class_ = FailureClass.PERMANENT if refused_for_good else FailureClass.INFRA_CRASH
            await self.report(claim, Failed(class_, f"the outcome of the run could not be reported: {error}"))

    async def _report(self, claim: Claim, outcome: Outcome, first: Exception | None) -> None:
        match outcome:
            case Completed():
                await self.complete(claim, outcome, first)
            case Failed(class_, reason, traceback):
                log.warning(
                    "%s %s failed; its retry policy decides what happens next: %s",
                    *(claim.task, claim.execution_id, traceback or reason),
                )
                await self.fail(claim, class_, reason, traceback)
            case Suspended(wishes):
                await self.wait(claim, wishes)
            case Postponed(delay, reason):
                await self.delay(claim, delay, reason)
            case Changed(reason, names):
                await self.hold(claim, reason, names)
            case Lost():
                pass  # another worker may have the execution now, so any report would be false
            case _:
                assert_never(outcome)

    async def complete(self, claim: Claim, outcome: Completed, first: Exception | None) -> None:
        """Report the result; a refusal because our own report was stored, but its reply lost, counts as success."""
        completion = _completion(claim, outcome)
        try:
            if isinstance(first, DatabaseUnavailable):
                done = await self._leased.repeat(claim, lambda: self._complete(completion), first)
            else:
                done = await self._leased.persist(claim, lambda: self._complete(completion))
        except ExecutionNotActive as refused:
            if not _is_our_completion(claim.fence, refused):
                raise
            self._notify_ended(claim)
        else:
            self._notify_ended(claim, done.lanes, done.ended)

    async def fail(self, claim: Claim, class_: FailureClass, reason: str, traceback: str | None) -> None:
        """Report a failure; the retry policy decides whether the execution is retried."""
        failure = FailureReport(fence=claim.fence, class_=class_, reason=reason, traceback=traceback)
        answer = await self._leased.persist(claim, lambda: self._fail(failure))
        self._observer.failed(claim, reason, answer.due_at)
        if answer.outcome == "failed":
            self._notify_ended(claim, ended=answer.ended)
        elif answer.due_at is not None:
            self._due(answer.due_at)

    async def delay(self, claim: Claim, until: timedelta | datetime, why: str) -> None:
        """Release the claim and let the execution run later."""
        self._due((await self._postpone(claim, Delay(fence=claim.fence, until=until, reason=why))).due_at)

    async def hold(self, claim: Claim, reason: str, steps: Sequence[str]) -> None:
        """Hold an execution because the run does not fit what earlier runs have saved."""
        log.error(
            "held %s %s because its code has changed: %s; deploy a fix, with was= for a renamed step and "
            "retired= for a removed one, then run: ff executions unhold %s; or replay it from a step or from scratch",
            *(claim.task, claim.execution_id, reason, claim.execution_id),
        )
        now = self._app.tasks[claim.task].version
        change = ChangedCode(fence=claim.fence, reason=reason, steps=steps[:MOST_NAMED], version=now)
        await self._leased.persist(claim, lambda: self._hold(change))

    async def requeue(self, claim: Claim) -> None:
        """Release the claim, so that any worker can claim the execution immediately."""
        await self._delay(Delay(fence=claim.fence))
        self._app.notifier.send(lanes=[claim.lane])

    async def wait(self, claim: Claim, wishes: Sequence[Sequence[Wish]]) -> None:
        """Release the claim until a wait of the run completes: delay it if all waits are sleeps, else suspend it."""
        asked = [wish for choice in _first_suspension(wishes) for wish in choice]
        sleeps = sorted((wish.what, wish.name, wish.occurrence) for wish in asked if isinstance(wish.what, datetime))
        if len(sleeps) == len(asked) and all(wish.choice is None for wish in asked):
            await self._sleep(claim, sleeps)
            return
        suspension = ExecutionToSuspend(fence=claim.fence, waits=asked)
        try:
            answer = await self._leased.persist(claim, lambda: self._suspend(suspension))
        except ExecutionNotActive as refused:
            if not _is_our_suspension(claim.fence, refused):
                raise
            return
        if answer.outcome == "already_satisfied":
            await self._leased.persist(claim, lambda: self.requeue(claim))
        elif (left := _shortest_timeout(asked)) <= SOON:
            self._timers.add(timer := asyncio.create_task(self._time_out_after(left), name="waits: time out soon"))
            timer.add_done_callback(self._timers.discard)

    async def _time_out_after(self, left: timedelta) -> None:
        """Time out waits that are due soon at that very moment; the sweep handles later ones, and those missed here."""
        await asyncio.sleep(left.total_seconds())
        with suppress(Unavailable):
            swept = await self._app.database.run(waits.time_out_waits, wait=False)
            self._app.notify(lanes=swept.lanes, ended=swept.ended)

    async def _sleep(self, claim: Claim, sleeps: Sequence[tuple[datetime, str, int]]) -> None:
        (until, name, occurrence), *others = sleeps
        for due_at, later, number in others:  # saved, because they start now too
            step = Step(fence=claim.fence, name=later, occurrence=number, due_at=due_at)
            await self._leased.persist(claim, partial(self._save, step))
        wanted = Delay(fence=claim.fence, until=until, name=name, occurrence=occurrence)
        self._due((await self._postpone(claim, wanted)).due_at)

    async def run_transaction(
        self, claim: Claim, step: RunningStep, write: Callable[[Connection], Awaitable[bytes]]
    ) -> bytes:
        """Run a step that writes to the user's tables, and save its result in the same transaction."""
        return await self._transactions.run(claim, step, write)

    def run_step(self, claim: Claim, place: Place) -> AbstractContextManager[RunningStep]:
        """Note that a step runs, for as long as the context manager is entered."""
        return self._running.step(claim.fence, place)

    async def save_step(self, claim: Claim, step: RunningStep, result: bytes) -> bytes:
        """Save the result of a step; return the saved result, which is an earlier one if the step was saved before."""
        codecs = self._app.codecs
        done = finished(codecs, claim, step, result)
        answer = await self._leased.persist(claim, lambda: self._save(done))
        return result if answer.outcome == "saved" else saved_before(codecs, claim, step, answer)

    async def call_in_thread(self, claim: Claim, name: str, function: Callable[[], Any]) -> Any:
        """Call a step's function in a thread, so that it does not block the other runs."""
        return await self._threads.call(f"{claim.task} {claim.execution_id} {name}", function)

    def read_call(self, task: Task[..., Any] | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ChildCall:
        """Build the child that a handler submits, by its task or by name."""
        return self._children.read_call(task, args, kwargs)

    async def submit_child(self, claim: Claim, name: str, occurrence: int, asked: ChildCall) -> ExecutionId:
        """Submit a child once: a repeated call with the same place of the journal finds the same child."""
        return await self._children.submit(claim, name, occurrence, asked)

    async def report_usage(self, claim: Claim, report: UsageReport) -> Usage:
        """Charge a budget with what a run has used."""
        return await self._budgets.report(claim, report)

    async def reserve(self, claim: Claim, budget: str, estimate: Amounts, ttl: timedelta, key: str) -> Reserved:
        """Reserve an amount of a budget, until the attempt ends at the latest."""
        return await self._budgets.reserve(claim, budget, estimate, ttl, key)

    async def settle(self, claim: Claim, reservation_id: UUID, actual: Amounts, place: Place | None) -> Settled:
        """Charge the actual cost of a reservation, and save the step it belongs to, in one transaction."""
        return await self._budgets.settle(claim, reservation_id, actual, place)

    async def release(self, claim: Claim, reservation_id: UUID) -> None:
        """Release a reservation of which nothing was spent."""
        await self._budgets.release(claim, reservation_id)

    async def append_frames(
        self, claim: Claim, frames: Sequence[FrameToAppend]
    ) -> Sequence[Appended | FlowFabricError]:
        """Append frames of one run, in their order; it makes its next call when this one has been answered."""
        return await self._frames.append(claim, frames)

    async def create_waitpoint(self, claim: Claim, key: str, expires_in: timedelta) -> CreatedWaitpoint:
        """Create a waitpoint before the run waits for it."""
        return await self._leased.run(
            claim, lambda conn: waits.create_waitpoint(conn, claim.fence, key, expires_in=expires_in)
        )

    async def renew(self, claim: Claim, lease: timedelta) -> None:
        """Renew the lease of a claim. Raises `LeaseLost`."""
        await self._leased.run(claim, lambda conn: claims.renew(conn, claim.fence, lease=lease))

    async def mark_begun(self, claim: Claim, version: int | None) -> None:
        """Record that the run begins, so that it counts if it ends this worker, and under which version of its task.

        Raises `LeaseLost`.
        """
        begin = Begin(fence=claim.fence, version=version)
        await self._leased.persist(claim, lambda: self._mark_begun(begin))

    async def read_journal(self, claim: Claim) -> Sequence[JournalEntry]:
        """Read the journal of earlier runs; empty in the first run. Raises `PayloadUnreadable`."""
        if not (claim.resumed or claim.attempt.number > 1):
            return ()
        if claim.journal is not None and not claim.journal.more:
            return decode_journal(self._app.codecs, claim, claim.journal.entries)
        read = partial(steps.read_journal, execution_id=claim.execution_id, begun=claim.journal)
        return decode_journal(self._app.codecs, claim, await self._leased.run(claim, read))

    async def read_inputs(self, claim: Claim, names: Collection[str]) -> Claim:
        """Add the results passed from upstream tasks, if the claim came without: the named ones, and the payload.

        Raises `PayloadUnreadable`.
        """
        if not claim.more_inputs:
            return decode_claim(self._app.codecs, claim)
        read = partial(flows.read_inputs, execution_id=claim.execution_id, names=[*names, "payload"])
        return decode_claim(self._app.codecs, claim.handed(await self._leased.run(claim, read)))

    async def clock(self) -> datetime:
        """Read the database's clock; retries while it is unavailable, until the run is cancelled for its lost lease."""
        backoff = Backoff(PAUSE, PAUSE)
        while True:
            with suppress(DatabaseUnavailable):
                return await self._app.database.run(clock.clock, repeat=True)
            await backoff.wait()

    def _postpone(self, claim: Claim, wanted: Delay) -> Awaitable[Delayed]:
        return self._leased.persist(claim, lambda: self._delay(wanted))

    def _notify_ended(self, claim: Claim, lanes: Sequence[str] = (), ended: Sequence[ExecutionId] = ()) -> None:
        """Notify of the end of a run, and of what that end changed in its flow."""
        self._app.notify(lanes=lanes, ended=[claim.execution_id, *ended])
        self._children.notify_parent(claim.execution_id)

    def _batch(
        self, operation: Callable[[Connection, Sequence[Item]], Awaitable[list[Answer | FlowFabricError]]]
    ) -> Batch[Item, Answer]:
        async def run(items: Sequence[Item]) -> list[Answer | FlowFabricError]:
            return await self._app.database.run(lambda conn: operation(conn, items), repeat=True, wait=False)

        return Batch(run, in_flight=2)


def _completion(claim: Claim, outcome: Completed) -> Completion:
    stored = outcome.result if outcome.stored is None else outcome.stored
    return Completion(fence=claim.fence, result=stored, encoding=outcome.encoding)


def _first_suspension(wishes: Sequence[Sequence[Wish]]) -> Sequence[Sequence[Wish]]:
    """Take as many waits as one suspension allows; the run needs all of them, so it can wait for the rest later."""
    children = [choice for choice in wishes if all(isinstance(wish.what, ExecutionId) for wish in choice)]
    others = [choice for choice in wishes if not all(isinstance(wish.what, ExecutionId) for wish in choice)]
    return [*children[:MOST_CHILDREN], *others[:MOST_WAITS]]


def _shortest_timeout(wishes: Sequence[Wish]) -> timedelta:
    """How long until the first timeout or sleep of these ends, by this machine's clock."""
    now = datetime.now(UTC)
    times = [wish.what.timeout if isinstance(wish.what, Suspension) else wish.what for wish in wishes]
    spans = [
        time - now if isinstance(time, datetime) else time for time in times if isinstance(time, datetime | timedelta)
    ]
    return max(min(spans, default=timedelta.max), timedelta())


def _is_our_suspension(fence: Fence, refused: ExecutionNotActive) -> bool:
    fields = refused.fields
    return (fields.get("phase"), fields.get("epoch"), fields.get("attempt")) == (
        "suspended",
        fence.epoch,
        fence.attempt,
    )


def _is_our_completion(fence: Fence, refused: ExecutionNotActive) -> bool:
    fields = refused.fields
    return (fields.get("outcome"), fields.get("epoch"), fields.get("attempt")) == (
        "success",
        fence.epoch,
        fence.attempt,
    )
