"""Whoever waits for a member that ends with another one is told of it, and need not find out by looking."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from flowfabric import App
from flowfabric.app.flows import FlowHandle, Node
from flowfabric.postgres.notify import Notification, Notifier
from tests.app.scene import TIMEOUT, working
from tests.given import Given

Ear = asyncio.Queue[Notification]


@pytest.fixture
def app(database_url: str) -> App:
    app = App(url=database_url)

    @app.task
    async def fail() -> str:
        raise ValueError("no luck")

    @app.task
    async def give() -> str:
        return "luck"

    @app.task(lane="nobody")
    async def take(what: str) -> str:
        return what

    return app


@asynccontextmanager
async def listening(app: App) -> AsyncIterator[Ear]:
    """Hears the hints of all processes from now on."""
    heard = Ear()
    async with Notifier(app.database) as hints:
        hints.listen(heard.put_nowait)
        assert await heard.get() == Notification()  # it is connected
        yield heard


async def hears(heard: Ear, told: Callable[[Notification], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not told(await heard.get()):
            pass


async def submitted(app: App, first: str, **options: object) -> tuple[FlowHandle, Node[str], Node[str]]:
    """A flow of three, each of which waits for the one before, with the first and the last."""
    flow = app.flow("report")
    node = flow.add(app.tasks[first].with_options(**options))  # type: ignore[arg-type]
    last = flow.add(app.tasks["take"], flow.add(app.tasks["take"], node))
    return await flow.submit(), node, last


async def test_a_failure_tells_those_who_wait_for_what_was_skipped(app: App) -> None:
    async with working(app, lanes=["default"]), listening(app) as heard:
        handle, _, last = await submitted(app, "fail")
        await hears(heard, lambda hint: str(handle[last].execution_id) in hint.ended)
        assert await handle[last].state() == "skipped"


async def test_a_cancel_tells_those_who_wait_for_what_was_skipped(app: App) -> None:
    async with app, listening(app) as heard:
        handle, first, last = await submitted(app, "give")
        await handle[first].cancel("not wanted")
        await hears(heard, lambda hint: str(handle[last].execution_id) in hint.ended)


async def test_a_sweep_tells_those_who_wait_for_what_was_skipped(app: App, given: Given) -> None:
    async with working(app, lanes=["other"]), listening(app) as heard:
        handle, _, last = await submitted(app, "give", deadline="1h")
        await given.time_passes(hours=2)
        await hears(heard, lambda hint: str(handle[last].execution_id) in hint.ended)


async def test_a_result_tells_those_who_may_work_with_it(app: App) -> None:
    async with working(app, lanes=["default"]), listening(app) as heard:
        await submitted(app, "give")
        await hears(heard, lambda hint: "nobody" in hint.lanes)
