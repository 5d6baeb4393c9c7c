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


async def start(conn: Connection, instance: str) -> None:
    """Start a worker process, or connect it again: take the lock first, then register."""
    await workers.hold_lock(conn, instance)
    await workers.register_worker(
        conn, "w", instance=instance, lanes=["default"], holds_lock=True, ttl=timedelta(minutes=10)
    )


async def sweep(given: Given) -> Swept:
    return await workers.return_orphans(given.conn)


async def passes(given: Given, seconds: float) -> list[int]:
    """Sweep every quarter of a second for so long, as a process does; return how many each pass removed."""
    moved = []
    for _ in range(round(seconds / 0.25)):
        await given.time_passes(seconds=0.25)
        moved.append((await sweep(given)).moved)
    return moved


async def is_gone(conn: asyncpg.Connection, given: Given) -> None:
    """End the process and wait until the server has noticed."""
    pid = conn.get_server_pid()
    await conn.close()
    while await given.rows("select from pg_stat_activity where pid = $1", pid):
        pass


Running = Callable[..., Awaitable[tuple[asyncpg.Connection, Claim]]]


@pytest.fixture
async def running(given: Given, connect: Connect) -> Running:
    """Start a worker of that name with a lease of one hour, beside two workers that live to the end."""
    for instance in ("other-1", "other-2"):
        await start(await connect(), instance)

    async def begin(instance: str = "w-1", **options: object) -> tuple[asyncpg.Connection, Claim]:
        conn = await connect()
        await start(conn, instance)
        await given.submitted(lane=instance, **options)
        [claim] = await given.claim(lanes=[instance], worker="w", instance=instance, lease=LONG)
        return conn, claim

    return begin


async def test_the_leases_of_a_dead_process_end(given: Given, running: Running) -> None:
    conn, claim = await running()
    assert (await sweep(given)).moved == 0
    await is_gone(conn, given)
    assert (await sweep(given)).moved == 0
    assert sum(await passes(given, 0.5)) == 0
    await given.time_passes(seconds=0.3)

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
    assert [worker.instance for worker in (await workers.list_workers(given.conn)).items] == ["other-1", "other-2"]
    assert (await sweep(given)).moved == 0


async def test_a_lost_process_counts_as_a_reclaim(given: Given, running: Running) -> None:
    conn, claim = await running(policy={"max_reclaim_count": 0})
    await is_gone(conn, given)
    await sweep(given)
    await passes(given, 0.5)
    await given.time_passes(seconds=0.3)

    swept = await sweep(given)

    assert (swept.moved, swept.ended) == (1, [claim.execution_id])
    described = await executions.describe(given.conn, claim.execution_id)
    assert described.state.public_state is PublicState.FAILED


async def test_a_process_that_reconnects_in_time_keeps_its_leases(
    given: Given, running: Running, connect: Connect
) -> None:
    conn, claim = await running()
    await is_gone(conn, given)
    await sweep(given)
    await passes(given, 0.5)
    await workers.hold_lock(await connect(), "w-1")

    assert sum(await passes(given, 5)) == 0
    assert await given.rows("select from flowfabric.workers where lock_missing_since is not null") == []
    await attempts.complete(given.conn, claim.fence)


async def test_the_time_without_a_lock_restarts_after_a_reconnection(
    given: Given, running: Running, connect: Connect
) -> None:
    conn, _ = await running()
    await is_gone(conn, given)
    await sweep(given)
    await passes(given, 0.5)
    again = await connect()
    await start(again, "w-1")
    await is_gone(again, given)

    await sweep(given)
    assert sum(await passes(given, 0.5)) == 0
    assert sum(await passes(given, 0.5)) == 1


async def test_time_in_which_nothing_was_checked_does_not_count(given: Given, running: Running) -> None:
    """The server may have been away for that time, whenever it started."""
    conn, _ = await running()
    await is_gone(conn, given)
    await sweep(given)
    await given.time_passes(minutes=1)

    assert (await sweep(given)).moved == 0
    assert sum(await passes(given, 0.5)) == 1


async def test_when_all_workers_lose_their_locks_together_none_is_an_orphan(given: Given, connect: Connect) -> None:
    """A restart, a failover or a network failure: the first worker is back at once, others after 8 s."""
    lost = [await connect() for _ in range(4)]
    for number, conn in enumerate(lost):
        await start(conn, f"w-{number}")
    for conn in lost:
        await is_gone(conn, given)
    await start(await connect(), "w-0")

    assert sum(await passes(given, 8)) == 0
    for number in (1, 2):
        await start(await connect(), f"w-{number}")
    assert sum(await passes(given, 3)) == 0
    assert sum(await passes(given, 6)) == 1
    assert "w-3" not in [worker.instance for worker in (await workers.list_workers(given.conn)).items]


