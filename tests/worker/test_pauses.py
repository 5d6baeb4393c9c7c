"""Pauses between polls: they decide how fast an idle worker starts."""

import asyncio
from datetime import UTC, datetime, timedelta

from flowfabric.app import App
from flowfabric.handler.context import Context
from flowfabric.worker.claiming import Pauses
from tests.given import Given
from tests.worker.scene import working


async def grown() -> Pauses:
    """Pauses after five empty polls."""
    pauses = Pauses()
    for _ in range(5):
        pauses.begin()
        await pauses.wait()
    return pauses


async def test_pauses_grow_until_a_notification_arrives() -> None:
    pauses = await grown()
    assert (Pauses().length(), pauses.length()) == (0.005, 0.16)

    pauses.shorten()
    await pauses.wait()  # returns immediately
    assert pauses.length() == 0.01


async def test_an_execution_that_is_due_soon_cuts_a_pause_short() -> None:
    pauses = await grown()
    pauses.due(datetime.now(UTC) + timedelta(milliseconds=20))
    pauses.due(datetime.now(UTC) + timedelta(days=1))

    assert pauses.length() <= 0.02
    pauses.begin()
    assert pauses.length() <= 0.02


async def test_a_notification_for_its_lane_wakes_an_idle_worker(database_url: str, given: Given) -> None:
    app, begun = App(url=database_url), asyncio.Event()

    @app.task
    async def work() -> None:
        begun.set()

    async with working(app):
        await given.submitted(task="work")
        await app.wake("default")
        async with asyncio.timeout(5):
            await begun.wait()


async def test_a_short_sleep_ends_without_a_notification(database_url: str) -> None:
    app = App(url=database_url)

    @app.task
    async def nap(ctx: Context) -> str:
        for _ in range(5):
            await ctx.sleep("60ms")
        return "awake"

    async with working(app):
        assert await (await nap.submit()).result(20) == "awake"
