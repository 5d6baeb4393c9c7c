"""A migration whose locks others hold: it makes nobody wait for long, tries again, and says who holds them."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from flowfabric.config import Config
from flowfabric.errors import MigrationBlocked
from flowfabric.schema import migrate, waiting
from tests.conftest import Connect
from tests.given import Given, until

LAST = migrate.last_migration()
NEXT = migrate.Migration(LAST + 1, "next.sql", "alter table flowfabric.tickets add column next int")
BRIEFLY = timedelta(milliseconds=10)
TURN = "select from pg_locks where pid = $1 and locktype = 'advisory' and mode = 'ExclusiveLock' and granted"


@pytest.fixture(autouse=True)
def next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release with one more migration, which changes a table that every call uses."""
    known = migrate.migrations()
    monkeypatch.setattr(migrate, "migrations", lambda: [*known, NEXT])


@pytest.fixture
async def holder(connect: Connect) -> asyncpg.Connection:
    """A user's session with an open transaction that has read a table."""
    conn = await connect()
    await conn.execute("set application_name = 'reports'; begin; select from flowfabric.tickets")
    return conn


def holders(refused: MigrationBlocked) -> Any:
    return refused.fields["holders"]


async def test_calls_wait_for_a_blocked_migration_only_as_long_as_its_lock_timeout(
    given: Given, connect: Connect, holder: asyncpg.Connection
) -> None:
    await given.submitted()
    conn = await connect()
    migrating = asyncio.create_task(migrate.migrate(conn, Config()))
    await given.blocked(conn, migrating)

    async with asyncio.timeout(waiting.LOCK_TIMEOUT + 3):
        assert len(await given.claim()) == 1
    assert not migrating.done()

    await holder.execute("rollback")
    assert await migrating == [NEXT]


async def test_a_migration_that_ran_out_of_patience_says_who_holds_the_locks_and_changes_nothing(
    given: Given, connect: Connect, holder: asyncpg.Connection
) -> None:
    with pytest.raises(MigrationBlocked, match=r'application "reports".*pg_terminate_backend') as refused:
        await migrate.migrate(await connect(), Config(), patience=BRIEFLY)

    [found] = holders(refused.value)
    assert (found["pid"], found["state"]) == (holder.get_server_pid(), "idle in transaction")
    assert found["open_s"] >= 1
    assert (await migrate.read_state(given.conn)).last_migration == LAST


async def test_a_migration_waits_for_its_turn_while_another_one_tries(
    given: Given, connect: Connect, holder: asyncpg.Connection
) -> None:
    first, second = await connect(), await connect()
    trying = asyncio.create_task(migrate.migrate(first, Config()))
    await until(lambda: given.rows(TURN, first.get_server_pid()))  # until its transaction ends

    with pytest.raises(MigrationBlocked, match="another migration") as refused:
        await migrate.migrate(second, Config(), patience=BRIEFLY)
    [found] = holders(refused.value)
    assert (found["pid"], found["is_migration"]) == (first.get_server_pid(), True)

    await holder.execute("rollback")
    assert await trying == [NEXT]
    assert await migrate.migrate(second, Config()) == []


async def test_sessions_that_hold_no_lock_of_ours_are_not_named(connect: Connect, holder: asyncpg.Connection) -> None:
    other = await connect()
    await other.execute("create table mine (a int); begin; lock table mine; select pg_advisory_lock(1)")

    with pytest.raises(MigrationBlocked) as refused:
        await migrate.migrate(await connect(), Config(), patience=BRIEFLY)
    assert [found["pid"] for found in holders(refused.value)] == [holder.get_server_pid()]
