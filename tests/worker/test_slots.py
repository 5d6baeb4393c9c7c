"""Slots: how many runs at once, how many claimed ahead, and which lanes and namespaces a worker serves."""

import asyncio
import threading
from functools import partial

import pytest
from msgspec.structs import replace

from flowfabric.app import App
from flowfabric.engine import executions
from flowfabric.handler.context import Context
from flowfabric.worker import Worker
from tests.conftest import SOAK
from tests.given import ENDED_ATTEMPTS, Given
from tests.worker.scene import Gate, gated, until, working


async def test_never_more_handlers_run_at_once_than_the_concurrency(database_url: str) -> None:
    app, gate = App(url=database_url), Gate()

    @app.task
    async def wait(number: int) -> int:
        await gate()
        return number

    async with working(app, concurrency=3):
        executions = await wait.submit_many([(number,) for number in range(20)])
        await until(lambda: gate.came == 3)
        gate.open.set()
        assert [await execution.result(20) for execution in executions] == list(range(20))

    assert gate.most_inside == 3


async def test_no_more_of_a_task_run_at_once_than_its_limit_and_other_tasks_run(
    database_url: str, given: Given
) -> None:
    app, gate = App(url=database_url), Gate()
    heavy = gated(app, gate, limit=2)

    @app.task
    async def light() -> str:
        return "done"

    async with working(app, concurrency=10):
        executions = await heavy.submit_many([()] * 7)
        await until(lambda: _delayed(given, 3))  # two run, two wait for a slot
        assert await (await light.submit()).result(20) == "done"
        gate.open.set()
        await given.time_passes(seconds=1)
        for execution in executions:
            await execution.result(20)

    assert gate.most_inside == 2
    assert {row["number"] for row in await given.rows(f"select number from {ENDED_ATTEMPTS}")} == {1}


