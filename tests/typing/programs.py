"""Typical programs, for type checkers only: mypy and basedpyright must find nothing here. Nothing imports this."""

from datetime import timedelta
from typing import assert_type

import asyncpg

from flowfabric import (
    App,
    Blocking,
    Child,
    Context,
    Execution,
    FlowFabricError,
    Signal,
    Usage,
    Verdict,
    Worker,
    metered,
)

app = App(
    budgets={"team-a": {"tokens": 1_000}}, quotas={"model": {"max_concurrent": 3}}, url="postgresql://localhost/none"
)


@app.task(lane="research", retries=3, timeout="10m")
async def report(ctx: Context, topic: str, pages: int = 1) -> list[str]:
    notes = await ctx.step("search", search_plain, topic)
    assert_type(notes, dict[str, int])
    verdict = await ctx.approval("publish", subject=notes, approvers=2, timeout=timedelta(days=2))
    assert_type(verdict, Verdict)
    child = await ctx.submit(plain, 3)
    assert_type(child, Child[float])
    half = await child.result()
    assert_type(half, float)
    await ctx.sleep("1h")
    first = await ctx.any_of(ctx.sleep("1h"), ctx.wait_for_signal("go"))
    assert_type(first.value, Signal | None)
    async with ctx.reserve("team-a", tokens=4_000) as held:
        await held.settle(tokens=3)
    charged = await metered(ctx, "team-a", search_plain, tokens=5)("tides")
    assert_type(charged, dict[str, int])
    usage = await ctx.report_usage("team-a", tokens=5)
    assert_type(usage, Usage)
    return [topic]


@app.task
def plain(n: int) -> float:
    return n / 2


@app.task
def blocked(ctx: Blocking[Context], n: int) -> bytes:
    return b""


async def search_plain(topic: str) -> dict[str, int]:
    return {}


async def place(conn: asyncpg.Connection, topic: str) -> None:
    async with conn.transaction():
        execution = await report.with_options(key="k").submit_in(conn, topic, pages=2)
        assert_type(execution, Execution[list[str]])
        many = await plain.submit_many_in(conn, [(1,), {"n": 2}])
        assert_type(many, list[Execution[float]])


async def main() -> None:
    async with app:
        execution = await report.with_options(priority=50, key="tides").submit("tides", pages=2)
        assert_type(execution, Execution[list[str]])
        assert_type(await execution.result(timeout=5), list[str])
        await execution.approve("publish", by="ann")
        try:
            await (await blocked.submit(1)).result()
        except FlowFabricError as error:
            print(error.code, error.message, error.fields)
        await Worker(app, concurrency=10).run()
