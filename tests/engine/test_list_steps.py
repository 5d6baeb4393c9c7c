"""Listing the steps that an execution has saved."""

from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, executions, steps
from flowfabric.errors import ExecutionNotFound, InvalidCursor, InvalidLimit
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import Claim, Delay, Step, StepSummary
from flowfabric.postgres.driver import Connection
from tests.given import Given
from tests.sql.reading import reading

ODD = 'a,"\u202e\n\x1b[31m%2C é🌊'


async def saved(given: Given, claim: Claim, *names: str, result: bytes | None = b"1") -> None:
    """Save steps in this order, a second apart."""
    for name in names:
        await steps.save_step(given.conn, Step(fence=claim.fence, name=name, occurrence=1, result=result))
        await given.time_passes(seconds=1)


async def listed(conn: Connection, it: ExecutionId, **options: Any) -> list[StepSummary]:
    """All pages."""
    page = await steps.list_steps(conn, it, **options)
    found = list(page.items)
    while page.next_cursor:
        assert page.items
        page = await steps.list_steps(conn, it, cursor=page.next_cursor, **options)
        found += page.items
    return found


async def test_steps_are_listed_in_the_order_in_which_they_were_saved(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    assert await listed(conn, claim.execution_id) == []
    await saved(given, claim, "write", "search", ODD)
    await saved(given, claim, "nothing", result=None)

    found = await listed(conn, claim.execution_id)
    assert [(step.name, step.size) for step in found] == [("write", 1), ("search", 1), (ODD, 1), ("nothing", 0)]
    assert {(step.kind, step.state, step.occurrence, step.result) for step in found} == {("step", "completed", 1, None)}
    times = [step.saved_at for step in found if step.saved_at]
    assert (len(times), times) == (4, sorted(times))


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_no_page_skips_or_repeats_a_step(conn: Connection, given: Given, limit: int) -> None:
    claim = await given.claimed()
    at_once = [Step(fence=claim.fence, name=name, occurrence=n) for name in ("b", ODD) for n in (2, 1)]
    await steps.save_step_many(conn, at_once)
    await saved(given, claim, "last")

    found = await listed(conn, claim.execution_id, limit=limit)
    assert [(step.name, step.occurrence) for step in found] == [(ODD, 1), (ODD, 2), ("b", 1), ("b", 2), ("last", 1)]


async def test_results_are_returned_on_request_and_a_page_stops_at_1_mib(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await saved(given, claim, "a", "b", "c", result=b"x" * 500_000)
    big = Step(fence=claim.fence, name="d", occurrence=1, result=b"y" * 2_000_000, encoding="odd")
    await steps.save_step(conn, big, result_limit=3_000_000)

    first = await steps.list_steps(conn, claim.execution_id, results=True)
    assert [len(step.result or b"") for step in first.items] == [500_000, 500_000]
    found = await listed(conn, claim.execution_id, results=True)
    assert [(step.name, len(step.result or b"")) for step in found[2:]] == [("c", 500_000), ("d", 2_000_000)]
    assert found[3].encoding == "odd"
    assert len((await steps.list_steps(conn, claim.execution_id)).items) == 4


async def test_a_sleep_is_sleeping_until_its_time_or_interrupted_by_the_end(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    for name, hours in (("short", 1), ("long", 3)):
        nap = Delay(fence=claim.fence, until=timedelta(hours=hours), name=name, occurrence=1)
        await attempts.delay_many(conn, [nap])
        if name == "short":
            assert [step.state for step in await listed(conn, claim.execution_id)] == ["sleeping"]
            await given.time_passes(hours=2)
            [claim] = await given.claim()

    found = {step.name: step for step in await listed(conn, claim.execution_id)}
    assert (found["short"].state, found["long"].state, found["long"].kind) == ("completed", "sleeping", "sleep")
    assert found["long"].due_at is not None
    await executions.cancel(conn, claim.execution_id)
    await given.time_passes(hours=9)
    assert [step.state for step in await listed(conn, claim.execution_id)] == ["completed", "interrupted"]


async def test_steps_of_another_execution_are_not_listed(conn: Connection, given: Given) -> None:
    claim, other = await given.claimed(), await given.claimed()
    await saved(given, other, "a")

    assert await listed(conn, claim.execution_id) == []


async def test_an_unknown_execution_and_a_negative_limit_are_refused(conn: Connection, given: Given) -> None:
    with pytest.raises(ExecutionNotFound):
        await steps.list_steps(conn, mint_execution_id())
    with pytest.raises(InvalidLimit):
        await steps.list_steps(conn, await given.submitted(), limit=-1)
    assert (await steps.list_steps(conn, await given.submitted(), limit=0)).next_cursor is None


@pytest.mark.parametrize(
    "cursor",
    [
        *("x", "2026-05-04", "2026-05-04T09:00:00,1,a", "2026-05-04T09:00:00Z,-1,a", "2026-05-04T09:00:00Z,1"),
        *("2026-05-04T09:00:00Z,1,a,b", "2026-05-04T09:00:00Z,1,%00", "2026-05-04T09:00:00Z,1,\udcff"),
        *("2026-05-04T09:00:00Z,9999999999,a", ","),
    ],
)
async def test_a_cursor_that_this_call_did_not_return_is_refused(conn: Connection, given: Given, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        await steps.list_steps(conn, await given.submitted(), cursor=cursor)


async def test_a_page_reads_only_the_steps_of_its_execution(conn: Connection, given: Given) -> None:
    for claim in (await given.claimed(), await given.claimed()):
        many = [Step(fence=claim.fence, name="page", occurrence=n, result=b"1") for n in range(1, 2_001)]
        await steps.save_step_many(conn, many)

    async with conn.transaction():
        page, read = await reading(conn, steps.list_steps(conn, claim.execution_id, results=True, limit=10), ["steps"])
    assert len(page.items) == 10
    assert (read.rows <= 4_100, read.whole) == (True, 0), read
