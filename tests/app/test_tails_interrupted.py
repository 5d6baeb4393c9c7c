"""Tails while something goes wrong: silent connections, removals, replays, clocks, and cursors from elsewhere."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from benchmarks.proxy import Proxy, proxied
from flowfabric import App
from flowfabric.engine import attempts, executions, streams
from flowfabric.errors import ExecutionNotFound, InvalidCursor
from flowfabric.model import Frame
from tests.app.test_tails import read, said
from tests.engine.streams.scene import appended, frame
from tests.given import Given, until


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(database_url) as opened:
        yield opened


@pytest.fixture
async def opened(app: App) -> AsyncIterator[App]:
    async with app:
        yield app


async def test_a_tail_goes_on_when_its_connections_go_silent(proxy: Proxy, given: Given) -> None:
    claim = await given.claimed()
    async with App(url=proxy.url, call_timeout="300ms") as app:
        reading = asyncio.create_task(read(app.execution(claim.execution_id)))
        for number in range(3):
            await until(lambda: app.tails.waiting_count)
            proxy.silence()
            await appended(given.conn, claim, b"%d" % number)
        await attempts.complete(given.conn, claim.fence)

        assert [said(it) for it in await reading] == ["0", "1", "2"]


async def test_a_tail_gets_what_is_appended_after_the_clock_was_set_back(opened: App, given: Given) -> None:
    claim = await given.claimed()
    execution = opened.execution(claim.execution_id)
    reading = aiter(execution.frames())
    await appended(given.conn, claim, b"1")
    first = await anext(reading)
    await given.time_passes(hours=-1)
    await appended(given.conn, claim, b"2", b"3")
    await attempts.complete(given.conn, claim.fence)

    assert [said(it) async for it in reading] == ["2", "3"]
    assert [said(it) for it in await read(execution, first.cursor)] == ["2", "3"]


async def test_a_reader_that_has_not_reached_the_end_follows_a_replay(opened: App, given: Given) -> None:
    claim = await given.claimed()
    reading = aiter(opened.execution(claim.execution_id).frames())
    await appended(given.conn, claim, b"1", b"2")
    found = [await anext(reading)]
    await attempts.complete(given.conn, claim.fence)
    await executions.replay(given.conn, claim.execution_id, by="ops")
    [again] = await given.claim()
    await appended(given.conn, again, b"3")
    await attempts.complete(given.conn, again.fence)
    found += [it async for it in reading]

    assert [said(it) for it in found] == ["1", "2", (1, 2, None), "3"]


async def test_a_reader_of_an_execution_that_is_removed_meanwhile_is_told(opened: App, given: Given) -> None:
    claim = await given.claimed()
    reading = aiter(opened.execution(claim.execution_id).frames())
    await streams.append_frames(given.conn, [frame(claim, b"1") for _ in range(600)])
    assert said(await anext(reading)) == "1"
    await attempts.complete(given.conn, claim.fence)
    await given.time_passes(days=8)
    await executions.remove_ended(given.conn)

    with pytest.raises(ExecutionNotFound):
        _ = [it async for it in reading]


async def test_ten_thousand_frames_are_read_in_order_from_every_thousandth(opened: App, given: Given) -> None:
    claim = await given.claimed()
    for start in range(0, 10_000, 2_500):
        await streams.append_frames(given.conn, [frame(claim, b"%d" % (start + n)) for n in range(2_500)])
    await attempts.complete(given.conn, claim.fence)
    execution = opened.execution(claim.execution_id)

    found = await read(execution)
    assert [said(it) for it in found] == [str(number) for number in range(10_000)]
    for place in range(999, 10_000, 1_000):
        assert len(await read(execution, found[place].cursor)) == 9_999 - place


async def test_a_cursor_of_an_attempt_that_has_not_begun_is_refused(opened: App, given: Given) -> None:
    waiting = await given.submitted(lane="other")
    claim = await given.claimed()
    for cursor in ("2:0-0", "7:1790000000000-3"):
        for execution_id in (claim.execution_id, waiting):
            with pytest.raises(InvalidCursor) as refused:
                await read(opened.execution(execution_id), cursor)
            assert refused.value.fields["cause"] == "future_attempt"


async def test_a_cursor_of_another_execution_is_only_a_place(opened: App, given: Given) -> None:
    first, second = await given.claimed(), await given.claimed()
    await appended(given.conn, first, b"1")
    await given.time_passes(seconds=1)
    await appended(given.conn, second, b"2")
    for claim in (first, second):
        await attempts.complete(given.conn, claim.fence)
    [one] = await read(opened.execution(first.execution_id))
    [two] = await read(opened.execution(second.execution_id))

    assert isinstance(one, Frame)
    assert [said(it) for it in await read(opened.execution(second.execution_id), one.cursor)] == ["2"]
    assert await read(opened.execution(first.execution_id), two.cursor) == []
