"""Programs with mistakes, for type checkers only: mypy and basedpyright must report an error on exactly the lines with
`# wrong: ...`; the rest of the comment is part of what mypy says. No test runs this code.
"""

import json
import sqlite3

import asyncpg
import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from flowfabric import (
    AesGcm,
    App,
    Context,
    Execution,
    FlowHandle,
    SubmitOptions,
    SyncApp,
    SyncContext,
    SyncExecution,
    Worker,
    metered,
)
from flowfabric.engine import executions, lanes
from flowfabric.model import EventFilter, Options, PublicState, Submission
from flowfabric.testing import Clock
from flowfabric.testing.engine import Engine
from tests.typing.programs import (
    app,
    blocked,
    charge,
    charge_in_sync_code,
    count,
    greet_now,
    guessed,
    plain,
    report,
    search,
)


async def submit(ctx: Context) -> None:
    await report.submit(3)  # wrong: incompatible type "int"; expected "str"
    await report.submit()  # wrong: Missing positional argument "topic"
    await report.submit(ctx, "tides")  # wrong: incompatible type
    await report.submit("tides", colour=1)  # wrong: Unexpected keyword argument "colour"
    await report.submit("tides", pages="two")  # wrong: incompatible type "str"; expected "int"
    await plain.submit("three")  # wrong: incompatible type "str"; expected "int"
    await blocked.submit("x")  # wrong: incompatible type "str"; expected "int"
    await report("tides")  # wrong: incompatible type "str"; expected "Context"
    await report.submt("tides")  # wrong: has no attribute "submt"


async def choose_options() -> None:
    report.with_options(prio=5)  # wrong: Unexpected keyword argument "prio"
    report.with_options(priority="high")  # wrong: incompatible type "str"; expected "int"
    report.with_options(on_parent_end="keep")  # wrong: incompatible type
    urgent: SubmitOptions = {"prio": 5}  # wrong: Extra key "prio"
    App(quotas={"model": {"most": 3}})  # wrong: Extra key "most"
    Worker(app, concurency=3)  # wrong: Unexpected keyword argument "concurency"
    app.task(retry=3)  # wrong: Unexpected keyword argument "retry"
    app.schedule(evry="1h")  # wrong: Unexpected keyword argument "evry"
    app.schedule(every="1h", overlap="maybe")  # wrong: Argument "overlap" to "schedule"
    await app.schedules.create("hourly", report, every=3)  # wrong: incompatible type "int"


async def name_types(ctx: Context) -> None:
    a: int = await ctx.step("load", lambda: json.loads("3"), returns=str)  # wrong: incompatible type
    b: str = await ctx.transaction_step("charge", charge, 5, returns=int)  # wrong: incompatible type
    c: str = await (await ctx.submit("other", returns=list[str])).result()  # wrong: has type "list[str]"
    d: str = await app.execution("…", returns=int).result()  # wrong: has type "int", variable has type "str"
    e: str = await guessed(ctx, "tides")  # wrong: has type "list[str]", variable has type "str"


async def use_results(ctx: Context, execution: Execution[list[str]]) -> None:
    x: int = await (await report.submit("tides")).result()  # wrong: has type "list[str]", variable has type "int"
    y: str = await search(ctx, "tides")  # wrong: has type "dict[str, int]", variable has type "str"
    z: str = await ctx.step("count", count, "tides")  # wrong: incompatible type
    w: str = (await ctx.approval("x")).approved  # wrong: has type "bool", variable has type "str"
    pages: list[str] = execution.result()  # wrong: Maybe you forgot to use "await"
    length = len(execution.result())  # wrong: incompatible type
    handle: Execution[float] = plain.submit(3)  # wrong: Maybe you forgot to use "await"
    half: str = await (await ctx.submit(plain, 3)).result()  # wrong: has type "float", variable has type "str"
    text: str = (await ctx.wait_for_signal("go")).name  # wrong: Item "None" of "Signal | None" has no attribute "name"


