"""Retention: how many frames a stream keeps, and when they are deleted."""

import json
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import cursors
from flowfabric.engine import attempts, executions, lanes, streams
from flowfabric.errors import InvalidPolicy
from flowfabric.model import Appended, Claim, FailureClass, FramePage, Tail
from tests.conftest import Connect
from tests.engine.streams.scene import appended, frame, patch, payloads
from tests.given import Given
from tests.sources import TESTS

BEST_EFFORT = json.loads((TESTS / "vectors.json").read_text())["best_effort"]["cases"]


async def test_the_last_n_frames_are_kept_and_all_are_counted(given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 10}})
    await appended(given.conn, claim, *(b"%d" % n for n in range(200)))
    assert (await streams.trim_frames(given.conn)).moved == 190

    assert await payloads(given.conn, claim.execution_id) == [b"%d" % n for n in range(190, 200)]
    assert (await streams.append_frame(given.conn, frame(claim))).frame_count == 201
    assert (await streams.trim_frames(given.conn)).moved == 0


async def test_a_stream_is_trimmed_only_when_it_is_a_quarter_over(given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 400}})
    moved = []
    for _ in range(12):
        await appended(given.conn, claim, *[b"1"] * 50)
        moved.append((await streams.trim_frames(given.conn)).moved)

    assert moved == [0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 0, 100]


async def test_ten_thousand_frames_are_kept_unless_the_policy_says_otherwise(given: Given) -> None:
    claim = await given.claimed()
    await streams.append_frames(given.conn, [frame(claim, b"%d" % n) for n in range(12_600)])
    assert (await streams.trim_frames(given.conn, limit=10_000)).moved == 2_600

    assert await given.count("frames") == 10_000


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"stream": {"retention_maxlen": 0}}, "stream.retention_maxlen"),
        ({"stream": {"retention_maxlen": 100_001}}, "stream.retention_maxlen"),
        ({"stream": {"maxlen": 1}}, "stream.maxlen"),
        ({"stream": {"retention_ms": 0}}, "stream.retention_ms"),
        ({"stream": {"retention_ms": "2h"}}, "stream.retention_ms"),
        ({"stream": 5}, "stream"),
    ],
)
async def test_a_policy_with_an_impossible_retention_is_refused(
    given: Given, policy: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        await given.submitted(policy=policy)
    assert refused.value.fields["field"] == field


async def test_a_pass_deletes_a_limited_number_and_the_next_one_the_rest(given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 10}})
    await appended(given.conn, claim, *(b"%d" % n for n in range(200)))

    assert [(await streams.trim_frames(given.conn, limit=100)).moved for _ in range(3)] == [100, 90, 0]


async def test_durable_frames_are_not_dropped_for_others(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b"kept")
    for _ in range(3):
        await appended(given.conn, claim, *[b"{}"] * 500, mode="summary")
        await appended(given.conn, claim, *[b"1"] * 500, mode="best_effort", ttl=timedelta(seconds=1))
    await given.time_passes(seconds=10)
    await streams.trim_frames(given.conn, limit=10_000)

    found = await streams.read_frames(given.conn, claim.execution_id, limit=10_000)
    assert [it.mode for it in found.frames] == ["durable", *["summary"] * 64]


async def test_best_effort_frames_are_gone_for_readers_when_they_expire(given: Given) -> None:
    claim = await given.claimed(lease=timedelta(hours=1))
    await appended(given.conn, claim, b"1", mode="best_effort", ttl=timedelta(seconds=10))
    await given.time_passes(seconds=19)
    assert await payloads(given.conn, claim.execution_id) == [b"1"]
    await given.time_passes(seconds=2)

    assert await payloads(given.conn, claim.execution_id) == []
    assert await given.count("frames") == 1
    assert (await streams.trim_frames(given.conn)).moved == 1
    assert await given.count("frames") == 0


async def test_a_stream_with_later_best_effort_frames_is_trimmed_again(given: Given) -> None:
    claim = await given.claimed(lease=timedelta(hours=1))
    await appended(given.conn, claim, b"1", mode="best_effort", ttl=timedelta(seconds=1))
    await appended(given.conn, claim, b"2", mode="best_effort", ttl=timedelta(minutes=1))
    moved = []
    for seconds in (3, 30, 100):
        await given.time_passes(seconds=seconds)
        moved.append((await streams.trim_frames(given.conn)).moved)

    assert moved == [1, 0, 1]