async def test_a_worker_that_dies_while_others_stay_is_an_orphan_soon(given: Given, connect: Connect) -> None:
    conns = [await connect() for _ in range(4)]
    for number, conn in enumerate(conns):
        await start(conn, f"w-{number}")
    for conn in conns[:2]:  # half of them: not more than half
        await is_gone(conn, given)
    await sweep(given)

    assert sum(await passes(given, 0.5)) == 0
    assert sum(await passes(given, 0.5)) == 2


async def test_a_dead_worker_that_has_been_replaced_is_an_orphan_soon(given: Given, connect: Connect) -> None:
    dead = await connect()
    await start(dead, "w-1")
    await is_gone(dead, given)
    assert sum(await passes(given, 10)) == 0  # the only worker: the server may have been away
    await start(await connect(), "w-2")

    assert sum(await passes(given, 1)) == 1


@pytest.mark.parametrize("holds_lock", [False, True])
async def test_a_process_that_never_held_its_lock_keeps_its_leases_until_they_expire(
    conn: Connection, given: Given, holds_lock: bool
) -> None:
    await workers.register_worker(conn, "w", instance="w-1", lanes=["default"], holds_lock=holds_lock)
    await given.submitted()
    [claim] = await given.claim(worker="w", instance="w-1", lease=LONG)

    async with given.nothing_changes():
        assert sum(await passes(given, 20)) == 0
    await claims.renew(conn, claim.fence)


async def test_registering_again_while_the_lock_is_missing_keeps_the_promise(
    conn: Connection, given: Given, running: Running
) -> None:
    lost, _ = await running()
    await is_gone(lost, given)
    await workers.register_worker(conn, "w", instance="w-1", lanes=["default"], holds_lock=True)
    await sweep(given)

    assert sum(await passes(given, 1)) == 1


async def test_the_lock_of_one_database_means_nothing_in_another(
    given: Given, running: Running, empty_url: str
) -> None:
    conn, _ = await running()
    elsewhere = await asyncpg.connect(empty_url)
    [row] = await given.rows("select lock_key from flowfabric.workers where instance = 'w-1'")
    await elsewhere.execute(f"select pg_advisory_lock_shared({workers.LOCK_CLASS}, {row['lock_key']})")
    await is_gone(conn, given)
    await sweep(given)

    assert sum(await passes(given, 1)) == 1
    await elsewhere.close()


async def test_locks_with_and_without_a_sign_are_recognised(given: Given, running: Running) -> None:
    for number in range(12):
        await running(f"w-{number}")
    keys = [row["lock_key"] for row in await given.rows("select lock_key from flowfabric.workers")]

    assert min(keys) < 0 < max(keys)
    assert sum(await passes(given, 2)) == 0


async def test_the_sweep_of_orphans_honours_its_limit_and_offset(given: Given, connect: Connect) -> None:
    for number in range(3):
        await start(await connect(), f"z-{number}")
    for number in range(3):
        conn = await connect()
        await start(conn, f"w-{number}")
        await is_gone(conn, given)
    await sweep(given)
    await passes(given, 0.5)
    await given.time_passes(seconds=0.3)

    first = await workers.return_orphans(given.conn, limit=1, passing=1)
    second = await workers.return_orphans(given.conn)

    assert (first.moved, second.moved) == (1, 2)
    assert await given.event("worker_expired") == {"reason": "connection_lost"}


async def test_a_sweep_that_finds_no_orphan_writes_nothing(given: Given, running: Running) -> None:
    await running()
    before = await given.rows("select xmin::text, xmax::text from flowfabric.workers")

    assert (await sweep(given)).moved == 0
    assert await given.rows("select xmin::text, xmax::text from flowfabric.workers") == before


async def test_a_locked_ticket_keeps_back_its_own_lease_only(given: Given, running: Running, connect: Connect) -> None:
    conn, claim = await running()
    await given.submitted(lane="w-1")
    [locked] = await given.claim(lanes=["w-1"], worker="w", instance="w-1", lease=LONG)
    await is_gone(conn, given)
    await sweep(given)
    await passes(given, 0.5)

    async with (other := await connect()).transaction():
        await executions.change_priority(other, locked.execution_id, 7, by="ops")
        await given.time_passes(seconds=0.3)
        swept = await sweep(given)
        assert (swept.moved, swept.lanes) == (0, ["w-1"])
        assert await given.state(claim.execution_id) is PublicState.WAITING

    swept = await sweep(given)
    assert (swept.moved, swept.lanes) == (1, ["w-1"])
    assert await given.state(locked.execution_id) is PublicState.WAITING
