"""Typical programs, for type checkers only: mypy and basedpyright must report no error here. No test runs this code."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, assert_type

import asyncpg
import django.db
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session

from flowfabric import (
    AesGcm,
    App,
    Child,
    Connection,
    Context,
    Execution,
    Flow,
    FlowFabricError,
    FlowHandle,
    Node,
    OutputStream,
    Signal,
    SubmitOptions,
    SyncApp,
    SyncChild,
    SyncConnection,
    SyncContext,
    SyncExecution,
    SyncFlowHandle,
    SyncOutputStream,
    Usage,
    Verdict,
    Worker,
    metered,
)
from flowfabric.engine import events, executions, lanes
from flowfabric.errors import LaneNotFound
from flowfabric.model import (
    Budget,
    Delivered,
    Event,
    EventFilter,
    FlowState,
    Frame,
    LaneChange,
    Options,
    Outcome,
    Page,
    Progress,
    StepSummary,
    StreamSummary,
    Submission,
    Summary,
    Superseded,
    Trimmed,
)
from flowfabric.testing import Clock
from flowfabric.testing.engine import Engine
from flowfabric.testing.sync import SyncClock, SyncEngine

app = App(
    budgets={"team-a": {"tokens": 1_000}, "team-b": {"hard_limits": {"tokens": 5}, "reset_interval": "1d"}},
    quotas={"model": {"max_concurrent": 3}},
    url="postgresql://localhost/none",
)


@app.task(lane="research", retries=3, timeout="10m")
async def report(ctx: Context, topic: str, pages: int = 1) -> list[str]:
    notes = await ctx.step("search", count, topic)
    assert_type(notes, int)
    assert_type(await ctx.step("length", len, topic), int)
    assert_type(await search(ctx, topic), dict[str, int])
    verdict = await ctx.approval("publish", subject=notes, approvers=2, timeout=timedelta(days=2))
    assert_type(verdict, Verdict)
    assert_type(verdict.approved, bool)
    assert_type(await ctx.transaction_step("charge", charge, 5), int)
    assert_type(await ctx.step("length", lambda: json.loads(topic), returns=list[int]), list[int])
    assert_type(await ctx.step("length", count, topic, returns=float, retries=3, was="len"), float)
    maybe: int | None = await ctx.step("length", count, topic, returns=int | None)
    assert_type(await guessed(ctx, topic), list[str])
    assert_type(await ctx.transaction_step("charge", charge_loosely, 5, returns=int), int)
    assert_type(await ctx.submit("other", {"lane": "other"}, returns=list[str], topic=topic), Child[list[str]])
    assert_type(await ctx.submit("other", {"lane": "other"}, topic=topic), Child[Any])
    child = await ctx.submit(plain, 3)
    assert_type(child, Child[float])
    assert_type(await child.result(), float)
    assert_type(await ctx.all_of(child.result()), list[float])
    await ctx.sleep("1h")
    first = await ctx.any_of(ctx.sleep("1h"), ctx.wait_for_signal("go"))
    assert_type(first.value, Signal | None)
    return [topic]


@app.task
async def spend(ctx: Context) -> None:
    async with ctx.reserve("team-a", tokens=4_000, ttl="1h") as held:
        await held.settle(tokens=3)
    usage = await ctx.report_usage("team-a", tokens=5)
    assert_type(usage, Usage)
    assert_type(usage.used, int | None)
    assert_type(await metered(ctx, "team-a", count, tokens=5)("tides"), int)
    assert_type(await ctx.step("charged", metered(ctx, "team-a", count), "tides"), int)


@app.schedule(cron="0 9 * * 1-5", tz="Europe/Berlin", arguments={"n": 3}, overlap="skip")
@app.task
def plain(n: int) -> float:
    return n / 2


@app.task
def blocked(ctx: SyncContext, n: int) -> bytes:
    assert_type(search(ctx, "tides"), dict[str, int])
    assert_type(metered(ctx, "team-a", len)("tides"), int)
    assert_type(ctx.step("count", count, "tides"), int)
    assert_type(ctx.step("length", len, "tides"), int)
    assert_type(ctx.transaction_step("charge", charge_in_sync_code, 5), int)
    assert_type(ctx.step("length", lambda: json.loads("3"), returns=int), int)
    assert_type(ctx.transaction_step("charge", lambda conn: conn.fetchval("select 1"), returns=int), int)
    assert_type(ctx.submit("other", returns=list[str], topic="tides").result(), list[str])
    assert_type(ctx.approval("publish").approved, bool)
    assert_type(ctx.wait_for_signal("go"), Signal | None)
    child = ctx.submit(plain, 3)
    assert_type(child, SyncChild[float])
    assert_type(child.result(), float)
    assert_type(ctx.all_of(child.unwaited.result()), list[float])
    assert_type(ctx.any_of(ctx.unwaited.sleep("1h"), child.unwaited.result()).value, float | None)
    with ctx.reserve("team-a", tokens=5) as held:
        held.settle(tokens=3)
    return b""


@app.step(retries=2, returns=list[str])
def guessed(topic: str):  # type: ignore[no-untyped-def]
    return json.loads(topic)


@app.step(retries=2)
async def search(topic: str) -> dict[str, int]:
    return {}


@app.step
async def told(ctx: Context, topic: str) -> bytes:
    return b""


@app.step(retries=2)
def told_later(ctx: SyncContext, topic: str) -> bytes:
    return b""


class Agent:
    @app.step
    async def ask(self, ctx: Context, topic: str) -> bytes:
        return b""

    @app.step(retries=1)
    async def plain(self, topic: str) -> int:
        return 3

    @app.step(returns=list[str])
    def guess(self, ctx: SyncContext, topic: str) -> object:
        return []


async def steps_with_context(ctx: Context, agent: Agent) -> None:
    assert_type(await told(ctx, "tides"), bytes)
    assert_type(await told_later(ctx, topic="tides"), bytes)
    assert_type(await agent.ask(ctx, "tides"), bytes)
    assert_type(await agent.plain(ctx, topic="tides"), int)
    assert_type(await agent.guess(ctx, "tides"), list[str])


async def count(topic: str) -> int:
    return 1


async def charge(conn: Connection, amount: int) -> int:
    return int(await conn.fetchval("insert into charges (amount) values ($1) returning id", amount))


async def charge_loosely(conn: Connection, amount: int) -> Any:
    return await conn.fetchval("insert into charges (amount) values ($1) returning id", amount)


def charge_in_sync_code(conn: SyncConnection, amount: int) -> int:
    return int(conn.fetchval("insert into charges (amount) values ($1) returning id", amount))


async def read_elsewhere(execution_id: str, sync: SyncApp) -> None:
    assert_type(await app.execution(execution_id, returns=list[str]).result(), list[str])
    assert_type(await app.execution(execution_id).result(), Any)
    assert_type(await (await app.submit("other", returns=int, topic="tides")).result(), int)
    assert_type(sync.execution(execution_id, returns=dict[str, int]).result(), dict[str, int])
    assert_type(sync.submit("other", {"lane": "other"}, returns=int).result(), int)


async def call_directly(ctx: Context) -> None:
    assert_type(await report(ctx, "tides"), list[str])
    assert_type(plain(3), float)


async def main() -> None:
    async with app:
        execution = await report.with_options(priority=50, key="tides", delay="1h").submit("tides", pages=2)
        assert_type(execution, Execution[list[str]])
        assert_type(await execution.result(timeout=5), list[str])
        assert_type(await (await plain.submit(n=3)).result(), float)
        await execution.approve("publish", by="ann")
        try:
            assert_type(await (await blocked.submit(1)).result(), bytes)
        except FlowFabricError as error:
            print(error.code, error.message, error.fields)
        await Worker(app, concurrency=10).run()


async def submit_in_a_transaction(topic: str) -> None:
    urgent: SubmitOptions = {"priority": 100, "deadline": timedelta(hours=1)}
    async with app.database.transaction() as conn:
        execution = await report.with_options(**urgent).submit_in(conn, topic, pages=2)
        assert_type(execution, Execution[list[str]])
        many = await plain.submit_many_in(conn, [(1,), {"n": 2}])
        assert_type(many, list[Execution[float]])


async def submit_with_async_drivers(
    raw: asyncpg.Connection, pg: psycopg.AsyncConnection, session: AsyncSession, conn: AsyncConnection
) -> None:
    await report.submit_in(raw, "tides", pages=2)  # mypy cannot know more: asyncpg has no types
    assert_type(await report.submit_in(pg, "tides", pages=2), Execution[list[str]])
    assert_type(await report.submit_in(session, "tides", pages=2), Execution[list[str]])
    assert_type(await report.submit_in(conn, "tides", pages=2), Execution[list[str]])
    assert_type(await plain.submit_many_in(session, [(1,)]), list[Execution[float]])


def submit_with_sync_drivers(
    pg: psycopg.Connection, session: Session, scoped: scoped_session[Session], conn: sqlalchemy.Connection
) -> None:
    assert_type(report.submit_in(pg, "tides", pages=2), SyncExecution[list[str]])
    assert_type(report.submit_in(session, "tides", pages=2), SyncExecution[list[str]])
    assert_type(report.submit_in(scoped, "tides", pages=2), SyncExecution[list[str]])
    assert_type(report.submit_in(conn, "tides", pages=2), SyncExecution[list[str]])
    assert_type(plain.submit_many_in(session, [(1,)]), list[SyncExecution[float]])
    report.submit_in(django.db.connection, "tides", pages=2)
    report.submit_in(django.db.connections["default"], "tides", pages=2)


async def show_output(ctx: Context) -> None:
    async with ctx.stream("answer", ttl="1h") as out:
        assert_type(out, OutputStream)
        await out.write("a word")
        await out.write(b"bytes")
    await ctx.progress(40, "indexing")
    await ctx.append_frame("tool_call", {"name": "search"}, ttl=timedelta(days=1))


def show_output_in_sync_code(ctx: SyncContext) -> None:
    with ctx.stream("answer") as out:
        assert_type(out, SyncOutputStream)
        out.write("a word")
    ctx.progress(0.5)


async def follow(execution: Execution[list[str]], sync: SyncExecution[float]) -> None:
    async for frame in execution.frames(attempts="all"):
        if isinstance(frame, Superseded):
            assert_type(frame, Superseded)
            continue
        if isinstance(frame, Trimmed):
            assert_type(frame, Trimmed)
            continue
        assert_type(frame, Frame)
        assert_type(frame.text, str | None)
    assert_type(await execution.summary(), StreamSummary | None)
    assert_type(await execution.progress(), Progress | None)
    async for step in execution.steps(results=True):
        assert_type(step, StepSummary)
    assert_type(list(sync.steps()), list[StepSummary])
    for frame in sync.frames():
        assert_type(frame, Frame | Superseded | Trimmed)


async def operate_from_the_app(sync: SyncApp) -> None:
    budget = await app.budgets.describe("team-a")
    assert_type(budget, Budget)
    await app.budgets.create("team-c", hard_limits={"tokens": 5}, reset_interval=timedelta(days=1))
    page = await app.executions.list(states=["failed"], lane="research", limit=10)
    assert_type(page, Page[Summary])
    assert_type(await app.lanes.pause("research", by="ops"), LaneChange)
    assert_type(await app.approvals.approve(page.items[0].execution_id, "publish", by="ann"), Delivered)
    assert_type(sync.executions.list(), Page[Summary])
    assert_type(sync.lanes.pause("research", by="ops"), LaneChange)


class Shouting:
    """A codec of a program's own."""

    name = "shouting"

    def encode(self, payload: bytes, owner: str) -> bytes:
        return payload.upper()

    def decode(self, stored: bytes, owner: str) -> bytes:
        return stored.lower()


