"""A user's open transaction delays only the submissions and signals of an app that need the rows it has locked."""

import asyncio
from datetime import timedelta

import pytest

from flowfabric import App
from flowfabric.config import Config
from flowfabric.engine import executions
from flowfabric.errors import RowLocked
from tests.conftest import Connect
from tests.given import Given, submission


async def test_a_key_in_an_open_transaction_delays_only_submissions_with_that_key(
    app: App, given: Given, connect: Connect
) -> None:
    @app.task
    async def ship(order: int) -> None: ...

    other = await connect()
    async with app:
        async with other.transaction():
            first = await executions.submit(other, submission(task="ship", key="order-17", payload=b'{"order": 17}'))
            waiting = [asyncio.create_task(ship.with_options(key="order-17").submit(17)) for _ in range(20)]
            async with asyncio.timeout(20):
                await asyncio.gather(*(ship.with_options(key=f"order-{n}").submit(n) for n in range(100, 150)))
            assert not any(call.done() for call in waiting)
        assert {(await call).execution_id for call in waiting} == {first.execution_id}


async def test_a_new_lane_in_an_open_transaction_delays_only_submissions_to_that_lane(
    app: App, given: Given, connect: Connect
) -> None:
    @app.task
    async def report() -> None: ...

    other = await connect()
    async with app:
        async with other.transaction():
            await executions.submit(other, submission(lane="new"))
            waiting = asyncio.create_task(report.with_options(lane="new").submit())
            async with asyncio.timeout(20):
                await asyncio.gather(*(report.submit() for _ in range(50)))
            assert not waiting.done()
        await waiting


async def test_a_submission_that_stays_locked_is_refused_after_the_time_limit_of_a_call(
    database_url: str, connect: Connect
) -> None:
    app, other = App(url=database_url), await connect()
    app.config = Config.read(url=database_url, call_timeout=timedelta(seconds=0.5))

    @app.task
    async def report() -> None: ...

    async with app, other.transaction():
        await executions.submit(other, submission(lane="new"))
        with pytest.raises(RowLocked):
            await report.with_options(lane="new").submit()
