"""A user's open transaction, whatever it has done: all work that does not need the rows it has locked continues."""

import asyncio
from uuid import uuid4

import asyncpg

from flowfabric import App, Context
from flowfabric.app.tasks import Task
from flowfabric.config import Config
from flowfabric.errors import FlowFabricError
from flowfabric.sweeps import run_each, sweeps
from tests.conftest import Connect
from tests.engine.acts import Act, acts, operations, scene
from tests.engine.budgets.scene import make
from tests.given import Given, until
from tests.worker.scene import working

LIMIT = 9.0  # seconds: less than the time limit of a call, after which a caller that waited for a row gives up
BLOCKED = "select query, pg_blocking_pids(pid) as by from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"


async def test_work_continues_whatever_an_open_transaction_has_done(
    database_url: str, given: Given, connect: Connect
) -> None:
    app, it, user = App(url=database_url), await scene(given), await connect()
    await make(given.conn, "free")
    whole, part = tasks(app)
    everything = acts(it)

    assert {name for name, _ in everything} == operations()
    async with working(app, sweeps=True):
        for name, act in everything:
            await continues(app, whole, part, user, name, act, given)


async def continues(
    app: App, whole: Task[[], int], part: Task[[int], int], user: asyncpg.Connection, name: str, act: Act, given: Given
) -> None:
    transaction = user.transaction()
    await transaction.start()
    await act(user)
    try:
        async with asyncio.timeout(LIMIT):
            await everything_works(app, whole, part)
    except TimeoutError:
        waiting = [dict(row) for row in await given.rows(BLOCKED)]
        raise AssertionError(f"{name} in an open transaction stops other work: {waiting}") from None
    finally:
        await transaction.rollback()


def tasks(app: App) -> tuple[Task[[], int], Task[[int], int]]:
    @app.task
    async def part(number: int) -> int:
        return number

    @app.task
    async def whole(ctx: Context) -> int:
        async def one() -> int:
            return 1

        found = await ctx.step("one", one)
        await ctx.report_usage("free", tokens=0)
        async with ctx.reserve("free", tokens=1) as reserved:
            await reserved.settle(tokens=0)
        found += await (await ctx.submit(part, 1)).result()
        await ctx.approval("publish")
        return found

    return whole, part


async def everything_works(app: App, whole: Task[[], int], part: Task[[int], int]) -> None:
    """Steps, spending, children, approvals, flows, keys, tags, followers and sweeps."""
    log = await app.log.subscribe()
    flow = app.flow("report")
    flow.add(part, flow.add(part, 1))
    execution, submitted, _ = await asyncio.gather(
        whole.submit(), flow.submit(), part.with_options(key=str(uuid4()), tags={"colour": "red"}).submit(1)
    )

    async def approve() -> bool:
        try:
            await execution.approve("publish", by="ops")
        except FlowFabricError:
            return False  # it does not ask yet
        return True

    await until(approve)
    assert await execution.result() == 2
    assert await submitted.wait() == "completed"
    await anext(log)
    assert {run.error for run in await run_each(app.database, sweeps(Config()))} == {None}
