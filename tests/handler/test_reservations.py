"""Reservations of a handler: settled, released, and never counted twice."""

import asyncio
from typing import Any

import pytest

from flowfabric import App, Context, ExecutionFailed
from flowfabric.engine import budgets, claims
from flowfabric.errors import BudgetExhausted
from tests.app.scene import TIMEOUT, happens, later, working
from tests.engine.budgets.scene import TEAM, figures, make, spend
from tests.given import Given


@pytest.fixture(autouse=True)
async def team(given: Given) -> None:
    await make(given.conn)


async def test_a_settlement_releases_the_rest_and_an_unsettled_reservation_counts_as_spent(
    app: App, given: Given
) -> None:
    seen: list[tuple[int, int, int]] = []

    @app.task
    async def report(ctx: Context) -> list[str]:
        async with ctx.reserve(TEAM, tokens=40) as held:
            seen.append(await figures(given.conn))
            first = await held.settle(tokens=15)
            again = await held.settle(tokens=99)
        async with ctx.reserve(TEAM, tokens=40) as held:
            seen.append(await figures(given.conn))
        with pytest.raises(RuntimeError, match="entered before"):
            await held.__aenter__()
        return [first.outcome, again.outcome, again.first or ""]

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == ["settled", "already_applied", "settled"]
    assert seen == [(0, 40, 0), (15, 40, 0)]
    assert await figures(given.conn) == (55, 0, 0)


async def out_of_time(ctx: Context) -> None:
    """Reserve for a block that times out."""
    async with asyncio.timeout(None) as limit, ctx.reserve(TEAM, tokens=50):
        limit.reschedule(0)
        await asyncio.Event().wait()


