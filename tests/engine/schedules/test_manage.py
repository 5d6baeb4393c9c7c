"""Managing schedules: create, change, pause, resume, delete, describe and list them."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from flowfabric.engine import lanes, schedules
from flowfabric.errors import (
    BudgetNotFound,
    FlowFabricError,
    InvalidBody,
    InvalidCursor,
    InvalidLane,
    InvalidLimit,
    InvalidName,
    InvalidNamespace,
    InvalidPolicy,
    InvalidSchedule,
    InvalidTagKey,
    InvalidText,
    InvalidTime,
    PayloadTooLarge,
    ScheduleAlreadyExists,
    ScheduleNotFound,
)
from flowfabric.ids import mint_execution_id
from flowfabric.model import ScheduleChange, ScheduleState, Timing
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.schedules.scene import HOUR, at, create, fired, moment, sweep
from tests.given import Given, submission

DAILY = Timing(cron="0 9 * * *", tz="Europe/Berlin")


@pytest.fixture(autouse=True)
async def noon(given: Given) -> None:
    await at(given, "2026-06-01 12:00:20")


async def test_a_schedule_shows_what_it_does_and_its_next_five_ticks(conn: Connection) -> None:
    await create(conn, cron="0 9 * * *", tz="Europe/Berlin", payload=b"{}", tags={"a.b": "c"}, deadline=HOUR, by="ada")

    found = await schedules.describe_schedule(conn, "nightly")

    assert (found.namespace, found.name, found.options.task, found.state) == ("default", "nightly", "report", "active")
    assert (found.timing, found.by, found.payload, found.deadline_ms) == (DAILY, "ada", b"{}", 3_600_000)
    assert found.ticks == [moment(f"2026-06-0{day} 07:00") for day in range(2, 7)]
    assert (found.next_tick_at, found.last_tick_at, found.last_execution_id) == (found.ticks[0], None, None)


async def test_creating_the_same_schedule_again_is_a_noop_and_another_is_refused(
    conn: Connection, given: Given
) -> None:
    assert await create(conn, every=HOUR, tags={"a.b": "c"}) is ScheduleChange.CREATED
    await given.time_passes(minutes=10)

    async with given.nothing_changes():
        assert await create(conn, every=HOUR, tags={"a.b": "c"}) is ScheduleChange.NOOP
        for other in ({"every": 2 * HOUR}, {"every": HOUR, "priority": 1}, {"every": HOUR, "payload": b"x"}):
            with pytest.raises(ScheduleAlreadyExists, match="'nightly' already exists"):
                await create(conn, **other)
    assert await create(conn, namespace="acme") is ScheduleChange.CREATED


async def test_concurrent_calls_create_the_same_schedule_once(connect: Connect, given: Given) -> None:
    conns = [await connect() for _ in range(5)]

    made = await asyncio.gather(*(create(conn) for conn in conns))

    assert sorted(made) == ["created", *["noop"] * 4]
    assert await given.count("schedules") == 1


BAD: list[tuple[type[FlowFabricError], dict[str, Any]]] = [
    (InvalidName, {"name": ""}),
    (InvalidName, {"name": " x"}),
    (InvalidName, {"name": "x" * 129}),
    (InvalidName, {"name": "näch"}),
    (InvalidText, {"name": "a\0"}),
    (InvalidName, {"task": ""}),
    (InvalidNamespace, {"namespace": "\n"}),
    (InvalidLane, {"lane": ""}),
    (InvalidText, {"lane": "\0"}),
    (InvalidPolicy, {"policy": {"retries": 3}}),
    (InvalidBody, {"policy": {"x": {1, object()}}}),
    (BudgetNotFound, {"budgets": ["nobodys"]}),
    (InvalidTagKey, {"tags": {"": "x"}}),
    (PayloadTooLarge, {"payload": b"x" * 1_048_577}),
    (InvalidBody, {"payload": "text"}),
    (InvalidTime, {"deadline": timedelta()}),
    (InvalidBody, {"by": "x" * 257}),
    (InvalidSchedule, {"deadline": datetime.fromisoformat("2030-01-01T00:00Z")}),
    (InvalidSchedule, {"key": "once"}),
    (InvalidSchedule, {"delay": HOUR}),
    (InvalidSchedule, {"execution_id": mint_execution_id()}),
    (InvalidSchedule, {"cron": "never"}),
    (InvalidSchedule, {"until": moment("2026-06-01 12:30")}),
]


async def test_an_invalid_schedule_is_refused_and_writes_nothing(conn: Connection, given: Given) -> None:
    async with given.nothing_changes():
        for refusal, options in BAD:
            with pytest.raises(refusal):
                await create(conn, **options)


async def test_a_payload_up_to_the_callers_limit_is_fired(conn: Connection, given: Given) -> None:
    await create(conn, payload=b"x" * 2_000_000, payload_limit=2_000_000)
    await given.time_passes(hours=1)
    await sweep(conn)

    assert len(await fired(given)) == 1


async def test_a_schedule_may_be_created_for_a_draining_lane(conn: Connection) -> None:
    await lanes.configure_lane(conn, "reports")
    await lanes.drain_lane(conn, "reports", by="ops")

    assert await create(conn, lane="reports") is ScheduleChange.CREATED


async def test_a_change_takes_effect_from_now_on(conn: Connection, given: Given) -> None:
    await create(conn, payload=b"1")
    await given.time_passes(hours=1, minutes=10)

    assert await schedules.change_schedule(conn, "nightly", timing=DAILY, by="ada") is ScheduleChange.CHANGED

    assert (await sweep(conn)).moved == 0
    found = await schedules.describe_schedule(conn, "nightly")
    assert (found.next_tick_at, found.payload, found.by) == (moment("2026-06-02 07:00"), b"1", "ada")
    assert (await given.event("schedule_changed"))["namespace"] == "default"


async def test_the_submission_can_be_changed_alone(conn: Connection, given: Given) -> None:
    await create(conn, every=HOUR, priority=3)
    before = await schedules.describe_schedule(conn, "nightly")
    await given.time_passes(minutes=10)

    await schedules.change_schedule(conn, "nightly", submission=submission(task="other", payload=b"2"))

    found = await schedules.describe_schedule(conn, "nightly")
    assert (found.options.task, found.payload, found.priority) == ("other", b"2", 0)
    assert (found.ticks, found.anchor_at) == (before.ticks, before.anchor_at)


async def test_a_change_without_difference_keeps_pending_ticks(conn: Connection, given: Given) -> None:
    await create(conn)
    await given.time_passes(hours=1)

    async with given.nothing_changes():
        assert await schedules.change_schedule(conn, "nightly") is ScheduleChange.NOOP
    assert (await sweep(conn)).moved == 1


async def test_an_invalid_change_writes_nothing(conn: Connection, given: Given) -> None:
    await create(conn)

    async with given.nothing_changes():
        with pytest.raises(InvalidSchedule):
            await schedules.change_schedule(conn, "nightly", timing=Timing(cron="nonsense"))
        with pytest.raises(InvalidSchedule) as refused:
            await schedules.change_schedule(conn, "nightly", submission=submission(namespace="acme"))
        assert refused.value.fields == {"field": "namespace"}
        with pytest.raises(InvalidLane):
            await schedules.change_schedule(conn, "nightly", submission=submission(lane=""))
        with pytest.raises(ScheduleNotFound):
            await schedules.change_schedule(conn, "daily", timing=DAILY)


async def test_concurrent_changes_do_not_undo_each_other(connect: Connect, given: Given) -> None:
    one, two = await connect(), await connect()
    await create(one)

    await asyncio.gather(
        schedules.change_schedule(one, "nightly", timing=DAILY),
        schedules.change_schedule(two, "nightly", submission=submission(task="other")),
    )

    found = await schedules.describe_schedule(one, "nightly")
    assert (found.timing, found.options.task) == (DAILY, "other")


async def test_a_paused_schedule_does_nothing_until_it_is_resumed(conn: Connection, given: Given) -> None:
    await create(conn)
    assert await schedules.pause_schedule(conn, "nightly", by="ada", reason="too hot") is ScheduleChange.PAUSED
    assert await schedules.pause_schedule(conn, "nightly", by="bob") is ScheduleChange.NOOP
    await given.time_passes(hours=5)

    assert (await sweep(conn)).moved == 0
    paused = await schedules.describe_schedule(conn, "nightly")
    assert (paused.state, paused.ticks) == (ScheduleState.PAUSED, [])
    assert paused.pause is not None
    assert (paused.pause.by, paused.pause.reason) == ("ada", "too hot")
    assert await schedules.resume_schedule(conn, "nightly", by="ada") is ScheduleChange.RESUMED
    assert await schedules.resume_schedule(conn, "nightly", by="ada") is ScheduleChange.NOOP
    assert (await schedules.describe_schedule(conn, "nightly")).next_tick_at == moment("2026-06-01 18:00")


async def test_a_paused_schedule_stays_paused_when_it_is_changed(conn: Connection, given: Given) -> None:
    await create(conn, paused=True)
    await schedules.change_schedule(conn, "nightly", timing=DAILY)
    await given.time_passes(days=2)

    assert (await sweep(conn)).moved == 0
    assert (await schedules.describe_schedule(conn, "nightly")).state == ScheduleState.PAUSED


async def test_a_schedule_resumed_after_until_is_finished(conn: Connection, given: Given) -> None:
    await create(conn, until=moment("2026-06-02 12:00"), paused=True)
    await given.time_passes(days=3)
    await schedules.resume_schedule(conn, "nightly", by="ops")

    assert (await schedules.describe_schedule(conn, "nightly")).state == ScheduleState.FINISHED


async def test_a_deleted_schedule_is_gone_and_its_executions_continue(conn: Connection, given: Given) -> None:
    await create(conn)
    await given.time_passes(hours=1)
    await sweep(conn)
    await given.time_passes(hours=1)

    assert await schedules.delete_schedule(conn, "nightly", by="ops") is ScheduleChange.DELETED

    assert (await sweep(conn)).moved == 0
    assert await given.count("tickets") == 1
    with pytest.raises(ScheduleNotFound):
        await schedules.delete_schedule(conn, "nightly", by="ops")


@pytest.mark.parametrize("act", [schedules.pause_schedule, schedules.resume_schedule, schedules.delete_schedule])
async def test_acts_on_an_unknown_schedule_or_without_an_operator_are_refused(
    conn: Connection, given: Given, act: Any
) -> None:
    await create(conn, paused=act is schedules.resume_schedule)

    async with given.nothing_changes():
        for name, namespace in (("daily", "default"), ("nightly", "acme"), ("", ""), ("x" * 9_999, "default")):
            with pytest.raises(ScheduleNotFound):
                await act(conn, name, namespace=namespace, by="ops")
        with pytest.raises(InvalidText):
            await act(conn, "a\0", by="ops")
        with pytest.raises(InvalidBody):
            await act(conn, "nightly", by="x" * 257)


async def test_schedules_are_listed_by_namespace_and_name_page_by_page(conn: Connection) -> None:
    for namespace, name in (("default", "b"), ("acme", "z"), ("default", "a"), ("acme", "c d")):
        await create(conn, name, namespace=namespace)

    cursor, pages = None, list[list[tuple[str, str]]]()
    while cursor is not None or not pages:
        page = await schedules.list_schedules(conn, cursor=cursor, limit=3)
        pages.append([(schedule.namespace, schedule.name) for schedule in page.items])
        cursor = page.next_cursor
    assert pages == [[("acme", "c d"), ("acme", "z"), ("default", "a")], [("default", "b")]]
    assert [schedule.name for schedule in (await schedules.list_schedules(conn, namespace="acme")).items] == [
        "c d",
        "z",
    ]
    assert (await schedules.list_schedules(conn, limit=0)).items == []


@pytest.mark.parametrize("cursor", ["x", "????", "\ud800", "bm9uc2Vuc2U", "AAAK", "é"])
async def test_an_invalid_cursor_is_refused(conn: Connection, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        await schedules.list_schedules(conn, cursor=cursor)


async def test_a_limit_below_zero_is_refused(conn: Connection) -> None:
    with pytest.raises(InvalidLimit):
        await schedules.list_schedules(conn, limit=-1)
