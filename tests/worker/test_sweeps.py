"""Sweeps of a worker: they run beside its executions, notify other processes, and may fail."""

from pathlib import Path

import pytest

from flowfabric.app import App
from flowfabric.postgres.notify import Notification
from tests.given import Given
from tests.sweeps.test_loop import BROKEN
from tests.worker.scene import until, worker_process, working, written

SOURCE = """
from flowfabric import App

app = App()

@app.task(name="report")
async def report() -> str:
    return "done"
"""


@pytest.fixture
async def expired(given: Given) -> None:
    """An execution whose worker died an hour ago."""
    await given.claimed()
    await given.time_passes(hours=1)


async def test_a_worker_reclaims_the_executions_of_dead_workers(
    expired: None, database_url: str, given: Given, tmp_path: Path
) -> None:
    async with worker_process(database_url, written(tmp_path, SOURCE)):
        await until(lambda: _completed(given))


async def test_a_worker_without_sweeps_reclaims_nothing(
    expired: None, database_url: str, given: Given, tmp_path: Path
) -> None:
    async with worker_process(database_url, written(tmp_path, SOURCE), "--no-sweeps"):
        await given.submitted()
        await until(lambda: _completed(given))

    assert "lease_expired" not in await given.events()


async def test_a_sweep_notifies_other_processes(expired: None, database_url: str) -> None:
    app, received = App(url=database_url), list[Notification]()

    async with working(app, lanes=["other"], sweeps=True):
        app.notifier.listen(received.append)
        await until(lambda: any("default" in hint.lanes for hint in received))


async def test_a_worker_survives_a_sweep_that_fails(
    database_url: str, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    await given.conn.execute(BROKEN)
    app = App(url=database_url)

    @app.task
    async def say(word: str) -> str:
        return word

    async with working(app, sweeps=True):
        await until(lambda: "promote_due" in caplog.text)
        assert await (await say.submit("still here")).result(20) == "still here"


async def _completed(given: Given) -> bool:
    return "execution_completed" in await given.events()
