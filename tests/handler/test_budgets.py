"""Usage that a handler reports is counted once, however often it runs, and a hard limit acts as its budget says."""

import asyncio
from typing import Any

import pytest

from flowfabric import App, Context, ExecutionCancelled, ExecutionFailed, SyncContext
from flowfabric.engine import budgets, claims
from flowfabric.errors import BudgetExhausted
from tests.app.scene import TIMEOUT, happens, later, working
from tests.engine.budgets.scene import TEAM, figures, make, read, report_of, spend
from tests.given import Given


async def test_a_handler_reports_what_it_used(app: App, given: Given) -> None:
    await make(given.conn, hard_limits={"tokens": 100, "requests": 9}, soft_limits={"tokens": 50})

    @app.task
    async def report(ctx: Context) -> list[Any]:
        first = await ctx.report_usage(TEAM, input_tokens=30, output_tokens=10, requests=1)
        second = await ctx.report_usage(TEAM, tokens=20)
        return [first.outcome, second.outcome, second.dimension, second.used, second.soft_limit]

    async with working(app):
        execution = await report.submit()
        assert await execution.result(TIMEOUT) == ["ok", "soft_breach", "tokens", 60, 50]

    assert (await read(given.conn)).used == {"tokens": 60, "input_tokens": 30, "output_tokens": 10, "requests": 1}
    [spent] = await budgets.list_spending(given.conn, execution.execution_id)
    assert (spent.name, spent.spent["tokens"]) == (TEAM, 60)


async def test_a_report_past_the_hard_limit_raises_with_the_figures_and_counts_nothing(app: App, given: Given) -> None:
    await make(given.conn)
    await spend(given.conn, 60)

    @app.task
    async def report(ctx: Context) -> Any:
        try:
            await ctx.report_usage(TEAM, tokens=41, requests=1)
        except BudgetExhausted as refused:
            return refused.fields

    async with working(app):
        found = await (await report.submit()).result(TIMEOUT)

    assert found == {"budget": TEAM, "dimension": "tokens", "used": 60, "reserved": 0, "hard_limit": 100}
    assert ((await read(given.conn)).used, await given.count("steps")) == ({"tokens": 60}, 0)


async def test_a_handler_that_does_not_catch_the_error_is_retried_and_succeeds_after_a_reset(
    app: App, given: Given
) -> None:
    await make(given.conn)
    await spend(given.conn, 60)

    @app.task(retries=1, backoff="1h")
    async def report(ctx: Context) -> int:
        await ctx.report_usage(TEAM, tokens=41)
        return ctx.attempt

    async with working(app):
        execution = await report.submit()
        await happens(execution, "attempt_failed")
        assert "budget 'team-a' has used 60" in (await execution.explain()).sentence
        await budgets.reset_budget(given.conn, TEAM, by="ops")
        await later(app, given, execution, hours=1)
        assert await execution.result(TIMEOUT) == 2
    assert await figures(given.conn) == (41, 0, 0)


async def test_a_report_counts_once_through_a_wait_and_a_retry(app: App, given: Given) -> None:
    await make(given.conn, soft_limits={"tokens": 5})
    runs: list[str | None] = []

    @app.task(retries=1, backoff="1h")
    async def report(ctx: Context) -> int:
        usage = await ctx.report_usage(TEAM, tokens=10)
        runs.append(f"{usage.outcome} {usage.used}")
        await ctx.sleep("1h")
        await ctx.report_usage(TEAM, tokens=1)
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return ctx.attempt

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        await later(app, given, execution, hours=2)
        await happens(execution, "attempt_failed")
        await later(app, given, execution, hours=2)
        assert await execution.result(TIMEOUT) == 2

    assert runs == ["soft_breach 10"] * 3
    assert await figures(given.conn) == (11, 0, 0)


async def test_a_report_of_a_worker_that_died_is_not_counted_again(app: App, given: Given) -> None:
    await make(given.conn)

    @app.task
    async def report(ctx: Context) -> list[str]:
        return [(await ctx.report_usage(TEAM, tokens=10)).outcome for _ in range(2)]

    async with app:
        execution = await report.submit()
    [claim] = await given.claim()
    await budgets.report_usage(given.conn, report_of(10, fence=claim.fence, step=(f"usage:{TEAM}", 1)))
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)

    async with working(app):
        assert await app.execution(execution.execution_id).result(TIMEOUT) == ["ok", "ok"]
    assert await figures(given.conn) == (20, 0, 0)


async def test_a_run_suspended_by_a_hard_limit_resumes_when_the_budget_has_room(app: App, given: Given) -> None:
    await make(given.conn, on_hard_limit="suspend")
    left: list[str] = []

    @app.task
    async def report(ctx: Context) -> str:
        await ctx.report_usage(TEAM, tokens=60)
        try:
            await ctx.report_usage(TEAM, tokens=50)
        finally:
            left.append("left")
        return f"attempt {ctx.attempt}"

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_suspended")
        assert (await execution.explain()).waits_for == "budget"
        await budgets.change_budget(given.conn, TEAM, hard_limits={"tokens": 110}, by="ops")
        await app.wake("default")
        assert await execution.result(TIMEOUT) == "attempt 1"

    assert (await figures(given.conn), left) == ((110, 0, 0), ["left", "left"])
    assert "execution_failed" not in await given.events()


