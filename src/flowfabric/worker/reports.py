"""Reports: what a worker tells the engine, merged with whatever else it has to say at that moment."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar, assert_never
from uuid import UUID

from flowfabric.app import App
from flowfabric.app.tasks import ChildCall, Task
from flowfabric.engine import attempts, clock, flows, steps, waits
from flowfabric.errors import (
    DatabaseUnavailable,
    ExecutionNotActive,
    ExecutionNotFound,
    Fenced,
    FlowFabricError,
    Unavailable,
)
from flowfabric.handler.journal import Place
from flowfabric.handler.runtime import Amounts
from flowfabric.ids import ExecutionId
from flowfabric.model import (
    Claim,
    Completion,
    CreatedWaitpoint,
    Delay,
    Delayed,
    FailureClass,
    FailureReport,
    Fence,
    JournalEntry,
    Reserved,
    Settled,
    Step,
    Suspension,
    Usage,
    UsageReport,
    Wish,
)
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.batching import Batch
from flowfabric.postgres.driver import Connection
from flowfabric.worker.budgets import Budgets
from flowfabric.worker.children import Children
from flowfabric.worker.leased import PAUSE, LeasedCalls
from flowfabric.worker.run import Completed, Failed, Lost, Outcome, PutOff, Suspended

log = logging.getLogger("flowfabric.worker")

T = TypeVar("T")
Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST_CHILDREN = 10_000
MOST_WAITS = 1_000
SOON = timedelta(seconds=5)


class Reports:
    """The calls a worker makes under its leases. While the database is away they wait, as long as the lease lasts."""

    def __init__(self, app: App, *, holds: Callable[[Fence], bool], due: Callable[[datetime], None]) -> None:
        self._app = app
        self._due = due
        limit = app.config.payload_limit
        self._complete = self._merged(partial(attempts.complete_many, result_limit=limit))
        self._fail = self._merged(attempts.fail_many)
        self._delay = self._merged(attempts.delay_many)
        self._save = self._merged(partial(steps.save_step_many, result_limit=limit))
        self._leased = LeasedCalls(app, holds)
        self._children = Children(app, self._leased)
        self._budgets = Budgets(app, self._leased, self._ended)
        self._soon: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Return when everything that was said has arrived."""
        for batch in (self._complete, self._fail, self._delay, self._save):
            await batch.close()
        await self._children.close()
        await self._budgets.close()
        for late in tuple(self._soon):
            late.cancel()

    @property
    def notifying(self) -> bool:
        """Whether some parent is being told that its child has ended."""
        return self._children.notifying

    async def report(self, claim: Claim, outcome: Outcome) -> None:
        """Tell the engine how the run ended, whatever comes in between."""
        try:
            await self._tell(claim, outcome)
        except (Fenced, ExecutionNotFound) as refused:
            log.info("%s of %s is not ours any more: %s", claim.task, claim.execution_id, refused)
        except Exception as error:
            if isinstance(outcome, Failed):
                log.exception("the failure of %s %s could not be reported", claim.task, claim.execution_id)
                return
            hopeless = isinstance(error, FlowFabricError) and not isinstance(error, Unavailable)
            class_ = FailureClass.PERMANENT if hopeless else FailureClass.INFRA_CRASH
            await self.report(claim, Failed(class_, f"what came of the run was refused: {error}"))

    async def _tell(self, claim: Claim, outcome: Outcome) -> None:
        match outcome:
            case Completed(result):
                await self.complete(claim, result)
            case Failed(class_, reason, traceback):
                log.warning("%s of %s failed: %s", claim.task, claim.execution_id, traceback or reason)
                await self.fail(claim, class_, reason, traceback)
            case Suspended(wishes):
                await self.wait(claim, wishes)
            case PutOff(span, why):
                await self.delay(claim, span, why)
            case Lost():
                pass  # it belongs to someone else now: anything we said would be false
            case _:
                assert_never(outcome)

    async def complete(self, claim: Claim, result: bytes) -> None:
        """Report the result; a reply that was lost is recognised as our own."""
        try:
            await self._leased.persist(claim, lambda: self._complete(Completion(fence=claim.fence, result=result)))
        except ExecutionNotActive as refused:
            if not _is_ours(claim.fence, refused):
                raise
        self._ended(claim)

    async def fail(self, claim: Claim, class_: FailureClass, reason: str, traceback: str | None) -> None:
        """Report a failure; the policy decides what becomes of it."""
        failure = FailureReport(fence=claim.fence, class_=class_, reason=reason, traceback=traceback)
        answer = await self._leased.persist(claim, lambda: self._fail(failure))
        if answer.outcome == "failed":
            self._ended(claim)
        elif answer.due_at is not None:
            self._due(answer.due_at)

    async def delay(self, claim: Claim, until: timedelta | datetime, why: str) -> None:
        """Put a run off."""
        self._due((await self._put_off(claim, Delay(fence=claim.fence, until=until, reason=why))).due_at)

    async def hand_back(self, claim: Claim) -> None:
        """Give a run back, to be gone on with by anyone at once."""
        await self._delay(Delay(fence=claim.fence))
        self._app.notifier.send(lanes=[claim.lane])

    async def wait(self, claim: Claim, wishes: Sequence[Sequence[Wish]]) -> None:
        """Step aside for what a run asked for: for sleeps until the first of them ends, for anything else suspended."""
        asked = [wish for choice in _first_turn(wishes) for wish in choice]
        sleeps = sorted((wish.what, wish.name, wish.occurrence) for wish in asked if isinstance(wish.what, datetime))
        if len(sleeps) == len(asked) and all(wish.choice is None for wish in asked):
            await self._sleep(claim, sleeps)
            return
        # A run suspends once at most. With a key, a call whose reply was lost is answered as the first time.
        suspend = partial(waits.suspend_together, idempotency_key=f"run {claim.fence.epoch}")
        answer = await self._leased.run(claim, lambda conn: suspend(conn, claim.fence, asked))
        if answer.outcome == "already_satisfied":
            await self._leased.persist(claim, lambda: self.hand_back(claim))
        elif (span := _shortest(asked)) <= SOON:
            self._soon.add(late := asyncio.create_task(self._time_out_after(span), name="waits: time out soon"))
            late.add_done_callback(self._soon.discard)

    async def _time_out_after(self, span: timedelta) -> None:
        """Act on a time that is near when it comes; what lies further ahead, and what this misses, is the sweep's."""
        await asyncio.sleep(span.total_seconds())
        with suppress(Unavailable):
            swept = await self._app.database.run(waits.time_out_waits)
            self._app.notifier.send(lanes=swept.lanes)
            self._app.notify_ended(swept.ended)

    async def _sleep(self, claim: Claim, sleeps: Sequence[tuple[datetime, str, int]]) -> None:
        (until, name, occurrence), *others = sleeps
        for due_at, later, number in others:  # they begin now
            step = Step(fence=claim.fence, name=later, occurrence=number, due_at=due_at)
            await self._leased.persist(claim, partial(self._save, step))
        wanted = Delay(fence=claim.fence, until=until, name=name, occurrence=occurrence)
        self._due((await self._put_off(claim, wanted)).due_at)

    async def save_step(self, claim: Claim, name: str, occurrence: int, result: bytes) -> bytes:
        """Keep the result of a step and return the one that counts."""
        step = Step(fence=claim.fence, name=name, occurrence=occurrence, result=result)
        answer = await self._leased.persist(claim, lambda: self._save(step))
        return result if answer.outcome == "saved" else answer.result or b"null"

    def read_call(self, task: Task[..., Any] | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ChildCall:
        """What a handler submits, by its task or by name."""
        return self._children.read_call(task, args, kwargs)

    async def submit_child(self, claim: Claim, name: str, occurrence: int, asked: ChildCall) -> ExecutionId:
        """Submit a child once: whatever is repeated, the same place of a journal has the same child."""
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

    async def create_waitpoint(self, claim: Claim, key: str, expires_in: timedelta) -> CreatedWaitpoint:
        """Make a waitpoint ahead of its wait."""
        return await self._leased.run(
            claim, lambda conn: waits.create_waitpoint(conn, claim.fence, key, expires_in=expires_in)
        )

    async def read_journal(self, claim: Claim) -> Sequence[JournalEntry]:
        """What an earlier run has done, where there was one."""
        if not (claim.resumed or claim.attempt.number > 1):
            return ()
        if claim.journal is not None and not claim.journal.more:
            return claim.journal.entries
        return await self._leased.run(
            claim, lambda conn: steps.read_journal(conn, claim.execution_id, begun=claim.journal)
        )

    async def read_inputs(self, claim: Claim, names: Collection[str]) -> Claim:
        """A claim with what upstreams handed on, where it came without: what has these names, and the payload."""
        if not claim.more_inputs:
            return claim
        read = partial(flows.read_inputs, execution_id=claim.execution_id, names=[*names, "payload"])
        return claim.handed(await self._leased.run(claim, read))

    async def clock(self) -> datetime:
        """What time it is, however long that takes to find out: a run that has lost its lease is cancelled here."""
        backoff = Backoff(PAUSE, PAUSE)
        while True:
            with suppress(DatabaseUnavailable):
                return await self._app.database.run(clock.clock, repeat=True)
            await backoff.wait()

    def _put_off(self, claim: Claim, wanted: Delay) -> Awaitable[Delayed]:
        return self._leased.persist(claim, lambda: self._delay(wanted))

    def _ended(self, claim: Claim) -> None:
        self._app.notify_ended([str(claim.execution_id)], follow=claim.flow_id is not None)
        self._children.ended(claim.execution_id)

    def _merged(
        self, operation: Callable[[Connection, Sequence[Item]], Awaitable[list[Answer | FlowFabricError]]]
    ) -> Batch[Item, Answer]:
        async def run(items: Sequence[Item]) -> list[Answer | FlowFabricError]:
            return await self._app.database.run(lambda conn: operation(conn, items), repeat=True)

        return Batch(run, in_flight=2)


def _first_turn(wishes: Sequence[Sequence[Wish]]) -> Sequence[Sequence[Wish]]:
    """As many as go into one suspension. A run that waits for all of them may well wait for the rest afterwards."""
    children = [choice for choice in wishes if all(isinstance(wish.what, ExecutionId) for wish in choice)]
    others = [choice for choice in wishes if not all(isinstance(wish.what, ExecutionId) for wish in choice)]
    return [*children[:MOST_CHILDREN], *others[:MOST_WAITS]]


def _shortest(wishes: Sequence[Wish]) -> timedelta:
    """How long it is until the first time of these comes, as far as this machine's clock can tell."""
    now = datetime.now(UTC)
    times = [wish.what.timeout if isinstance(wish.what, Suspension) else wish.what for wish in wishes]
    spans = [
        time - now if isinstance(time, datetime) else time for time in times if isinstance(time, datetime | timedelta)
    ]
    return max(min(spans, default=timedelta.max), timedelta())


def _is_ours(fence: Fence, refused: ExecutionNotActive) -> bool:
    fields = refused.fields
    return (fields.get("outcome"), fields.get("epoch"), fields.get("attempt")) == (
        "success",
        fence.epoch,
        fence.attempt,
    )
