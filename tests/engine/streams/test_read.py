"""Reading: ranges of a stream, pages, and what is new in many streams at once."""

import json
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import cursors
from flowfabric.engine import attempts, streams
from flowfabric.errors import ExecutionNotFound, InvalidCursor, InvalidLimit
from flowfabric.model import FailureClass, FramePage, Tail
from tests.engine.streams.scene import appended, frame, payloads
from tests.given import Given
from tests.sources import TESTS

CURSORS = json.loads((TESTS / "vectors.json").read_text())["frame_cursors"]


@pytest.mark.parametrize("case", CURSORS, ids=lambda case: repr(case["text"]))
def test_frame_cursors_are_read_as_the_vectors_say(case: dict[str, str]) -> None:
    def cause(parse: Any) -> object:
        try:
            parse()
        except InvalidCursor as refused:
            return refused.fields["cause"]
        return "ok"

    assert cause(lambda: cursors.parse_frame_bound(case["text"], is_upper=False)) == case["read"]
    assert cause(lambda: cursors.parse_frame_bound(case["text"], is_upper=True)) == case["read"]
    assert cause(lambda: cursors.parse_frame_cursor(case["text"])) == case["tail"]


@pytest.mark.parametrize("text", ["9" * 20, "1-99999999999", "9223372036854775808-0", "1-2147483648", "\u0661-1"])
def test_a_frame_cursor_that_no_frame_could_have_is_malformed(text: str) -> None:
    with pytest.raises(InvalidCursor) as refused:
        cursors.parse_frame_cursor(text)
    assert refused.value.fields["cause"] == "malformed"


async def test_ranges_are_inclusive_and_a_millisecond_means_all_of_it(given: Given) -> None:
    claim = await given.claimed()
    first, second = await appended(given.conn, claim, b"1", b"2")
    await given.time_passes(seconds=1)
    [third] = await appended(given.conn, claim, b"3")
    ms, later = first.split("-")[0], third.split("-")[0]

    async def read(**bounds: str) -> list[bytes]:
        return await payloads(given.conn, claim.execution_id, **bounds)

    assert await read(start=first, end=second) == [b"1", b"2"]
    assert await read(start=second) == [b"2", b"3"]
    assert await read(end=first) == [b"1"]
    assert await read(end=ms) == [b"1", b"2"]
    assert await read(start=later, end=later) == [b"3"]
    assert await read(start=third, end=first) == []
    assert await read(start="end", end="end") == []


async def test_a_page_that_ends_says_where_the_next_one_starts(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, *(b"%d" % number for number in range(7)))

    found: list[bytes] = []
    start: str | None = "start"
    while start is not None:
        page = await streams.read_frames(given.conn, claim.execution_id, start=start, limit=3)
        found += [it.payload for it in page.frames]
        start = page.next
    assert found == [b"%d" % number for number in range(7)]


async def test_a_page_ends_at_4_mib(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, *[b"x" * 65_536] * 70)

    page = await streams.read_frames(given.conn, claim.execution_id, limit=100)
    assert len(page.frames) == 63
    rest = await streams.read_frames(given.conn, claim.execution_id, start=str(page.next), limit=100)
    assert (len(rest.frames), rest.next) == (7, None)


async def test_frames_are_read_by_kind(given: Given) -> None:
    claim = await given.claimed()
    kinds = ["stdout", "event", "stderr", "stdout"]
    await streams.append_frames(given.conn, [frame(claim, b"%d" % n, kind=kind) for n, kind in enumerate(kinds)])

    assert await payloads(given.conn, claim.execution_id, kinds=["stdout"]) == [b"0", b"3"]
    assert await payloads(given.conn, claim.execution_id, kinds=["stderr", "event"]) == [b"1", b"2"]
    assert await payloads(given.conn, claim.execution_id, kinds=[]) == []