def use_sync_results(ctx: SyncContext, sync: SyncApp) -> None:
    sync(report).submit(3)  # wrong: incompatible type "int"; expected "str"
    sync(report).submt("tides")  # wrong: has no attribute "submt"
    sync(report).with_options(prio=5)  # wrong: Unexpected keyword argument "prio"
    sync("report")  # wrong: No overload variant
    sync.submt("report")  # wrong: has no attribute "submt"
    a: int = sync(report).submit("tides").result()  # wrong: has type "list[str]", variable has type "int"
    b: Execution[float] = sync(plain).submit(3)  # wrong: has type "SyncExecution[float]", variable has type
    c: str = ctx.step("count", count, "tides")  # wrong: has type "int", variable has type "str"
    d: str = ctx.approval("x").approved  # wrong: has type "bool", variable has type "str"
    e: str = ctx.submit(plain, 3).result()  # wrong: has type "float", variable has type "str"
    f: str = search(ctx, "tides")  # wrong: has type "dict[str, int]", variable has type "str"
    g: str = ctx.transaction_step("charge", charge_in_sync_code, 5)  # wrong: has type "int", variable has type "str"
    ctx.any_of(ctx.sleep("1h"))  # wrong: No overload variant
    ctx.slep("1h")  # wrong: has no attribute "slep"
    ctx.submit(plain, "three")  # wrong: No overload variant
    app.sync().submit("plain").approve("publish")  # wrong: Missing named argument "by"


async def submit_with_async_drivers(pg: psycopg.AsyncConnection, session: AsyncSession, conn: AsyncConnection) -> None:
    await report.submit_in(pg, 3)  # wrong: No overload variant
    await report.submit_in(session)  # wrong: No overload variant
    await report.submit_in(conn, "tides", colour=1)  # wrong: No overload variant
    a: Execution[list[str]] = report.submit_in(session, "tides")  # wrong: Maybe you forgot to use "await"
    b: SyncExecution[list[str]] = await report.submit_in(session, "tides")  # wrong: has type "Execution[list[str]]"
    c: int = await (await report.submit_in(conn, "tides")).result()  # wrong: has type "list[str]", variable has type


def submit_with_sync_drivers(pg: psycopg.Connection, session: Session, conn: Connection) -> None:
    report.submit_in(pg, 3)  # wrong: No overload variant
    report.submit_in(session)  # wrong: No overload variant
    report.submit_in("postgresql://localhost", "tides")  # wrong: No overload variant
    report.submit_in(sqlite3.connect(":memory:"), "tides")  # wrong: No overload variant
    a: Execution[list[str]] = report.submit_in(session, "tides")  # wrong: has type "SyncExecution[list[str]]"
    b: int = report.submit_in(conn, "tides").result()  # wrong: has type "list[str]", variable has type "int"
    plain.submit_many_in(session, 3)  # wrong: No overload variant


async def write_handlers(ctx: Context) -> None:
    await search(ctx, 3)  # wrong: No overload variant
    await ctx.report_usage("team-a", tokens="many")  # wrong: incompatible type "str"; expected "int"
    await metered(ctx, "team-a", count)(3)  # wrong: incompatible type "int"; expected "str"
    await ctx.submit(plain, "three")  # wrong: No overload variant
    await ctx.transaction_step("charge", charge_in_sync_code, 5)  # wrong: expected "Callable[..., Awaitable[
    charged: str = await ctx.transaction_step("charge", charge, 5)  # wrong: incompatible type
    await ctx.sleep(hours=1)  # wrong: Unexpected keyword argument "hours"
    await ctx.approval("publish", of="text")  # wrong: Unexpected keyword argument "of"
    await ctx.any_of(ctx.sleep("1h"), count("tides"))  # wrong: No overload variant


async def show_output(ctx: Context) -> None:
    with ctx.stream("answer"):  # wrong: has no attribute "__enter__"
        pass
    async with ctx.stream("answer") as out:
        await out.write({"a": 1})  # wrong: incompatible type "dict[str, int]"
        await out.wirte("a")  # wrong: has no attribute "wirte"
    await ctx.stream()  # wrong: Missing positional argument "name"
    await ctx.progress("half")  # wrong: incompatible type "str"; expected "float"
    await ctx.append_frame("call", {}, ttl=3)  # wrong: incompatible type "int"


