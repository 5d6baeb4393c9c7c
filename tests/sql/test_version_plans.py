"""Ten thousand executions of a version that nobody serves cost a claim nothing, and a list of tasks is bounded."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from flowfabric.engine import claims, tasks, workers
from flowfabric.model import Begin, RegisteredTask
from tests.conftest import Connect
from tests.given import Given
from tests.sql.reading import reading

OLD = 12_000
ENGINE = ["tickets", "executions", "routes", "steps", "workers"]
FILL = f"""
insert into flowfabric.executions (partition, id, route, task, created_at)
select (n % 256)::smallint, gen_random_uuid(), e.route, e.task, now() - n * interval '1 s'
from generate_series(1, {OLD}) n cross join flowfabric.executions e;
insert into flowfabric.tickets (partition, id, route, version, lane, priority, created_at, eligibility, reason,
                                attempt_state, attempt)
select e.partition, e.id, t.route, t.version, t.lane, 0, e.created_at, 'eligible_now', 'waiting_for_worker',
       'pending_retry_attempt', 1
from flowfabric.executions e cross join flowfabric.tickets t on conflict do nothing;
analyze flowfabric.tickets;
"""


@pytest.fixture
async def filled(connect: Connect, given: Given) -> AsyncIterator[asyncpg.Connection]:
    """Twelve thousand executions that have started under version 1, and a worker that has version 2."""
    conn = await connect()
    old = await given.claimed()
    await claims.mark_begun_many(conn, [Begin(fence=old.fence, version=1)])
    await conn.execute(FILL)
    versions = [RegisteredTask(name="report", version=2)]
    await workers.register_worker(conn, "pool", instance="pool-1", lanes=["default"], tasks=versions)
    async with conn.transaction():
        yield conn


async def test_a_claim_passes_by_a_version_that_its_worker_does_not_have(
    filled: asyncpg.Connection, given: Given
) -> None:
    here = Given(filled)
    nothing, empty = await reading(filled, here.claim(take=100), ENGINE)
    new = [await here.submitted() for _ in range(3)]
    taken, read = await reading(filled, here.claim(take=100), ENGINE)

    assert (nothing, {claim.execution_id for claim in taken}) == ([], set(new))
    assert (empty.rows <= 20, empty.whole) == (True, 0), empty
    assert (read.rows <= 120, read.whole) == (True, 0), read


async def test_a_list_of_tasks_reads_a_bounded_number_of_rows(filled: asyncpg.Connection) -> None:
    page, read = await reading(filled, tasks.list_tasks(filled), ENGINE)

    [found] = page.items
    assert [(each.version, each.left_count) for each in found.versions] == [(2, 0), (1, 10_001)]
    assert not found.is_exact
    assert read.rows <= 80_000, read
