"""A worker sweeps beside its work, tells others what that woke, and outlives a sweep that fails."""

from pathlib import Path

import pytest

from flowfabric.app import App
from flowfabric.engine import claims
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
async def lapsed(given: Given) -> None:
    """An execution whose worker has died, an hour ago."""
    await given.submitted()
    await claims.claim(given.conn, "dead", instance="dead-1", lanes=["default"])
    await given.time_passes(hours=1)


async def test_a_worker_takes_back_what_others_have_left(
    lapsed: None, database_url: str, given: Given, tmp_path: Path
) -> None:
    async with worker_process(database_url, written(tmp_path, SOURCE)):
        await until(lambda: _completed(given))


async def test_a_worker_without_sweeps_leaves_that_to_others(
    lapsed: None, database_url: str, given: Given, tmp_path: Path
) -> None:
    async with worker_process(database_url, written(tmp_path, SOURCE), "--no-sweeps"):
        await given.submitted()
        await until(lambda: _completed(given))

    assert "lease_expired" not in await given.events()


async def test_those_who_wait_are_told_what_a_sweep_woke(lapsed: None, database_url: str) -> None:
    app, heard = App(url=database_url), list[Notification]()

    async with working(app, lanes=["other"], sweeps=True):
        app.notifier.listen(heard.append)
        await until(lambda: any("default" in hint.lanes for hint in heard))


async def test_a_worker_outlives_a_sweep_that_fails(
    database_url: str, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    await given.conn.execute(BROKEN)
    app = App(url=database_url)

    @app.task
    async def say(word: str) -> str:
        return word

    async with working(app, sweeps=True):
        await until(lambda: "sweep promote_due failed" in caplog.text)
        assert await (await say.submit("still here")).result(20) == "still here"


async def _completed(given: Given) -> bool:
    return "execution_completed" in await given.events()
