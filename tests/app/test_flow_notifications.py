"""Callers that wait for a member of a flow are notified when it ends because another member ended."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from flowfabric import App
from flowfabric.app.flows import FlowHandle, Node
from flowfabric.postgres.notify import Notification, Notifier
from tests.app.scene import TIMEOUT, working
from tests.given import Given

Received = asyncio.Queue[Notification]


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
async def listening(app: App) -> AsyncIterator[Received]:
    """The notifications of all processes from now on."""
    received = Received()
    async with Notifier(app.database) as hints:
        hints.listen(received.put_nowait)
        assert await received.get() == Notification()  # it is connected
        yield received


async def notified(received: Received, as_expected: Callable[[Notification], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not as_expected(await received.get()):
            pass


async def submitted(app: App, first: str, **options: object) -> tuple[FlowHandle, Node[str], Node[str]]:
    """A flow of three tasks in a row, with its first and its last node."""
    flow = app.flow("report")
    node = flow.add(app.tasks[first].with_options(**options))  # type: ignore[arg-type]
    last = flow.add(app.tasks["take"], flow.add(app.tasks["take"], node))
    return await flow.submit(), node, last


async def test_a_failure_notifies_the_callers_that_wait_for_a_skipped_member(app: App) -> None:
    async with working(app, lanes=["default"]), listening(app) as received:
        handle, _, last = await submitted(app, "fail")
        await notified(received, lambda hint: str(handle[last].execution_id) in hint.ended)
        assert await handle[last].state() == "skipped"


async def test_a_cancel_notifies_the_callers_that_wait_for_a_skipped_member(app: App) -> None:
    async with app, listening(app) as received:
        handle, first, last = await submitted(app, "give")
        await handle[first].cancel("not wanted")
        await notified(received, lambda hint: str(handle[last].execution_id) in hint.ended)


async def test_a_sweep_notifies_the_callers_that_wait_for_a_skipped_member(app: App, given: Given) -> None:
    async with working(app, lanes=["other"]), listening(app) as received:
        handle, _, last = await submitted(app, "give", deadline="1h")
        await given.time_passes(hours=2)
        await notified(received, lambda hint: str(handle[last].execution_id) in hint.ended)


async def test_a_result_notifies_the_lanes_of_its_downstreams(app: App) -> None:
    async with working(app, lanes=["default"]), listening(app) as received:
        await submitted(app, "give")
        await notified(received, lambda hint: "nobody" in hint.lanes)