coded = App(codec=Shouting())
keyed = App(codec=[AesGcm("2026", b"0" * 32), Shouting()])


@app.task(name="greet", version=2, retired=["old"])
async def greet_now(ctx: Context, name: str) -> str:
    return name


@app.task(name="greet", version=1)
async def greet_before(ctx: Context, name: str) -> int:
    return len(name)


async def use_versions() -> None:
    assert_type(await (await greet_now.submit("Ada")).result(), str)


async def submit_a_flow_in_a_transaction(
    raw: asyncpg.Connection, pg: psycopg.AsyncConnection, session: AsyncSession, flow: Flow
) -> None:
    await flow.submit_in(raw)
    assert_type(await flow.submit_in(pg), FlowHandle)
    assert_type(await flow.submit_in(session), FlowHandle)


def submit_a_flow_in_sync_code(pg: psycopg.Connection, session: Session, flow: Flow) -> None:
    assert_type(flow.submit_in(pg), SyncFlowHandle)
    assert_type(flow.submit_in(session), SyncFlowHandle)
    flow.submit_in(django.db.connection)


async def build_a_flow() -> None:
    flow = app.flow("report", key="tides")
    half = flow.add(plain, 3)
    assert_type(half, Node[float])
    pages = flow.add(report, "tides").after(half)
    handle = await flow.submit()
    assert_type(handle, FlowHandle)
    assert_type(await handle[pages].result(), list[str])
    assert_type(await handle.wait(timeout="1h"), FlowState)


