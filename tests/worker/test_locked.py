"""A user's open transaction delays only the executions it has locked, not the other reports of the worker."""

import asyncio

from flowfabric.app import App
from tests.conftest import Connect
from tests.given import Given
from tests.worker.scene import until, working


async def test_locked_flows_do_not_delay_the_completions_of_other_executions(
    database_url: str, given: Given, connect: Connect
) -> None:
    app, gates = App(url=database_url), [asyncio.Event() for _ in range(5)]

    @app.task
    async def held(number: int) -> None:
        await gates[number].wait()

    @app.task
    async def free(number: int) -> int:
        return number

    other = await connect()
    async with working(app, concurrency=30):
        flow = app.flow("report")
        for number in range(5):
            flow.add(held, number)
        locked = await flow.submit()
        await until(lambda: _active(given, 5))
        async with other.transaction():
            await other.execute("select from flowfabric.flows for update")
            for number, gate in enumerate(gates):  # one after the other, so that the reports do not share a batch
                gate.set()
                assert await (await free.submit(number)).result(20) == number
            assert (await locked.describe()).state == "running"
        assert await locked.wait(20) == "completed"


async def _active(given: Given, many: int) -> bool:
    return len(await given.rows("select from flowfabric.tickets where phase = 'active'")) == many
