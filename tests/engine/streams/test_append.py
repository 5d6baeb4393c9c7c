"""Appending: many frames in one call, each with its own answer, in an order that the database decides."""

from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, claims, executions, streams
from flowfabric.errors import (
    ExecutionNotActive,
    FlowFabricError,
    InvalidFrame,
    InvalidText,
    LeaseLost,
    PayloadTooLarge,
)
from flowfabric.model import Appended
from tests.conftest import Connect
from tests.engine.streams.scene import appended, frame, payloads
from tests.given import Given


async def test_three_frames_are_read_in_order(given: Given) -> None:
    claim = await given.claimed()
    ids = await appended(given.conn, claim, b"1", b"2", b"3")

    page = await streams.read_frames(given.conn, claim.execution_id)
    assert [found.payload for found in page.frames] == [b"1", b"2", b"3"]
    assert [found.id for found in page.frames] == ids == sorted(ids, key=lambda i: [int(n) for n in i.split("-")])
    assert (page.attempt, page.latest, page.has_ended, page.closed_reason, page.next) == (1, 1, False, None, None)


async def test_a_frame_reads_back_as_it_was_appended(given: Given) -> None:
    claim = await given.claimed()
    data = bytes(range(256)) + b"\0"
    asked = frame(claim, data, kind="blob", type="image", encoding="png", correlation_id="call-1")
    answer = await streams.append_frame(given.conn, asked)

    [found] = (await streams.read_frames(given.conn, claim.execution_id)).frames
    assert (found.id, found.attempt) == (answer.frame_id, 1)
    assert (found.kind, found.type, found.payload, found.encoding) == ("blob", "image", data, "png")
    assert (found.mode, found.correlation_id, found.summary_version) == ("durable", "call-1", None)
    assert (found.data, found.text, found.cursor) == (data, None, f"1:{answer.frame_id}")


async def test_the_type_of_a_frame_is_its_kind_unless_it_is_given(given: Given) -> None:
    claim = await given.claimed()
    await streams.append_frames(given.conn, [frame(claim), frame(claim, kind="stdout"), frame(claim, type="event")])

    found = (await streams.read_frames(given.conn, claim.execution_id)).frames
    assert [(it.kind, it.type, it.data, it.text) for it in found] == [
        ("event", "event", "x", "x"),
        ("stdout", "stdout", "x", "x"),
        ("event", "event", "x", "x"),
    ]


@pytest.mark.parametrize("payload", [b"", b"\0", b"\xff\xfe", b'{"a":  1.50}', "é".encode() * 9], ids=repr)
async def test_payloads_survive_byte_for_byte(given: Given, payload: bytes) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, payload)

    assert await payloads(given.conn, claim.execution_id) == [payload]