@pytest.mark.parametrize(("action", "ending"), [("fail", ExecutionFailed), ("cancel", ExecutionCancelled)])
async def test_a_run_ended_by_a_hard_limit_is_unwound(
    app: App, given: Given, action: str, ending: type[Exception]
) -> None:
    await make(given.conn, on_hard_limit=action)
    seen: list[str] = []

    @app.task(retries=5)
    async def report(ctx: Context) -> None:
        try:
            await ctx.report_usage(TEAM, tokens=101)
        except Exception:
            seen.append("caught")
        finally:
            seen.append("left")
            await ctx.step("clean", seen.append, "cleaned")

    async with working(app):
        with pytest.raises(ending, match="budget_exhausted"):
            await (await report.submit()).result(TIMEOUT)
    assert (seen, await given.count("steps")) == (["left"], 0)


async def test_concurrent_waits_of_a_run_ended_by_a_hard_limit_are_unwound_too(app: App, given: Given) -> None:
    await make(given.conn, on_hard_limit="fail")

    @app.task
    async def report(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.report_usage(TEAM, tokens=101))
            group.create_task(_awaited(ctx.sleep("1h")))

    async with working(app):
        execution = await report.submit()
        with pytest.raises(ExecutionFailed, match="budget_exhausted"):
            await execution.result(TIMEOUT)
    assert (await given.events(execution.execution_id)).count("execution_failed") == 1


async def test_concurrent_reports_are_batched(app: App, given: Given) -> None:
    await make(given.conn)

    @app.task
    async def report(ctx: Context) -> int:
        return len(await asyncio.gather(*(ctx.report_usage(TEAM, tokens=2) for _ in range(50))))

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == 50

    assert await figures(given.conn) == (100, 0, 0)
    [row] = await given.rows("select count(*) as saved, count(distinct xmin::text) as calls from flowfabric.steps")
    assert row["saved"] == 50
    assert row["calls"] < 10


async def test_a_report_that_does_not_fit_fails_alone(app: App, given: Given) -> None:
    await make(given.conn)

    @app.task
    async def report(ctx: Context) -> list[str]:
        sent = [ctx.report_usage(TEAM, tokens=n) for n in (40, 90, 60)]
        sent += [ctx.report_usage(TEAM, tokens=-1), ctx.report_usage("nowhere", tokens=1), ctx.report_usage(TEAM)]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        return [getattr(answer, "outcome", type(answer).__name__) for answer in answers]

    async with working(app):
        assert await (await report.submit()).result(TIMEOUT) == [
            *("ok", "BudgetExhausted", "ok", "InvalidUsage", "BudgetNotFound", "InvalidUsage")
        ]
    assert await figures(given.conn) == (100, 0, 0)


async def test_a_report_inside_a_step_counts_each_time_the_step_runs(app: App, given: Given) -> None:
    await make(given.conn)

    @app.task
    async def report(ctx: Context) -> str:
        tries = 0

        async def ask() -> str:
            nonlocal tries
            tries += 1
            await ctx.report_usage(TEAM, tokens=10)
            if tries == 1:
                raise ConnectionError("the answer was lost after it was paid for")
            return "answer"

        answer = await ctx.step("ask", ask, retries=1, backoff="1ms")
        await ctx.sleep("1h")
        return answer

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        await later(app, given, execution, hours=2)
        assert await execution.result(TIMEOUT) == "answer"
    assert await figures(given.conn) == (20, 0, 0)


async def test_a_run_uses_the_budget_of_its_namespace(app: App, given: Given) -> None:
    name = "x" * 128
    for namespace in ("default", "acme"):
        await make(given.conn, name, namespace=namespace)

    @app.task(namespace="acme")
    async def report(ctx: Context) -> None:
        await ctx.report_usage(name, tokens=10)
        async with ctx.reserve(name, tokens=5):
            pass

    async with working(app):
        await (await report.submit()).result(TIMEOUT)
    assert (await budgets.describe_budget(given.conn, name, namespace="acme")).used == {"tokens": 15}
    assert (await budgets.describe_budget(given.conn, name)).used == {}


async def test_a_synchronous_handler_can_report_and_reserve(app: App, given: Given) -> None:
    await make(given.conn, on_hard_limit="suspend")

    @app.task
    def report(ctx: SyncContext) -> list[str]:
        def ask() -> str:
            with ctx.reserve(TEAM, tokens=30) as held:
                return str(held.settle(tokens=20).outcome)

        first = ctx.report_usage(TEAM, tokens=10).outcome
        inside = ctx.step("ask", ask)
        with ctx.reserve(TEAM, tokens=40):
            pass
        ctx.report_usage(TEAM, tokens=31)
        return [first, inside]

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_suspended")
        assert await figures(given.conn) == (70, 0, 0)
        await budgets.change_budget(given.conn, TEAM, hard_limits={"tokens": 200}, by="ops")
        await app.wake("default")
        assert await execution.result(TIMEOUT) == ["ok", "settled"]
    assert await figures(given.conn) == (101, 0, 0)


async def _awaited(wait: Any) -> None:
    await wait
