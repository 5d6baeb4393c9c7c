"""Firing: what a tick submits, and what happens to missed, overlapping and refused ticks."""

import logging
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

import pytest

from flowfabric.config import Config
from flowfabric.engine import attempts, executions, lanes, schedules
from flowfabric.errors import LaneDraining, ScheduleNotFound
from flowfabric.ids import mint_execution_id, partition_of
from flowfabric.model import PublicState, ScheduleState
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.sweeps import run_once, sweeps
from tests.conftest import Connect
from tests.engine.schedules.scene import HOUR, MINUTE, at, create, fired, moment, sweep
from tests.given import Given


@pytest.fixture(autouse=True)
async def noon(given: Given) -> None:
    await at(given, "2026-06-01 12:00:20")


async def test_a_tick_is_submitted_once_it_is_due_and_not_before(conn: Connection, given: Given) -> None:
    await create(conn, task="report", lane="reports", payload=b'{"topic":"tides"}', priority=7, tags={"a.b": "c"})

    assert (await sweep(conn)).moved == 0
    await given.time_passes(hours=1)
    swept = await sweep(conn)
    assert (swept.moved, swept.lanes) == (1, ["reports"])
    assert (await sweep(conn)).moved == 0
    [claim] = await given.claim(lanes=["reports"])
    assert (claim.task, claim.payload) == ("report", b'{"topic":"tides"}')
    described = await executions.describe(conn, claim.execution_id)
    assert (described.priority, described.tags) == (7, {"a.b": "c"})
    assert await fired(given) == [moment("2026-06-01 13:00")]


def uuid_of(namespace: str, name: str) -> UUID:
    """The UUID of the tick at 13:00: version 8, from the first half of a hash, in a partition of cell 0."""
    hashed = f"schedule\0{namespace}\0{name}\0{int(moment('2026-06-01 13:00').timestamp())}000000"
    digits = sha256(hashed.encode()).hexdigest()
    partition = int(digits[16:21], 16) >> 3 & 255
    carrying = f"{0b10 << 18 | partition << 3 | int(digits[20], 16) & 7:05x}"
    return UUID(f"{int(digits[0], 16) | 8:x}{digits[1:12]}8{digits[13:16]}{carrying}{digits[21:32]}")


async def test_the_execution_id_is_derived_from_schedule_and_tick(conn: Connection, given: Given) -> None:
    await create(conn)
    await create(conn, "other")
    await create(conn, namespace="acme")
    await given.time_passes(hours=1)

    await sweep(conn)

    stored = await given.rows("select partition, id from flowfabric.executions")
    expected = {uuid_of("default", "nightly"), uuid_of("default", "other"), uuid_of("acme", "nightly")}
    assert {row["id"] for row in stored} == expected
    assert [row["partition"] for row in stored] == [partition_of(row["id"]) for row in stored]


async def test_a_deadline_is_counted_from_the_submission(conn: Connection, given: Given) -> None:
    await create(conn, deadline=HOUR)
    await given.time_passes(hours=1)
    await sweep(conn)

    [row] = await given.rows("select deadline_at - created_at as span from flowfabric.tickets")
    assert abs(row["span"] - HOUR) < timedelta(seconds=1)


async def test_every_counts_from_its_anchor(conn: Connection, given: Given) -> None:
    await create(conn, every=10 * MINUTE, anchor=moment("2026-06-01 12:03"))
    await create(conn, "from now", every=10 * MINUTE)

    listed = {schedule.name: schedule.ticks for schedule in (await schedules.list_schedules(conn)).items}
    assert listed["nightly"][:2] == [moment("2026-06-01 12:03"), moment("2026-06-01 12:13")]
    assert moment("2026-06-01 12:10:20") <= listed["from now"][0] < moment("2026-06-01 12:12")


