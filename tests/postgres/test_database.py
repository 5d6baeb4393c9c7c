"""The module that talks to Postgres: the results of calls, errors, lost connections and the pool."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from flowfabric.config import Config
from flowfabric.engine import events, executions, holds, lanes, waits
from flowfabric.errors import (
    BadSetting,
    Conflict,
    DatabaseUnavailable,
    ExecutionEnded,
    InvalidBody,
    InvalidText,
    LaneNotFound,
    PayloadTooLarge,
    PrivilegeMissing,
    RowLocked,
    SchemaBehind,
    ShuttingDown,
)
from flowfabric.model import LaneChange
from flowfabric.postgres import call, driver, embedded
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.waits.scene import Waiting, waiting
from tests.given import Given, submission


class Counted:
    """An operation that counts how often it started, and loses its connection the first time."""

    def __init__(self, other: Connection) -> None:
        self.other = other
        self.begun = 0

    async def __call__(self, conn: Connection) -> object:
        self.begun += 1
        if self.begun == 1:
            await terminate(self.other, conn)
        return await call.value(conn, "clock")


async def terminate(other: Connection, conn: Connection) -> None:
    [row] = await conn.fetch("select pg_backend_pid()")
    await other.fetch("select pg_terminate_backend($1)", row["pg_backend_pid"])


# Errors


async def test_an_error_raised_in_sql_is_raised_as_the_class_of_its_code(conn: Connection, given: Given) -> None:
    with pytest.raises(LaneNotFound, match=r"^lane_not_found: .*nowhere") as raised:
        await lanes.pause_lane(conn, "nowhere", by="ops")

    assert raised.value.fields == {}
    assert raised.value.__suppress_context__
    assert await given.count("events") == 0


async def test_an_error_has_its_fields(conn: Connection, given: Given) -> None:
    execution_id = await given.cancelled()

    with pytest.raises(ExecutionEnded) as raised:
        await holds.hold(conn, execution_id, by="ops", reason="too late")
    assert raised.value.fields == {"outcome": "cancelled"}


async def test_the_error_of_one_item_of_a_batch_has_the_same_class_and_fields(conn: Connection, given: Given) -> None:
    [refused] = await executions.submit_many(conn, [submission(payload=b"abc")], payload_limit=2)

    assert isinstance(refused, PayloadTooLarge)
    assert refused.fields == {"limit": 2}
    assert await given.count("executions") == 0


async def test_an_error_that_only_a_newer_release_knows_has_the_class_of_its_family(conn: Connection) -> None:
    await conn.execute("""create function flowfabric.refuse_newly() returns void language plpgsql as $$ begin
        raise exception 'not_on_a_sunday' using errcode = 'FF409', detail = 'come back tomorrow', hint = '{"day": 7}';
    end $$""")

    with pytest.raises(Conflict, match=r"^not_on_a_sunday: come back tomorrow$") as raised:
        await call.value(conn, "refuse_newly")
    assert (raised.value.code, raised.value.status, raised.value.fields) == ("not_on_a_sunday", 409, {"day": 7})


async def test_values_that_postgres_cannot_store_or_read_are_invalid(conn: Connection) -> None:
    with pytest.raises(InvalidText, match="0x00"):
        await call.value(conn, "pause_lane", name="a\0b", by="ops")
    with pytest.raises(InvalidBody, match="int32 range"):
        await call.rows(conn, "list_lanes", take=2**40)


async def test_a_call_on_a_database_without_the_schema_names_the_command_to_run(empty_url: str) -> None:
    async with Database(Config(), empty_url) as database, database.connection() as conn:
        with pytest.raises(SchemaBehind, match="ff migrate"):
            await call.value(conn, "clock")


async def test_a_missing_function_means_that_the_schema_is_behind(conn: Connection) -> None:
    with pytest.raises(SchemaBehind, match=r"flowfabric\.of_tomorrow\(\)"):
        await call.value(conn, "of_tomorrow")


async def test_a_role_without_the_privilege_learns_which_one_is_missing(conn: Connection) -> None:
    await conn.execute("create role ff_stranger")
    try:
        async with conn.transaction():
            await conn.execute("set local role ff_stranger")
            with pytest.raises(PrivilegeMissing, match="permission denied for schema flowfabric"):
                await call.value(conn, "clock")
    except asyncpg.InFailedSQLTransactionError:
        pass
    finally:
        await conn.execute("drop role ff_stranger")


async def test_an_error_in_the_callers_own_sql_keeps_its_class(database: Database, given: Given) -> None:
    async def order() -> None:
        async with database.transaction() as conn:
            await lanes.configure_lane(conn, "reports")
            await conn.execute("create table mine (id int unique)")
            await conn.execute("insert into mine values (1), (1)")

    with pytest.raises(asyncpg.UniqueViolationError):
        await order()
    with pytest.raises(asyncpg.UndefinedFunctionError):
        async with database.connection() as conn:
            await conn.fetch("select no_such_function()")
    with pytest.raises(FileNotFoundError):
        async with database.connection():
            raise FileNotFoundError
    assert await given.count("lanes") == 0


# Collisions


async def test_a_deadlock_ends_one_of_the_two_as_unavailable(connect: Connect) -> None:
    first, second = await connect(), await connect()
    for conn in (first, second):
        await conn.execute("set deadlock_timeout = '10ms'")
    for lane in ("a", "b"):
        await lanes.configure_lane(first, lane)

    async def pause(conn: asyncpg.Connection, one: str, other: str, met: asyncio.Barrier) -> LaneChange:
        async with conn.transaction():
            await lanes.pause_lane(conn, one, by="ops")
            await met.wait()
            return await lanes.pause_lane(conn, other, by="ops")

    met = asyncio.Barrier(2)
    ends = await asyncio.gather(pause(first, "a", "b", met), pause(second, "b", "a", met), return_exceptions=True)

    [lost] = [end for end in ends if isinstance(end, Exception)]
    assert isinstance(lost, DatabaseUnavailable)
    assert "deadlock detected" in lost.message
    assert LaneChange.PAUSED in ends


async def test_a_collision_outside_a_transaction_is_repeated_a_few_times(conn: Connection) -> None:
    await conn.execute("create sequence calls")
    await conn.execute("""create function flowfabric.collide(times int) returns bigint language plpgsql as $$
        declare calls bigint := nextval('calls');
        begin
            if calls <= times then raise exception 'could not serialize' using errcode = '40001'; end if;
            return calls;
        end $$""")

    assert await call.value(conn, "collide", times=2) == 3
    with pytest.raises(DatabaseUnavailable, match="could not serialize"):
        await call.value(conn, "collide", times=100)
    assert (await conn.fetch("select last_value from calls"))[0]["last_value"] == 6


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_our_sessions_read_what_they_have_waited_for_whatever_the_database_says(
    database_url: str, given: Given, isolation: str
) -> None:
    [row] = await given.rows("select current_database() as name")
    await given.conn.execute(f"alter database {row['name']} set default_transaction_isolation to '{isolation}'")
    async with Database(Config(), database_url) as database:
        waiting = await waits_for_two(given)
        async with given.conn.transaction():
            await waits.deliver_signal(given.conn, waiting.signal())
            second = asyncio.create_task(database.run(lambda conn: waits.deliver_signal(conn, waiting.signal())))
            await given.until_blocked()
        assert (await second).effect == "resume_condition_satisfied"
        horizon, last = await database.run(events.watch_log)
        assert horizon == last


async def waits_for_two(given: Given) -> Waiting:
    return await waiting(given, {"kind": "count", "n": 2, "of": "distinct_signals", "waitpoints": ["w"]})


async def test_a_lock_timeout_and_a_read_only_server_are_unavailable(connect: Connect) -> None:
    conn, other = await connect(), await connect()
    await lanes.configure_lane(conn, "reports")
    async with other.transaction():
        await lanes.pause_lane(other, "reports", by="ops")
        await conn.execute("set lock_timeout = '1ms'")
        with pytest.raises(RowLocked):
            await lanes.pause_lane(conn, "reports", by="ops")

    await conn.execute("set default_transaction_read_only = on")
    with pytest.raises(DatabaseUnavailable, match="read-only transaction"):
        await lanes.resume_lane(conn, "reports", by="ops")


# Upgrades in between


async def test_the_caller_does_not_notice_a_function_that_changes_between_two_calls(connect: Connect) -> None:
    conn, other = await connect(), await connect()
    await other.execute("create function flowfabric.echo(a int) returns int language sql as 'select a'")
    assert await call.value(conn, "echo", a=1) == 1

    await other.execute("drop function flowfabric.echo")
    await other.execute("create function flowfabric.echo(a int, b int default 7) returns table (x int, y text) "
                        "language sql as $$select a, b::text$$")  # fmt: skip

    assert dict(await call.row(conn, "echo", a=1)) == {"x": 1, "y": "7"}


async def test_a_function_that_changes_inside_a_transaction_fails_the_transaction(connect: Connect) -> None:
    conn, other = await connect(), await connect()
    await other.execute("create function flowfabric.echo(a int) returns int language sql as 'select a'")
    transaction = conn.transaction()
    await transaction.start()
    assert await call.value(conn, "echo", a=1) == 1
    await other.execute("drop function flowfabric.echo")
    await other.execute("create function flowfabric.echo(a int) returns text language sql as 'select a::text'")
    await lanes.list_lanes(conn)  # Postgres notices the change when it reads a table

    with pytest.raises(DatabaseUnavailable, match="cached statement plan is invalid"):
        await call.value(conn, "echo", a=1)
    await transaction.rollback()

    assert await call.value(conn, "echo", a=1) == "1"


# Lost connections


async def test_a_lost_connection_is_unavailable(connect: Connect) -> None:
    conn, other = await connect(), await connect()
    await terminate(other, conn)

    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            await call.value(conn, "clock")


async def test_an_operation_that_is_not_safe_to_repeat_runs_once(database: Database, conn: Connection) -> None:
    operation = Counted(conn)

    with pytest.raises(DatabaseUnavailable):
        await database.run(operation)

    assert operation.begun == 1
    assert await database.run(operation) is not None


async def test_an_operation_that_is_safe_to_repeat_is_repeated(database: Database, conn: Connection) -> None:
    operation = Counted(conn)

    assert await database.run(operation, repeat=True) is not None

    assert operation.begun == 2


async def test_a_transaction_whose_connection_is_lost_is_unavailable_and_undone(
    database: Database, given: Given
) -> None:
    async def work() -> None:
        async with database.transaction() as conn:
            await lanes.configure_lane(conn, "reports")
            await terminate(given.conn, conn)  # so it is the commit that fails

    with pytest.raises(DatabaseUnavailable):
        await work()
    assert await given.count("lanes") == 0


async def test_a_call_that_is_safe_to_repeat_waits_for_a_server_that_restarts(tmp_path: Path) -> None:
    server = await asyncio.to_thread(embedded.start, tmp_path / "data", durable=False)
    try:
        async with Database(Config(timeout=timedelta(seconds=30)), server.url("postgres")) as database:

            async def now(conn: Connection) -> object:
                return await conn.fetch("select 1")

            await database.run(now)
            await asyncio.to_thread(server.stop)
            with pytest.raises(DatabaseUnavailable):
                await database.run(now)
            waiting = asyncio.create_task(database.run(now, repeat=True))
            server = await asyncio.to_thread(embedded.start, tmp_path / "data", durable=False)
            assert await waiting
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_call_fails_when_the_server_stays_away_past_the_timeout(tmp_path: Path) -> None:
    server = await asyncio.to_thread(embedded.start, tmp_path / "data", durable=False)
    async with Database(Config(timeout=timedelta(seconds=0.3)), server.url("postgres")) as database:
        await asyncio.to_thread(server.stop)
        before = asyncio.get_running_loop().time()
        with pytest.raises(DatabaseUnavailable, match="connect"):
            await database.run(lambda conn: call.value(conn, "clock"), repeat=True)

    assert 0.05 <= asyncio.get_running_loop().time() - before < 5


# The pool


async def test_a_caller_waits_for_a_connection_that_is_in_use(database_url: str) -> None:
    async with Database(Config(pool_size=1), database_url) as database:
        async with database.connection():
            waiting = asyncio.create_task(database.run(lambda conn: call.value(conn, "clock")))
            await asyncio.sleep(0)
            assert not waiting.done()
        assert await waiting is not None


async def test_a_pool_that_stays_empty_is_unavailable_and_names_the_setting(database_url: str) -> None:
    async with (
        Database(Config(pool_size=1, timeout=timedelta(seconds=1)), database_url) as database,
        database.connection(),
    ):
        with pytest.raises(DatabaseUnavailable, match=r" 1(\.0)? s .*FLOWFABRIC_POOL_SIZE"):
            await database.run(lambda conn: call.value(conn, "clock"))


async def test_a_transaction_of_a_user_waits_as_long_as_others_keep_their_connections(database_url: str) -> None:
    ends = asyncio.Event()

    async def until_told(conn: Connection) -> None:
        await ends.wait()

    async with Database(Config(pool_size=1, timeout=timedelta(milliseconds=300)), database_url) as database:
        both = [asyncio.create_task(database.run_transaction(until_told)) for _ in range(2)]
        done, _ = await asyncio.wait(both, timeout=1)
        ends.set()

        assert done == set()
        assert await asyncio.gather(*both) == [None, None]


async def test_background_work_and_calls_do_not_wait_for_each_others_connections(database_url: str) -> None:
    async with Database(Config(pool_size=1, timeout=timedelta(seconds=1)), database_url) as database:
        async with database.connection(), database.connection(aside=True):
            assert await database.run(lambda conn: call.value(conn, "clock"), aside=True) is not None
        async with database.connection(aside=True), database.connection(aside=True):
            assert await database.run(lambda conn: call.value(conn, "clock")) is not None
            with pytest.raises(DatabaseUnavailable, match=r"1(\.0)? s"):
                await database.run(lambda conn: call.value(conn, "clock"), aside=True)


async def test_a_cancelled_caller_releases_its_connection(database_url: str, given: Given) -> None:
    await call.builtin(given.conn, "pg_advisory_lock", key=7)
    async with Database(Config(pool_size=1), database_url) as database:

        async def wait_in_a_transaction() -> None:
            async with database.transaction() as waiting:
                await call.builtin(waiting, "pg_advisory_xact_lock", key=7)

        running = asyncio.create_task(wait_in_a_transaction())
        await given.until_blocked()
        queued = asyncio.create_task(database.run(lambda conn: call.value(conn, "clock")))
        await asyncio.sleep(0)
        for task in (queued, running):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async with database.connection() as free:
            assert not free.is_in_transaction()
            assert await call.value(free, "clock") is not None


async def test_a_transaction_left_open_is_not_passed_to_the_next_caller(database_url: str) -> None:
    async with Database(Config(pool_size=1), database_url) as database:
        async with database.connection() as conn:
            await conn.execute("begin")
            await lanes.configure_lane(conn, "reports")

        async with database.connection() as conn:
            assert not conn.is_in_transaction()
            assert (await lanes.list_lanes(conn)).items == []


async def test_a_read_only_connection_is_not_used_again(database_url: str) -> None:
    async def write(conn: Connection) -> LaneChange:
        return await lanes.configure_lane(conn, "reports")

    async with Database(Config(pool_size=1), database_url) as database:
        async with database.connection() as conn:
            await conn.execute("set default_transaction_read_only = on")  # as on a server that became a standby
        with pytest.raises(DatabaseUnavailable):
            await database.run(write)

        assert await database.run(write) == LaneChange.REGISTERED


async def test_a_closed_database_rejects_calls(database_url: str) -> None:
    database = Database(Config(pool_size=1), database_url)
    with pytest.raises(ShuttingDown):
        await database.run(lambda conn: call.value(conn, "clock"))
    async with database:
        async with database.connection():
            waiting = asyncio.create_task(database.run(lambda conn: call.value(conn, "clock")))
            await asyncio.sleep(0)
            closing = asyncio.create_task(database.__aexit__())
            await asyncio.sleep(0)
            with pytest.raises(ShuttingDown):
                await database.run(lambda conn: call.value(conn, "clock"), repeat=True)
        with pytest.raises(ShuttingDown):
            await waiting
        await closing


async def test_closing_ends_after_the_timeout(database_url: str) -> None:
    database = await Database(Config(timeout=timedelta(seconds=0.1)), database_url).__aenter__()
    async with database.connection() as conn:
        await database.__aexit__()
        with pytest.raises(DatabaseUnavailable):
            await call.value(conn, "clock")


@pytest.mark.parametrize("at", ["me:se/cret@h", "me:secret@[::1", "me:secret@h:port", "me:secret@127.0.0.1:99999"])
async def test_an_invalid_url_is_refused_without_showing_its_secret(at: str) -> None:
    with pytest.raises(BadSetting, match=r"FLOWFABRIC_URL ") as raised:
        await Database(Config(url=f"postgresql://{at}/x"), f"postgresql://{at}/x").__aenter__()

    assert "cret" not in str(raised.value)
    assert raised.value.__suppress_context__


async def test_a_missing_server_is_unavailable() -> None:
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1.*FLOWFABRIC_URL") as raised:
        await Database(Config(), "postgresql://me:secret@127.0.0.1:1/x").__aenter__()

    assert "secret" not in str(raised.value)


# The caller's connection


async def test_operations_work_on_a_connection_with_custom_codecs(conn: asyncpg.Connection, given: Given) -> None:
    for kind in ("jsonb", "json"):
        await conn.set_type_codec(kind, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    asked = submission(tags={"billing.customer": "ada"}, policy={"max_reclaim_count": 2}, needs=("gpu",), key="once")

    execution_id = (await executions.submit(conn, asked)).execution_id
    await executions.set_tag(conn, execution_id, "billing.plan", "gold")
    await holds.hold(conn, execution_id, by="ops", reason="to look at it")
    described = await executions.describe(conn, execution_id)
    assert described.tags == {"billing.customer": "ada", "billing.plan": "gold"}
    assert "ops" in (await executions.explain(conn, execution_id)).sentence
    await executions.cancel(conn, execution_id, reason="not wanted", by="ops")
    assert [one.execution_id for one in (await executions.list_executions(conn)).items] == [execution_id]
    with pytest.raises(ExecutionEnded) as raised:
        await holds.hold(conn, execution_id, by="ops", reason="too late")
    assert raised.value.fields == {"outcome": "cancelled"}


async def test_operations_join_the_transaction_of_the_caller(conn: asyncpg.Connection, given: Given) -> None:
    await conn.execute("create table orders (id int)")
    transaction = conn.transaction()
    await transaction.start()
    await conn.execute("insert into orders values (1)")
    await executions.submit(conn, submission())
    assert await given.count("executions") == 1

    await transaction.rollback()

    assert (await given.count("executions"), await given.count("events")) == (0, 0)
    assert await conn.fetchval("select count(*) from orders") == 0


@pytest.mark.parametrize("error", [kind("") for kind in driver.LOST], ids=lambda error: type(error).__name__)
async def test_the_loss_of_a_connection_always_has_a_reason(conn: asyncpg.Connection, error: Exception) -> None:
    """The socket's own errors often have no text; a log line ended in "the connection was lost: "."""
    found = driver.failed(conn, error)

    assert found is not None
    assert found.message.partition(": ")[2] == type(error).__name__
