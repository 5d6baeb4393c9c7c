"""A user's open transaction delays only the executions it has locked, not the other reports of the worker."""

import asyncio

import pytest

from flowfabric import App, Context
from flowfabric.engine import budgets, quotas
from tests.conftest import Connect
from tests.engine.budgets.scene import make
from tests.given import Given
from tests.worker.scene import Gate, until, working


async def test_locked_flows_do_not_delay_the_completions_of_other_executions(
    database_url: str, given: Given, connect: Connect
) -> None:
    app, gates = App(url=database_url), [asyncio.Event() for _ in range(5)]

    @app.task
    async def held(number: int) -> None:
        await gates[number].wait()

    @app.task
    async def free(number: int) -> int:
        return number

    other = await connect()
    async with working(app, concurrency=30):
        flow = app.flow("report")
        for number in range(5):
            flow.add(held, number)
        locked = await flow.submit()
        await until(lambda: _active(given, 5))
        async with other.transaction():
            await other.execute("select from flowfabric.flows for update")
            for number, gate in enumerate(gates):  # one after the other, so that the reports do not share a batch
                gate.set()
                assert await (await free.submit(number)).result(20) == number
            assert (await locked.describe()).state == "running"
        assert await locked.wait(20) == "completed"


async def _active(given: Given, many: int) -> bool:
    return len(await given.rows("select from flowfabric.tickets where phase = 'active'")) == many


async def test_reservations_of_a_locked_budget_do_not_take_the_connections_of_other_runs(
    database_url: str, given: Given, connect: Connect
) -> None:
    """There are more of them than the process has connections."""
    app = App(url=database_url, budgets={"team": {"tokens": 100}})

    @app.task
    async def costly(ctx: Context) -> None:
        async with ctx.reserve("team", tokens=1) as reserved:
            await reserved.settle(tokens=1)

    @app.task
    async def free(number: int) -> int:
        return number

    other = await connect()
    async with working(app, concurrency=30):
        async with other.transaction():
            await budgets.change_budget(other, "team", soft_limits={"tokens": 90}, by="ops")
            waiting = [await costly.submit() for _ in range(10)]
            await given.until_blocked()
            async with asyncio.timeout(9):  # less than the time limit of a call
                for number in range(5):
                    assert await (await free.submit(number)).result() == number
            assert {await given.state(execution.execution_id) for execution in waiting} == {"active"}
        await asyncio.gather(*(execution.result(20) for execution in waiting))


@pytest.mark.parametrize("pooler", [False, True])
async def test_a_quota_that_a_user_has_locked_keeps_no_other_work_from_being_claimed(
    database_url: str, given: Given, connect: Connect, pooler: bool
) -> None:
    """Behind a pooler, no session keeps its limit for locks."""
    app, other = App(url=database_url, pooler=pooler), await connect()
    await quotas.create_quota(given.conn, "gpu", max_concurrent=5)

    @app.task(quotas=["gpu"])
    async def limited() -> None: ...

    @app.task
    async def free() -> None: ...

    async with working(app):
        async with other.transaction():
            await quotas.change_quota(other, "gpu", max_concurrent=6, by="ops")
            waiting = await limited.submit()
            await (await free.submit()).result(20)
            assert await given.state(waiting.execution_id) == "waiting"
        await waiting.result(20)


async def test_reservations_of_a_locked_budget_that_handlers_release_do_not_stop_other_executions(
    app: App, given: Given, connect: Connect
) -> None:
    """More of them than the pool has connections."""
    await make(given.conn)
    gate = Gate()

    @app.task(retries=0)
    async def spends(ctx: Context) -> None:
        async with ctx.reserve("team-a", tokens=1):
            await gate()
            raise ValueError("nothing was spent")

    @app.task
    async def free() -> str:
        return "done"

    other = await connect()
    async with working(app, concurrency=20):
        await spends.submit_many([()] * 8)
        await until(lambda: gate.came == 8)
        async with other.transaction():
            await other.execute("select from flowfabric.budgets for update")
            gate.open.set()
            await given.until_blocked(2)
            async with asyncio.timeout(7):  # less than the time limit of a call
                assert await (await free.submit()).result() == "done"