async def test_a_stream_that_was_never_written_is_empty(given: Given) -> None:
    execution_id = await given.submitted()
    waiting = await streams.read_frames(given.conn, execution_id)
    [claim] = await given.claim()
    running = await streams.read_frames(given.conn, execution_id)
    other = await streams.read_frames(given.conn, execution_id, attempt=7)

    assert (waiting.frames, waiting.attempt, waiting.latest) == ([], 0, 0)
    assert (running.frames, running.attempt, running.closed_reason) == ([], claim.attempt.number, None)
    assert (other.frames, other.attempt, other.latest) == ([], 7, 1)


async def test_a_stream_of_no_execution_is_refused(given: Given) -> None:
    execution_id = (await given.claimed()).execution_id
    await given.conn.execute("delete from flowfabric.tickets; delete from flowfabric.executions")

    with pytest.raises(ExecutionNotFound):
        await streams.read_frames(given.conn, execution_id)
    with pytest.raises(ExecutionNotFound):
        await streams.read_summary(given.conn, execution_id)
    [refused] = await streams.tail_frames(given.conn, [Tail(execution_id=execution_id)])
    assert isinstance(refused, ExecutionNotFound)


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1 << 70, "3"])
async def test_a_limit_out_of_range_is_refused(given: Given, limit: Any) -> None:
    execution_id = await given.submitted()

    with pytest.raises(InvalidLimit):
        await streams.read_frames(given.conn, execution_id, limit=limit)
    with pytest.raises(InvalidLimit):
        await streams.tail_frames(given.conn, [Tail(execution_id=execution_id)], limit=limit)


async def test_attempts_are_read_separately(given: Given) -> None:
    claim = await given.claimed(policy={"retry": {"max_retries": 1}})
    await appended(given.conn, claim, b"1")
    await attempts.fail(given.conn, claim.fence, "down", class_=FailureClass.TRANSIENT)
    await given.time_passes(minutes=5)
    [again] = await given.claim()
    await appended(given.conn, again, b"2")

    assert await payloads(given.conn, claim.execution_id, attempt=1) == [b"1"]
    assert await payloads(given.conn, claim.execution_id, attempt=2) == [b"2"]
    assert await payloads(given.conn, claim.execution_id) == [b"2"]


async def test_a_tail_reads_what_follows_in_each_stream(given: Given) -> None:
    first, second, silent = await given.claimed(), await given.claimed(), await given.claimed()
    ids = await appended(given.conn, first, b"1", b"2", b"3")
    await appended(given.conn, second, b"4")
    asked = [
        Tail(execution_id=first.execution_id, after=ids[0]),
        Tail(execution_id=silent.execution_id),
        Tail(execution_id=second.execution_id),
        Tail(execution_id=first.execution_id, after=ids[2]),
        Tail(execution_id=first.execution_id, after="start"),
    ]

    answers = await streams.tail_frames(given.conn, asked, limit=1)
    pages = [[it.payload for it in page.frames] for page in answers if isinstance(page, FramePage)]
    assert pages == [[b"2"], [], [b"4"], []]
    assert [page.next is not None for page in answers if isinstance(page, FramePage)] == [True, False, False, False]
    assert isinstance(answers[-1], InvalidCursor)


async def test_tails_that_do_not_fit_into_4_mib_together_are_told_that_there_is_more(given: Given) -> None:
    claims = [await given.claimed() for _ in range(3)]
    for claim in claims:
        await appended(given.conn, claim, *[b"x" * 65_536] * 40)

    answers = await streams.tail_frames(given.conn, [Tail(execution_id=it.execution_id) for it in claims], limit=100)
    pages = [page for page in answers if isinstance(page, FramePage)]
    assert [len(page.frames) for page in pages] == [40, 23, 0]
    assert [page.next is not None for page in pages] == [False, True, True]


async def test_a_tail_can_leave_out_best_effort_frames(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b"1")
    await appended(given.conn, claim, b"2", mode="best_effort", ttl=timedelta(seconds=5))

    async def tail(*, best_effort: bool) -> list[bytes]:
        [page] = await streams.tail_frames(given.conn, [Tail(execution_id=claim.execution_id, best_effort=best_effort)])
        assert isinstance(page, FramePage)
        return [it.payload for it in page.frames]

    assert await tail(best_effort=True) == [b"1", b"2"]
    assert await tail(best_effort=False) == [b"1"]
