"""A user's open transaction delays only the executions it has locked, not the other reports of the worker."""

import asyncio

from flowfabric import Context
from flowfabric.app import App
from flowfabric.engine import quotas
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
            assert await (await free.submit()).result(5) == "done"


async def test_a_locked_quota_does_not_stop_other_executions_behind_a_pooler(
    database_url: str, given: Given, connect: Connect
) -> None:
    """There, no session keeps its limit for locks."""
    await quotas.create_quota(given.conn, "few", max_concurrent=10)
    app = App(url=database_url, pooler=True)

    @app.task(quotas=["few"])
    async def limited() -> None: ...

    @app.task
    async def free() -> str:
        return "done"

    other = await connect()
    async with working(app), other.transaction():
        await other.execute("select from flowfabric.quotas for update")
        await limited.submit()
        await given.until_blocked()
        assert await (await free.submit()).result(5) == "done"
