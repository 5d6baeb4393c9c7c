"""A process that runs a worker leases what it submits, and what its signals resume, in the same call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.proxy import Proxy, proxied
from flowfabric import App, Context
from flowfabric.app.lending import Loan
from flowfabric.app.tasks import Task
from flowfabric.errors import DatabaseUnavailable, Unavailable
from flowfabric.ids import ExecutionId
from flowfabric.worker import Worker
from tests.given import Given
from tests.worker.scene import Gate, at_work, gated, until, working

SHORT: dict[str, Any] = {"call_timeout": "300ms", "timeout": "2s"}


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(database_url) as opened:
        yield opened


def echoing(app: App, **options: Any) -> Task[[str], str]:
    @app.task(**options)
    async def echo(topic: str) -> str:
        return topic

    return echo


def approving(app: App, tokens: list[str]) -> Task[[], str]:
    """A task that waits for a signal to the waitpoint `paid`, whose token it puts into the list."""

    @app.task
    async def approve(ctx: Context) -> str:
        tokens.append((await ctx.create_waitpoint("paid")).token)
        signal = await ctx.wait_for_signal("paid")
        assert signal is not None
        return signal.source_identity

    return approve


@asynccontextmanager
async def idling(app: App, **options: Any) -> AsyncIterator[Worker]:
    """A worker that claims seldom because it finds nothing: while a claim is in flight, its slots are not lent."""
    async with working(app, **options) as worker:
        await until(lambda: worker._claiming == 0 and worker._pauses.length() > 0.2)
        yield worker


async def causes(given: Given, execution_id: ExecutionId) -> list[str]:
    """What was done to it in the transaction that gave it its last lease."""
    found = await given.rows(
        "select kind, xmin::text from flowfabric.events where execution = $1 order by id", execution_id.uuid
    )
    [leased_in] = [row["xmin"] for row in found if row["kind"] == "lease_acquired"][-1:]
    return [row["kind"] for row in found if row["xmin"] == leased_in]


AT_ONCE = ["execution_submitted", "lease_acquired"]


async def test_what_is_submitted_beside_a_worker_starts_without_a_claim_of_its_own(
    database_url: str, given: Given
) -> None:
    app = App(url=database_url)
    echo = echoing(app)

    async with idling(app):
        execution = await echo.submit("tides")
        assert await execution.result(20) == "tides"
    assert await causes(given, execution.execution_id) == AT_ONCE


async def test_only_what_the_worker_would_start_at_once_is_leased(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()
    wait, limited, elsewhere = gated(app, gate), gated(app, gate, name="one", limit=1), echoing(app, lane="other")

    async with idling(app, concurrency=3, lanes=["default"], drain="0s"):
        other = await elsewhere.submit("tides")
        leased = [await limited.submit(), await wait.submit()]
        until_now = [await causes(given, each.execution_id) for each in leased]
        second = await limited.submit()
        await until(lambda: is_active(given, second.execution_id))  # the worker claims it, as it claims everything
    assert until_now == [AT_ONCE, AT_ONCE]
    assert await causes(given, second.execution_id) == ["lease_acquired"]
    assert await given.events(other.execution_id) == ["execution_submitted"]


async def is_active(given: Given, execution_id: ExecutionId) -> bool:
    return bool((await given.ticket(execution_id))["phase"] == "active")


async def test_nothing_is_leased_after_the_worker_was_stopped(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()
    wait = gated(app, gate)

    async with app:
        async with at_work(app) as worker:
            worker.stop()
            stopping = await wait.submit()
        stopped = await wait.submit()

    for execution in (stopping, stopped):
        assert await given.events(execution.execution_id) == ["execution_submitted"]


async def test_what_is_leased_while_the_worker_stops_is_released(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    echo = echoing(app)

    async with app, at_work(app) as worker:
        execution_id = await given.submitted(task="echo", priority=1, lane="later")
        loan = await borrowed(worker, echo)
        slots = loan.ask()
        worker.stop()
        loan.claimed = await given.claim(instance=slots.instance, lanes=["later"], request=slots.request)
        loan.__exit__()

    assert await given.events(execution_id) == ["execution_submitted", "lease_acquired", "execution_delayed"]


async def test_what_is_leased_while_something_runs_alone_goes_to_other_workers(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()
    echo = gated(app, gate, name="echo")

    async with idling(app) as worker:
        execution_id = await given.submitted(task="echo", lane="later")
        loan = await borrowed(worker, echo)
        slots = loan.ask()
        loan.claimed = await given.claim(instance=slots.instance, lanes=["later"], request=slots.request)
        worker._isolation.wait(loan.claimed[0])  # as if another claim had brought one that runs alone
        loan.__exit__()
        await until(lambda: given.rows("select from flowfabric.tickets where phase = 'runnable'"))

    assert await given.events(execution_id) == ["execution_submitted", "lease_acquired", "execution_delayed"]
    assert gate.came == 0


async def borrowed(worker: Worker, task: Task[..., Any]) -> Loan:
    """A loan, between two claims of the worker."""
    loan = None
    while loan is None:
        await until(lambda: worker._lendable() > 0)
        loan = worker._lending.lend([task.options])
    return loan


async def test_slots_that_are_lent_are_neither_claimed_for_nor_lent_twice(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()
    wait = gated(app, gate)

    async with idling(app, concurrency=2, drain="0s") as worker:
        with await borrowed(worker, wait):
            await wait.submit_many([()] * 3)
            await until(lambda: gate.inside == 1)
            assert worker._lending.lend([wait.options]) is None
        await until(lambda: gate.inside == 2)


async def test_ten_times_as_many_as_slots_run_once_and_never_more_at_once(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    inside: list[int] = []
    most = 0

    @app.task
    async def work(number: int) -> int:
        nonlocal most
        inside.append(number)
        most = max(most, len(inside))
        await asyncio.sleep(0)
        inside.remove(number)
        return number

    async with idling(app, concurrency=5, prefetch=0):
        submitted = await asyncio.gather(*(work.submit(number) for number in range(50)))
        assert [await each.result(20) for each in submitted] == list(range(50))
    assert most <= 5
    assert (await given.events()).count("lease_acquired") == 50


async def test_a_handler_that_submits_has_it_leased_too(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    echo = echoing(app)

    @app.task
    async def outer() -> str:
        return str(await (await echo.submit("tides")).result())

    async with idling(app):
        execution = await outer.submit()
        assert await execution.result(20) == "tides"
    rows = await given.rows("select partition, id from flowfabric.executions where task = 'echo'")
    assert [await causes(given, ExecutionId(row["partition"], row["id"])) for row in rows] == [AT_ONCE]


async def test_a_submission_whose_reply_is_lost_runs_once_without_waiting_for_its_lease(
    proxy: Proxy, given: Given
) -> None:
    app = App(url=proxy.url, **SHORT)
    echo = echoing(app)

    async with idling(app, lease="1h"):
        proxy.lose(b"low tides")
        execution = await echo.submit("low tides")
        assert await execution.result(10) == "low tides"

    assert not proxy.is_losing
    assert (await given.events(execution.execution_id)).count("lease_acquired") == 1
    assert await causes(given, execution.execution_id) == AT_ONCE


async def test_a_lease_whose_submission_failed_runs_without_waiting_for_its_end(proxy: Proxy, given: Given) -> None:
    app = App(url=proxy.url, call_timeout="200ms", timeout="100ms")
    echo = echoing(app)

    async with idling(app, lease="1h"):
        proxy.lose(b"low tides")
        proxy.dead = True
        with pytest.raises(Unavailable):
            await echo.submit("low tides")
        proxy.dead = False
        await until(lambda: ended(given, 1))

    assert (await given.events()).count("lease_acquired") == 1


async def ended(given: Given, count: int) -> bool:
    return (await given.events()).count("execution_completed") == count


async def test_a_caller_that_gives_up_loses_no_lease(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    echo = echoing(app)

    async with idling(app, lease="1h"):
        calling = asyncio.create_task(echo.submit_many([("tides",)] * 20))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait([calling])
        await (await echo.submit("later")).result(20)
        submitted = (await given.events()).count("execution_submitted")
        await until(lambda: ended(given, submitted))
    assert (await given.events()).count("lease_acquired") == submitted


async def test_what_a_signal_resumes_beside_a_worker_starts_without_a_claim_of_its_own(
    database_url: str, given: Given
) -> None:
    app, tokens = App(url=database_url), list[str]()
    approve = approving(app, tokens)

    async with idling(app):
        execution = await approve.submit()
        await until(lambda: given.rows("select from flowfabric.tickets where phase = 'suspended'"))
        await execution.signal("paid", token=tokens[0], source="bank")
        assert await execution.result(20) == "bank"
    assert (await causes(given, execution.execution_id))[-1] == "lease_acquired"
    assert "signal_delivered" in await causes(given, execution.execution_id)


async def test_an_execution_whose_signal_got_no_reply_resumes_without_waiting_for_its_lease(
    proxy: Proxy, given: Given
) -> None:
    app, tokens = App(url=proxy.url, **SHORT), list[str]()
    approve = approving(app, tokens)

    async with idling(app, lease="1h"):
        execution = await approve.submit()
        await until(lambda: given.rows("select from flowfabric.tickets where phase = 'suspended'"))
        proxy.lose(b"low tides")
        with pytest.raises(DatabaseUnavailable):
            await execution.signal("paid", token=tokens[0], source="low tides")
        assert await execution.result(10) == "low tides"
    assert (await given.events(execution.execution_id)).count("lease_acquired") == 2


async def test_an_app_without_a_worker_leases_nothing(database_url: str, given: Given) -> None:
    app = App(url=database_url)
    echo = echoing(app)

    async with app:
        execution = await echo.submit("tides")
    assert await given.events(execution.execution_id) == ["execution_submitted"]
    assert await given.claim(lanes=["default"]) != []