async def test_a_block_that_raises_releases_its_reservation_and_so_does_release(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        with pytest.raises(LookupError):
            async with ctx.reserve(TEAM, tokens=40):
                raise LookupError("not to be found")
        with pytest.raises(TimeoutError):
            await out_of_time(ctx)
        async with ctx.reserve(TEAM, tokens=60) as held:
            await held.release()
            await held.release()

    async with working(app):
        await (await report.submit()).result(TIMEOUT)
    assert await figures(given.conn) == (0, 0, 0)
    assert (await given.events()).count("reservation_released") == 3


async def test_a_reservation_that_does_not_fit_is_refused_before_the_block_runs(app: App, given: Given) -> None:
    await spend(given.conn, 70)

    @app.task
    async def report(ctx: Context) -> Any:
        try:
            async with ctx.reserve(TEAM, tokens=31):
                raise AssertionError("the block ran")
        except BudgetExhausted as refused:
            return refused.fields

    async with working(app):
        found = await (await report.submit()).result(TIMEOUT)
    assert found == {"budget": TEAM, "dimension": "tokens", "used": 70, "reserved": 0, "hard_limit": 100}
    assert await figures(given.conn) == (70, 0, 0)


async def test_a_wait_inside_the_block_keeps_the_reservation_and_a_later_one_does_not_spend_it_again(
    app: App, given: Given
) -> None:
    @app.task
    async def report(ctx: Context) -> str:
        async with ctx.reserve(TEAM, tokens=60, ttl="1d") as held:
            await ctx.sleep("1h")
            await held.settle(tokens=50)
        await ctx.sleep("1h", name="later")
        return "done"

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        assert await figures(given.conn) == (0, 60, 0)
        await later(app, given, execution, hours=2)
        await happens(execution, "execution_delayed", times=2)
        assert await figures(given.conn) == (50, 0, 0)
        await later(app, given, execution, hours=2)
        assert await execution.result(TIMEOUT) == "done"
    assert await figures(given.conn) == (50, 0, 0)


async def test_a_reservation_inside_a_step_is_saved_with_the_result_of_the_step(app: App, given: Given) -> None:
    async def ask(ctx: Context, question: str) -> str:
        async with ctx.reserve(TEAM, tokens=40) as held:
            await held.settle(tokens=len(question))
        return f"answer to {question}"

    @app.task
    async def report(ctx: Context) -> str:
        answer = await ctx.step("ask", ask, ctx, "what")
        await ctx.sleep("1h")
        return answer

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        await later(app, given, execution, hours=2)
        assert await execution.result(TIMEOUT) == "answer to what"
    assert await figures(given.conn) == (4, 0, 0)
    assert [row["name"] for row in await given.rows("select name from flowfabric.steps where kind = 'step'")] == ["ask"]


async def test_what_a_dead_worker_had_set_aside_comes_back_and_the_next_one_begins_anew(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> int:
        async with ctx.reserve(TEAM, tokens=70):
            return ctx.attempt

    async with app:
        execution = await report.submit()
    [claim] = await given.claim()
    await budgets.reserve(given.conn, TEAM, {"tokens": 70}, fence=claim.fence)
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)
    assert await figures(given.conn) == (0, 0, 0)

    async with working(app):
        assert await app.execution(execution.execution_id).result(TIMEOUT) == 2
    assert await figures(given.conn) == (70, 0, 0)


async def test_a_worker_that_stops_releases_the_reservation_and_the_next_one_spends_it_once(
    app: App, given: Given
) -> None:
    entered, let_through = asyncio.Event(), asyncio.Event()

    @app.task
    async def report(ctx: Context) -> str:
        async with ctx.reserve(TEAM, tokens=70):
            entered.set()
            await let_through.wait()
        return f"attempt {ctx.attempt}"

    async with working(app, drain="0s"):
        execution = await report.submit()
        async with asyncio.timeout(TIMEOUT):
            await entered.wait()
    assert await figures(given.conn) == (0, 0, 0)
    let_through.set()
    async with working(app):
        assert await app.execution(execution.execution_id).result(TIMEOUT) == "attempt 1"
    assert await figures(given.conn) == (70, 0, 0)


async def test_a_settlement_above_the_hard_limit_is_reported_and_recorded_as_overrun(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> list[Any]:
        async with ctx.reserve(TEAM, tokens=90) as held:
            settled = await held.settle(tokens=105)
        return [settled.outcome, settled.hard_limit, settled.overrun]

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == ["hard_breach", 100, {"tokens": 15}]
    assert await figures(given.conn) == (90, 0, 15)


async def test_a_settlement_that_suspends_the_run_is_counted_once(app: App, given: Given) -> None:
    await budgets.change_budget(given.conn, TEAM, on_hard_limit="suspend", by="ops")

    @app.task
    async def report(ctx: Context) -> str:
        async with ctx.reserve(TEAM, tokens=90) as held:
            await held.settle(tokens=105)
        return "done"

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_suspended")
        assert await figures(given.conn) == (90, 0, 15)
        await budgets.change_budget(given.conn, TEAM, hard_limits={"tokens": 200}, by="ops")
        await app.wake("default")
        assert await execution.result(TIMEOUT) == "done"
    assert await figures(given.conn) == (90, 0, 15)


async def test_an_expired_reservation_can_still_be_settled(app: App, given: Given) -> None:
    expired: list[bool] = []

    @app.task
    async def report(ctx: Context) -> list[str]:
        async with ctx.reserve(TEAM, tokens=40, ttl="1s") as held:
            if not expired:  # in the first run only: the second one runs while the test uses this connection
                await given.time_passes(seconds=5)
                expired.append(True)
            first = await held.settle(tokens=30)
        await ctx.sleep("1h")
        return [first.outcome]

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        await later(app, given, execution, hours=2)
        await execution.result(TIMEOUT)
    assert await figures(given.conn) == (30, 0, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, "InvalidUsage"), ({"tokens": -1}, "InvalidUsage"), ({"tokens": 1, "ttl": "2d"}, "InvalidTime")],
)
async def test_an_invalid_reservation_is_refused_and_not_retried(
    app: App, given: Given, options: Any, said: str
) -> None:
    @app.task(retries=5)
    async def report(ctx: Context) -> None:
        async with ctx.reserve(TEAM, **options):
            raise AssertionError("the block ran")

    async with working(app):
        with pytest.raises(ExecutionFailed, match=said):
            await (await report.submit()).result(TIMEOUT)
    assert await given.count("reservations") == 0
