"""Workers with several versions of a task: which function runs an execution, and what waits for another worker."""

import re
from contextlib import AsyncExitStack
from typing import Any

import pytest

from flowfabric import App, Context, Execution
from flowfabric.app.tasks import Task
from flowfabric.engine import executions
from flowfabric.worker import Worker
from flowfabric.worker.registered import registered_tasks
from tests.app.scene import happens
from tests.given import Given
from tests.worker.scene import TIMEOUT, Gate, at_work, until, working


def program(url: str, *versions: int | None) -> tuple[App, Task[[], int], list[str]]:
    """An app that has these versions of a task, its newest version, and what its handlers have done."""
    app, ran = App(url=url), list[str]()

    def add(version: int | None) -> None:
        number = version or 1

        @app.task(version=version)
        async def report(ctx: Context) -> int:
            ran.append(f"report {number}")
            await ctx.step("one", lambda: ran.append(f"one {number}"))
            await ctx.sleep("1h")
            return number

    for version in versions:
        add(version)
    return app, app.tasks["report"], ran


async def asleep(url: str, *versions: int | None) -> Execution[int]:
    """An execution that sleeps after its first run by a worker with these versions, which has stopped."""
    app, report, _ = program(url, *versions)
    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
    return execution


async def result(app: App, execution: Execution[int]) -> int:
    """Its result, awaited through another app."""
    return int(await app.execution(execution.execution_id).result(TIMEOUT))


async def waits(given: Given, execution: Execution[int]) -> bool:
    """Whether a worker with its version is missing."""
    found = await executions.describe(given.conn, execution.execution_id)
    return found.state.eligibility_state == "blocked_by_route"


async def test_new_executions_start_under_the_newest_version(database_url: str, given: Given) -> None:
    execution = await asleep(database_url, 2, 3, 1)

    assert (await executions.describe(given.conn, execution.execution_id)).version == 3


@pytest.mark.parametrize("before", [1, None])
async def test_an_execution_is_finished_by_the_version_under_which_it_started(
    database_url: str, given: Given, before: int | None
) -> None:
    execution = await asleep(database_url, before)
    app, _, ran = program(database_url, 1, 2)
    await given.time_passes(hours=2)

    async with working(app):
        assert await result(app, execution) == 1
    assert ran == ["report 1"]


async def test_work_that_code_without_versions_has_started_counts_towards_the_limit_of_version_1(
    database_url: str, given: Given
) -> None:
    started = [await asleep(database_url, None) for _ in range(3)]
    app, gate = App(url=database_url), Gate()

    @app.task(name="report", version=1, limit=1)
    async def first(ctx: Context) -> int:
        await ctx.step("one", lambda: None)
        await ctx.sleep("1h")
        await gate()
        return 1

    app.task(name="report", version=2)(nothing)
    await given.time_passes(hours=2)
    async with working(app):
        await until(lambda: gate.came == 1)
        await until(lambda: _all_have_started(given))
        gate.open.set()
        assert [await result(app, each) for each in started] == [1, 1, 1]
    assert gate.most_inside == 1


async def _all_have_started(given: Given) -> bool:
    return await given.count("tickets where version = 1") == 3


@pytest.mark.parametrize("before", [1, None])
async def test_old_work_waits_for_a_worker_that_has_its_version(
    database_url: str, given: Given, before: int | None
) -> None:
    execution = await asleep(database_url, before)
    app, report, ran = program(database_url, 2)
    await given.time_passes(hours=2)

    async with working(app):
        new = await report.submit()
        await happens(new, "execution_delayed")
        await until(lambda: waits(given, execution))
        old, _, _ = program(database_url, before)
        async with working(old):
            assert await result(old, execution) == 1
    assert ran == ["report 2", "one 2"]


async def test_during_a_deployment_every_execution_runs_under_one_version(database_url: str) -> None:
    ran: dict[int, list[int]] = {number: [] for number in range(30)}

    def deployed(*versions: int) -> App:
        app = App(url=database_url)
        for version in versions:

            @app.task(version=version, retries=1, backoff="1ms")
            async def report(ctx: Context, number: int, version: int = version) -> int:
                ran[number].append(version)
                await ctx.step("one", lambda: None)
                if ctx.attempt == 1:
                    raise ConnectionError("down")
                await ctx.sleep("60ms")
                return version

        return app

    apps = [deployed(1), deployed(2), deployed(1, 2)]
    async with AsyncExitStack() as running:
        for app in apps:
            await running.enter_async_context(working(app, concurrency=3, sweeps=True))
        made: list[Execution[int]] = [await apps[number % 3].tasks["report"].submit(number) for number in ran]
        results = [await result(apps[0], execution) for execution in made]
    assert [set(versions) for versions in ran.values()] == [{version} for version in results]


async def test_what_a_worker_has_claimed_ahead_and_releases_has_no_version(database_url: str, given: Given) -> None:
    app, gate = App(url=database_url), Gate()

    @app.task(version=1)
    async def report(ctx: Context, waits: bool) -> None:
        if waits:
            await gate()

    async with app:
        await report.submit_many([(False,)] * 20)
        made = await report.submit_many([(True,)] * 5)
        async with at_work(app, concurrency=1, drain="0s") as worker:
            await until(lambda: gate.came == 1 and len(worker._prefetched) > 0)
    found = [await executions.describe(given.conn, each.execution_id) for each in made]

    assert sum(each.counts.attempts for each in found) > 1
    assert [each.version for each in found] == [1, None, None, None, None]


async def test_the_functions_of_two_versions_may_need_other_workers(database_url: str) -> None:
    app = App(url=database_url)
    app.task(name="report", version=1, lane="old", needs=["gpu"], limit=1)(nothing)
    app.task(name="report", version=2, lane="new")(nothing)

    worker = Worker(app)
    assert (worker.lanes, worker.capabilities) == (["new", "old"], ["gpu"])
    assert [(each.name, each.version, each.lane) for each in registered_tasks(app.every_task) or ()] == [
        ("report", 1, "old"),
        ("report", 2, "new"),
    ]


async def nothing(ctx: Context) -> None:
    """Do nothing."""


def test_an_old_version_is_not_submitted(database_url: str) -> None:
    app = App(url=database_url)
    old = app.task(name="report", version=1)(nothing)
    new = app.task(name="report", version=2)(nothing)

    assert new.submission().options.task == "report"
    for submit in (old.submission, old.child_call, old.with_options(priority=5).submission):
        with pytest.raises(ValueError, match=r"version 1 of task report only finishes.*submit version 2"):
            submit()


@pytest.mark.parametrize("version", [0, -1, 2**31, True, 1.0, "2"])
def test_an_invalid_version_is_refused(app: App, version: Any) -> None:
    with pytest.raises(ValueError, match="use a whole number from 1"):
        app.task(version=version)(nothing)
    assert (app.tasks, app.versions) == ({}, {})


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [(1, 1, "version 1 of task 'nothing' already exists: nothing; use version=2"), (None, 2, "give both a version="),
     (2, None, "give both a version="), (None, None, "use another name")],
)  # fmt: skip
def test_two_tasks_of_one_name_have_different_versions(
    app: App, first: int | None, second: int | None, message: str
) -> None:
    kept = app.task(version=first)(nothing)

    with pytest.raises(ValueError, match=re.escape(message)):
        app.task(version=second)(nothing)
    assert app.tasks == {"nothing": kept}
