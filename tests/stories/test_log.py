"""The event log under many writers, and after a restore: subscribers get every committed event once and in order."""

import asyncio
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import asyncpg
import pytest

from flowfabric.app.subscriptions import EventLog
from flowfabric.cursors import decode_event_cursor, encode_event_cursor
from flowfabric.engine import events, executions
from flowfabric.model import EventFilter
from flowfabric.postgres import embedded
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier
from tests.conftest import SOAK, Connect, Server
from tests.engine.events.log import write_directly
from tests.given import Given, submission, until

WRITERS = 32
COUNT = 50_000 if SOAK else 4_000
LONGEST = 0.05  # seconds a transaction stays open
APPEND = """
with held as materialized (select flowfabric._lock_log())
insert into flowfabric.events (at, kind, partition, execution, route, tags)
select flowfabric.clock(), $1, $2::int2, $3::uuid, $4::int, $5::jsonb from held
returning id
"""


class Written(NamedTuple):
    """An event as its writer knows it."""

    event_id: int
    kind: str
    partition: int
    route: int
    customer: str


FILTERS: dict[str, tuple[EventFilter, Callable[[Written], bool]]] = {
    "everything": (EventFilter(), lambda _: True),
    "kind": (EventFilter(kinds=["execution_held"]), lambda line: line.kind == "execution_held"),
    "partitions": (EventFilter(partitions=[0, 2]), lambda line: line.partition in (0, 2)),
    "namespace": (EventFilter(namespace="acme"), lambda line: line.route == 1),
    "tag": (EventFilter(tag=("a.customer", "x")), lambda line: line.customer == "x"),
}


async def write(conn: asyncpg.Connection, count: int, written: list[Written], seed: int) -> None:
    """Append in transactions of random length, one in twenty of which is rolled back."""
    dice = random.Random(seed)
    for _ in range(count):
        kind = dice.choice(["execution_held", "execution_unheld"])
        partition, route, customer = dice.randrange(4), dice.choice([1, 2]), dice.choice("xy")
        transaction = conn.transaction()
        await transaction.start()
        line = await conn.fetchrow(APPEND, kind, partition, uuid4(), route, f'{{"a.customer": "{customer}"}}')
        await asyncio.sleep(dice.uniform(0, LONGEST))
        if dice.random() < 0.05:
            await transaction.rollback()
        else:
            await transaction.commit()
            written.append(Written(line["id"], kind, partition, route, customer))


async def follow(log: EventLog, cursor: str, only: EventFilter, seen: list[int]) -> None:
    async for event in await log.subscribe(cursor, only):
        seen.append(event.event_id)  # noqa: PERF401 - the loop never ends


async def follow_and_be_killed(log: EventLog, cursor: str, seen: list[int]) -> None:
    """Follow from the last cursor and be cancelled after about a hundred events, repeatedly."""
    while True:
        before = len(seen)
        task = asyncio.create_task(follow(log, cursor, EventFilter(), seen))
        while len(seen) < before + 100 and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        cursor = encode_event_cursor(seen[-1])


async def follow_by_id_alone(conn: asyncpg.Connection, after: int, seen: list[int]) -> None:
    """The naive reader, which asks for ids above the last it has seen, and so misses events that commit late."""
    while True:
        found = await conn.fetch("select id from flowfabric.events where id > $1 order by id", after)
        seen += [row["id"] for row in found]
        after = seen[-1] if seen else after
        await asyncio.sleep(0.001)


async def test_followers_of_many_writers_miss_nothing(database: Database, connect: Connect, given: Given) -> None:
    await given.submitted(namespace="acme")
    await given.submitted(namespace="other")
    unrelated, naive = await connect(), await connect()
    start = await events.read_events(given.conn)
    written: list[Written] = []
    seen: dict[str, list[int]] = {name: [] for name in (*FILTERS, "killed", "naive")}
    await unrelated.execute("begin; create table unrelated (n int); insert into unrelated values (1)")
    async with Notifier(database) as hints, EventLog(database, hints) as log:
        followers = [
            *(follow(log, start.cursor, only, seen[name]) for name, (only, _) in FILTERS.items()),
            follow_and_be_killed(log, start.cursor, seen["killed"]),
            follow_by_id_alone(naive, decode_event_cursor(start.cursor) or 0, seen["naive"]),
        ]
        tasks = [asyncio.create_task(follower) for follower in followers]
        conns = [await connect() for _ in range(WRITERS)]
        for conn in conns:
            await write_directly(conn)
        await asyncio.gather(*(write(conn, COUNT // WRITERS, written, n) for n, conn in enumerate(conns)))
        written.sort()
        expected = {
            name: [line.event_id for line in written if matches(line)] for name, (_, matches) in FILTERS.items()
        }
        expected["killed"] = expected["everything"]
        await until(lambda: all(len(seen[name]) >= len(expected[name]) for name in expected))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    assert {name: seen[name] for name in expected} == expected
    assert all(expected.values())
    assert set(seen["naive"]) < set(expected["everything"])


async def test_cursors_go_on_in_a_restored_dump_and_new_events_come_after_them(
    server: Server, database_url: str, connect: Connect, given: Given, tmp_path: Path
) -> None:
    if server.binaries is None:
        pytest.skip("needs pg_dump of the embedded Postgres")
    conn, open_writer = given.conn, await connect()
    await write_directly(open_writer)
    old = [await given.submitted() for _ in range(3)]
    page = await events.read_events(conn, events.OLDEST, EventFilter(kinds=["execution_submitted"]), limit=1)
    await events.acknowledge(conn, "billing", page.cursor)
    await open_writer.execute("begin")
    await executions.submit(open_writer, submission())
    old.append(await given.submitted())
    stuck = await events.advance_horizon(conn)
    await asyncio.to_thread(
        _run, server.binaries / "pg_dump", "--format=custom", f"--file={tmp_path / 'dump'}", database_url
    )

    with await asyncio.to_thread(embedded.start, tmp_path / "other", durable=False) as other:
        restore = ["--no-owner", "--exit-on-error", f"--dbname={other.url()}", str(tmp_path / "dump")]
        await asyncio.to_thread(_run, server.binaries / "pg_restore", *restore)
        restored = await asyncpg.connect(other.url())
        cursor = await events.get_acknowledged(restored, "billing")
        assert cursor == page.cursor
        new = await executions.submit(restored, submission())
        later = await events.read_events(restored, cursor)
        await restored.close()
    assert [event.execution_id for event in later.events] == [*old[1:], new.execution_id]
    assert later.events[-1].event_id > stuck + 2


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)
