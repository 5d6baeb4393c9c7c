"""Reports: what a worker tells the engine, merged with whatever else it has to say at that moment."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

import msgspec

from flowfabric.app import App
from flowfabric.batch import Batch
from flowfabric.context import Sleep, Wait
from flowfabric.db import Connection
from flowfabric.engine import attempts, clock, steps, waits
from flowfabric.errors import ExecutionNotActive, Refusal
from flowfabric.model import (
    Claim,
    Completion,
    CreatedWaitpoint,
    Delay,
    FailureClass,
    FailureReport,
    Fence,
    Step,
)

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MONTH = timedelta(days=30)


class Reports:
    """The calls a worker makes under its leases."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._complete = self._merged(attempts.complete_many)
        self._fail = self._merged(attempts.fail_many)
        self._delay = self._merged(attempts.delay_many)
        self._save = self._merged(steps.save_steps)

    async def close(self) -> None:
        """Return when everything that was said has arrived."""
        for batch in (self._complete, self._fail, self._delay, self._save):
            await batch.close()

    async def complete(self, claim: Claim, result: bytes) -> None:
        """Report the result; a reply that was lost is recognised as our own."""
        try:
            await self._complete(Completion(fence=claim.fence, result=result))
        except ExecutionNotActive as refused:
            if not _is_ours(claim.fence, refused):
                raise
        self._ended(claim)

    async def fail(self, claim: Claim, class_: FailureClass, reason: str, traceback: str | None) -> None:
        """Report a failure; the policy decides what becomes of it."""
        answer = await self._fail(FailureReport(fence=claim.fence, class_=class_, reason=reason, traceback=traceback))
        if answer.outcome == "failed":
            self._ended(claim)

    async def delay(self, claim: Claim, until: timedelta | datetime) -> None:
        """Put a run off."""
        await self._delay(Delay(fence=claim.fence, until=until))

    async def hand_back(self, fence: Fence) -> None:
        """Give a run back, to be gone on with by anyone at once."""
        await self._delay(Delay(fence=fence))

    async def wait(self, claim: Claim, wishes: Sequence[Sleep | Wait]) -> None:
        """Step aside for what a run asked for. Of several at once the first is waited for; the waitpoints of the others
        are made now, so that what arrives there meanwhile is found when the run asks again.
        """
        first, *others = sorted(wishes, key=lambda wish: isinstance(wish, Sleep))
        for wish in others:
            if isinstance(wish, Wait):
                for point in wish.suspension.waitpoints:
                    await self.create_waitpoint(claim, point if isinstance(point, str) else point[0], MONTH)
        if isinstance(first, Sleep):
            await self._delay(Delay(fence=claim.fence, until=first.until, name=first.name, occurrence=first.occurrence))
        else:
            await self._suspend(claim, first)

    async def _suspend(self, claim: Claim, wait: Wait) -> None:
        wish = msgspec.structs.replace(wait.suspension, name=wait.name, occurrence=wait.occurrence)
        answer = await self._app.database.run(lambda conn: waits.suspend(conn, claim.fence, wish))
        if answer.outcome == "already_satisfied":
            await self.hand_back(claim.fence)
            self._app.hints.send(lanes=[claim.lane])

    async def save_step(self, claim: Claim, name: str, occurrence: int, result: bytes) -> bytes:
        """Keep the result of a step and return the one that counts."""
        await self._save(Step(fence=claim.fence, name=name, occurrence=occurrence, result=result))
        return result

    async def create_waitpoint(self, claim: Claim, key: str, expires_in: timedelta) -> CreatedWaitpoint:
        """Make a waitpoint ahead of its wait."""
        return await self._app.database.run(
            lambda conn: waits.create_waitpoint(conn, claim.fence, key, expires_in=expires_in), repeat=True
        )

    async def clock(self) -> datetime:
        """What time it is."""
        return await self._app.database.run(clock.clock, repeat=True)

    def _ended(self, claim: Claim) -> None:
        ended = [str(claim.execution_id)]
        self._app.ends.tell(ended)
        self._app.hints.send(ended=ended)

    def _merged(
        self, operation: Callable[[Connection, Sequence[Item]], Awaitable[list[Answer | Refusal]]]
    ) -> Batch[Item, Answer]:
        async def run(items: Sequence[Item]) -> list[Answer | Refusal]:
            return await self._app.database.run(partial(_on, operation, items), repeat=True)

        return Batch(run, in_flight=2)


async def _on(
    operation: Callable[[Connection, Sequence[Item]], Awaitable[list[Answer | Refusal]]],
    items: Sequence[Item],
    conn: Connection,
) -> list[Answer | Refusal]:
    return await operation(conn, items)


def _is_ours(fence: Fence, refused: ExecutionNotActive) -> bool:
    fields = refused.fields
    return (fields.get("outcome"), fields.get("epoch"), fields.get("attempt")) == (
        "success",
        fence.epoch,
        fence.attempt,
    )
