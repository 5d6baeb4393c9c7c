"""Pauses between looks, and how much is claimed ahead: the two numbers that decide how fast an idle worker begins."""

import asyncio
from datetime import UTC, datetime, timedelta

from flowfabric.app import App
from flowfabric.handler.context import Context
from flowfabric.worker.claiming import Pauses
from tests.given import Given
from tests.worker.scene import working


async def grown() -> Pauses:
    """Pauses after five looks that found nothing."""
    pauses = Pauses()
    for _ in range(5):
        pauses.begin()
        await pauses.wait()
    return pauses


async def test_pauses_grow_until_a_hint_comes() -> None:
    pauses = await grown()
    assert (Pauses().length(), pauses.length()) == (0.005, 0.16)

    pauses.shorten()
    await pauses.wait()  # at once, since it has stirred
    assert pauses.length() == 0.01


async def test_what_falls_due_soon_cuts_a_pause_short() -> None:
    pauses = await grown()
    pauses.due(datetime.now(UTC) + timedelta(milliseconds=20))
    pauses.due(datetime.now(UTC) + timedelta(days=1))

    assert pauses.length() <= 0.02
    pauses.begin()
    assert pauses.length() <= 0.02


async def test_a_hint_for_its_lanes_wakes_an_idle_worker(database_url: str, given: Given) -> None:
    app, begun = App(url=database_url), asyncio.Event()

    @app.task
    async def work() -> None:
        begun.set()

    async with working(app):
        await given.submitted(task="work")
        await app.wake("default")
        async with asyncio.timeout(5):
            await begun.wait()


async def test_a_short_sleep_ends_without_anybody_being_told(database_url: str) -> None:
    app = App(url=database_url)

    @app.task
    async def nap(ctx: Context) -> str:
        for _ in range(5):
            await ctx.sleep("60ms")
        return "awake"

    async with working(app):
        assert await (await nap.submit()).result(20) == "awake"
