"""Notifications: merged, small, and sent again after a lost connection."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from flowfabric.config import Config
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import CHANNEL, MOST_NAMES, Notification, Notifier
from tests.conftest import Connect

HERE = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
LISTENS = f"{HERE} and query ilike 'listen%'"
NOTIFIES = f"{HERE} and query like '%pg_notify%'"


class Listener:
    """Receives notifications, and waits for them."""

    def __init__(self) -> None:
        self.received: list[Notification] = []
        self._queue: asyncio.Queue[Notification] = asyncio.Queue()

    def __call__(self, hint: Notification) -> None:
        self.received.append(hint)
        self._queue.put_nowait(hint)

    async def next(self) -> Notification:
        async with asyncio.timeout(20):
            return await self._queue.get()

    async def names(self, count: int) -> set[str]:
        """So many different names, from any number of notifications."""
        seen: set[str] = set()
        while len(seen) < count:
            hint = await self.next()
            seen |= {*hint.lanes, *hint.ended}
        return seen


@pytest.fixture
async def hints(database: Database) -> AsyncIterator[Notifier]:
    async with Notifier(database) as opened:
        yield opened


@pytest.fixture
async def listener(hints: Notifier) -> Listener:
    """A listener that is connected: it has received the first, empty notification."""
    listener = Listener()
    hints.listen(listener)
    assert await listener.next() == Notification()
    listener.received.clear()
    return listener


async def test_a_notification_names_lanes_with_work_and_executions_that_ended(
    hints: Notifier, listener: Listener
) -> None:
    hints.send(lanes=["reports"], ended=["{fp:1}:a"])

    assert await listener.next() == Notification(lanes=("reports",), ended=("{fp:1}:a",))


async def test_a_notification_reaches_another_process(database: Database, hints: Notifier) -> None:
    async with Notifier(database) as other:
        listener = Listener()
        other.listen(listener)
        await listener.next()
        hints.send(lanes=["reports"])

        assert await listener.next() == Notification(lanes=("reports",))


async def test_names_sent_together_share_a_message(hints: Notifier, listener: Listener) -> None:
    for number in range(5_000):
        hints.send(lanes=[f"lane {number % 50}"], ended=[f"{{fp:1}}:{number % 50}"])

    assert len(await listener.names(100)) == 100
    assert len(listener.received) == 1


async def test_thousands_of_names_are_split_into_few_messages(hints: Notifier, listener: Listener) -> None:
    names = {f"lane {number}" for number in range(2_500)}
    hints.send(lanes=names)

    assert await listener.names(2_500) == names
    assert len(listener.received) == 2_500 / MOST_NAMES
    assert max(len(hint.lanes) for hint in listener.received) == MOST_NAMES


async def test_a_message_is_never_larger_than_postgres_accepts(hints: Notifier, listener: Listener) -> None:
    lanes = {'"' * 60 + f"{number:04}" for number in range(100)}  # each quote takes two bytes in JSON
    ended = {f"{{fp:255}}:01980000-0000-7000-8000-{number:012}" for number in range(100)}
    hints.send(lanes=lanes, ended=ended)

    assert await listener.names(200) == lanes | ended


async def test_a_name_that_is_added_while_it_is_being_sent_is_sent_again(hints: Notifier, listener: Listener) -> None:
    for _ in range(20):
        hints.send(lanes=["reports"])
        assert await listener.next() == Notification(lanes=("reports",))


async def test_an_empty_notification_is_not_sent(hints: Notifier, listener: Listener) -> None:
    hints.send()
    hints.send(lanes=[], ended=[])
    hints.send(lanes=["last"])

    assert await listener.next() == Notification(lanes=("last",))


@pytest.mark.parametrize("payload", ["", "reports", "[1]", '{"lanes": 5}', '{"lanes": ["a"', "\u00ff"])
async def test_an_unreadable_message_is_an_empty_notification(
    hints: Notifier, listener: Listener, conn: asyncpg.Connection, payload: str
) -> None:
    await conn.execute("select pg_notify($1, $2)", CHANNEL, payload)
    assert await listener.next() == Notification()

    hints.send(lanes=["reports"])
    assert await listener.next() == Notification(lanes=("reports",))


async def test_unknown_fields_of_a_later_version_are_ignored(listener: Listener, conn: asyncpg.Connection) -> None:
    await conn.execute("select pg_notify($1, $2)", CHANNEL, '{"lanes": ["reports"], "flows": ["x"]}')

    assert await listener.next() == Notification(lanes=("reports",))


async def test_after_a_lost_connection_it_listens_again_and_sends_an_empty_notification(
    hints: Notifier, listener: Listener, conn: asyncpg.Connection
) -> None:
    [listening] = await conn.fetch(LISTENS)
    await conn.execute("select pg_terminate_backend($1)", listening["pid"])
    assert await listener.next() == Notification()

    hints.send(lanes=["reports"])
    assert await listener.next() == Notification(lanes=("reports",))


async def test_names_lost_with_a_connection_are_sent_again(
    hints: Notifier, listener: Listener, conn: asyncpg.Connection
) -> None:
    hints.send(lanes=["first"])
    await listener.names(1)
    [sending] = await conn.fetch(NOTIFIES)
    await conn.execute("select pg_terminate_backend($1)", sending["pid"])
    hints.send(lanes=["second"], ended=["third"])

    assert await listener.names(2) == {"second", "third"}


async def test_one_connection_sends_all_notifications(
    hints: Notifier, listener: Listener, conn: asyncpg.Connection
) -> None:
    hints.send(lanes=["first"])
    await listener.next()
    [sending] = await conn.fetch(NOTIFIES)
    for number in range(5):
        hints.send(lanes=[f"lane {number}"])
        await listener.next()

    assert await conn.fetch(NOTIFIES) == [sending]


async def test_a_listener_that_was_removed_receives_nothing(hints: Notifier, listener: Listener) -> None:
    other = Listener()
    stop = hints.listen(other)
    stop()
    stop()
    hints.send(lanes=["reports"])
    await listener.next()

    assert other.received == []


async def test_behind_a_pooler_nobody_listens_but_notifications_are_sent(
    database_url: str, listener: Listener, conn: asyncpg.Connection
) -> None:
    async with Database(Config(pooler=True), database_url) as database, Notifier(database) as hints:
        unconnected = Listener()
        hints.listen(unconnected)
        hints.send(lanes=["reports"])

        assert await listener.next() == Notification(lanes=("reports",))
        assert len(await conn.fetch(LISTENS)) == 1
        assert unconnected.received == []


async def test_pending_names_are_sent_when_the_process_closes(database: Database, listener: Listener) -> None:
    async with Notifier(database) as leaving:
        leaving.send(lanes=["last words"])

    assert await listener.next() == Notification(lanes=("last words",))
    leaving.send(lanes=["too late"])
    assert {task.get_name() for task in asyncio.all_tasks()} & {"hints: send"} == set()


async def test_connections_are_opened_on_demand_and_all_are_closed(database: Database, connect: Connect) -> None:
    watcher = await connect()
    async with Notifier(database):
        assert await watcher.fetch(LISTENS) == await watcher.fetch(NOTIFIES) == []
    async with Notifier(database) as hints:
        hints.listen(lambda _: None)

    assert {task.get_name() for task in asyncio.all_tasks()} & {"hints: send", "hints: listen"} == set()
