"""The examples on the page of the Python API: a comment names what the lines below it are an example of."""

import asyncio
import logging
import os
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from flowfabric import (
    AesGcm,
    App,
    BudgetExhausted,
    Child,
    ChildFailed,
    Connection,
    Context,
    Execution,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionId,
    ExecutionSkipped,
    Flow,
    FlowFabricError,
    FlowHandle,
    Mapped,
    Node,
    PermanentError,
    SubmitOptions,
    Suspension,
    SyncChild,
    SyncConnection,
    SyncContext,
    SyncExecution,
    SyncFlow,
    SyncFlowHandle,
    SyncOutputStream,
    SyncReservation,
    SyncTask,
    Worker,
    log_execution,
    metered,
)
from flowfabric.engine import lanes
from flowfabric.engine.events import OLDEST
from flowfabric.model import EventFilter, Frame, PublicState, SignalToSend, Superseded

# App
app = App(
    budgets={"team-a": {"tokens": 1_000_000}},
    quotas={"model": {"max_concurrent": 20}},
    pool_size=10,
)


# App.asgi
http_api = app.asgi()  # for example web.mount("/flowfabric", http_api)


# AesGcm, AesGcm.encode, AesGcm.decode
sealed_app = App(codec=[AesGcm("2026-11", os.environ["PAYLOAD_KEY"]), AesGcm("2025-11", os.environ["OLD_KEY"])])


# Codec, Codec.name, Codec.encode, Codec.decode
class Zlib:
    name = "zlib"

    def encode(self, payload: bytes, owner: str) -> bytes:
        return zlib.compress(payload)

    def decode(self, stored: bytes, owner: str) -> bytes:
        return zlib.decompress(stored)


small_app = App(codec=Zlib())

# BudgetOptions
strict_app = App(budgets={"team-a": {"hard_limits": {"tokens": 1_000_000}, "reset_interval": "1d"}})

# QuotaOptions
slow_app = App(quotas={"search-api": {"max_requests_per_window": 100, "window_seconds": 60}})


# App.task
@app.task(lane="research", retries=3, timeout="10m", budgets=["team-a"])
async def report(ctx: Context, topic: str, pages: int = 1) -> list[str]:
    notes = await search(ctx, topic)
    return notes[:pages]


# App.step
@app.step(retries=2, backoff="1s")
async def search(topic: str) -> list[str]:
    return [topic]


# App.schedule
@app.schedule(cron="0 9 * * 1-5", tz="Europe/Berlin", arguments={"topic": "tides"})
@app.task(lane="research")
async def digest(topic: str) -> int:
    return len(topic)


@app.task
async def write(ctx: Context, notes: list[str]) -> str:
    return "\n".join(notes)


# SyncContext
@app.task
def send_invoice(ctx: SyncContext, customer: str) -> None:
    number = ctx.step("number", next_number)
    ctx.sleep("1d")


def next_number() -> int:
    return 1


# Connection
async def charge(conn: Connection, customer: str, amount: int) -> int:
    balance = await conn.fetchval(
        "update accounts set balance = balance - $2 where name = $1 returning balance", customer, amount
    )
    return int(balance)


# SyncConnection
def charge_in_sync_code(conn: SyncConnection, customer: str, amount: int) -> int:
    return int(
        conn.fetchval("update accounts set balance = balance - $2 where name = $1 returning balance", customer, amount)
    )


async def of_connections(conn: Connection) -> None:
    # Connection.execute
    await conn.execute("insert into orders (customer) values ($1)", "ada")
    # Connection.executemany
    await conn.executemany("insert into orders (customer) values ($1)", [["ada"], ["grace"]])
    # Connection.fetch
    orders = await conn.fetch("select id, customer from orders")
    # Connection.fetchrow
    order = await conn.fetchrow("select id, customer from orders where id = $1", 17)
    # Connection.fetchval
    count = await conn.fetchval("select count(*) from orders")


async def ask(question: str) -> str:
    return question


