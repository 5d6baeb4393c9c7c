"""The app: opening, closing, submitting and notifying."""

import asyncio
from pathlib import Path

import pytest

from flowfabric import App, Context
from flowfabric.errors import DatabaseUnavailable, InvalidLane, SchemaBehind, UnknownTask
from flowfabric.postgres.notify import Notification, Notifier
from tests.app.scene import TIMEOUT, working
from tests.conftest import Server
from tests.given import Given


async def test_an_app_can_be_opened_and_closed_repeatedly(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return n * 2

    for n in (1, 2):
        async with working(app):
            assert await (await double.submit(n)).result(TIMEOUT) == n * 2


async def test_an_app_that_is_not_open_raises(app: App) -> None:
    @app.task
    def report() -> None: ...

    with pytest.raises(RuntimeError, match=r"not open.*async with app"):
        await report.submit()
    async with app:
        pass
    with pytest.raises(RuntimeError, match="not open"):
        await app.submit("report")


async def test_an_app_is_not_opened_twice_at_once(app: App, given: Given) -> None:
    async with app:
        with pytest.raises(RuntimeError, match="open"):
            await app.__aenter__()
        await app.submit("report")
    assert await given.count("executions") == 1


async def test_an_app_that_could_not_be_opened_can_be_opened_later(server: Server, database_url: str) -> None:
    app = App(url=server.url("not_there"), timeout="100ms")
    with pytest.raises(DatabaseUnavailable):
        async with app:
            raise AssertionError("it opened")
    with pytest.raises(RuntimeError, match="not open"):
        app.database.connection()

    app.config = App(url=database_url).config
    async with app:
        assert await (await app.submit("report")).state() == "waiting"


async def test_an_error_inside_the_block_closes_the_app_and_is_raised(app: App, given: Given) -> None:
    with pytest.raises(ZeroDivisionError):
        async with app:
            raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="not open"):
        await app.wake("default")
    others = "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    assert await given.rows(others) == []


async def test_an_external_database_is_checked_and_never_migrated(empty_url: str) -> None:
    with pytest.raises(SchemaBehind):
        async with App(url=empty_url):
            raise AssertionError("it opened")


async def test_without_a_url_an_embedded_postgres_is_started_and_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOWFABRIC_URL", raising=False)
    app = App(data=tmp_path / "data")

    for _ in range(2):
        async with app:
            assert await (await app.submit("report")).state() == "waiting"


async def test_a_task_that_cannot_be_routed_stops_the_app_from_opening(app: App) -> None:
    @app.task(lane="no such lane\n")
    def report() -> None: ...

    with pytest.raises(InvalidLane):
        async with app:
            raise AssertionError("it opened")


async def test_several_apps_share_a_process(app: App, database_url: str) -> None:
    @app.task
    async def report() -> str:
        return "first"

    other = App(url=database_url)

    @other.task(lane="other", name="report")
    async def report_elsewhere() -> str:
        return "second"

    async with working(app), working(other):
        made = [await report.submit(), await report_elsewhere.submit()]
        assert [await each.result(TIMEOUT) for each in made] == ["first", "second"]


async def test_a_task_is_submitted_by_its_name(app: App, given: Given) -> None:
    @app.task(lane="research")
    async def report(ctx: Context, topic: str) -> str:
        return topic

    async with working(app):
        assert await (await app.submit("report", topic="tides")).result(TIMEOUT) == "tides"
        known = await app.submit("report", {"priority": 5}, topic="tides")
        assert ((await known.describe()).lane, (await known.describe()).priority) == ("research", 5)
        unknown = await app.submit("elsewhere", {"lane": "far"}, topic="tides")
        assert ((await unknown.describe()).task, (await unknown.describe()).lane) == ("elsewhere", "far")
        with pytest.raises(TypeError, match="topic"):
            await app.submit("report")
        with pytest.raises(TypeError, match="'prio'"):
            await app.submit("elsewhere", {"lane": "far", "prio": 1})  # type: ignore[call-overload]


async def test_a_name_that_no_task_of_an_app_has_is_refused_with_the_most_similar_one(app: App, given: Given) -> None:
    @app.task
    async def report(topic: str) -> str:
        return topic

    @app.task
    async def mail() -> None: ...

    async with app:
        with pytest.raises(
            UnknownTask, match=r"task 'reprot' does not exist in this app; use report; for a task of an"
        ):
            await app.submit("reprot", topic="tides")
        with pytest.raises(UnknownTask, match=r"existing tasks: report, mail; .* give its lane"):
            await app.submit("x" * 10_000, {"priority": 3})
    assert await given.count("executions") == 0


async def test_concurrent_submissions_are_batched(app: App, given: Given) -> None:
    @app.task
    def report(n: int) -> None: ...

    async with app:
        await asyncio.gather(*(report.submit(n) for n in range(500)))
    [row] = await given.rows("select count(distinct xmin::text) as n, count(*) from flowfabric.executions")
    assert row["count"] == 500
    assert row["n"] < 20, "so many transactions"


async def test_waking_a_lane_notifies_the_other_processes(app: App) -> None:
    heard: asyncio.Queue[Notification] = asyncio.Queue()
    async with app, Notifier(app.database) as elsewhere:
        elsewhere.listen(heard.put_nowait)
        assert await heard.get() == Notification()
        await app.wake("shipping")
        assert await heard.get() == Notification(lanes=("shipping",))


def test_an_app_shows_its_tasks(app: App) -> None:
    assert repr(app) == "<app with no tasks>"
    app.task(name="report")(lambda: None)
    assert repr(app) == "<app with report>"
