"""The client: submissions and signals that are made at the same time share a round trip."""

import asyncio
import logging

import msgspec
import pytest

from flowfabric import App, Context
from flowfabric.engine import attempts
from flowfabric.errors import InvalidToken
from flowfabric.ids import ExecutionId
from flowfabric.model import Completion, CreatedWaitpoint, Delivered, SignalToSend, Submission, Submitted
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given

MANY = 2_500


async def test_thousands_submitted_in_parallel_statements_are_claimed_in_the_order_of_the_call(
    app: App, given: Given
) -> None:
    @app.task
    async def report(number: int) -> None: ...

    async with app:
        made = await report.submit_many([(number,) for number in range(MANY)])

        first, *_, last = await given.claim(take=MANY // 5, lanes=["default"])
    in_order = await given.rows("select partition, id from flowfabric.tickets order by created_at")
    assert [execution.execution_id for execution in made] == [
        ExecutionId(row["partition"], row["id"]) for row in in_order
    ]
    assert [first.execution_id, last.execution_id] == [made[0].execution_id, made[MANY // 5 - 1].execution_id]


async def test_of_thousands_with_one_key_the_first_is_created(app: App, given: Given) -> None:
    @app.task
    async def report() -> None: ...

    async with app:
        submit = app.client
        answers = await submit.submit_many([Submission(options=report.options, key="one") for _ in range(MANY)])

    taken = [answer for answer in answers if isinstance(answer, Submitted)]
    assert [str(answer.outcome) for answer in taken] == ["created"] + ["duplicate"] * (MANY - 1)
    assert len({answer.execution_id for answer in taken}) == await given.count("executions") == 1


async def test_of_thousands_the_refused_ones_fail_alone(app: App, given: Given) -> None:
    @app.task
    async def report() -> None: ...

    async with app:
        submit = app.client
        asked = [Submission(options=report.options, tags={} if n % 500 else {"": "x"}) for n in range(MANY)]
        answers = await submit.submit_many(asked)

    refused = [number for number, answer in enumerate(answers) if getattr(answer, "code", None) == "invalid_tag_key"]
    assert refused == [0, 500, 1000, 1500, 2000]
    assert await given.count("executions") == MANY - len(refused)


async def test_workers_are_not_notified_of_refused_submissions(
    app: App, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(lane="reports")
    async def report() -> None: ...

    caplog.set_level(logging.WARNING)
    lanes = ["reports", "\udcff", "x" * 10_000]
    async with app:
        submit = app.client
        options = [msgspec.structs.replace(report.options, lane=lane) for lane in lanes]
        answers = await submit.submit_many([Submission(options=each) for each in options])

    assert [isinstance(answer, Submitted) for answer in answers] == [True, False, False]
    assert caplog.messages == []  # a notification that cannot be sent would be lost with the rest of its message


SIGNALS = 20


async def test_concurrent_signals_are_batched_and_a_bad_one_fails_alone(app: App, given: Given) -> None:
    points: dict[int, CreatedWaitpoint] = {}

    @app.task
    async def order(ctx: Context, number: int) -> int:
        points[number] = await ctx.create_waitpoint("paid")
        await ctx.wait_for_signal("paid")
        return number

    async with working(app):
        orders = await order.submit_many([(number,) for number in range(SIGNALS)])
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
        good = [number for number in range(SIGNALS) if number != 3]
        assert [await orders[number].result(TIMEOUT) for number in good] == good

    assert isinstance(answers[3], InvalidToken)
    assert all(isinstance(answers[number], Delivered) for number in good)
    assert len(await given.conn.fetch("select from flowfabric.signals group by xmin")) <= 3


COUNTING = """do $$ begin
    execute format('alter database %I set track_functions = ''all''', current_database());
end $$"""


async def test_results_that_are_awaited_together_share_round_trips(app: App, given: Given) -> None:
    @app.task
    async def report() -> None: ...

    await given.conn.execute(COUNTING)
    async with app:
        made = await report.submit_many([()] * 200)
        waiting = [asyncio.create_task(execution.result(TIMEOUT)) for execution in made]
        claimed = await given.claim(take=200)
        await attempts.complete_many(given.conn, [Completion(fence=claim.fence, result=b"null") for claim in claimed])
        await asyncio.gather(*waiting)

    [counted] = await given.rows("select calls from pg_stat_user_functions where funcname = 'get_result'")
    assert counted["calls"] <= 50