async def of_app(waitpoint_id: Any, token: str, execution_id: ExecutionId, deadline: datetime) -> None:
    # App.submit
    execution = await app.submit("report", {"lane": "research", "key": "tides"}, topic="tides")
    # App.execution
    execution = app.execution("019df237-3e80-8a31-800c-3f9b71e5d004")
    # App.flow
    flow = app.flow("report", key="tides-2027")
    # App.signal
    signal = SignalToSend(execution_id=execution_id, waitpoint_id=waitpoint_id, token=token, name="paid")
    await app.signal(signal)
    # App.schedules
    await app.schedules.create("nightly", report, {"topic": "tides"}, every="1d", jitter="10m", by="ops")
    # TimingOptions
    await app.schedules.create("daily", digest, {"topic": "tides"}, cron="0 9 * * *", catch_up="none", overlap="skip")
    await app.schedules.pause("nightly", by="ops", reason="maintenance")
    # App.budgets
    await app.budgets.create("customer-17", hard_limits={"tokens": 1_000_000}, reset_interval="30d")
    budget = await app.budgets.describe("customer-17")
    # App.quotas
    await app.quotas.create("model", max_concurrent=20)
    # App.lanes
    await app.lanes.pause("research", by="ops", reason="the model is down")
    # App.executions
    page = await app.executions.list(states=[PublicState.FAILED], task="report", limit=100)
    for failed in page.items:
        await app.executions.replay(failed.execution_id, by="ops")
    # App.flows
    description = await app.flows.describe("019df237-3e80-8a31-800c-3f9b71e5d004")
    # App.approvals
    await app.approvals.approve(execution_id, "publish", by="ada", note="looks good")
    # App.waitpoints
    for waiting in (await app.waitpoints.list_suspended(lane="research")).items:
        print(waiting.execution_id, waiting.waitpoint_keys)
    # App.events
    log_page = await app.events.read(OLDEST, EventFilter(kinds=["execution_failed"]))
    # App.workers
    for worker in (await app.workers.list()).items:
        print(worker.instance, worker.active_count)
    # App.signing_keys
    for signing_key in await app.signing_keys.list():
        print(signing_key.kid, signing_key.expires_at)
    # App.overview
    overview = await app.overview()
    # App.now
    left = deadline - await app.now()
    # App.sync
    with app.sync() as sync:
        pages = sync(report).submit("tides", pages=2).result()
    # App.database
    async with app.database.connection() as conn:
        await lanes.pause_lane(conn, "research", by="ops")
    # App.log
    async for event in await app.log.subscribe(filter=EventFilter(kinds=["execution_failed"])):
        print(event.execution_id)
    # App.wake
    async with app.database.transaction() as conn:
        await report.submit_in(conn, "tides")
    await app.wake("research")


async def of_what_an_app_returns(cursor: str) -> None:
    # Database, Database.connection
    async with app.database.connection() as conn:
        page = await lanes.list_lanes(conn)
    # Database.transaction
    async with app.database.transaction() as conn:
        await conn.execute("insert into orders (customer) values ($1)", "ada")
        await digest.submit_in(conn, "tides")
    # Database.run
    page = await app.database.run(lanes.list_lanes, repeat=True)
    # EventLog, EventLog.subscribe
    subscription = await app.log.subscribe(cursor, EventFilter(lane="research"))
    # Subscription
    subscription = await app.log.subscribe(cursor)
    async for event in subscription:
        print(event.kind, event.execution_id)
        cursor = subscription.cursor  # save it, and subscribe from it after a restart


