"""Runs that are interrupted inside their attempt: what the next one puts out again is marked in the stream."""

from datetime import timedelta
from typing import Any

import pytest

from flowfabric import App
from flowfabric.app.tails import _without_void
from flowfabric.engine import attempts, steps, streams
from flowfabric.errors import InvalidFrame
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, Delay, Frame, Step, Superseded
from tests.engine.streams.scene import frame
from tests.given import Given


async def put(given: Given, claim: Claim, *texts: str, first: int = 1, **options: Any) -> None:
    """Append numbered texts, as a run does."""
    wanted = [frame(claim, f'"{text}"'.encode(), number=number, **options) for number, text in enumerate(texts, first)]
    await streams.append_frames(given.conn, wanted)


async def stopped(given: Given, claim: Claim) -> Claim:
    """Release the execution as a worker that stops does, and claim it again."""
    await attempts.delay(given.conn, claim.fence)
    [again] = await given.claim()
    assert again.fence.attempt == claim.fence.attempt
    return again


async def save(given: Given, claim: Claim, name: str) -> None:
    await given.time_passes(seconds=1)
    await steps.save_step(given.conn, Step(fence=claim.fence, name=name, occurrence=1, result=b"1"))
    await given.time_passes(seconds=1)


async def found(given: Given, execution_id: ExecutionId) -> list[Any]:
    """The texts of the stream; a mark as the text that is the last one to stay valid."""
    page = await streams.read_frames(given.conn, execution_id)
    texts = {each.id: each.data for each in page.frames}
    return [(texts.get(each.data["last_id"]),) if each.type == "superseded" else each.data for each in page.frames]


async def test_what_a_stopped_run_has_left_after_its_last_saved_step_is_marked_once(given: Given) -> None:
    claim = await given.claimed()
    await put(given, claim, "a", "b")
    await save(given, claim, "one")
    await put(given, claim, "void", first=3)
    again = await stopped(given, claim)
    await put(given, again, "c")
    await put(given, again, "d", first=2)

    assert await found(given, claim.execution_id) == ["a", "b", "void", ("b",), "c", "d"]


async def test_without_a_saved_step_nothing_stays_valid(given: Given) -> None:
    claim = await given.claimed()
    await put(given, claim, "void")
    second = await stopped(given, claim)
    await put(given, second, "void too")
    third = await stopped(given, second)
    await put(given, third, "a")

    assert await found(given, claim.execution_id) == ["void", (None,), "void too", (None,), "a"]


async def test_a_run_that_resumes_after_its_wait_marks_nothing(given: Given) -> None:
    claim = await given.claimed()
    await put(given, claim, "a")
    until = Delay(fence=claim.fence, until=timedelta(hours=1), name="sleep", occurrence=1)
    await attempts.delay_many(given.conn, [until])
    await given.time_passes(hours=2)
    [again] = await given.claim()
    await put(given, again, "b")

    assert await found(given, claim.execution_id) == ["a", "b"]


async def test_nothing_is_marked_where_nothing_is_repeated(given: Given) -> None:
    claim = await given.claimed()
    await put(given, claim, "a")
    await save(given, claim, "one")
    await put(given, claim, first=2)
    await streams.append_frame(given.conn, frame(claim, b'{"progress": 1}', mode="summary", number=2))
    again = await stopped(given, claim)
    await put(given, again, "b")

    assert await found(given, claim.execution_id) == ["a", {"progress": 1}, "b"]


async def test_many_runs_resume_in_one_call(given: Given) -> None:
    claims = [await given.claimed() for _ in range(3)]
    for claim in claims[:2]:
        await put(given, claim, "void")
    again = [await stopped(given, claim) for claim in claims]
    await streams.append_frames(given.conn, [frame(claim, b'"a"', number=1) for claim in reversed(again)])

    shown = [await found(given, claim.execution_id) for claim in claims]
    assert shown == [["void", (None,), "a"], ["void", (None,), "a"], ["a"]]


async def test_the_type_of_the_mark_is_reserved(given: Given) -> None:
    claim = await given.claimed()

    with pytest.raises(InvalidFrame):
        await streams.append_frame(given.conn, frame(claim, type="superseded"))


async def test_readers_get_the_mark_and_what_is_valid_has_no_void_text(app: App, given: Given) -> None:
    claim = await given.claimed()
    await put(given, claim, "a")
    await save(given, claim, "one")
    await put(given, claim, "void", first=2)
    again = await stopped(given, claim)
    await put(given, again, "b")
    await attempts.complete(given.conn, again.fence)

    async with app:
        execution = app.execution(claim.execution_id)
        everything = [each async for each in execution.frames()]
        valid = [each.text async for each in execution.frames(attempts="valid")]
        [first, _, mark, last] = everything
        assert isinstance(first, Frame)
        assert isinstance(mark, Superseded)
        assert (mark.attempt, mark.by, mark.last_id) == (1, 1, first.id)
        rest = [each.text async for each in execution.frames(mark.cursor)]
    assert [mark.keeps(each) for each in everything if isinstance(each, Frame)] == [True, False, True]
    assert valid == ["a", "b"]
    assert rest == [last.text] == ["b"]


async def test_a_reader_that_has_seen_void_text_gets_the_mark_with_what_is_valid(given: Given) -> None:
    claim = await given.claimed()
    await put(given, claim, "void", "void")
    again = await stopped(given, claim)
    await put(given, again, "b")
    page = await streams.read_frames(given.conn, claim.execution_id)

    late = _without_void(page.frames, "0-0")
    early = _without_void(page.frames[1:], page.frames[0].id)
    assert [each.data for each in late] == ["b"]
    assert [each.data for each in early] == [{"last_id": None}, "b"]
