"""Transaction steps: writes to the user's tables, committed with the result of the step, or not at all."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import App, Context, ExecutionFailed, SyncConnection, SyncContext
from flowfabric.engine import claims, steps
from flowfabric.model import Step
from flowfabric.postgres.driver import Connection
from tests.app.scene import TIMEOUT, working
from tests.conftest import Connect
from tests.given import Given

INSERT = "insert into charges (amount) values ($1) returning id"


@pytest.fixture(autouse=True)
async def charges(given: Given) -> None:
    await given.conn.execute("create table charges (id bigint generated always as identity, amount int not null)")


async def charged(given: Given) -> list[int]:
    """The amounts that were charged."""
    return [row["amount"] for row in await given.rows("select amount from charges order by id")]


async def charge(conn: Connection, amount: int) -> dict[str, int]:
    return {"id": await conn.fetchval(INSERT, amount)}


async def test_the_writes_and_the_result_of_a_step_are_committed_once(app: App, given: Given) -> None:
    @app.task(retries=1, backoff="1ms")
    async def order(ctx: Context, amount: int) -> dict[str, int]:
        made = await ctx.transaction_step("charge", charge, amount)
        await ctx.transaction_step("charge", charge, amount + 1)
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return made

    async with working(app):
        execution = await order.submit(5)
        assert await execution.result(TIMEOUT) == {"id": 1}
    journal = await steps.read_journal(given.conn, execution.execution_id)
    assert [(entry.name, entry.occurrence, entry.result) for entry in journal] == [
        ("charge", 1, b'{"id":1}'),
        ("charge", 2, b'{"id":2}'),
    ]
    assert await charged(given) == [5, 6]


async def test_a_sync_handler_gets_a_sync_connection(app: App, given: Given) -> None:
    def charge(conn: SyncConnection, amount: int) -> list[Any]:
        charge_id = conn.fetchval(INSERT, amount)
        conn.executemany("insert into charges (amount) values ($1)", [[7], [8]])
        [row] = conn.fetch("select count(*) as many from charges")
        last = conn.fetchrow("select amount from charges where id = $1", charge_id)
        assert conn.execute("select 1") == "SELECT 1"
        assert last is not None
        return [row["many"], last["amount"], threading.current_thread().name]

    @app.task(retries=1, backoff="1ms")
    def order(ctx: SyncContext) -> list[Any]:
        answer = ctx.transaction_step("charge", charge, amount=5)
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return answer

    async with working(app):
        execution = await order.submit()
        assert await execution.result(TIMEOUT) == [3, 5, f"order {execution.execution_id}"]
    assert await charged(given) == [5, 7, 8]


@pytest.mark.parametrize("result", ["raises", "is no JSON", "is too large"])
async def test_a_function_that_fails_leaves_nothing_and_may_be_retried(app: App, given: Given, result: str) -> None:
    failing: dict[str, Callable[[], Any]] = {
        "raises": lambda: 1 // 0,
        "is no JSON": object,
        "is too large": lambda: "x" * 1_048_577,
    }

    async def charge_badly(conn: Connection) -> Any:
        await conn.fetchval(INSERT, 5)
        return failing[result]()

    @app.task
    async def order(ctx: Context) -> None:
        await ctx.transaction_step("charge", charge_badly, retries=2, backoff="1ms")

    async with working(app):
        execution = await order.submit()
        with pytest.raises(ExecutionFailed):
            await execution.result(TIMEOUT)
    tried = {"raises": 3, "is no JSON": 1, "is too large": 1}[result]
    assert await charged(given) == []
    assert await steps.read_journal(given.conn, execution.execution_id) == []
    assert await given.conn.fetchval(INSERT, 1) == tried + 1  # the sequence counts those that were rolled back


async def test_a_lease_that_is_lost_before_the_commit_rolls_everything_back(app: App, given: Given) -> None:
    runs: list[int] = []

    async def charge_and_lose(conn: Connection, ctx: Context) -> int:
        charge_id: int = await conn.fetchval(INSERT, 5)
        runs.append(charge_id)
        if len(runs) == 1:
            await claims.revoke(given.conn, ctx.execution_id, by="ops", reason="test")
        return charge_id

    @app.task
    async def order(ctx: Context) -> int:
        return await ctx.transaction_step("charge", charge_and_lose, ctx)

    async with working(app):
        assert await (await order.submit()).result(TIMEOUT) == 2
    assert (runs, await charged(given)) == ([1, 2], [5])


async def test_a_step_whose_commit_was_not_confirmed_counts_once(app: App, given: Given) -> None:
    async def charge_again(conn: Connection, ctx: Context) -> str:
        await conn.fetchval(INSERT, 5)
        step = Step(fence=ctx._claim.fence, name="charge", occurrence=1, result=b'"first"')
        await steps.save_step(given.conn, step)  # as the first run did, whose reply was lost
        return "second"

    @app.task
    async def order(ctx: Context) -> str:
        return await ctx.transaction_step("charge", charge_again, ctx)

    async with working(app):
        assert await (await order.submit()).result(TIMEOUT) == "first"
    assert await charged(given) == []


async def test_a_connection_that_is_cut_repeats_the_transaction(app: App, given: Given) -> None:
    runs: list[int] = []

    async def charge_and_cut(conn: Connection) -> int:
        runs.append(await conn.fetchval(INSERT, 5))
        if len(runs) == 1:
            await given.rows(f"select pg_terminate_backend({await conn.fetchval('select pg_backend_pid()')})")
        return runs[-1]

    @app.task
    async def order(ctx: Context) -> int:
        return await ctx.transaction_step("charge", charge_and_cut)

    async with working(app):
        assert await (await order.submit()).result(TIMEOUT) == 2
    assert (runs, await charged(given)) == ([1, 2], [5])


async def test_the_ticket_is_free_while_the_function_runs(app: App, given: Given, connect: Connect) -> None:
    other = await connect()

    async def charge_slowly(conn: Connection, ctx: Context) -> None:
        await conn.fetchval(INSERT, 5)
        async with other.transaction():
            await other.execute("select from flowfabric.tickets where id = $1 for update nowait", ctx.execution_id.uuid)

    @app.task
    async def order(ctx: Context) -> None:
        await ctx.transaction_step("charge", charge_slowly, ctx)

    async with working(app):
        await (await order.submit()).result(TIMEOUT)
    assert await charged(given) == [5]


async def test_many_at_once_leave_connections_for_other_calls(database_url: str, given: Given) -> None:
    app = App(url=database_url, pool_size=1, budgets={"team-a": {"tokens": 1_000}})

    @app.task(budgets=["team-a"], lane="shipping")
    async def ship() -> None: ...

    async def charge_and_report(conn: Connection, ctx: Context) -> None:
        await conn.fetchval(INSERT, 5)
        await ctx.report_usage("team-a", tokens=1)  # on a connection for calls
        await ship.submit_in(conn)

    @app.task
    async def order(ctx: Context) -> None:
        await ctx.transaction_step("charge", charge_and_report, ctx)

    async with working(app, lanes=["default"]):
        for execution in [await order.submit() for _ in range(5)]:
            await execution.result(TIMEOUT)
    assert await charged(given) == [5] * 5
    assert len(await given.claim(lanes=["shipping"], take=10)) == 5


async def test_misuse_is_refused_and_nothing_is_kept(app: App, given: Given) -> None:
    async def commits(conn: Connection) -> None:
        await conn.execute("commit")

    async def nests(conn: Connection, ctx: Context) -> None:
        await conn.fetchval(INSERT, 5)
        await ctx.step("inner", lambda: 1)

    def sync(conn: Connection) -> None: ...

    @app.task
    async def order(ctx: Context, what: str) -> None:
        match what:
            case "commits":
                await ctx.transaction_step("a", commits)
            case "nests":
                await ctx.transaction_step("a", nests, ctx)
            case "sync":
                await ctx.transaction_step("a", sync)  # type: ignore[arg-type]

    said = {"commits": "has ended its own transaction", "nests": "inside step", "sync": "needs an async function"}
    async with working(app):
        for what, message in said.items():
            with pytest.raises(ExecutionFailed, match=message):
                await (await order.submit(what)).result(TIMEOUT)
    assert await charged(given) == []
