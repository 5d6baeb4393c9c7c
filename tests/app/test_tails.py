"""Tails: readers that follow streams, each from its cursor, without holding each other up."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from flowfabric import App, Execution
from flowfabric.engine import attempts, claims, executions, steps, streams
from flowfabric.errors import ExecutionNotFound, InvalidCursor, InvalidLimit, ShuttingDown
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, FailureClass, Frame, FrameKind, FrameToAppend, Step, Superseded, Tail, Trimmed
from flowfabric.postgres.driver import Connection
from tests.app.scene import TIMEOUT
from tests.engine.streams.scene import appended, frame, patch
from tests.given import Given, until

Found = Frame | Superseded | Trimmed
RETRIED = {"retry": {"max_retries": 3}}


@pytest.fixture
async def opened(app: App) -> AsyncIterator[App]:
    """The app, open."""
    async with app:
        yield app


async def fail(given: Given, claim: Claim) -> Claim:
    """Let the attempt fail, and claim the next one."""
    await attempts.fail(given.conn, claim.fence, "down", class_=FailureClass.TRANSIENT)
    await given.time_passes(minutes=5)
    [again] = await given.claim()
    return again


async def save(given: Given, claim: Claim, name: str) -> None:
    await steps.save_step(given.conn, Step(fence=claim.fence, name=name, occurrence=1, result=b"1"))


def said(found: Found) -> object:
    if isinstance(found, Trimmed):
        return found.kind
    return found.payload.decode() if isinstance(found, Frame) else (found.attempt, found.by, found.last_id)


async def read(execution: Execution[object], cursor: str | None = None, **options: object) -> list[Found]:
    async with asyncio.timeout(TIMEOUT):
        return [found async for found in execution.frames(cursor, **options)]  # type: ignore[arg-type]


async def woken(app: App, given: Given, execution_id: ExecutionId) -> None:
    """Notify the tails, as a worker does after it has appended."""
    app.notifier.send(streams=[str(execution_id)])


async def test_a_late_reader_gets_everything_and_ends_with_the_execution(opened: App, given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b"1", b"2")
    await attempts.complete(given.conn, claim.fence)

    assert [said(it) for it in await read(opened.execution(claim.execution_id))] == ["1", "2"]


async def test_an_execution_that_puts_out_nothing_ends_its_readers(opened: App, given: Given) -> None:
    claim = await given.claimed()
    reading = asyncio.create_task(read(opened.execution(claim.execution_id)))
    await until(lambda: opened.tails.waiting_count)
    await attempts.complete(given.conn, claim.fence)
    opened.notify(ended=[claim.execution_id])

    assert await reading == []


async def test_a_reader_from_before_the_first_attempt_sees_all_of_it(opened: App, given: Given) -> None:
    execution_id = await given.submitted()
    reading = asyncio.create_task(read(opened.execution(execution_id)))
    await until(lambda: opened.tails.waiting_count)
    [claim] = await given.claim()
    await appended(given.conn, claim, b"1")
    await attempts.complete(given.conn, claim.fence)

    assert [said(it) for it in await reading] == ["1"]


async def test_a_tail_wakes_on_the_next_append(opened: App, given: Given) -> None:
    claim = await given.claimed()
    tail = Tail(execution_id=claim.execution_id)
    waiting = asyncio.create_task(opened.tails.tail_frames(tail, block=timedelta(seconds=30)))
    await until(lambda: opened.tails.waiting_count)
    await appended(given.conn, claim, b"1")
    opened.notifier.send(streams=[str(claim.execution_id)])

    async with asyncio.timeout(TIMEOUT):
        assert [it.payload for it in (await waiting).frames] == [b"1"]
    assert opened.tails.waiting_count == 0


async def test_a_tail_is_empty_at_its_timeout_and_with_block_0(opened: App, given: Given) -> None:
    tail = Tail(execution_id=(await given.claimed()).execution_id)

    for block in (timedelta(0), timedelta(milliseconds=20)):
        page = await opened.tails.tail_frames(tail, block=block)
        assert ([*page.frames], page.closed_reason) == ([], None)
    assert opened.tails.waiting_count == 0


async def test_a_tail_of_a_closed_stream_returns_at_once_with_the_reason(opened: App, given: Given) -> None:
    claim = await given.claimed()
    [first] = await appended(given.conn, claim, b"1")
    await attempts.complete(given.conn, claim.fence)

    async with asyncio.timeout(TIMEOUT):
        tail = Tail(execution_id=claim.execution_id, after=first)
        page = await opened.tails.tail_frames(tail, block=timedelta(seconds=30))
    assert ([*page.frames], page.closed_reason) == ([], "attempt_success")


async def test_a_tail_that_asks_for_something_impossible_is_refused(opened: App, given: Given) -> None:
    execution_id = (await given.claimed()).execution_id

    with pytest.raises(InvalidLimit):
        await opened.tails.tail_frames(Tail(execution_id=execution_id), block=timedelta(seconds=31))
    with pytest.raises(InvalidLimit):
        await opened.tails.tail_frames(Tail(execution_id=execution_id), limit=0)
    with pytest.raises(InvalidCursor):
        await opened.tails.tail_frames(Tail(execution_id=execution_id, after="start"))
    for cursor in ("1", "0:1-1", "1:1", "-1:1-1", "x:1-1", "1:start", "99999999999:1-1"):
        with pytest.raises(InvalidCursor):
            await read(opened.execution(execution_id), cursor)


async def test_a_tail_of_no_execution_is_refused(opened: App, given: Given) -> None:
    execution_id = (await given.claimed()).execution_id
    await given.conn.execute("delete from flowfabric.tickets; delete from flowfabric.executions")

    with pytest.raises(ExecutionNotFound):
        await read(opened.execution(execution_id))
    with pytest.raises(ExecutionNotFound):
        await opened.tails.tail_frames(Tail(execution_id=execution_id))


async def test_a_reader_sees_the_current_attempt_and_all_of_them_if_it_asks(opened: App, given: Given) -> None:
    claim = await given.claimed(policy=RETRIED)
    await appended(given.conn, claim, b"1")
    again = await fail(given, claim)
    await appended(given.conn, again, b"2")
    await attempts.complete(given.conn, again.fence)
    execution = opened.execution(claim.execution_id)

    assert [said(it) for it in await read(execution)] == ["2"]
    assert [said(it) for it in await read(execution, attempts="all")] == ["1", (1, 2, None), "2"]
    assert [said(it) for it in await read(execution, attempts=1)] == ["1"]
    assert [said(it) for it in await read(execution, attempts=3)] == []


async def test_a_mark_says_which_text_stays_valid(opened: App, given: Given) -> None:
    claim = await given.claimed(policy=RETRIED)
    await appended(given.conn, claim, b"a")
    await save(given, claim, "first")
    [_, kept] = await appended(given.conn, claim, b"b", b"c")
    await save(given, claim, "second")
    await appended(given.conn, claim, b"dropped")
    second = await fail(given, claim)
    await appended(given.conn, second, b"dropped too")
    third = await fail(given, second)
    await appended(given.conn, third, b"d")
    await save(given, third, "third")
    await attempts.complete(given.conn, third.fence)

    found = await read(opened.execution(claim.execution_id), attempts="all")
    assert [said(it) for it in found] == ["a", "b", "c", "dropped", (1, 2, kept), "dropped too", (2, 3, None), "d"]
    valid = await read(opened.execution(claim.execution_id), attempts="valid")
    assert [said(it) for it in valid] == ["a", "b", "c", "d"]
    rest = await read(opened.execution(claim.execution_id), found[3].cursor, attempts="valid")
    assert [said(it) for it in rest] == [(1, 2, kept), "d"]


async def test_a_reader_of_what_is_valid_gets_a_mark_only_for_what_it_has_seen(opened: App, given: Given) -> None:
    claim = await given.claimed(policy=RETRIED)
    [first, second] = [aiter(opened.execution(claim.execution_id).frames(attempts="valid")) for _ in range(2)]
    await appended(given.conn, claim, b"a")
    await save(given, claim, "first")
    assert [said(await anext(it)) for it in (first, second)] == ["a", "a"]
    await appended(given.conn, claim, b"b")
    assert said(await anext(first)) == "b"
    again = await fail(given, claim)
    await appended(given.conn, again, b"c")
    await attempts.complete(given.conn, again.fence)

    page = await streams.read_frames(given.conn, claim.execution_id, attempt=1)
    assert [said(it) async for it in first] == [(1, 2, page.frames[0].id), "c"]
    assert [said(it) async for it in second] == ["c"]


async def test_a_replay_from_scratch_leaves_nothing_valid(opened: App, given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b"1")
    await save(given, claim, "first")
    await attempts.complete(given.conn, claim.fence)
    await executions.replay(given.conn, claim.execution_id, by="ops", from_scratch=True)
    [again] = await given.claim()
    await attempts.complete(given.conn, again.fence)

    found = await read(opened.execution(claim.execution_id), attempts="all")
    assert [said(it) for it in found] == ["1", (1, 2, None)]


async def test_an_attempt_without_output_has_no_mark(opened: App, given: Given) -> None:
    claim = await given.claimed(policy=RETRIED)
    again = await fail(given, await fail(given, claim))
    await appended(given.conn, again, b"3")
    await attempts.complete(given.conn, again.fence)

    assert [said(it) for it in await read(opened.execution(claim.execution_id), attempts="all")] == ["3"]


async def live(given: Given, app: App, execution_id: ExecutionId) -> None:
    """Put out frames in three attempts, one of which is suspended, and notify after each step."""

    async def put(claim: Claim, *payloads: bytes) -> None:
        await appended(given.conn, claim, *payloads)
        app.notifier.send(streams=[str(execution_id)])

    [claim] = await given.claim()
    await put(claim, b"1", b"2")
    await save(given, claim, "first")
    await put(claim, b"3")
    await attempts.delay(given.conn, claim.fence)
    [claim] = await given.claim()
    await put(claim, b"4")
    claim = await fail(given, claim)
    await put(claim, b"5", b"6")
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)
    [claim] = await given.claim()
    await put(claim, b"7")
    await attempts.complete(given.conn, claim.fence, b"1")
    app.notify(ended=[execution_id])


async def test_a_tail_killed_and_resumed_at_every_frame_yields_the_same_sequence(opened: App, given: Given) -> None:
    execution_id = await given.submitted(policy=RETRIED)
    execution = opened.execution(execution_id)
    reading = asyncio.create_task(read(execution))
    resumed = asyncio.create_task(resuming(execution))
    await until(lambda: opened.tails.waiting_count == 2)
    await live(given, opened, execution_id)

    whole = await reading
    kinds = [it.payload.decode() if isinstance(it, Frame) else "superseded" for it in whole]
    assert kinds == ["1", "2", "3", "4", "superseded", "5", "6", "superseded", "7"]
    assert await resumed == whole
    for place, found in enumerate(whole):
        assert await read(execution, found.cursor) == whole[place + 1 :]
    assert await read(execution, attempts="all") == whole


async def resuming(execution: Execution[object], **options: Any) -> list[Found]:
    """Read one frame at a time, each with a reader of its own, until there is none."""
    found: list[Found] = []
    while True:
        reader = execution.frames(found[-1].cursor if found else None, **options)
        try:
            found.append(await anext(reader))
        except StopAsyncIteration:
            return found
        finally:
            await reader.aclose()  # type: ignore[attr-defined]


async def test_a_slow_reader_neither_holds_up_others_nor_loses_a_frame(opened: App, given: Given) -> None:
    claim = await given.claimed()
    execution = opened.execution(claim.execution_id)
    slow = execution.frames()
    await appended(given.conn, claim, b"first")
    found = [await anext(slow)]
    for start in range(0, 3_000, 1_000):
        await appended(given.conn, claim, *[b"%d" % n for n in range(start, start + 1_000)])
    await attempts.complete(given.conn, claim.fence)

    assert len(await read(execution)) == 3_001
    found += [it async for it in slow]
    assert [said(it) for it in found] == ["first", *map(str, range(3_000))]


async def test_a_reader_that_retention_has_passed_is_told_and_goes_on(opened: App, given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 10}})
    execution = opened.execution(claim.execution_id)
    slow = aiter(execution.frames())
    await appended(given.conn, claim, b"0")
    found = [await anext(slow)]
    await appended(given.conn, claim, *(b"%d" % n for n in range(1, 100)))
    await streams.trim_frames(given.conn)
    await attempts.complete(given.conn, claim.fence)
    found += [it async for it in slow]

    assert [said(it) for it in found] == ["0", "trimmed", *map(str, range(90, 100))]
    assert [said(it) for it in await read(execution)] == ["trimmed", *map(str, range(90, 100))]
    assert await resuming(execution) == await read(execution)


async def test_a_reader_of_a_stream_that_was_deleted_is_told_and_gets_the_next_attempt(
    opened: App, given: Given
) -> None:
    claim = await given.claimed(policy={"stream": {"retention_ms": 60_000}, **RETRIED})
    execution = opened.execution(claim.execution_id)
    reading = aiter(execution.frames(attempts="valid"))
    await appended(given.conn, claim, b"1")
    await save(given, claim, "first")
    shown = await anext(reading)
    again = await fail(given, claim)
    await streams.trim_frames(given.conn)
    await appended(given.conn, again, b"2")
    await attempts.complete(given.conn, again.fence)

    assert [said(it) async for it in reading] == ["2"]
    assert [said(it) for it in await read(execution, attempts="all")][::2] == ["trimmed", "2"]
    [_, mark, _] = await read(execution, attempts="all")
    assert isinstance(mark, Superseded)
    assert isinstance(shown, Frame)
    assert mark.keeps(shown)
    assert await resuming(execution, attempts="all") == await read(execution, attempts="all")


async def test_many_tails_use_one_connection_to_listen_and_one_to_read(
    opened: App, given: Given, conn: asyncpg.Connection
) -> None:
    taken = [await given.claimed() for _ in range(20)]
    async with asyncio.TaskGroup() as group:
        for claim in taken * 10:
            group.create_task(read(opened.execution(claim.execution_id)))
        await until(lambda: opened.tails.waiting_count == 200)
        before = await sessions(conn)
        await streams.append_frames(conn, [frame(claim) for claim in taken])
        opened.notifier.send(streams=[str(claim.execution_id) for claim in taken])
        for claim in taken:
            await attempts.complete(given.conn, claim.fence)
        opened.notify(ended=[claim.execution_id for claim in taken])
    assert before <= 6  # this test's, one of the pool, one to listen, one to read, and two of the copies of databases


async def sessions(conn: Connection) -> int:
    [row] = await conn.fetch("select count(*) from pg_stat_activity where datname = current_database()")
    return int(row["count"])


async def test_without_notifications_a_tail_polls(opened: App, given: Given) -> None:
    claim = await given.claimed()
    reading = asyncio.create_task(read(opened.execution(claim.execution_id)))
    await until(lambda: opened.tails.waiting_count)
    await appended(given.conn, claim, b"1")
    await attempts.complete(given.conn, claim.fence)

    assert [said(it) for it in await reading] == ["1"]


async def test_a_cut_connection_loses_no_frame(opened: App, given: Given, conn: asyncpg.Connection) -> None:
    claim = await given.claimed()
    reading = asyncio.create_task(read(opened.execution(claim.execution_id)))
    for number in range(5):
        await until(lambda: opened.tails.waiting_count)
        await conn.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> "
            "pg_backend_pid()"
        )
        await appended(given.conn, claim, b"%d" % number)
    await attempts.complete(given.conn, claim.fence)

    assert [said(it) for it in await reading] == ["0", "1", "2", "3", "4"]


async def test_closing_the_app_ends_its_tails(app: App, given: Given) -> None:
    async with app:
        execution = app.execution((await given.claimed()).execution_id)
        reading = asyncio.create_task(read(execution))
        await until(lambda: app.tails.waiting_count)
    [ended] = await asyncio.gather(reading, return_exceptions=True)

    assert isinstance(ended, ShuttingDown)


async def test_a_reader_that_is_cancelled_leaves_nothing_behind(opened: App, given: Given) -> None:
    reading = asyncio.create_task(read(opened.execution((await given.claimed()).execution_id)))
    await until(lambda: opened.tails.waiting_count)
    reading.cancel()
    await asyncio.wait([reading])

    assert opened.tails.waiting_count == 0


async def test_progress_is_a_summary(opened: App, given: Given) -> None:
    claim = await given.claimed()
    execution = opened.execution(claim.execution_id)
    before = (await execution.summary(), await execution.progress())
    await streams.append_frame(given.conn, patch(claim, b'{"progress": 40, "message": "indexing", "pages": 3}'))
    progress, summary = await execution.progress(), await execution.summary()
    await streams.append_frame(given.conn, patch(claim, b'{"progress": "much"}'))

    assert before == (None, None)
    assert summary is not None
    assert summary.document == {"progress": 40, "message": "indexing", "pages": 3}
    assert progress is not None
    assert (progress.percent, progress.message, progress.attempt) == (40, "indexing", 1)
    assert await execution.progress() is None


async def test_sync_code_reads_frames_too(app: App, given: Given) -> None:
    claim = await given.claimed()
    await streams.append_frames(given.conn, [frame(claim, b"1"), patch(claim, b'{"progress": 7}')])
    await attempts.complete(given.conn, claim.fence)

    def work() -> tuple[list[object], float]:
        with app.sync() as sync:
            execution = sync.execution(claim.execution_id)
            progress = execution.progress()
            assert progress is not None
            return [said(found) for found in execution.frames()], progress.percent

    assert await asyncio.to_thread(work) == (["1", '{"progress": 7}'], 7)


async def test_frames_of_others_do_not_keep_a_reader_waiting(opened: App, given: Given) -> None:
    """The pages of all readers share 4 MiB; those that get nothing have their turn at once."""
    taken = [await given.claimed() for _ in range(4)]
    for claim in taken:
        await streams.append_frames(given.conn, [large(claim) for _ in range(40)])
        await attempts.complete(given.conn, claim.fence)

    found = await asyncio.gather(*(read(opened.execution(claim.execution_id)) for claim in taken))
    assert [len(frames) for frames in found] == [40] * 4


def large(claim: Claim) -> FrameToAppend:
    return frame(claim, b"x" * 65_536)


def test_a_mark_can_be_printed_like_a_frame() -> None:
    mark = Superseded(attempt=1, by=2)

    assert (mark.text, mark.kind, mark.cursor) == (None, "superseded", "2:0-0")


def test_a_mark_keeps_what_stays_valid() -> None:
    at = datetime.now(UTC)

    def made(attempt: int, frame_id: str) -> Frame:
        return Frame(id=frame_id, attempt=attempt, kind=FrameKind.STDOUT, type="a", at=at, payload=b"")

    mark = Superseded(attempt=2, by=3, last_id="10-2")
    assert [mark.keeps(made(2, i)) for i in ("9-99", "10-2", "10-3", "11-0")] == [True, True, False, False]
    assert mark.keeps(made(1, "99-0"))
    assert not Superseded(attempt=2, by=3).keeps(made(2, "1-0"))