@pytest.mark.parametrize("case", BEST_EFFORT, ids=lambda case: str(case["calls"]))
async def test_the_cap_of_best_effort_frames_follows_their_rate(given: Given, case: dict[str, Any]) -> None:
    rate, last, found = 0.0, None, []
    for ms, frames in case["calls"]:
        [row] = await given.rows(
            "select r.rate, flowfabric._best_effort_keep(r.rate, $5) as keep from (select "
            "flowfabric._best_effort_rate($1, to_timestamp($2::float8 / 1000), $3, to_timestamp($4::float8 / 1000)) "
            "as rate) r",
            *(rate, last, frames, ms, case["ttl_ms"]),
        )
        rate, last = row["rate"], ms
        found.append((pytest.approx(rate, abs=1e-5), row["keep"]))

    assert [(after["rate"], after["keep"]) for after in case["after"]] == found


async def test_a_call_computes_the_cap_from_the_calls_before_it(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, *[b"1"] * 10, mode="best_effort", ttl=timedelta(seconds=10))
    await given.time_passes(seconds=1)
    await appended(given.conn, claim, *[b"1"] * 100, mode="best_effort", ttl=timedelta(seconds=10))

    [row] = await given.rows("select best_effort_rate as rate, best_effort_keep as keep from flowfabric.streams")
    assert 10 < row["rate"] <= 20
    assert 200 < row["keep"] <= 400


async def test_frames_are_removed_with_their_execution(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, *[b"1"] * 10)
    await executions.cancel(given.conn, claim.execution_id, by="ops")
    await given.time_passes(days=8)
    await executions.remove_ended(given.conn)
    moved = [(await streams.trim_frames(given.conn, limit=6)).moved for _ in range(3)]

    assert moved == [6, 4, 0]
    assert (await given.count("streams"), await given.count("frames")) == (0, 0)


async def test_an_execution_with_the_id_of_a_removed_one_begins_with_an_empty_stream(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b"old", b"older")
    await executions.cancel(given.conn, claim.execution_id, by="ops")
    await given.time_passes(days=8)
    await executions.remove_ended(given.conn)
    again = await given.claimed(execution_id=claim.execution_id)
    answer = await streams.append_frame(given.conn, frame(again, b"new", number=1))

    assert answer.frame_count == 1
    assert await payloads(given.conn, claim.execution_id) == [b"new"]
    assert (await streams.trim_frames(given.conn)).moved == 0


async def test_a_trim_does_not_wait_for_an_append(given: Given, connect: Connect) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 1}})
    await appended(given.conn, claim, *[b"1"] * 100)
    other = await connect()
    async with other.transaction():
        answers = await streams.append_frames(other, [frame(claim)])
        assert isinstance(answers[0], Appended)
        assert (await streams.trim_frames(given.conn)).moved == 99

    assert (await streams.trim_frames(given.conn)).moved == 1
    assert (await streams.trim_frames(given.conn)).moved == 0


async def test_a_lane_decides_what_its_streams_keep_unless_the_policy_does(given: Given) -> None:
    await lanes.configure_lane(given.conn, "agents", stream_retention_maxlen=20, stream_retention=timedelta(hours=2))
    policies: list[dict[str, Any]] = [{}, {"stream": {"retention_maxlen": 30}}, {"stream": {"retention_ms": 1_000}}]
    for policy in policies:
        await appended(given.conn, await given.claimed(lane="agents", policy=policy), b"1")
    await appended(given.conn, await given.claimed(), b"1")
    await lanes.configure_lane(given.conn, "agents", stream_retention=timedelta(0))
    await appended(given.conn, await given.claimed(lane="agents"), b"1")

    found = await given.rows(
        "select s.max_frames, s.retention from flowfabric.streams s join flowfabric.executions e on e.id = s.execution "
        "order by e.created_at"
    )
    assert [(row["max_frames"], row["retention"]) for row in found] == [
        (20, timedelta(hours=2)),
        (30, timedelta(hours=2)),
        (20, timedelta(seconds=1)),
        (10_000, None),
        (20, None),
    ]


