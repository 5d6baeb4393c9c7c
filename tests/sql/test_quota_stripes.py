"""A quota that many use at once: claims do not wait for each other, and no limit is exceeded, whatever happens."""

import asyncio
import random
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import attempts, claims, executions, quotas
from flowfabric.errors import DatabaseUnavailable, FlowFabricError
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK, Connect
from tests.given import Given, claim, submission
from tests.races import Race
from tests.stress import invariants

SECONDS = 60 if SOAK else 3
CLAIMERS = 8

# How a stripe could admit more than its quota: shares and what is counted add up to more than the limits.
OVER = """
select q.name, f.* from flowfabric.quotas q cross join lateral (
    select sum(greatest(s.slot_share, s.slots)) as slots, sum(greatest(s.entry_share, s.entries)) as entries
    from flowfabric.quota_stripes s where s.partition = q.partition and s.quota = q.id) f
where f.slots > q.max_concurrent or f.entries > q.max_requests_per_window"""
ALWAYS = [
    OVER,
    invariants.no_quota_whose_limits_never_sank_has_too_many_running(),
    invariants.no_window_whose_limits_never_sank_admitted_too_many(),
    invariants.every_running_execution_holds_a_slot_of_its_quotas(),
    invariants.no_stripe_has_more_than_it_counts_and_no_quota_more_than_its_limits(),
]


async def submitted(given: Given, count: int, **options: object) -> None:
    await executions.submit_many(given.conn, [submission(**{"quotas": ["model"], **options})] * count)


async def room(given: Given) -> int:
    return (await quotas.describe_quota(given.conn, "model")).room


async def stripes(given: Given) -> list[tuple[int, int]]:
    rows = await given.rows("select slot_share, entry_share from flowfabric.quota_stripes order by number")
    return [(row["slot_share"], row["entry_share"]) for row in rows]


async def test_a_claim_does_not_wait_for_another_of_the_same_quota(given: Given, race: Race) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=8, max_requests_per_window=8)
    await submitted(given, 8)

    assert len(await race.passes(claim, claim)) == 1


async def test_a_claim_finds_all_room_that_others_have_not_locked(given: Given, race: Race) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=64)
    await submitted(given, 70)

    assert len(await race.passes(claim, lambda conn: claim(conn, take=70))) == 60
    assert len(await claim(given.conn, take=70)) == 3


async def test_a_claim_waits_for_the_last_stripe_with_room(given: Given, race: Race) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=8)
    await submitted(given, 9)
    assert len(await claim(given.conn, take=6)) == 6

    taken = await race.waits(lambda conn: claim(conn, take=1), lambda conn: claim(conn, take=2))
    assert len(taken) == await active(given) - 7 == 1 - await room(given)


async def active(given: Given) -> int:
    return len(await given.rows("select from flowfabric.tickets where phase = 'active'"))


async def test_a_claim_without_room_waits_for_nobody(given: Given, race: Race) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=8)
    await submitted(given, 9)
    assert len(await claim(given.conn, take=8)) == 8

    assert await race.passes(lambda conn: quotas.change_quota(conn, "model", by="ops", max_concurrent=9), claim) == []
    assert len(await claim(given.conn)) == 1


async def test_a_limit_is_lowered_after_the_claims_that_use_it(given: Given, race: Race) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=64)
    await submitted(given, 70)

    await race.waits(
        lambda conn: claim(conn, take=10),
        lambda conn: quotas.change_quota(conn, "model", by="ops", max_concurrent=10),
    )
    assert (await room(given), await claim(given.conn, take=70), await claim(given.conn)) == (0, [], [])
    for check in ALWAYS:
        assert await given.rows(check) == []


async def test_below_a_lowered_cap_nothing_is_admitted_until_enough_has_ended(given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=64)
    await submitted(given, 100)
    held = await claim(given.conn, take=20)
    await quotas.change_quota(given.conn, "model", by="ops", max_concurrent=10)

    for count in (5, 5):
        assert await claim(given.conn, take=100) == []
        for each in held[:count]:
            await attempts.complete(given.conn, each.fence)
        del held[:count]
    assert await claim(given.conn, take=100) == []
    await attempts.complete(given.conn, held[0].fence)
    assert len(await claim(given.conn, take=100)) == 1
    assert await given.rows(OVER) == []


async def test_below_a_lowered_rate_nothing_is_admitted_until_enough_has_left_the_window(given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_requests_per_window=64, window_seconds=60)
    await submitted(given, 100)
    for _ in range(4):
        assert len(await claim(given.conn, take=5)) == 5
        await given.time_passes(seconds=10)
    await quotas.change_quota(given.conn, "model", by="ops", max_requests_per_window=10)

    for seconds in (0, 20, 10):
        await given.time_passes(seconds=seconds)
        assert await claim(given.conn, take=100) == []
    await given.time_passes(seconds=10)
    assert len(await claim(given.conn, take=100)) == 5
    assert await given.rows(OVER) == []


