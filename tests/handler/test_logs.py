"""What a handler logs carries its execution."""

import asyncio
import logging

import pytest

from flowfabric import App, Context, log_execution
from tests.app.scene import TIMEOUT, working

log = logging.getLogger("shop")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "shop")
    caplog.handler.addFilter(log_execution)
    caplog.handler.setFormatter(logging.Formatter("%(execution_id)s %(task)s %(attempt)s %(message)s"))
    return caplog


async def test_records_of_handlers_steps_tasks_and_threads_carry_the_execution(
    app: App, lines: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def ship(ctx: Context) -> None:
        log.info("here")
        await asyncio.gather(ctx.step("thread", lambda: log.info("thread")), asyncio.to_thread(log.info, "own thread"))

    @app.task
    def print_label() -> None:
        log.info("sync")

    async with working(app):
        one, other = await ship.submit(), await print_label.submit()
        await one.result(TIMEOUT)
        await other.result(TIMEOUT)
        log.info("outside")

    own = [line for line in lines.text.splitlines() if line.split()[3] in {"here", "thread", "own", "sync", "outside"}]
    of_one, of_other = f"{one.execution_id} ship 1", f"{other.execution_id} print_label 1"
    assert sorted(own) == sorted(
        [*(f"{of_one} {text}" for text in ("here", "thread", "own thread")), f"{of_other} sync", "- - - outside"]
    )


def test_a_field_that_a_record_has_is_kept() -> None:
    record = logging.makeLogRecord({"task": "mine"})

    assert log_execution(record)
    assert (record.__dict__["task"], record.__dict__["attempt"]) == ("mine", "-")
