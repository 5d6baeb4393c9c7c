"""Schedules of an app: declared in its code, or created at run time."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import App
from flowfabric.engine import events, schedules
from flowfabric.errors import InvalidSchedule, PayloadTooLarge, ScheduleAlreadyExists, UnknownTask
from flowfabric.model import ScheduleChange, ScheduleState, Timing
from tests.app.scene import TIMEOUT, working
from tests.engine.schedules.scene import at, moment
from tests.given import Given


@pytest.fixture(autouse=True)
async def noon(given: Given) -> None:
    await at(given, "2026-06-01 12:00:20")


def reports(app: App, **timing: Any) -> Any:
    """A task of the app, with a schedule."""

    @app.schedule(**timing, arguments={"topic": "tides"})
    @app.task(lane="reports", priority=7)
    async def report(topic: str) -> str:
        return f"all about {topic}"

    return report


async def test_a_declared_schedule_is_created_when_a_worker_starts_and_not_before(app: App, given: Given) -> None:
    report = reports(app, cron="0 9 * * 1-5", tz="Europe/Berlin")
    async with app:
        assert await given.count("schedules") == 0
    async with working(app):
        assert await (await report.submit("stars")).result(TIMEOUT) == "all about stars"

    found = await schedules.describe_schedule(given.conn, "report")
    assert (found.options.lane, found.priority, found.payload) == ("reports", 7, b'{"topic":"tides"}')
    assert (found.timing.tz, found.declared) == ("Europe/Berlin", True)


async def test_a_tick_runs_the_task(app: App, given: Given) -> None:
    reports(app, every="1h")
    async with app:
        await app.declare_schedules()
    await given.time_passes(hours=1)

    async with working(app), asyncio.timeout(TIMEOUT):
        async for event in await app.log.subscribe(events.OLDEST):
            if event.kind == "execution_completed":
                break
    [row] = await given.rows("select convert_from(result, 'utf8') as said from flowfabric.executions")
    assert row["said"] == '"all about tides"'


async def test_a_worker_that_restarts_misses_no_tick(app: App, given: Given) -> None:
    reports(app, every="1h")
    async with app:
        await app.declare_schedules()
        before = await schedules.describe_schedule(given.conn, "report")
        await given.time_passes(hours=3)

        async with given.nothing_changes():
            await app.declare_schedules()
    assert (await schedules.describe_schedule(given.conn, "report")).next_tick_at == before.next_tick_at


async def test_the_code_overrides_changes_by_an_operator_but_a_pause_stays(
    app: App, given: Given, database_url: str
) -> None:
    reports(app, every="1h")
    async with app:
        await app.declare_schedules()
        await schedules.change_schedule(given.conn, "report", timing=Timing(cron="0 0 * * *"), by="ops")
        await schedules.pause_schedule(given.conn, "report", by="ops")
        await app.declare_schedules()

    found = await schedules.describe_schedule(given.conn, "report")
    assert (found.timing.every, found.state) == (timedelta(hours=1), ScheduleState.PAUSED)


async def test_a_schedule_removed_from_the_code_continues_and_is_logged(
    app: App, given: Given, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    reports(app, every="1h", name="hourly")
    async with app:
        await app.declare_schedules()
    newer = App(url=database_url)
    reports(newer, every="1d", name="daily")
    async with newer:
        await newer.declare_schedules()

    assert [record for record in caplog.messages if "hourly" in record and "default" in record] != []
    assert [schedule.name for schedule in (await schedules.list_schedules(given.conn)).items] == ["daily", "hourly"]


async def test_a_schedule_belongs_to_the_newest_version_of_its_task(
    app: App, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    @app.schedule(every="1h")
    @app.task(name="report", version=1)
    def old() -> None: ...

    new = app.task(name="report", version=2)(old.handler)
    with pytest.raises(ValueError, match=r"'report' already exists; put @app.schedule above the newest version only"):
        app.schedule(every="2h")(new)
    async with app:
        await app.declare_schedules()
    assert await given.count("schedules") == 0
    assert "schedule report, because it is above version 1 of its task" in caplog.text


async def test_a_declared_schedule_that_is_refused_stops_neither_the_worker_nor_the_others(
    app: App, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    reports(app, every="1h", name=" bad ")

    @app.schedule(every="1h", name="good")
    @app.task
    async def check() -> None: ...

    with caplog.at_level(logging.ERROR):
        async with working(app):
            await (await check.submit()).result(TIMEOUT)

    assert "invalid_name" in caplog.text
    assert [schedule.name for schedule in (await schedules.list_schedules(given.conn)).items] == ["good"]


def test_the_decorator_rejects_invalid_options(app: App) -> None:
    @app.task
    async def report(topic: str) -> None: ...

    def plain() -> None: ...

    with pytest.raises(InvalidSchedule, match="'noon'"):
        app.schedule(cron="noon")
    with pytest.raises(TypeError, match="'evry'"):
        app.schedule(evry="1h")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="'soon'"):
        app.schedule(every="soon")
    with pytest.raises(TypeError, match="'topic'"):
        app.schedule(every="1h")(report)
    with pytest.raises(TypeError, match=r"plain.*@app\.schedule above @app\.task"):
        app.schedule(every="1h")(plain)  # type: ignore[type-var]
    app.schedule(every="1h", arguments={"topic": "tides"})(report)
    with pytest.raises(ValueError, match="'report'"):
        app.schedule(every="2h", arguments={"topic": "stars"})(report)
    assert list(app.scheduled) == [("default", "report")]


async def test_an_app_creates_schedules_at_run_time(app: App, given: Given) -> None:
    @app.task(lane="reports")
    async def report(topic: str) -> None: ...

    async with app:
        tides, twice = [
            await app.schedules.create(
                "tides", report.with_options(tags={"a.b": "c"}), {"topic": "tides"}, every="15m", by="ada"
            )
            for _ in range(2)
        ]
        await app.schedules.create("stars", "report", {"topic": "stars"}, cron="0 9 * * *", paused=True)

    assert (tides, twice) == (ScheduleChange.CREATED, ScheduleChange.NOOP)
    stars, found = (await schedules.list_schedules(given.conn)).items
    assert (found.options.task, found.tags, found.by, found.declared) == ("report", {"a.b": "c"}, "ada", False)
    assert stars.state == ScheduleState.PAUSED
    assert moment("2026-06-01 12:15:20") <= found.ticks[0] < moment("2026-06-01 12:16")


async def test_invalid_schedules_are_refused(app: App, given: Given) -> None:
    @app.task
    async def report(topic: str) -> None: ...

    async with app:
        await app.schedules.create("tides", report, {"topic": "tides"}, every="15m")
        async with given.nothing_changes():
            with pytest.raises(UnknownTask, match=r"'reprot'.*report"):
                await app.schedules.create("stars", "reprot", every="15m")
            with pytest.raises(ScheduleAlreadyExists):
                await app.schedules.create("tides", report, {"topic": "tides"}, every="30m")
            with pytest.raises(PayloadTooLarge):
                await app.schedules.create("huge", report, {"topic": "x" * 1_048_576}, every="30m")
            with pytest.raises(TypeError, match="'colour'"):
                await app.schedules.create("stars", report, {"topic": "x", "colour": "red"}, every="15m")