def show_output_in_sync_code(ctx: SyncContext) -> None:
    with ctx.stream("answer") as out:
        out.write(3)  # wrong: incompatible type "int"
    ctx.progress("half")  # wrong: incompatible type "str"; expected "float"


async def follow(execution: Execution[str], sync: SyncExecution[str]) -> None:
    async for frame in execution.frames():
        print(frame.payload)  # wrong: Item "Superseded" of "Frame | Superseded | Trimmed" has no attribute "payload"
    for each in execution.frames():  # wrong: has no attribute "__iter__"
        print(each)
    execution.frames(attempts="last")  # wrong: Argument "attempts"
    print((await execution.progress()).percent)  # wrong: has no attribute "percent"
    print((await execution.summary()).document)  # wrong: has no attribute "document"
    a: str = sync.progress()  # wrong: variable has type "str"


async def operate_from_the_app(sync: SyncApp) -> None:
    await app.budgets.create("a", hard_limits={"tokens": "many"})  # wrong: "str": "str"; expected "str": "int"
    await app.budgets.crate("a")  # wrong: has no attribute "crate"
    await app.lanes.pause("research")  # wrong: Missing named argument "by"
    await app.executions.list(state="failed")  # wrong: Unexpected keyword argument "state"
    await app.executions.override("…", "done", reason="x", by="ops")  # wrong: expected "Literal['success', 'failed']"
    print((await app.executions.list()).executions)  # wrong: has no attribute "executions"
    print(app.executions.list().items)  # wrong: Maybe you forgot to use "await"
    sync.lanes.pause("research")  # wrong: Missing named argument "by"
    sync.budgets.create(3)  # wrong: incompatible type "int"; expected "str"
    a: str = sync.executions.list()  # wrong: variable has type "str"


class Half:
    """No codec: it cannot decode."""

    name = "half"

    def encode(self, payload: bytes, owner: str) -> bytes:
        return payload


async def choose_codecs_and_versions(ctx: Context) -> None:
    App(codec=Half())  # wrong: incompatible type "Half"
    App(codec="aes")  # wrong: incompatible type "str"
    AesGcm(b"key")  # wrong: Missing positional argument "key"
    app.task(version="2")  # wrong: No overload variant
    app.task(retired=3)  # wrong: No overload variant
    await ctx.step("count", count, "tides", was=3)  # wrong: No overload variant
    await ctx.step("count", count, "tides", returns="int")  # wrong: No overload variant
    a: int = await (await greet_now.submit("Ada")).result()  # wrong: has type "str", variable has type "int"


async def submit_a_flow_in_a_transaction(session: Session, later: AsyncSession) -> None:
    flow = app.flow("report")
    await flow.submit(session)  # wrong: Too many arguments
    flow.submit_in("postgresql://localhost")  # wrong: No overload variant
    a: FlowHandle = flow.submit_in(session)  # wrong: has type "SyncFlowHandle", variable has type "FlowHandle"
    b: FlowHandle = flow.submit_in(later)  # wrong: Maybe you forgot to use "await"


async def build_a_flow() -> None:
    flow = app.flow("report")
    half = flow.add(plain, 3)
    flow.add("plain", 3)  # wrong: incompatible type "str"
    handle = await flow.submit()
    text: str = await handle[half].result()  # wrong: has type "float", variable has type "str"
    handle["plain"]  # wrong: Invalid index type "str"


async def operate(conn: asyncpg.Connection, execution: Execution[str]) -> None:
    await lanes.pause_lane(conn, "research")  # wrong: Missing named argument "by"
    await executions.submit(conn, "report")  # wrong: incompatible type "str"; expected "Submission"
    Submission(options=Options(name="report"))  # wrong: Unexpected keyword argument "name"
    EventFilter(kind="execution_failed")  # wrong: Unexpected keyword argument "kind"
    await execution.approve("publish")  # wrong: Missing named argument "by"
    print(PublicState.DONE)  # wrong: has no attribute "DONE"


async def check_a_task(engine: Engine, clock: Clock) -> None:
    await engine.run_now(plain, "three")  # wrong: incompatible type "str"; expected "int"
    await clock.advance(2)  # wrong: incompatible type "int"
