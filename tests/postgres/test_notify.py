"""Notifier: merged, small, said again after a lost connection; and nothing depends on them."""

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


class Ear:
    """Hears hints, and waits for them."""

    def __init__(self) -> None:
        self.heard: list[Notification] = []
        self._queue: asyncio.Queue[Notification] = asyncio.Queue()

    def __call__(self, hint: Notification) -> None:
        self.heard.append(hint)
        self._queue.put_nowait(hint)

    async def next(self) -> Notification:
        async with asyncio.timeout(20):
            return await self._queue.get()

    async def names(self, count: int) -> set[str]:
        """So many different names, however many hints that takes."""
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
async def ear(hints: Notifier) -> Ear:
    """One that listens already: the first hint after a connection means that."""
    ear = Ear()
    hints.listen(ear)
    assert await ear.next() == Notification()
    ear.heard.clear()
    return ear


async def test_a_hint_says_where_there_is_work_and_what_has_ended(hints: Notifier, ear: Ear) -> None:
    hints.send(lanes=["reports"], ended=["{fp:1}:a"])

    assert await ear.next() == Notification(lanes=("reports",), ended=("{fp:1}:a",))


async def test_it_is_heard_in_another_process(database: Database, hints: Notifier) -> None:
    async with Notifier(database) as other:
        ear = Ear()
        other.listen(ear)
        await ear.next()
        hints.send(lanes=["reports"])

        assert await ear.next() == Notification(lanes=("reports",))


async def test_what_is_said_together_travels_together(hints: Notifier, ear: Ear) -> None:
    for number in range(5_000):
        hints.send(lanes=[f"lane {number % 50}"], ended=[f"{{fp:1}}:{number % 50}"])

    assert len(await ear.names(100)) == 100
    assert len(ear.heard) == 1


async def test_thousands_of_names_are_split_into_few_messages(hints: Notifier, ear: Ear) -> None:
    names = {f"lane {number}" for number in range(2_500)}
    hints.send(lanes=names)

    assert await ear.names(2_500) == names
    assert len(ear.heard) == 2_500 / MOST_NAMES
    assert max(len(hint.lanes) for hint in ear.heard) == MOST_NAMES


async def test_a_message_never_has_more_bytes_than_postgres_takes(hints: Notifier, ear: Ear) -> None:
    lanes = {'"' * 60 + f"{number:04}" for number in range(100)}  # each quote takes two bytes in JSON
    ended = {f"{{fp:255}}:01980000-0000-7000-8000-{number:012}" for number in range(100)}
    hints.send(lanes=lanes, ended=ended)

    assert await ear.names(200) == lanes | ended


async def test_a_name_that_is_said_again_while_it_is_being_sent_is_sent_again(hints: Notifier, ear: Ear) -> None:
    for _ in range(20):
        hints.send(lanes=["reports"])
        assert await ear.next() == Notification(lanes=("reports",))


async def test_nothing_to_say_sends_nothing(hints: Notifier, ear: Ear) -> None:
    hints.send()
    hints.send(lanes=[], ended=[])
    hints.send(lanes=["last"])

    assert await ear.next() == Notification(lanes=("last",))


@pytest.mark.parametrize("payload", ["", "reports", "[1]", '{"lanes": 5}', '{"lanes": ["a"', "\u00ff"])
async def test_what_cannot_be_read_means_look_yourself(
    hints: Notifier, ear: Ear, conn: asyncpg.Connection, payload: str
) -> None:
    await conn.execute("select pg_notify($1, $2)", CHANNEL, payload)
    assert await ear.next() == Notification()

    hints.send(lanes=["reports"])
    assert await ear.next() == Notification(lanes=("reports",))


async def test_a_hint_of_a_later_version_is_read_as_far_as_it_is_understood(ear: Ear, conn: asyncpg.Connection) -> None:
    await conn.execute("select pg_notify($1, $2)", CHANNEL, '{"lanes": ["reports"], "flows": ["x"]}')

    assert await ear.next() == Notification(lanes=("reports",))


async def test_after_a_lost_connection_it_listens_again_and_says_so(
    hints: Notifier, ear: Ear, conn: asyncpg.Connection
) -> None:
    [listening] = await conn.fetch(LISTENS)
    await conn.execute("select pg_terminate_backend($1)", listening["pid"])
    assert await ear.next() == Notification()

    hints.send(lanes=["reports"])
    assert await ear.next() == Notification(lanes=("reports",))


async def test_what_a_lost_connection_has_swallowed_is_said_again(
    hints: Notifier, ear: Ear, conn: asyncpg.Connection
) -> None:
    hints.send(lanes=["first"])
    await ear.names(1)
    [sending] = await conn.fetch(NOTIFIES)
    await conn.execute("select pg_terminate_backend($1)", sending["pid"])
    hints.send(lanes=["second"], ended=["third"])

    assert await ear.names(2) == {"second", "third"}


async def test_one_connection_sends_whatever_the_number_of_hints(
    hints: Notifier, ear: Ear, conn: asyncpg.Connection
) -> None:
    hints.send(lanes=["first"])
    await ear.next()
    [sending] = await conn.fetch(NOTIFIES)
    for number in range(5):
        hints.send(lanes=[f"lane {number}"])
        await ear.next()

    assert await conn.fetch(NOTIFIES) == [sending]


async def test_who_stops_listening_hears_no_more(hints: Notifier, ear: Ear) -> None:
    other = Ear()
    stop = hints.listen(other)
    stop()
    stop()
    hints.send(lanes=["reports"])
    await ear.next()

    assert other.heard == []


async def test_behind_a_pooler_nobody_listens_but_hints_are_sent(
    database_url: str, ear: Ear, conn: asyncpg.Connection
) -> None:
    async with Database(Config(pooler=True), database_url) as database, Notifier(database) as hints:
        deaf = Ear()
        hints.listen(deaf)
        hints.send(lanes=["reports"])

        assert await ear.next() == Notification(lanes=("reports",))
        assert len(await conn.fetch(LISTENS)) == 1
        assert deaf.heard == []


async def test_what_is_left_is_sent_when_the_process_leaves(database: Database, ear: Ear) -> None:
    async with Notifier(database) as leaving:
        leaving.send(lanes=["last words"])

    assert await ear.next() == Notification(lanes=("last words",))
    leaving.send(lanes=["too late"])
    assert {task.get_name() for task in asyncio.all_tasks()} & {"hints: send"} == set()


async def test_nothing_is_opened_before_it_is_needed_and_all_is_closed(database: Database, connect: Connect) -> None:
    watcher = await connect()
    async with Notifier(database):
        assert await watcher.fetch(LISTENS) == await watcher.fetch(NOTIFIES) == []
    async with Notifier(database) as hints:
        hints.listen(lambda _: None)

    assert {task.get_name() for task in asyncio.all_tasks()} & {"hints: send", "hints: listen"} == set()
