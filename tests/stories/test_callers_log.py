"""The event log while callers keep transactions open: nothing missed, nothing doubled, in order per execution."""

import asyncio
import random
from collections import defaultdict

import asyncpg

from flowfabric.app.subscriptions import EventLog
from flowfabric.engine import events, executions
from flowfabric.ids import ExecutionId
from flowfabric.model import Event, EventFilter
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier
from tests.conftest import SOAK, Connect
from tests.engine.events.log import begin, write_directly
from tests.given import Given, submission, until

WRITERS, EXECUTIONS, KILLS = 16, 24, 20
ROUNDS = 400 if SOAK else 40
OPEN = 1_000 if SOAK else 50  # submissions of a transaction that stays open
CHANGES = EventFilter(kinds=["priority_changed"])


class Priorities:
    """Change priorities in transactions of any shape. Each event names the priority before it: they form a chain."""

    def __init__(self, targets: list[ExecutionId]) -> None:
        self.targets = targets
        self.committed: dict[ExecutionId, int] = defaultdict(int)

    async def change(self, conn: asyncpg.Connection, seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(ROUNDS):
            outer, done = await begin(conn), list[ExecutionId]()
            # In key order, so that two transactions cannot deadlock.
            for target in sorted(dice.sample(self.targets, dice.randint(1, 4)), key=str):
                inner = await begin(conn)
                changed = await executions.change_priority(conn, target, dice.randint(0, 9_000), by="ops")
                await asyncio.sleep(0)
                if dice.random() < 0.2:
                    await inner.rollback()
                else:
                    await inner.commit()
                    done += [target] * (changed.priority != changed.previous)
            if dice.random() < 0.1:
                await outer.rollback()
            else:
                await outer.commit()
                for target in done:
                    self.committed[target] += 1


async def follow_and_be_killed(log: EventLog, cursor: str, seen: list[Event], every: int) -> None:
    """Follow the changes from the last event, and be cancelled after so many, twenty times."""

    async def follow() -> None:
        async for event in await log.subscribe(cursor, CHANGES):
            seen.append(event)  # noqa: PERF401 - the loop never ends

    for _ in range(KILLS):
        before, task = len(seen), asyncio.create_task(follow())
        await until(lambda before=before: len(seen) >= before + every)
        task.cancel()
        await asyncio.wait([task])
        cursor = seen[-1].cursor
    await follow()


async def test_writers_with_rollbacks_and_savepoints_lose_and_double_nothing(
    database: Database, connect: Connect, given: Given
) -> None:
    priorities = Priorities([await given.submitted(priority=0) for _ in range(EXECUTIONS)])
    start = await events.read_events(given.conn)
    conns = [await connect() for _ in range(WRITERS)]
    for conn in conns[::2]:
        await write_directly(conn)
    idle = await connect()
    still_open = await begin(idle)
    opened = [(await executions.submit(idle, submission())).execution_id for _ in range(OPEN)]
    seen: list[Event] = []
    async with Notifier(database) as hints, EventLog(database, hints) as log:
        task = asyncio.create_task(follow_and_be_killed(log, start.cursor, seen, WRITERS * ROUNDS // (2 * KILLS)))
        await asyncio.gather(*(priorities.change(conn, number) for number, conn in enumerate(conns)))
        expected = sum(priorities.committed.values())
        await until(lambda: len(seen) >= expected)
        await still_open.commit()
        after = await events.read_events(given.conn, seen[-1].cursor, EventFilter(kinds=["execution_submitted"]))
        task.cancel()
        await asyncio.wait([task])

    assert len(seen) == len({event.event_id for event in seen}) == expected
    assert [event.execution_id for event in after.events] == opened[:256]
    for target in priorities.targets:
        chain = [event.detail for event in seen if event.execution_id == target]
        assert [each["previous"] for each in chain] == [0, *(each["priority"] for each in chain[:-1])]