async def create_a_schedule() -> None:
    await app.schedules.create("hourly", plain, {"n": 3}, every=timedelta(hours=1), jitter="5m", catch_up="none")
    await app.schedules.create("daily", "plain", {"n": 3}, cron="0 9 * * *", tz="UTC", paused=True)


async def follow_the_log(cursor: str) -> None:
    subscription = await app.log.subscribe(cursor, EventFilter(kinds=["execution_failed"], lane="research"))
    async for event in subscription:
        assert_type(event, Event)
        cursor = subscription.cursor


def use_it_without_await() -> None:
    with app.sync() as sync:
        assert_type(sync, SyncApp)
        execution = sync(report).with_options(key="tides").submit("tides", pages=2)
        assert_type(execution, SyncExecution[list[str]])
        assert_type(execution.result(timeout="10m"), list[str])
        assert_type(sync(plain).submit_many([(1,)]), list[SyncExecution[float]])
        assert_type(execution.describe().task, str)
        for event in execution.events():
            assert_type(event, Event)
        flow = sync.flow("report")
        half = flow.add(plain, 3)
        assert_type(flow.submit()[half].result(), float)
        assert_type(app.sync()(report).submit("tides").wait(), Outcome)


def check_without_await(engine: SyncEngine, clock: SyncClock) -> None:
    sync = engine.work(app, concurrency=5)
    assert_type(sync, SyncApp)
    assert_type(engine.run_now(plain, 3), float)
    engine.approve(sync(report).submit("tides"), "publish", by="ann")
    clock.advance("2d")


async def operate(conn: asyncpg.Connection) -> None:
    try:
        assert_type(await lanes.pause_lane(conn, "research", by="ops"), LaneChange)
    except LaneNotFound as error:
        print(error.message)
    await executions.submit(conn, Submission(options=Options(task="report"), payload=b'{"topic": "tides"}'))
    page = await executions.list_executions(conn, lane="research", limit=10)
    assert_type(page, Page[Summary])
    await events.read_events(conn, events.OLDEST, EventFilter(namespace="default"), limit=100)


async def check_a_task(app_worker: Callable[..., Any], engine: Engine, clock: Clock) -> None:
    await app_worker(app, concurrency=5)
    assert_type(await engine.run_now(plain, 3), float)
    execution = await report.submit("tides")
    await engine.approve(execution, "publish", by="ann")
    await clock.advance("2d")
    assert_type(await execution.result(), list[str])