async def test_room_that_no_stripe_has_alone_is_divided_again(given: Given) -> None:
    """Four stripes have free slots but no room in their window, and the other four the reverse."""
    await quotas.create_quota(given.conn, "model", max_concurrent=32, max_requests_per_window=32, window_seconds=60)
    await submitted(given, 40)
    await given.conn.execute("""
        update flowfabric.quota_stripes s set slot_share = case when s.number < 4 then 8 else 0 end,
                                              entry_share = case when s.number < 4 then 0 else 8 end""")

    assert len(await claim(given.conn, take=40)) == 32
    assert await given.rows(OVER) == []


async def test_only_one_of_two_claims_divides_the_room(given: Given, race: Race) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=12)
    await submitted(given, 20)
    held = await claim(given.conn, take=12)
    await quotas.change_quota(given.conn, "model", by="ops", max_concurrent=8)
    for each in held[:6]:
        await attempts.complete(given.conn, each.fence)

    taken = await race.waits(lambda conn: claim(conn, take=1), lambda conn: claim(conn, take=5))
    assert (len(taken), await room(given), await active(given)) == (1, 0, 8)


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_an_old_snapshot_cannot_exceed_a_limit_of_many_stripes(
    connect: Connect, given: Given, isolation: Any
) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=16)
    await submitted(given, 40)
    conn = await connect()

    transaction = conn.transaction(isolation=isolation)
    await transaction.start()
    await conn.fetch("select count(*) from flowfabric.tickets")
    assert len(await claim(given.conn, take=9)) == 9
    try:
        await claim(conn, take=40)
        await transaction.commit()
    except DatabaseUnavailable:
        await transaction.rollback()
    assert await active(given) <= 16
    assert await given.rows(OVER) == []


async def test_a_used_grant_keeps_its_slot_while_others_count_again(given: Given, race: Race) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=4)
    await submitted(given, 9)
    grants = [*await claims.issue_grant(given.conn, "pool", instance="pool-1", lanes=["default"], take=4)]

    async def use(conn: Connection) -> None:
        await claims.claim_granted(conn, grants[0].grant_key, "pool", instance="pool-1")

    assert await race.passes(use, lambda conn: claim(conn, take=9)) == []
    await given.time_passes(seconds=11)
    await claims.expire_grants(given.conn)
    assert (await room(given), len(await claim(given.conn, take=9))) == (3, 3)


async def test_an_execution_that_was_granted_twice_holds_one_slot(given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=64)
    await submitted(given, 1)
    for _ in range(5):
        await claims.issue_grant(given.conn, "pool", instance="pool-1", lanes=["default"])
        await given.time_passes(seconds=11)
    [taken] = await given.claim()

    shown = await quotas.describe_quota(given.conn, "model")
    assert (shown.held_count, shown.room) == (1, 63)
    await attempts.complete(given.conn, taken.fence)
    assert await room(given) == 64


async def test_an_execution_that_was_claimed_again_holds_one_slot(given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=64)
    await submitted(given, 1)
    for _ in range(5):
        [taken] = await given.claim()
        await attempts.delay(given.conn, taken.fence)
    await given.claim()

    shown = await quotas.describe_quota(given.conn, "model")
    assert (shown.held_count, shown.room) == (1, 63)


async def test_a_limit_that_is_raised_gets_more_stripes(given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=3)
    await submitted(given, 40)
    assert (len(await stripes(given)), len(await claim(given.conn, take=40))) == (1, 3)

    await quotas.change_quota(given.conn, "model", by="ops", max_concurrent=33)

    assert (len(await stripes(given)), len(await claim(given.conn, take=40))) == (8, 30)