def of_sync(ctx: SyncContext) -> None:
    # SyncApp, SyncApp.__call__
    with app.sync() as sync:
        execution = sync(report).submit("tides")
        print(execution.result(timeout="10m"))
    # SyncApp.open
    sync = app.sync().open()
    # SyncApp.close
    sync.close()
    # App.is_open
    if not app.is_open:
        sync = app.sync().open()
    # SyncTask
    task: SyncTask[[str, int], list[str]] = sync(report).with_options(key="tides")
    # SyncExecution
    found: SyncExecution[Any] = sync.execution("019df237-3e80-8a31-800c-3f9b71e5d004")
    print(found.explain().sentence)
    # SyncFlow
    flow: SyncFlow = sync.flow("report")
    pages = flow.add(report, "tides")
    # SyncFlowHandle
    handle: SyncFlowHandle = flow.submit()
    print(handle[pages].result())
    # SyncContext.unwaited
    first = ctx.any_of(ctx.unwaited.sleep("1h"), ctx.unwaited.wait_for_signal("paid"))
    # SyncChild
    child: SyncChild[list[str]] = ctx.submit(report, "tides")
    print(child.result())
    # SyncChild.unwaited
    both = ctx.all_of(child.unwaited.result(), ctx.submit(report, "ebb").unwaited.result())
    # SyncReservation
    reservation: SyncReservation = ctx.reserve("team-a", tokens=4_000)
    with reservation:
        reservation.settle(tokens=3_100)
    # SyncOutputStream
    out: SyncOutputStream = ctx.stream("answer")
    with out:
        out.write("The tide ")


async def of_task(conn: asyncpg.Connection) -> None:
    # Task, Task.submit
    execution = await report.submit("tides", pages=2)
    pages = await execution.result()
    # Task.name
    assert report.name == "report"
    # Task.__call__
    assert await digest("tides") == 5  # runs here, in a test for example: nothing is stored
    # Task.with_options
    execution = await report.with_options(key="tides", priority=50, delay="1h").submit("tides")
    # Task.submit_many
    executions = await report.submit_many([("tides",), {"topic": "winds", "pages": 2}])
    # Task.submit_in
    async with conn.transaction():
        await conn.execute("insert into orders (customer) values ($1)", "ada")
        await report.submit_in(conn, "tides")
    # Task.submit_many_in
    async with conn.transaction():
        await report.submit_many_in(conn, [("tides",), ("winds",)])
    # Task.submission
    submission = report.submission("tides", pages=2)
    # SubmitOptions
    urgent: SubmitOptions = {"priority": 100, "deadline": "1h"}
    await report.with_options(**urgent).submit("tides")


async def of_execution(execution: Execution[list[str]], token: str) -> None:
    # Execution, Execution.result
    execution = await report.submit("tides")
    pages = await execution.result(timeout="10m")
    # Execution.wait
    outcome = await execution.wait()
    # Execution.state
    if await execution.state() == "suspended":
        print("waits for an answer")
    # Execution.describe
    found = await execution.describe()
    print(found.lane, found.counts.attempts)
    # Execution.explain
    print((await execution.explain()).sentence)
    # Execution.cancel
    await execution.cancel("no longer needed", by="ada")
    # Execution.override
    await execution.override("success", {"paid": True}, reason="the bank confirmed it", by="ada")
    # Execution.replay
    await execution.replay(by="ops")
    # Execution.signal
    await execution.signal("paid", {"amount": 30}, token=token)
    # Execution.approve
    await execution.approve("publish", by="ada", subject={"amount": 30})
    # Execution.reject
    await execution.reject("publish", by="ada", note="too expensive")
    # Execution.events
    async for event in execution.events():
        print(event.at, event.kind)
    # Execution.steps
    async for step in execution.steps(results=True):
        print(step.name, step.state, step.size, step.result)
    # Execution.frames
    shown: list[Frame] = []
    async for frame in execution.frames(attempts="valid"):
        if isinstance(frame, Superseded):
            shown = [old for old in shown if frame.keeps(old)]
        elif isinstance(frame, Frame):
            shown.append(frame)
            print(frame.text or "", end="")
    # Execution.summary
    summary = await execution.summary()
    if summary is not None:
        print(summary.document, summary.version)
    # Execution.progress
    progress = await execution.progress()
    if progress is not None:
        print(f"{progress.percent:.0f} % {progress.message}")
    # ExecutionId
    text = str(execution.execution_id)  # to store; `app.execution(text)` returns the handle again


