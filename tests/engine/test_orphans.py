"""Orphans: if the connection of a worker process is lost, its leases end within a second, whatever their expiry."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from flowfabric.engine import attempts, claims, executions, workers
from flowfabric.errors import LeaseLost
from flowfabric.model import Claim, PublicState, Swept
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given

LONG = timedelta(hours=1)


async def start(conn: Connection, instance: str, *, holds_lock: bool = True) -> None:
    """Start a worker process: take the lock first, then register."""
    if holds_lock:
        await workers.hold_lock(conn, instance)
    await workers.register_worker(
        conn, "w", instance=instance, lanes=["default"], holds_lock=holds_lock, ttl=timedelta(minutes=10)
    )


async def sweep(given: Given) -> Swept:
    return await workers.return_orphans(given.conn)


async def is_gone(conn: asyncpg.Connection, given: Given) -> None:
    """End the process and wait until the server has noticed."""
    pid = conn.get_server_pid()
    await conn.close()
    while await given.rows("select from pg_stat_activity where pid = $1", pid):
        pass


Running = Callable[..., Awaitable[tuple[asyncpg.Connection, Claim]]]


@pytest.fixture
async def running(given: Given, connect: Connect) -> Running:
    """Start a worker of that name with a lease of one hour; the server has been up for a while."""
    await given.time_passes(minutes=1)

    async def begin(instance: str = "w-1", **options: object) -> tuple[asyncpg.Connection, Claim]:
        conn = await connect()
        await start(conn, instance)
        await given.submitted(lane=instance, **options)
        [claim] = await given.claim(lanes=[instance], worker="w", instance=instance, lease=LONG)
        return conn, claim

    return begin


async def test_the_leases_of_a_dead_process_end(given: Given, running: Running) -> None:
    conn, claim = await running()
    await running("w-2")
    assert (await sweep(given)).moved == 0
    await is_gone(conn, given)
    assert (await sweep(given)).moved == 0
    await given.time_passes(seconds=0.5)

    swept = await sweep(given)

    assert (swept.moved, swept.lanes, swept.ended) == (1, ["w-1"], ())
    with pytest.raises(LeaseLost) as refused:
        await claims.renew(given.conn, claim.fence)
    assert refused.value.fields == {"cause": "expired"}
    assert (await given.events())[-2:] == ["lease_expired", "worker_expired"]
    assert await given.event("worker_expired") == {"reason": "connection_lost"}
    [again] = await given.claim(lanes=["w-1"])
    assert (again.attempt.type, again.attempt.number) == ("reclaim", 2)
    assert (await given.ticket(claim.execution_id))["reclaims"] == 1
    assert [worker.instance for worker in (await workers.list_workers(given.conn)).items] == ["w-2"]
    assert (await sweep(given)).moved == 0


async def test_a_lost_process_counts_as_a_reclaim(given: Given, running: Running) -> None:
    conn, claim = await running(policy={"max_reclaim_count": 0})
    await is_gone(conn, given)
    await sweep(given)
    await given.time_passes(seconds=1)

    swept = await sweep(given)

    assert (swept.moved, swept.ended) == (1, [str(claim.execution_id)])
    described = await executions.describe(given.conn, claim.execution_id)
    assert described.state.public_state is PublicState.FAILED


async def test_a_process_that_reconnects_in_time_keeps_its_leases(
    given: Given, running: Running, connect: Connect
) -> None:
    conn, claim = await running()
    await is_gone(conn, given)
    await sweep(given)
    await given.time_passes(seconds=0.4)
    await workers.hold_lock(await connect(), "w-1")

    assert (await sweep(given)).moved == 0
    [row] = await given.rows("select lock_missing_since from flowfabric.workers")
    assert row["lock_missing_since"] is None
    await given.time_passes(minutes=1)
    assert (await sweep(given)).moved == 0
    await attempts.complete(given.conn, claim.fence)


async def test_the_time_without_a_lock_restarts_after_a_reconnection(
    given: Given, running: Running, connect: Connect
) -> None:
    conn, _ = await running()
    await is_gone(conn, given)
    await sweep(given)
    again = await connect()
    await workers.hold_lock(again, "w-1")
    await sweep(given)
    await given.time_passes(minutes=1)
    await is_gone(again, given)

    assert (await sweep(given)).moved == 0
    await given.time_passes(seconds=0.5)
    assert (await sweep(given)).moved == 1


async def test_no_instance_is_an_orphan_just_after_a_server_start(given: Given, running: Running) -> None:
    conn, _ = await running()
    await is_gone(conn, given)
    await sweep(given)
    [row] = await given.rows("select extract(epoch from flowfabric.clock() - pg_postmaster_start_time()) as up")
    await given.time_passes(seconds=-float(row["up"]) + 10)
    assert (await sweep(given)).moved == 0
    [entry] = await given.rows("select lock_missing_since from flowfabric.workers")
    assert entry["lock_missing_since"] is None

    await given.time_passes(seconds=5)
    assert (await sweep(given)).moved == 0
    await given.time_passes(seconds=0.5)
    assert (await sweep(given)).moved == 1


@pytest.mark.parametrize("holds_lock", [False, True])
async def test_a_process_that_never_held_its_lock_keeps_its_leases_until_they_expire(
    conn: Connection, given: Given, holds_lock: bool
) -> None:
    await given.time_passes(minutes=1)
    await workers.register_worker(conn, "w", instance="w-1", lanes=["default"], holds_lock=holds_lock)
    await given.submitted()
    [claim] = await given.claim(worker="w", instance="w-1", lease=LONG)

    async with given.nothing_changes():
        for _ in range(3):
            assert (await sweep(given)).moved == 0
            await given.time_passes(seconds=5)
    await claims.renew(conn, claim.fence)


async def test_registering_again_while_the_lock_is_missing_keeps_the_promise(
    conn: Connection, given: Given, running: Running
) -> None:
    lost, _ = await running()
    await is_gone(lost, given)
    await workers.register_worker(conn, "w", instance="w-1", lanes=["default"], holds_lock=True)
    await sweep(given)
    await given.time_passes(seconds=0.5)

    assert (await sweep(given)).moved == 1


async def test_the_lock_of_one_database_means_nothing_in_another(
    given: Given, running: Running, server: object, empty_url: str
) -> None:
    conn, _ = await running()
    elsewhere = await asyncpg.connect(empty_url)
    [row] = await given.rows("select lock_key from flowfabric.workers")
    await elsewhere.execute(f"select pg_advisory_lock_shared({workers.LOCK_CLASS}, {row['lock_key']})")
    await is_gone(conn, given)
    await sweep(given)
    await given.time_passes(seconds=0.5)

    assert (await sweep(given)).moved == 1
    await elsewhere.close()


async def test_locks_with_and_without_a_sign_are_recognised(given: Given, running: Running) -> None:
    for number in range(12):
        await running(f"w-{number}")
    keys = [row["lock_key"] for row in await given.rows("select lock_key from flowfabric.workers")]

    assert min(keys) < 0 < max(keys)
    await sweep(given)
    await given.time_passes(seconds=1)
    assert (await sweep(given)).moved == 0


async def test_the_sweep_of_orphans_honours_its_limit_and_offset(given: Given, running: Running) -> None:
    for number in range(3):
        conn, _ = await running(f"w-{number}")
        await is_gone(conn, given)
    await sweep(given)
    await given.time_passes(seconds=1)

    first = await workers.return_orphans(given.conn, limit=1, passing=1)
    second = await workers.return_orphans(given.conn)

    assert (first.moved, first.lanes) == (1, ["w-1"])
    assert (second.moved, sorted(second.lanes)) == (2, ["w-0", "w-2"])


async def test_a_sweep_that_finds_no_orphan_writes_nothing(given: Given, running: Running) -> None:
    await running()
    before = await given.rows("select xmin::text, xmax::text from flowfabric.workers")

    assert (await sweep(given)).moved == 0
    assert await given.rows("select xmin::text, xmax::text from flowfabric.workers") == before