async def test_the_jitter_is_derived_from_the_tick(conn: Connection, given: Given) -> None:
    for name in "abcdefgh":
        await create(conn, name, jitter=10 * MINUTE)
    await given.time_passes(hours=1)
    await sweep(conn)

    dues = [row["due_at"] for row in await given.rows("select due_at from flowfabric.tickets where due_at is not null")]
    tick = moment("2026-06-01 13:00")
    assert len(set(dues)) == len(dues) >= 6
    assert all(tick < due <= tick + 10 * MINUTE for due in dues)


CATCH_UPS = {
    "none": [],
    "last": ["2026-06-01 15:00"],
    "all": ["2026-06-01 13:00", "2026-06-01 14:00", "2026-06-01 15:00"],
}


@pytest.mark.parametrize("catch_up", CATCH_UPS)
async def test_missed_ticks_are_handled_as_catch_up_says(conn: Connection, given: Given, catch_up: str) -> None:
    await create(conn, catch_up=catch_up)
    await given.time_passes(hours=3, minutes=10)
    await sweep(conn)

    assert await fired(given) == [moment(tick) for tick in CATCH_UPS[catch_up]]
    assert (await schedules.describe_schedule(conn, "nightly")).next_tick_at == moment("2026-06-01 16:00")
    await given.time_passes(hours=1)
    await at(given, "2026-06-01 16:00:30")
    await sweep(conn)
    assert (await fired(given))[-1] == moment("2026-06-01 16:00")


async def test_missed_ticks_are_logged(conn: Connection, given: Given) -> None:
    await create(conn, catch_up="none")
    await create(conn, "other")
    await given.time_passes(hours=3, minutes=10)
    await sweep(conn)

    skipped, late = await given.event("schedule_skipped"), await given.event("schedule_fired")
    assert (skipped["cause"], skipped["tick"], skipped["namespace"]) == (
        *("missed", "2026-06-01T13:00:00+00:00", "default"),
    )
    assert late["missed_from"] == "2026-06-01T13:00:00+00:00"


async def test_all_ticks_within_the_window_are_caught_up(conn: Connection, given: Given) -> None:
    await create(conn, catch_up="all", catch_up_window=2 * HOUR)
    await given.time_passes(days=3)
    await sweep(conn)

    assert await fired(given) == [moment("2026-06-04 11:00"), moment("2026-06-04 12:00")]


async def test_a_long_catch_up_continues_over_many_passes(conn: Connection, given: Given) -> None:
    await create(conn, cron="* * * * *", catch_up="all")
    await given.time_passes(minutes=25)

    assert [(await sweep(conn, limit=10)).moved for _ in range(4)] == [10, 10, 5, 0]
    assert len(set(await fired(given))) == 25


@pytest.mark.parametrize(("overlap", "left"), [("allow", 2), ("skip", 1), ("replace", 1)])
async def test_a_tick_with_an_unfinished_previous_execution_follows_overlap(
    conn: Connection, given: Given, overlap: str, left: int
) -> None:
    await create(conn, overlap=overlap)
    await given.time_passes(hours=1)
    await sweep(conn)
    first = (await schedules.describe_schedule(conn, "nightly")).last_execution_id
    await given.time_passes(hours=1)
    swept = await sweep(conn)

    assert await given.count("tickets") == left
    assert (await schedules.describe_schedule(conn, "nightly")).last_tick_at == moment("2026-06-01 14:00")
    if overlap == "skip":
        assert (await given.event("schedule_skipped"))["execution_id"] == str(first)
        assert len(await fired(given)) == 1
    if overlap == "replace":
        assert first is not None
        assert swept.ended == [first]
        ended = await executions.describe(conn, first)
        assert ended.state.public_state == PublicState.CANCELLED


@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_an_ended_or_removed_previous_execution_does_not_matter(
    conn: Connection, given: Given, overlap: str
) -> None:
    await create(conn, overlap=overlap)
    for hour in range(3):
        await given.time_passes(hours=1)
        await sweep(conn)
        [claim] = await given.claim()
        await attempts.complete(conn, claim.fence)
        if hour == 1:
            await conn.execute("delete from flowfabric.executions; delete from flowfabric.removals")

    assert len(await fired(given)) == 3
    assert "execution_cancelled" not in await given.events()


