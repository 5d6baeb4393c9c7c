"""Workers with several versions of a task: which function runs an execution, and what waits for another worker."""

import pytest

from flowfabric import App, Context, Execution
from flowfabric.app.tasks import Task
from flowfabric.engine import executions
from tests.app.scene import happens
from tests.given import Given
from tests.worker.scene import TIMEOUT, until, working


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