async def of_context(ctx: Context) -> None:
    # Context, Context.step
    answer = await ctx.step("ask", ask, "Is the tide rising?", retries=2)
    # Context.execution_id, Context.attempt, Context.tags
    print(ctx.execution_id, ctx.attempt, ctx.tags.get("billing.customer"))
    # Context.transaction_step
    charge_id = await ctx.transaction_step("charge", charge, "ada", 30)
    # Context.submit
    child = await ctx.submit(report.with_options(priority=50), "tides")
    pages = await child.result()
    # Context.sleep
    await ctx.sleep("2h")
    # Context.sleep_until
    await ctx.sleep_until(datetime(2027, 1, 1, tzinfo=UTC))
    # Context.wait_for_signal
    signal = await ctx.wait_for_signal("paid", timeout="3d")
    if signal is None:
        print("nobody paid in three days")
    # Context.suspend
    both = {"kind": "all_of", "members": [{"kind": "single", "waitpoint": key, "name": key} for key in ("a", "b")]}
    signals = await ctx.suspend("both", Suspension(condition=both, waitpoints=["a", "b"]))
    # Context.approval
    verdict = await ctx.approval("publish", subject={"amount": 30}, approvers=2, timeout="3d")
    # Context.any_of
    first = await ctx.any_of(ctx.wait_for_signal("paid"), ctx.sleep("3d"))
    if first.index == 0:
        print("paid")
    # Context.all_of
    children = [await ctx.submit(report, topic) for topic in ("tides", "winds")]
    results = await ctx.all_of(*(child.result() for child in children))
    # Context.map
    found = await ctx.map(report, ["tides", "winds"], max_running=50)
    # Mapped
    mapped: Mapped[list[str]] = ctx.map(report, ["tides", "winds"])
    print(await ctx.all_settled(mapped))
    # Context.all_settled
    outcomes = await ctx.all_settled(*(child.result() for child in children))
    failed = [outcome for outcome in outcomes if isinstance(outcome, ChildFailed)]
    # Context.report_usage
    usage = await ctx.report_usage("team-a", tokens=1_900)
    # Context.reserve
    async with ctx.reserve("team-a", tokens=4_000) as reservation:
        answer = await ask("Is the tide rising?")
        await reservation.settle(tokens=3_100)
    # Context.create_waitpoint
    waitpoint = await ctx.create_waitpoint("paid", expires_in="3d")
    await ctx.step("mail", send_mail, waitpoint.token)
    # Context.append_frame
    await ctx.append_frame("tool_call", {"tool": "search", "query": "tides"})
    # Context.stream
    async with ctx.stream("answer") as out:
        for token in ("The ", "tide ", "rises."):
            await out.write(token)
    # Context.progress
    await ctx.progress(40, "indexing")
    # Context.now
    today = (await ctx.now()).date()
    # Context.random
    if await ctx.random() < 0.1:
        print("a tenth of the executions")


def send_mail(token: str) -> None: ...