async def test_a_run_that_times_out_before_its_turn_releases_its_slot(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()
    heavy = gated(app, gate, limit=1)

    @app.task
    async def light() -> str:
        return "done"

    async with working(app, concurrency=2):
        first = await heavy.submit()
        await until(lambda: gate.came == 1)
        asked = heavy.submission()
        options = replace(asked.options, policy={"attempt_timeout_ms": 200})
        await executions.submit(given.conn, replace(asked, options=options))
        await until(lambda: _active(given, 2))
        assert await (await light.submit()).result(20) == "done"
        gate.open.set()
        await first.result(20)

    assert gate.came == 1


def test_a_limit_is_one_or_more(database_url: str) -> None:
    app = App(url=database_url)

    with pytest.raises(ValueError, match=r"limit.* 0"):
        gated(app, Gate(), limit=0)


async def test_nothing_is_claimed_ahead_while_nothing_ends(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()
    wait = gated(app, gate)

    async with working(app, concurrency=2, prefetch=10):
        await wait.submit_many([()] * 9)
        await until(lambda: gate.came == 2)
        [row] = await given.rows("select count(*) from flowfabric.tickets where phase = 'active'")
        gate.open.set()

    assert row["count"] == 2


async def test_executions_claimed_ahead_that_do_not_start_are_released(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()

    @app.task
    async def work(slow: bool) -> None:
        if slow:
            await gate()

    async with working(app, concurrency=1, prefetch=10):
        await work.submit_many([(False,)] * 30)
        await until(lambda: _ended(given, 30))
        executions = await work.submit_many([(True,)] * 5)
        await until(lambda: _active(given, 1))
        gate.open.set()
        for execution in executions:
            await execution.result(20)

    assert {row["number"] for row in await given.rows(f"select number from {ENDED_ATTEMPTS}")} == {1}


async def test_a_suspended_run_releases_its_slot(database_url: str) -> None:
    app = App(url=database_url)

    @app.task
    async def sleep(ctx: Context) -> None:
        await ctx.sleep("1h")

    @app.task
    async def say(word: str) -> str:
        return word

    async with working(app, concurrency=1):
        sleeping = await sleep.submit()
        assert await (await say.submit("hello")).result(20) == "hello"
        await until(lambda: _is(sleeping.state(), "delayed"))


async def test_parked_executions_cost_a_worker_nothing(database_url: str, given: Given) -> None:
    count = 100_000 if SOAK else 1_000
    app = App(url=database_url)

    @app.task
    async def ask(ctx: Context) -> None:
        await ctx.wait_for_signal("answer")

    async with working(app, concurrency=2) as worker:
        await ask.submit()
        await until(lambda: _suspended(given, 1))
        await until(lambda: not worker.busy)  # the answer may still be on its way
        before = await _costs(given)
        for parked in range(1_000, count + 1, 1_000):
            await ask.submit_many([()] * 1_000)
            await until(partial(_suspended, given, parked + 1))
        await until(lambda: not worker.busy)
        after = await _costs(given)

    assert [now <= then for now, then in zip(after, before, strict=True)] == [True] * 3


async def test_a_worker_serves_the_lanes_of_its_tasks_and_has_the_capabilities_they_need() -> None:
    app = App(url="postgresql://nowhere/x")
    gated(app, Gate(), name="a", lane="mail")
    gated(app, Gate(), name="b", lane="pictures", needs={"gpu", "llm"})

    assert (Worker(app).lanes, Worker(app).capabilities) == (["mail", "pictures"], ["gpu", "llm"])
    chosen = Worker(app, lanes=["mail"], capabilities=[])
    assert (chosen.lanes, chosen.capabilities) == (["mail"], [])


async def test_a_worker_claims_nothing_from_other_lanes_or_namespaces_or_without_the_capability(
    database_url: str,
) -> None:
    app = App(url=database_url)

    @app.task(lane="mail")
    async def mail() -> None: ...

    @app.task(needs={"gpu"})
    async def picture() -> None: ...

    @app.task
    async def plain() -> None: ...

    async with working(app, lanes=["default"], capabilities=[], namespace="acme"):
        others = [await mail.submit(), await picture.with_options(namespace="acme").submit(), await plain.submit()]
        await (await plain.with_options(namespace="acme").submit()).result(20)

        assert [(await each.describe()).counts.attempts for each in others] == [0] * 3


async def test_routes_take_turns_from_claim_to_claim(database_url: str) -> None:
    app, order = App(url=database_url), list[str]()

    @app.task
    async def work(ctx: Context, tenant: str) -> None:
        order.append(tenant)

    async with app:
        for tenant in ("a", "b", "c"):
            await work.with_options(namespace=tenant).submit_many([(tenant,)] * 4)
    async with working(app, concurrency=1, prefetch=0):
        await until(lambda: len(order) == 12)

    assert [sorted(order[start : start + 3]) for start in (0, 3, 6, 9)] == [["a", "b", "c"]] * 4


async def _costs(given: Given) -> tuple[int, int, int]:
    """Threads and tasks of this process, and connections to this database."""
    [row] = await given.rows("select count(*) from pg_stat_activity where datname = current_database()")
    return threading.active_count(), len(asyncio.all_tasks()), max(row["count"], 9)


async def _ended(given: Given, count: int) -> bool:
    [row] = await given.rows("select count(*) from flowfabric.executions where outcome is not null")
    return bool(row["count"] == count)


async def _delayed(given: Given, count: int) -> bool:
    [row] = await given.rows("select count(*) from flowfabric.tickets where eligibility = 'not_eligible_until_time'")
    return bool(row["count"] == count)


async def _active(given: Given, count: int) -> bool:
    [row] = await given.rows("select count(*) from flowfabric.tickets where phase = 'active'")
    return bool(row["count"] == count)


async def _suspended(given: Given, count: int) -> bool:
    [row] = await given.rows("select count(*) from flowfabric.tickets where phase = 'suspended'")
    return bool(row["count"] == count)


async def _is(found: object, expected: object) -> bool:
    return bool(await found == expected)  # type: ignore[misc]
