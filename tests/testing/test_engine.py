"""The testing kit, used as in the tests of an application."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric import App, Context, Execution, ExecutionFailed, PermanentError, SyncApp, SyncContext
from flowfabric.engine import lanes
from flowfabric.errors import InvalidLane, WaitpointNotFound
from flowfabric.testing import Clock
from flowfabric.testing.engine import Engine, StillWaiting
from flowfabric.testing.sync import SyncClock, SyncEngine

app = App(url="postgresql://nobody@nowhere.invalid/nothing")
tries: list[int] = []
AppWorker = Callable[..., Awaitable[App]]
RunNow = Callable[..., Awaitable[Any]]


@pytest.fixture(autouse=True)
def forget() -> None:
    tries.clear()


@app.task
async def double(n: int) -> int:
    return n * 2


@app.task(retries=2, backoff="1h")
def flaky(ctx: SyncContext, works_at: int) -> int:
    tries.append(ctx.attempt)
    if ctx.attempt < works_at:
        raise ConnectionError("down")
    return len(tries)


@app.task
async def drip(ctx: Context) -> list[datetime]:
    moments = []
    for _ in range(3):
        await ctx.sleep("1d")
        moments.append(await ctx.now())
    return moments


@app.task
async def publish(ctx: Context, title: str) -> str:
    verdict = await ctx.approval("publish", subject=title, timeout="30d")
    if verdict.timed_out:
        return "nobody answered"
    return f"{'published' if verdict.approved else 'withdrawn'} by {verdict.by[0]}: {verdict.note}"


@app.task
async def paid(ctx: Context) -> object:
    signal = await ctx.wait_for_signal("paid", timeout="2d")
    return None if signal is None else (signal.payload or b"").decode()


@app.task
async def nap(ctx: Context, days: int) -> int:
    await ctx.sleep(f"{days}d")
    return days


@app.task
async def family(ctx: Context) -> list[int]:
    children = [await ctx.submit(nap, days) for days in (1, 3)]
    return await ctx.all_of(*(child.result() for child in children))


@app.task(timeout="10m")
async def hang(ctx: Context) -> None:
    tries.append(ctx.attempt)
    await asyncio.Event().wait()


async def test_a_task_runs_immediately_and_returns_its_result(run_now: RunNow) -> None:
    assert await run_now(double, 21) == 42
    assert await run_now(double.with_options(priority=7, delay="1d"), n=4) == 8


async def test_backoffs_take_no_time(run_now: RunNow, clock: Clock) -> None:
    began = await clock.now()

    assert await run_now(flaky, 3) == 3
    assert tries == [1, 2, 3]
    assert await clock.now() - began >= timedelta(hours=1)


async def test_a_task_that_fails_permanently_raises_its_failure(run_now: RunNow) -> None:
    with pytest.raises(ExecutionFailed, match="ConnectionError: down") as failed:
        await run_now(flaky, 4)
    assert tries == [1, 2, 3]
    assert "in flaky" in failed.value.__notes__[0]


async def test_a_task_that_waits_for_a_person_is_not_run_to_its_timeout(run_now: RunNow, clock: Clock) -> None:
    began = await clock.now()

    with pytest.raises(StillWaiting, match=r"publish.* engine\.approve"):
        await run_now(publish, "tides")
    assert await clock.now() - began < timedelta(minutes=1)


async def test_the_clock_advances_from_one_due_moment_to_the_next(app_worker: AppWorker, clock: Clock) -> None:
    await app_worker(app)
    execution = await drip.submit()
    began = await clock.now()

    assert await clock.advance("60h") >= began + timedelta(hours=60)
    assert await execution.state() == "delayed"
    await clock.advance(began + timedelta(days=30))
    days = [round((moment - began) / timedelta(days=1), 2) for moment in await execution.result(20)]
    assert days == [1, 2, 3]


async def test_children_are_run_to_their_end_too(run_now: RunNow, clock: Clock) -> None:
    began = await clock.now()

    assert await run_now(family) == [1, 3]
    assert timedelta(days=3) <= await clock.now() - began < timedelta(days=4)


async def test_schedules_tick_as_the_clock_advances(app_worker: AppWorker, clock: Clock) -> None:
    ticked: list[datetime] = []
    local = App()

    @local.schedule(every="1d")
    @local.task
    async def daily(ctx: Context) -> None:
        ticked.append(await ctx.now())

    await app_worker(local)
    await clock.advance("60h")
    assert len(ticked) == 2
    assert timedelta(hours=23) < ticked[1] - ticked[0] < timedelta(hours=25)


async def test_an_approval_times_out_after_thirty_days(app_worker: AppWorker, clock: Clock) -> None:
    await app_worker(app)
    execution = await publish.submit("tides")

    await clock.advance("29d")
    assert await execution.state() == "suspended"
    await clock.advance("60d")
    assert await execution.result(20) == "nobody answered"


async def test_an_approval_is_decided_on_its_subject(app_worker: AppWorker, engine: Engine) -> None:
    await app_worker(app)
    yes, no, own = [await publish.submit(title) for title in ("tides", "ebb", "flow")]

    await engine.approve(yes, by="ann", note="fine")
    await engine.reject(no, "publish", note="no")
    assert [await yes.result(20), await no.result(20)] == ["published by ann: fine", "withdrawn by tester: no"]

    await own.approve("publish", by="bob", subject="flow")
    await engine.settle()
    assert await own.result(20) == "published by bob: None"


async def test_a_signal_is_sent_without_a_token(app_worker: AppWorker, engine: Engine, clock: Clock) -> None:
    await app_worker(app)
    execution, late = await paid.submit(), await paid.submit()

    await engine.signal(execution, "paid", {"amount": 3})
    assert await execution.result(20) == '{"amount":3}'
    await clock.advance("2d")
    assert await late.result(20) is None
    with pytest.raises(WaitpointNotFound, match="'paid'"):
        await engine.signal(late, "paid")


async def test_an_execution_without_an_approval_cannot_be_approved(app_worker: AppWorker, engine: Engine) -> None:
    await app_worker(app)
    execution = await paid.submit()

    with pytest.raises(WaitpointNotFound, match="does not wait for an approval: waits for signal paid"):
        await engine.approve(execution)
    assert await execution.state() == "suspended"


async def test_an_attempt_that_hangs_times_out(app_worker: AppWorker, clock: Clock) -> None:
    await app_worker(app)
    execution = await hang.submit()
    async for event in execution.events():
        if event.kind == "lease_acquired":
            break

    await clock.advance("9m", settle=False)
    assert await execution.state() == "active"
    await clock.advance("2m", settle=False)
    with pytest.raises(ExecutionFailed, match="attempt_timeout"):
        await execution.result(20)


async def test_a_run_may_be_unfinished_at_the_end_of_a_test(app_worker: AppWorker) -> None:
    await app_worker(app)
    execution = await hang.submit()
    async for event in execution.events():
        if event.kind == "lease_acquired":
            return


@pytest.fixture
async def asked(app_worker: AppWorker) -> Execution[str]:
    await app_worker(app)
    return await publish.submit("tides")


async def test_an_async_fixture_can_submit_an_execution_for_the_test(asked: Execution[str], engine: Engine) -> None:
    await engine.approve(asked, note="fine")

    assert await asked.result(20) == "published by tester: fine"


async def test_without_a_worker_nothing_runs(engine: Engine) -> None:
    assert await engine.open(app) is app
    execution = await double.submit(1)

    await engine.settle()
    assert await execution.state() == "waiting"
    assert await engine.run(lambda conn: lanes.pause_lane(conn, "default", by="ops")) == "paused"


async def test_the_settings_of_the_app_are_restored_after_each_test() -> None:
    assert app.config.url == "postgresql://nobody@nowhere.invalid/nothing"
    assert app.config.retention == timedelta(days=7)


async def test_a_worker_with_invalid_options_raises(app_worker: AppWorker) -> None:
    with pytest.raises(InvalidLane):
        await app_worker(app, lanes=["not a lane\n"])


async def test_an_app_that_is_open_elsewhere_is_refused(database_url: str, engine: Engine) -> None:
    async with App(url=database_url) as other:
        with pytest.raises(RuntimeError, match="is open on another database; pass it to the engine before"):
            await engine.open(other)


async def test_the_code_under_test_may_open_the_app(app_worker: AppWorker, engine: Engine) -> None:
    await app_worker(app, opens=False)

    def program() -> int:
        with app.sync() as sync:
            result: int = sync(double).submit(4).result(20)
            return result

    assert await asyncio.to_thread(program) == 8


async def test_the_clock_only_moves_forward(clock: Clock) -> None:
    with pytest.raises(ValueError, match=r"-1|zero|negative"):
        await clock.advance(timedelta(days=-1))
    with pytest.raises(ValueError, match=r"2020-01-01 .* is in the past"):
        await clock.advance(datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(ValueError, match="time zone"):
        await clock.advance(datetime(2120, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="'soon'"):
        await clock.advance("soon")


async def test_an_engine_is_closed_after_its_test_and_belongs_to_one_loop(flowfabric_url: str) -> None:
    engine = Engine(flowfabric_url)
    await engine.settle()
    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(engine.settle()))
    await engine.close()
    with pytest.raises(RuntimeError, match="is closed; use it only while the test runs"):
        await engine.settle()


def test_a_synchronous_test_has_the_same_fixtures(
    engine: SyncEngine,
    app_worker: Callable[..., SyncApp],
    clock: SyncClock,
    run_now: Callable[..., Any],
) -> None:
    assert run_now(flaky, 2) == 2
    sync = app_worker(app)
    yes, late = sync(publish).submit("tides"), sync.submit("publish", title="ebb")

    engine.approve(yes, by="ann", note="fine")
    assert yes.result(20) == "published by ann: fine"
    clock.advance("30d")
    assert late.result(20) == "nobody answered"
    assert [thread.name for thread in threading.enumerate()].count("heartbeat") == 1


def test_no_thread_and_no_setting_is_left_behind() -> None:
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(("heartbeat", "loop of"))] == []
    assert app.config.url == "postgresql://nobody@nowhere.invalid/nothing"


async def test_a_permanent_failure_is_not_retried(run_now: RunNow) -> None:
    local = App()

    @local.task(retries=5)
    async def hopeless() -> None:
        raise PermanentError("no such topic")

    with pytest.raises(ExecutionFailed, match="no such topic"):
        await run_now(hopeless)