async def test_a_frame_of_64_kib_fits_and_a_byte_more_is_refused_and_the_stream_goes_on(given: Given) -> None:
    claim = await given.claimed()
    asked = [frame(claim, b"a" * 65_536), frame(claim, b"b" * 65_537), frame(claim, b"c")]

    first, second, third = await streams.append_frames(given.conn, asked)
    assert isinstance(second, PayloadTooLarge)
    assert second.fields == {"limit": 65_536}
    assert isinstance(first, Appended)
    assert isinstance(third, Appended)
    assert [len(it) for it in await payloads(given.conn, claim.execution_id)] == [65_536, 1]
    assert (first.frame_count, third.frame_count) == (1, 2)


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"kind": "stdin"}, InvalidFrame, "kind"),
        ({"mode": "often"}, InvalidFrame, "mode"),
        ({"type": ""}, InvalidFrame, "type"),
        ({"type": "t" * 129}, InvalidFrame, "type"),
        ({"type": 5}, InvalidFrame, "type"),
        ({"type": "a\0"}, InvalidText, None),
        ({"encoding": ""}, InvalidFrame, "encoding"),
        ({"encoding": "e" * 65}, InvalidFrame, "encoding"),
        ({"correlation_id": "c" * 257}, InvalidFrame, "correlation_id"),
        ({"correlation_id": "\ud800"}, InvalidText, None),
        ({"ttl": timedelta(seconds=1)}, InvalidFrame, "ttl_ms"),
        ({"mode": "best_effort", "ttl": timedelta(0)}, InvalidFrame, "ttl_ms"),
        ({"mode": "best_effort", "ttl": timedelta(days=1, seconds=1)}, InvalidFrame, "ttl_ms"),
        ({"mode": "best_effort", "ttl": timedelta(days=10**8)}, InvalidFrame, "ttl_ms"),
        ({"number": 0}, InvalidFrame, "number"),
        ({"number": 1 << 70}, InvalidFrame, "number"),
        ({"number": "1"}, InvalidFrame, "number"),
        ({"payload": "text"}, InvalidFrame, "payload"),
        ({"payload": None}, InvalidFrame, "payload"),
        ({"payload": b"x" * 9_000_000}, PayloadTooLarge, None),
    ],
    ids=lambda given: str(given)[:40],
)
async def test_an_invalid_frame_is_refused_alone(
    given: Given, fields: dict[str, Any], error: type[FlowFabricError], field: str | None
) -> None:
    claim = await given.claimed()
    async with given.nothing_changes():
        with pytest.raises(error) as refused:
            await streams.append_frame(given.conn, frame(claim, **fields))
    assert refused.value.fields.get("field") == field

    answers = await streams.append_frames(given.conn, [frame(claim, **fields), frame(claim, b"1")])
    assert [type(answer) for answer in answers] == [error, Appended]
    assert await payloads(given.conn, claim.execution_id) == [b"1"]


async def test_a_frame_without_a_payload_is_refused_by_sql_too(given: Given) -> None:
    claim = await given.claimed()
    [row] = await given.rows(
        "select * from flowfabric.append_frames(array[$1::int], array[$2::uuid], array[$3::uuid], array[$4::bigint], "
        "array[1], array[null::bytea])",
        *(claim.execution_id.partition, claim.execution_id.uuid, claim.fence.lease_id, claim.fence.epoch),
    )

    assert row["refusal"] == "invalid_frame"
    assert await given.count("streams") == 0


async def test_an_ended_execution_takes_no_frames(given: Given) -> None:
    claim = await given.claimed()
    await attempts.complete(given.conn, claim.fence)

    async with given.nothing_changes():
        with pytest.raises(ExecutionNotActive):
            await streams.append_frame(given.conn, frame(claim))


async def test_an_old_holder_cannot_append_after_a_reclaim(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b"1")
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)
    [taken] = await given.claim(instance="pool-2")

    async with given.nothing_changes():
        with pytest.raises(LeaseLost):
            await streams.append_frame(given.conn, frame(claim))
    await appended(given.conn, taken, b"2")
    assert await payloads(given.conn, claim.execution_id, attempt=1) == [b"1"]
    assert await payloads(given.conn, claim.execution_id) == [b"2"]


async def test_an_expired_lease_appends_nothing_even_if_it_was_not_reclaimed(given: Given) -> None:
    claim = await given.claimed()
    await given.time_passes(minutes=1)

    with pytest.raises(LeaseLost):
        await streams.append_frame(given.conn, frame(claim))
    assert await given.count("frames") == 0


async def test_frames_of_many_executions_and_bad_fences_are_answered_in_their_places(given: Given) -> None:
    first, second, stale = await given.claimed(), await given.claimed(), await given.claimed()
    await executions.cancel(given.conn, stale.execution_id, by="ops")
    asked = [frame(second, b"1"), frame(stale), frame(first, b"2"), frame(second, b"3"), frame(first, b"4")]

    answers = await streams.append_frames(given.conn, asked)
    assert [type(answer) for answer in answers] == [Appended, ExecutionNotActive, Appended, Appended, Appended]
    counts = [answer.frame_count for answer in answers if isinstance(answer, Appended)]
    assert counts == [1, 1, 2, 2]
    assert await payloads(given.conn, first.execution_id) == [b"2", b"4"]
    assert await payloads(given.conn, second.execution_id) == [b"1", b"3"]


async def test_appending_emits_no_events(given: Given) -> None:
    claim = await given.claimed()
    before = await given.events()
    await appended(given.conn, claim, b"1")

    assert await given.events() == before