async def test_frames_are_deleted_when_the_retention_has_passed_since_the_end(given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_ms": 7_200_000}})
    await appended(given.conn, claim, b"1", b"2")
    await streams.append_frame(given.conn, patch(claim, b'{"progress": 99}'))
    await appended(given.conn, claim, b"3", mode="best_effort", ttl=timedelta(minutes=1))
    await attempts.complete(given.conn, claim.fence)
    moved = []
    for minutes in (5, 110, 10, 10):
        await given.time_passes(minutes=minutes)
        moved.append((await streams.trim_frames(given.conn)).moved)

    assert moved == [1, 0, 3, 0]
    page = await streams.read_frames(given.conn, claim.execution_id)
    assert ([*page.frames], page.closed_reason) == ([], "attempt_success")
    summary = await streams.read_summary(given.conn, claim.execution_id)
    assert summary is not None
    assert summary.document == {"progress": 99}


async def test_frames_of_an_attempt_that_is_retried_are_deleted_while_the_next_one_runs(given: Given) -> None:
    policy = {"stream": {"retention_ms": 60_000}, "retry": {"max_retries": 1}}
    claim = await given.claimed(policy=policy)
    await appended(given.conn, claim, b"1")
    await attempts.fail(given.conn, claim.fence, "down", class_=FailureClass.TRANSIENT)
    await given.time_passes(minutes=5)
    [again] = await given.claim()
    await appended(given.conn, again, b"2")
    moved = [(await streams.trim_frames(given.conn)).moved for _ in range(2)]

    assert moved == [1, 0]
    assert await payloads(given.conn, claim.execution_id, attempt=1) == []
    assert await payloads(given.conn, claim.execution_id, attempt=2) == [b"2"]


async def test_a_tail_is_told_which_frames_were_deleted_before_it_came_to_them(given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 10}})
    ids = await appended(given.conn, claim, *(b"%d" % n for n in range(100)))
    await streams.append_frame(given.conn, patch(claim, b"{}"))
    kept = await tail(given, claim)
    await streams.trim_frames(given.conn)

    assert kept.trimmed_to is None
    for after in ("0-0", ids[0], ids[88]):
        page = await tail(given, claim, after)
        assert page.frames[0].id == ids[90]
        assert cursors.parse_frame_cursor(str(page.trimmed_to)) < cursors.parse_frame_cursor(ids[90])
        assert cursors.parse_frame_cursor(str(page.trimmed_to)) >= cursors.parse_frame_cursor(ids[89])
        assert (await tail(given, claim, str(page.trimmed_to))).trimmed_to is None
    assert [(await tail(given, claim, after)).trimmed_to for after in (ids[90], ids[99])] == [None, None]


async def test_a_tail_is_told_that_a_stream_whose_retention_has_passed_was_deleted(given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_ms": 60_000}})
    [first, last] = await appended(given.conn, claim, b"1", b"2")
    await attempts.complete(given.conn, claim.fence)
    await given.time_passes(minutes=2)
    before = await tail(given, claim)
    await streams.trim_frames(given.conn)

    assert ([it.id for it in before.frames], before.trimmed_to) == ([first, last], None)
    for after, told in (("0-0", last), (first, last), (last, None)):
        page = await tail(given, claim, after)
        assert ([*page.frames], page.trimmed_to, page.closed_reason) == ([], told, "attempt_success")


async def test_the_first_frame_of_a_millisecond_has_a_mark_that_ends_before_it(given: Given) -> None:
    claim = await given.claimed(policy={"stream": {"retention_maxlen": 1}})
    for _ in range(70):
        await appended(given.conn, claim, b"1")
        await given.time_passes(milliseconds=20)
    await streams.trim_frames(given.conn)
    page = await tail(given, claim)

    assert page.trimmed_to is not None
    assert page.frames[0].id.endswith("-0")
    assert (await tail(given, claim, page.trimmed_to)).trimmed_to is None
    assert (await tail(given, claim, page.trimmed_to)).frames == page.frames


async def tail(given: Given, claim: Claim, after: str = "0-0") -> FramePage:
    [page] = await streams.tail_frames(given.conn, [Tail(execution_id=claim.execution_id, after=after)], limit=100)
    assert isinstance(page, FramePage)
    return page
