"""Work below thousands of priorities that are closed to a worker is found in order, without a lookup per priority."""

import pytest

from flowfabric.postgres.driver import Connection
from tests.given import Given

LEVELS = 3_000
LOOKS = "select pg_stat_get_xact_numscans('flowfabric.tickets_ready'::regclass) as looks"

# Tickets that need a GPU, $1 at each priority; the other routes of the lane have lower and higher numbers.
CLOSED = f"""
insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, eligibility, reason)
select n % 256, gen_random_uuid(), r.id, 'default', n % {LEVELS} + 1, now(), 'eligible_now', 'waiting_for_worker'
from generate_series(0, {LEVELS} * $1::int - 1) n cross join flowfabric.routes r where r.needs = '{{gpu}}'"""


async def closed(given: Given, depth: int) -> None:
    """Insert `depth` tickets at every priority that this worker cannot run."""
    await given.submitted(namespace="before")
    await given.submitted(needs=["gpu"])
    await given.submitted(namespace="behind")
    await given.conn.execute(CLOSED, depth)


async def looks(conn: Connection, given: Given) -> int:
    """The number of index scans of a poll that finds nothing."""
    async with given.conn.transaction():
        before = (await conn.fetch(LOOKS))[0]
        assert await given.claim(namespace="nobody", take=10) == []
        after = (await conn.fetch(LOOKS))[0]
    return int(after["looks"] - before["looks"])


@pytest.mark.parametrize("depth", [1, 7])
async def test_priority_stays_strict_below_closed_ones(given: Given, depth: int) -> None:
    await closed(given, depth)
    # At the first, where the loose scan ends and range reads begin, where a range ends, and at the last.
    at = [3_000, 2_997, 2_498, 2_497, 2_496, 2_495, 2_243, 2_242, 2_241, 2_240, 2_239, 1_200, 1]
    for priority in sorted(at, key=str):
        await given.submitted(namespace="before" if priority % 2 else "behind", priority=priority)

    taken = [(await given.claim())[0].priority for _ in at]

    assert taken == at
    assert [each.priority for each in await given.claim(take=3)] == [0, 0]


async def test_the_highest_priority_of_several_lanes_is_found_below_closed_ones(given: Given) -> None:
    await closed(given, 1)
    for lane, priority in (("default", 5), ("other", 7), ("default", 9)):
        await given.submitted(lane=lane, priority=priority)

    taken = [await given.claim(lanes=["default", "other"]) for _ in range(3)]

    assert [each.priority for [each] in taken] == [9, 7, 5]


async def test_an_empty_poll_reads_ranges_if_each_priority_has_few_tickets(given: Given) -> None:
    await closed(given, 1)

    assert await looks(given.conn, given) < LEVELS / 2


async def test_an_empty_poll_skips_priorities_with_many_tickets_in_a_few_lookups(given: Given) -> None:
    await closed(given, 7)

    assert await looks(given.conn, given) < 2 * LEVELS + 100