@pytest.mark.parametrize("limit", [1, 3, 4, 7, 8, 63, 64, 65, 1000, 9_007_199_254_740_991])
async def test_the_shares_of_the_stripes_add_up_to_the_limits(given: Given, limit: int) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=limit, max_requests_per_window=limit)

    shares = await stripes(given)
    assert len(shares) == max(1, min(16, limit // 4))
    assert [sum(some) for some in zip(*shares, strict=True)] == [limit, limit]


class Sessions:
    """Sessions that claim, complete and grant until they are killed; then others take their place."""

    def __init__(self, connect: Connect) -> None:
        self.connect, self.dice, self.is_over = connect, random.Random(7), False
        self.busy: set[asyncpg.Connection] = set()

    async def work(self) -> None:
        while not self.is_over:
            conn = await self.connect()
            self.busy.add(conn)
            try:
                while not self.is_over:
                    await self.step(conn)
            except (FlowFabricError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                assert conn.is_closed()
            finally:
                self.busy.discard(conn)

    async def step(self, conn: asyncpg.Connection) -> None:
        for each in await claim(conn, take=self.dice.randint(1, 6)):
            if self.dice.random() < 0.9:
                await attempts.complete(conn, each.fence)
        if self.dice.random() < 0.1:
            await claims.issue_grant(conn, "w", instance="w-1", lanes=["default"], take=2)

    async def kill_one(self, conn: asyncpg.Connection) -> None:
        if self.busy and self.dice.random() < 0.7:
            victim = self.dice.choice([*self.busy])
            await conn.execute(f"select pg_terminate_backend({victim.get_server_pid()})")


async def test_sessions_that_die_leave_no_room_behind_and_exceed_no_limit(connect: Connect, given: Given) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=24, max_requests_per_window=150, window_seconds=1)
    await submitted(given, 400 * SECONDS)
    sessions = Sessions(connect)
    workers = [asyncio.ensure_future(sessions.work()) for _ in range(CLAIMERS)]

    for number in range(10 * SECONDS):
        for check in ALWAYS:
            assert await given.rows(check) == []
        await sessions.kill_one(given.conn)
        await given.time_passes(seconds=0.1)
        if number % 5 == 0:
            await quotas.trim_windows(given.conn)
    sessions.is_over = True
    await asyncio.gather(*workers)

    await given.time_passes(minutes=5)
    await claims.expire_leases(given.conn, limit=1000)
    await claims.expire_grants(given.conn, limit=1000)
    shown = await quotas.describe_quota(given.conn, "model")
    assert (shown.in_window, shown.held_count, shown.room) == (0, 0, 24)
    assert len(await claim(given.conn, take=100)) == 24


ADMITTED = ["quota_stripes", "quota_slots", "quota_entries"]
CALLS = "select pg_stat_get_xact_function_calls('flowfabric._admit_one'::regproc)"
ADMIT_ONE = """
select flowfabric._admit_one(t.partition, t.id, t.epoch + 1, t.attempt + $1,
    array(select s.ctid from flowfabric.quota_stripes s join flowfabric.quotas q on q.id = s.quota
          where q.name = any ($2) order by s.quota), $3, $4) from flowfabric.tickets t"""
# The stripe of a quota that the route does not have makes it the long way.
ADMIT = """
select flowfabric._admit(array[t.partition], array[t.id], array[t.epoch + 1], array[t.attempt + $1], array[t.route],
    array(select s.ctid from flowfabric.quota_stripes s join flowfabric.quotas q on q.id = s.quota
          where q.name = any ($2::text[] || 'unused'::text) order by s.quota), $3, $4) from flowfabric.tickets t"""


async def left(conn: asyncpg.Connection, given: Given, statement: str, *values: object) -> tuple[object, ...]:
    """What a statement returns and which admissions it leaves behind; it is undone."""
    transaction = conn.transaction()
    await transaction.start()
    before = await conn.fetchval(CALLS) or 0
    answers = [tuple(row) for row in await conn.fetch(statement, *values)]
    rows = [await conn.fetch(f"select t::text from flowfabric.{table} t order by 1") for table in ADMITTED]
    calls = (await conn.fetchval(CALLS) or 0) - before
    await transaction.rollback()
    return answers, rows, calls


@pytest.mark.parametrize("names", [["model"], ["model", "other"]])
@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize("granted", [True, False])
async def test_one_execution_is_admitted_as_many_are(
    conn: asyncpg.Connection, given: Given, names: list[str], resumed: bool, granted: bool
) -> None:
    for name in ("model", "other", "unused"):
        await quotas.create_quota(conn, name, max_concurrent=3, max_requests_per_window=3)
    await submitted(given, 1, quotas=names)
    if resumed:
        [taken] = await given.claim()
        await attempts.delay(conn, taken.fence)
    await conn.execute("set track_functions = 'all'")
    now = await conn.fetchval("select flowfabric.clock()")
    values = (0 if resumed else 1, names, now, now if granted else None)

    short = await left(conn, given, ADMIT_ONE, *values)
    long = await left(conn, given, ADMIT, *values)

    assert short[:2] == long[:2]
    assert (short[2], long[2]) == (1, 0)


ONE_ROUTE = """
select s.* from flowfabric.routes r cross join flowfabric._serve_one_route(
    array[r.id], array[r.lane], 0, $1, null, flowfabric.clock(), false, '{}', '{}', '{}') s"""
MANY_ROUTES = """
select s.* from flowfabric.routes r cross join flowfabric._serve_within(
    array[r.id], array[r.lane], 0, $1, null, flowfabric.clock(), true, false,
    (select jsonb_object_agg(q.id, 3) from flowfabric.quotas q), '{}', '{}') s"""


@pytest.mark.parametrize("names", [["model"], ["model", "other"]])
@pytest.mark.parametrize("take", [1, 3])
@pytest.mark.parametrize("ready", [1, 2, 5])
async def test_one_route_is_served_as_many_are(
    conn: asyncpg.Connection, given: Given, names: list[str], take: int, ready: int
) -> None:
    for name in names:
        await quotas.create_quota(conn, name, max_concurrent=3, max_requests_per_window=3)
    await submitted(given, ready, quotas=names, priority=0)

    short = await left(conn, given, ONE_ROUTE, take)
    long = await left(conn, given, MANY_ROUTES, take)

    assert short[:2] == long[:2]
    assert len(short[0][0][3]) == min(take, ready)  # type: ignore[index]