async def of_handlers(ctx: Context) -> None:
    # Step, Step.__call__
    notes = await search(ctx, "tides")
    # log_execution
    handler = logging.StreamHandler()
    handler.addFilter(log_execution)
    handler.setFormatter(logging.Formatter("%(levelname)s %(execution_id)s %(task)s %(attempt)s %(message)s"))
    logging.getLogger("shop").addHandler(handler)
    # metered
    answer = await ctx.step("ask", metered(ctx, "team-a", ask, tokens=4_000), "Is the tide rising?")
    # Child, Child.result
    child = await ctx.submit(report, "tides")
    pages = await child.result()
    # Waiting
    paid = ctx.wait_for_signal("paid")  # not awaited yet
    first = await ctx.any_of(paid, ctx.sleep("3d"))
    # First
    first = await ctx.any_of(ctx.wait_for_signal("paid"), ctx.sleep("3d"))
    print(first.index, first.value)
    # Verdict
    verdict = await ctx.approval("publish")
    if not verdict.approved:
        print("rejected by", *verdict.by, verdict.note)
    # Signal
    signal = await ctx.wait_for_signal("paid")
    if signal is not None and signal.payload is not None:
        print(signal.source_identity, signal.payload.decode())
    # Suspension
    paid_in_time = Suspension(
        condition={"kind": "single", "waitpoint": "paid", "name": "paid"},
        waitpoints=["paid"],
        timeout=timedelta(days=3),
    )
    # Usage
    usage = await ctx.report_usage("team-a", tokens=1_900)
    if usage.outcome == "soft_breach":
        print(usage.used, "used, the soft limit is", usage.soft_limit)
    # Reservation, Reservation.settle
    async with ctx.reserve("team-a", tokens=4_000) as reservation:
        answer = await ask("Is the tide rising?")
        await reservation.settle(tokens=3_100)
    # Reservation.release
    async with ctx.reserve("team-a", tokens=4_000) as reservation:
        await reservation.release()  # nothing was spent
    # OutputStream, OutputStream.write
    async with ctx.stream("answer") as out:
        await out.write("The tide ")
        await out.write("rises.")
    # OutputStream.flush
    out = ctx.stream("answer")
    await out.write("The tide rises.")
    await out.flush()


async def of_flows(
    flow: Flow, handle: FlowHandle, notes: Node[list[str]], more: Node[list[str]], collected: Node[dict[str, list[str]]]
) -> None:
    # Flow, Flow.add, Flow.submit
    flow = app.flow("report")
    notes = flow.add(report, "tides")
    page = flow.add(write, notes)  # waits for the notes, and is called with them
    handle = await flow.submit()
    # Flow.submit_in
    async with app.database.transaction() as conn:
        handle = await flow.submit_in(conn)
    # Flow.feed
    page = flow.feed(write, collected)  # which returns all arguments by name: {"notes": [...]}
    # Node, Node.after
    page = flow.add(write, notes).after(more)
    # Node.any_of
    page = flow.add(write, ["no notes"]).after(notes, more).any_of()
    # Node.quorum
    page = flow.add(write, ["no notes"]).after(notes, more).quorum(2)
    # FlowHandle, FlowHandle.wait
    handle = await flow.submit()
    state = await handle.wait(timeout="1h")
    # FlowHandle.__getitem__
    text = await handle[page].result()
    # FlowHandle.execution
    execution = handle.execution("write")
    # FlowHandle.state
    if await handle.state() == "failed":
        print("a member failed")
    # FlowHandle.describe
    found = await handle.describe()
    print(dict(found.counts))
    # FlowHandle.cancel
    await handle.cancel("wrong input", by="ops", policy="cancel_pending")


async def of_worker() -> None:
    # Worker, Worker.run
    async with app:
        await Worker(app, concurrency=20, lanes=["research"]).run()
    # Worker.stop
    async with app:
        worker = Worker(app)
        asyncio.get_running_loop().call_later(60, worker.stop)
        await worker.run()


async def of_errors(ctx: Context, execution: Execution[str], child: Child[str]) -> None:
    # FlowFabricError
    try:
        await execution.cancel(by="ada")
    except FlowFabricError as error:
        print(error.code, error.message, error.fields)
    # PermanentError
    if not await ctx.step("exists", customer_exists, "ada"):
        raise PermanentError("the customer does not exist")
    # ExecutionFailed
    try:
        await execution.result()
    except ExecutionFailed as error:
        print(error.failure and error.failure.reason)
    # ExecutionCancelled, ExecutionExpired, ExecutionSkipped
    try:
        await execution.result()
    except (ExecutionCancelled, ExecutionExpired, ExecutionSkipped) as error:
        print("did not complete:", error.code)
    # ChildFailed
    try:
        text = await child.result()
    except ChildFailed as error:
        text = f"no text: {error.state}"
    # BudgetExhausted
    try:
        await ctx.report_usage("team-a", tokens=1_900)
    except BudgetExhausted as error:
        print(error.fields["dimension"], error.fields["hard_limit"])


def customer_exists(name: str) -> bool:
    return True