async def test_a_repeated_frame_is_a_duplicate_and_is_appended_once(given: Given) -> None:
    claim = await given.claimed()
    asked = [frame(claim, b"%d" % number, number=number) for number in (1, 2, 3)]
    await streams.append_frames(given.conn, asked)

    again = await streams.append_frames(given.conn, [*asked, frame(claim, b"4", number=4)])
    assert [it.outcome for it in again if isinstance(it, Appended)] == ["duplicate"] * 3 + ["appended"]
    assert await payloads(given.conn, claim.execution_id) == [b"1", b"2", b"3", b"4"]


async def test_a_number_used_twice_in_one_call_counts_once(given: Given) -> None:
    claim = await given.claimed()
    asked = [frame(claim, b"a", number=1), frame(claim, b"b", number=1), frame(claim, b"c"), frame(claim, number=1)]

    answers = await streams.append_frames(given.conn, asked)
    assert [it.outcome for it in answers if isinstance(it, Appended)] == ["appended", "duplicate"] * 2
    assert await payloads(given.conn, claim.execution_id) == [b"a", b"c"]


async def test_a_refused_frame_uses_up_no_number(given: Given) -> None:
    claim = await given.claimed()
    asked = [frame(claim, number=1, kind="bad"), frame(claim, b"1", number=1)]

    answers = await streams.append_frames(given.conn, asked)
    assert [type(answer) for answer in answers] == [InvalidFrame, Appended]
    assert await payloads(given.conn, claim.execution_id) == [b"1"]


async def test_numbers_begin_again_with_each_epoch(given: Given) -> None:
    claim = await given.claimed()
    await streams.append_frame(given.conn, frame(claim, b"1", number=5))
    await attempts.delay(given.conn, claim.fence)
    [resumed] = await given.claim()

    assert (await streams.append_frame(given.conn, frame(resumed, b"2", number=1))).outcome == "appended"
    assert resumed.attempt.number == 1
    assert [text for text in await payloads(given.conn, claim.execution_id) if b"last_id" not in text] == [b"1", b"2"]


async def test_without_numbers_a_repeat_appends_again(given: Given) -> None:
    claim = await given.claimed()
    for _ in range(2):
        await appended(given.conn, claim, b"1")

    assert await payloads(given.conn, claim.execution_id) == [b"1", b"1"]


async def test_ids_grow_when_the_clock_is_set_back(given: Given) -> None:
    claim = await given.claimed(lease=timedelta(hours=1))
    [first] = await appended(given.conn, claim, b"1")
    await given.time_passes(minutes=-10)
    second, third = await appended(given.conn, claim, b"2", b"3")
    await given.time_passes(minutes=10, seconds=5)
    [fourth] = await appended(given.conn, claim, b"4")

    ms = first.split("-")[0]
    assert (first, second, third) == (f"{ms}-0", f"{ms}-1", f"{ms}-2")
    assert int(fourth.split("-")[0]) > int(ms)
    assert await payloads(given.conn, claim.execution_id) == [b"1", b"2", b"3", b"4"]


async def test_a_locked_execution_does_not_hold_up_the_frames_of_others(given: Given, connect: Connect) -> None:
    claim, other = await given.claimed(), await given.claimed()
    holder = await connect()
    async with holder.transaction():
        await holder.execute("select from flowfabric.tickets where id = $1 for update", claim.execution_id.uuid)
        answers = await streams.append_frames(given.conn, [frame(claim), frame(other)], wait=False)

    assert [getattr(answer, "code", "appended") for answer in answers] == ["row_locked", "appended"]


async def test_a_thousand_frames_and_more_are_appended_in_order(given: Given) -> None:
    claim = await given.claimed()
    asked = [frame(claim, b"%d" % number) for number in range(2_500)]

    answers = await streams.append_frames(given.conn, asked)
    assert [it.frame_count for it in answers if isinstance(it, Appended)] == list(range(1, 2_501))
    assert await payloads(given.conn, claim.execution_id, limit=10_000) == [b"%d" % number for number in range(2_500)]
    assert await streams.append_frames(given.conn, []) == []
