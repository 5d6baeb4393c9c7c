"""Signals sent at the same time are batched, and each sender gets its own answer."""

import asyncio

from flowfabric import App, Context
from flowfabric.errors import InvalidToken
from flowfabric.model import CreatedWaitpoint, Delivered, SignalToSend
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given

MANY = 20


async def test_concurrent_signals_are_batched_and_a_bad_one_fails_alone(app: App, given: Given) -> None:
    points: dict[int, CreatedWaitpoint] = {}

    @app.task
    async def order(ctx: Context, number: int) -> int:
        points[number] = await ctx.create_waitpoint("paid")
        await ctx.wait_for_signal("paid")
        return number

    async with working(app):
        orders = await order.submit_many([(number,) for number in range(MANY)])
        for one in orders:
            await happens(one, "execution_suspended")
        tokens = {number: point.token for number, point in points.items()} | {3: f"k1:{'0' * 64}"}
        signals = [
            SignalToSend(
                execution_id=one.execution_id,
                waitpoint_id=points[number].waitpoint_id,
                token=tokens[number],
                name="paid",
            )
            for number, one in enumerate(orders)
        ]
        answers = await asyncio.gather(*map(app.signal, signals), return_exceptions=True)
        good = [number for number in range(MANY) if number != 3]
        assert [await orders[number].result(TIMEOUT) for number in good] == good

    assert isinstance(answers[3], InvalidToken)
    assert all(isinstance(answers[number], Delivered) for number in good)
    assert len(await given.conn.fetch("select from flowfabric.signals group by xmin")) <= 3