async def test_firing_does_not_wait_for_a_locked_previous_execution(
    conn: Connection, given: Given, connect: Connect
) -> None:
    await create(conn, overlap="replace")
    await create(conn, "other")
    await given.time_passes(hours=1)
    await sweep(conn)
    other = await connect()
    await given.time_passes(hours=1)
    async with other.transaction():
        await other.execute("select from flowfabric.tickets for update")
        assert (await sweep(conn)).moved == 1

    await given.time_passes(seconds=1)
    assert (await sweep(conn)).moved == 1
    assert await fired(given) == [moment("2026-06-01 13:00"), moment("2026-06-01 14:00")]


async def test_a_schedule_ends_with_the_last_tick_before_until(conn: Connection, given: Given) -> None:
    await create(conn, until=moment("2026-06-01 14:00"), catch_up="all")
    await given.time_passes(days=1)
    await sweep(conn)

    assert await fired(given) == [moment("2026-06-01 13:00"), moment("2026-06-01 14:00")]
    ended = await schedules.describe_schedule(conn, "nightly")
    assert (ended.state, ended.next_tick_at, ended.ticks) == (ScheduleState.FINISHED, None, [])


async def test_a_refused_submission_is_logged_recorded_and_retried(
    conn: Connection, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    await create(conn, lane="reports")
    await create(conn, "other")
    await lanes.configure_lane(conn, "reports")
    await lanes.drain_lane(conn, "reports", by="ops")
    await given.time_passes(hours=1)
    with caplog.at_level(logging.WARNING):
        assert (await sweep(conn)).moved == 2

    assert "the sweep will retry: nightly in namespace default: lane_draining: " in caplog.text
    assert await fired(given, "other") == [moment("2026-06-01 13:00")]
    refused = await schedules.describe_schedule(conn, "nightly")
    assert (refused.state, refused.next_tick_at) == (ScheduleState.REFUSED, moment("2026-06-01 13:00"))
    assert refused.refusal is not None
    assert (refused.refusal.code, refused.refusal.count) == ("lane_draining", 1)
    for _ in range(3):
        await given.time_passes(minutes=1)
        await sweep(conn)
    assert (await given.events()).count("schedule_refused") == 1
    await lanes.resume_lane(conn, "reports", by="ops")
    await given.time_passes(minutes=1)
    await sweep(conn)
    assert await fired(given) == [moment("2026-06-01 13:00")]
    assert (await schedules.describe_schedule(conn, "nightly")).state == ScheduleState.ACTIVE


async def test_a_schedule_that_cannot_be_computed_affects_no_other(conn: Connection, given: Given) -> None:
    await create(conn)
    await create(conn, "other")
    await conn.execute(
        """update flowfabric.schedules set timing = timing || '{"tz": "Moon/Base"}' where name = 'nightly'"""
    )
    await given.time_passes(hours=1)

    assert (await sweep(conn)).moved == 2
    assert await fired(given, "other") == [moment("2026-06-01 13:00")]
    listed = (await schedules.list_schedules(conn)).items[0]
    assert (listed.state, listed.refusal and listed.refusal.code) == (ScheduleState.REFUSED, "invalid_schedule")
    assert listed.ticks == [moment("2026-06-01 13:00")]


async def test_a_schedule_that_breaks_the_sweep_is_skipped_and_stays(
    conn: Connection, given: Given, database: Database
) -> None:
    for name in ("broken", "nightly", "other"):
        await create(conn, name)
    await conn.execute("update flowfabric.schedules set options = '1' where name = 'broken'")
    await given.time_passes(hours=1)
    [listed] = [each for each in sweeps(Config()) if each.name == "fire_schedules"]

    assert await run_once(database, listed) == 2
    assert [await fired(given, name) for name in ("nightly", "other")] == [[moment("2026-06-01 13:00")]] * 2
    [row] = await given.rows("select next_tick_at from flowfabric.schedules where name = 'broken'")
    assert row["next_tick_at"] == moment("2026-06-01 13:00")


async def test_ticks_do_not_fire_again_when_the_clock_is_set_back(conn: Connection, given: Given) -> None:
    await create(conn)
    await given.time_passes(hours=2)
    await sweep(conn)
    await conn.execute("delete from flowfabric.executions; delete from flowfabric.tickets")
    await given.time_passes(hours=-2)
    await schedules.pause_schedule(conn, "nightly", by="ops")
    await schedules.resume_schedule(conn, "nightly", by="ops")

    assert (await schedules.describe_schedule(conn, "nightly")).next_tick_at == moment("2026-06-01 15:00")


async def test_a_tick_restored_from_an_older_copy_of_the_schedule_submits_nothing(
    conn: Connection, given: Given
) -> None:
    await create(conn)
    await given.time_passes(hours=1)
    before = await given.rows("select next_tick_at, due_at from flowfabric.schedules")
    await sweep(conn)
    await conn.execute(
        "update flowfabric.schedules set next_tick_at = $1, due_at = $2, last_tick_at = null", *before[0].values()
    )

    assert (await sweep(conn)).moved == 1
    assert (await given.count("executions"), len(await fired(given))) == (1, 1)


async def test_firing_by_hand_does_not_affect_the_ticks(conn: Connection, given: Given) -> None:
    await create(conn, paused=True)
    chosen = mint_execution_id()

    answers = [await schedules.fire_schedule(conn, "nightly", by="ops", execution_id=chosen) for _ in range(2)]

    assert [(answer.outcome, answer.execution_id) for answer in answers] == [
        ("fired", chosen),
        ("duplicate", chosen),
    ]
    assert await given.count("executions") == 1
    assert (await given.event("schedule_fired"))["by_hand"] is True
    described = await schedules.describe_schedule(conn, "nightly")
    assert (described.state, described.last_tick_at) == (ScheduleState.PAUSED, None)


async def test_firing_by_hand_follows_overlap(conn: Connection, given: Given) -> None:
    await create(conn, overlap="skip")
    await create(conn, "other", overlap="replace")

    one, two = [await schedules.fire_schedule(conn, "nightly", by="ops") for _ in range(2)]
    three, four = [await schedules.fire_schedule(conn, "other", by="ops") for _ in range(2)]

    assert (one.outcome, two.outcome, two.execution_id) == ("fired", "skipped", one.execution_id)
    assert (four.outcome, four.ended) == ("fired", [three.execution_id])
    assert await given.count("tickets") == 2


async def test_firing_by_hand_is_refused_like_a_submission(conn: Connection, given: Given) -> None:
    await create(conn, lane="reports")
    await lanes.configure_lane(conn, "reports")
    await lanes.drain_lane(conn, "reports", by="ops")

    async with given.nothing_changes():
        with pytest.raises(LaneDraining):
            await schedules.fire_schedule(conn, "nightly", by="ops")
        with pytest.raises(ScheduleNotFound, match="'nightli' does not exist in namespace 'default'"):
            await schedules.fire_schedule(conn, "nightli", by="ops")


async def test_five_hundred_schedules_are_fired_in_one_pass_and_the_rest_in_the_next(
    conn: Connection, given: Given
) -> None:
    await create(conn)
    await conn.execute(
        "insert into flowfabric.schedules select (jsonb_populate_record(s, jsonb_build_object('name', 's' || n))).* "
        "from flowfabric.schedules s, generate_series(1, 509) n"
    )
    await given.time_passes(hours=1)

    assert [(await sweep(conn)).moved for _ in range(3)] == [500, 10, 0]
    assert await given.count("executions") == 510
