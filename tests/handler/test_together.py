"""Concurrent waits: one suspension, an answer for each wait, and the first of several."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric import App, Context, Execution, ExecutionFailed, First, Signal, Suspension, SyncContext
from flowfabric.engine import waits
from flowfabric.handler.journal import Places
from flowfabric.model import JournalEntry
from tests.app.scene import TIMEOUT, happens, later, working
from tests.given import Given

SUSPENDED = "execution_suspended"


class Asked:
    """The tokens of an order's waitpoints, and signals to them."""

    def __init__(self, app: App) -> None:
        self.tokens: dict[str, str] = {}
        self.app = app

    async def give_out(self, ctx: Context, *keys: str) -> None:
        for key in keys:
            token = (await ctx.create_waitpoint(key)).token
            await ctx.step(f"give out {key}", self.tokens.update, {key: token})

    async def send(self, execution: Execution[Any], key: str, payload: object = None) -> Any:
        return await execution.signal(key, payload, token=self.tokens[key])


def paid(signal: Signal | None) -> bytes | None:
    return None if signal is None else signal.payload


async def test_concurrent_waits_are_one_suspension_and_each_gets_its_own_signal(app: App, given: Given) -> None:
    asked, runs = Asked(app), []

    @app.task
    async def order(ctx: Context) -> list[bytes | None]:
        runs.append(1)
        await asked.give_out(ctx, "paid", "packed", "sent")
        found = await asyncio.gather(*(ctx.wait_for_signal(key) for key in ("paid", "packed", "sent")))
        return [paid(signal) for signal in found]

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        assert "waitpoint paid" in (await execution.explain()).sentence
        assert (await asked.send(execution, "packed", 2)).effect == "appended_to_waitpoint"
        assert (await asked.send(execution, "sent", 3)).effect == "appended_to_waitpoint"
        assert await execution.state() == "suspended"
        assert (await asked.send(execution, "paid", 1)).effect == "resume_condition_satisfied"
        assert await execution.result(TIMEOUT) == [b"1", b"2", b"3"]
        kinds = [event.kind async for event in execution.events()]
    assert (kinds.count(SUSPENDED), len(runs)) == (1, 2)


async def test_a_wait_that_times_out_returns_none_and_the_others_keep_waiting(app: App, given: Given) -> None:
    asked = Asked(app)

    @app.task
    async def order(ctx: Context) -> list[bytes | None]:
        await asked.give_out(ctx, "paid", "packed")
        found = await asyncio.gather(ctx.wait_for_signal("paid"), ctx.wait_for_signal("packed", timeout="1h"))
        return [paid(signal) for signal in found]

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await later(app, given, execution, hours=1)
        await happens(execution, SUSPENDED, times=2)
        await asked.send(execution, "paid", 1)  # with its first token
        assert await execution.result(TIMEOUT) == [b"1", None]


async def test_code_behind_a_sleep_runs_while_a_signal_is_still_awaited(app: App, given: Given) -> None:
    asked = Asked(app)
    calls: list[str] = []

    @app.task
    async def order(ctx: Context) -> bytes | None:
        await asked.give_out(ctx, "paid")

        async def remind() -> None:
            for _ in range(2):
                await ctx.sleep("1h")
                await ctx.step("remind", calls.append, "please pay")

        signal, _ = await asyncio.gather(ctx.wait_for_signal("paid", timeout="5h"), remind())
        return paid(signal)

    async with working(app):
        execution = await order.submit()
        for times in (1, 2, 3):
            await happens(execution, SUSPENDED, times)
            assert len(calls) == times - 1
            if times < 3:
                await later(app, given, execution, minutes=61)
        timeout_at = (await execution.describe()).suspension.timeout_at  # type: ignore[union-attr]
        assert (timeout_at - (await execution.describe()).created_at).total_seconds() // 3600 == 5  # type: ignore[operator]
        await asked.send(execution, "paid", 1)
        assert await execution.result(TIMEOUT) == b"1"


async def test_a_sleep_lasts_until_its_time_although_a_signal_arrived(app: App, given: Given) -> None:
    asked = Asked(app)

    @app.task
    async def order(ctx: Context) -> str:
        await asked.give_out(ctx, "paid")
        await asyncio.gather(ctx.wait_for_signal("paid"), ctx.sleep("2h"))
        return "rested"

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await given.time_passes(minutes=90)
        await asked.send(execution, "paid", 1)
        assert await execution.state() == "suspended"
        await later(app, given, execution, minutes=31)
        assert await execution.result(TIMEOUT) == "rested"


async def test_concurrent_approvals_are_each_bound_to_their_subject(app: App) -> None:
    @app.task
    async def publish(ctx: Context) -> list[bool]:
        found = await ctx.all_of(ctx.approval("text", subject="a text"), ctx.approval("picture", subject="a picture"))
        return [verdict.approved for verdict in found]

    async with working(app):
        execution = await publish.submit()
        await happens(execution, SUSPENDED)
        await execution.reject("picture", by="bob", subject="a picture")
        await execution.approve("text", by="ann", subject="a text")
        assert await execution.result(TIMEOUT) == [True, False]


async def test_an_operator_resumes_all_concurrent_waits(app: App, given: Given) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        return f"{await asyncio.gather(ctx.wait_for_signal('paid'), ctx.sleep('1d'))}"

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await waits.resume(given.conn, execution.execution_id, by="ops")
        await app.wake("default")
        assert await execution.result(TIMEOUT) == "[None, None]"


@pytest.mark.parametrize("turned", [False, True])
def test_a_saved_sleep_that_an_operator_ended_is_over(turned: bool) -> None:
    begun = JournalEntry(kind="sleep", name="nap", occurrence=1)
    entries = [begun, replace(begun, by="operator")]

    assert Places(entries[::-1] if turned else entries).ask("sleep", "nap").entry == entries[1]


async def test_the_first_of_several_wins_in_every_later_run(app: App, given: Given) -> None:
    asked, seen = Asked(app), []

    @app.task
    async def order(ctx: Context) -> int:
        await asked.give_out(ctx, "stop", "go")
        first = await ctx.any_of(ctx.wait_for_signal("stop"), ctx.wait_for_signal("go"), ctx.sleep("1h"))
        seen.append(first.index)
        await ctx.sleep("1h")
        return first.index

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await asked.send(execution, "go")
        await happens(execution, "execution_delayed")
        await asked.send(execution, "stop")
        await later(app, given, execution, hours=2)
        assert await execution.result(TIMEOUT) == 1
    assert seen == [1, 1]


async def test_a_signal_that_came_second_is_kept_for_the_next_wait_of_its_name(app: App, given: Given) -> None:
    asked = Asked(app)

    @app.task
    async def order(ctx: Context) -> list[int]:
        await asked.give_out(ctx, "stop", "go")
        found = []
        for _ in range(3):
            first = await ctx.any_of(ctx.wait_for_signal("stop"), ctx.wait_for_signal("go"), ctx.sleep("1h"))
            found.append(first.index)
        return found

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await later(app, given, execution, hours=1)
        await happens(execution, SUSPENDED, times=2)
        await asked.send(execution, "go")
        await asked.send(execution, "stop")  # buffered, with its first token
        assert await execution.result(TIMEOUT) == [2, 1, 0]


async def test_any_of_works_beside_another_wait(app: App, given: Given) -> None:
    asked = Asked(app)

    @app.task
    async def order(ctx: Context) -> tuple[int, bytes | None]:
        await asked.give_out(ctx, "paid", "go")
        choice = ctx.any_of(ctx.wait_for_signal("go"), ctx.sleep("2d", name="timeout"))
        first, signal = await asyncio.gather(choice, ctx.wait_for_signal("paid"))
        return first.index, paid(signal)

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        assert (await asked.send(execution, "go")).effect == "appended_to_waitpoint"
        assert (await asked.send(execution, "paid", 1)).effect == "resume_condition_satisfied"
        assert await execution.result(TIMEOUT) == (0, b"1")


async def test_any_of_takes_a_child_and_a_sleep(app: App, given: Given) -> None:
    @app.task(lane="idle")
    async def nobody() -> None: ...

    @app.task
    async def order(ctx: Context) -> First[None]:
        child = await ctx.submit(nobody)
        return await ctx.any_of(child.result(), ctx.sleep("1h"))

    async with working(app, lanes=["default"]):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        assert " child" in (await execution.explain()).sentence
        await later(app, given, execution, hours=1)
        assert await execution.result(TIMEOUT) == First(1, None)


async def test_two_waits_with_one_name_are_served_in_turn(app: App, given: Given) -> None:
    asked = Asked(app)

    @app.task
    async def order(ctx: Context) -> list[bytes | None]:
        await asked.give_out(ctx, "more")
        found = await asyncio.gather(ctx.wait_for_signal("more"), ctx.wait_for_signal("more", timeout="1h"))
        return [paid(signal) for signal in found]

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await asked.send(execution, "more", 1)
        await happens(execution, SUSPENDED, times=2)
        await later(app, given, execution, hours=1)
        assert await execution.result(TIMEOUT) == [b"1", None]


async def test_an_invalid_wait_fails_the_run_and_leaves_no_other_wait(app: App, given: Given) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        wrong = Suspension(condition={"kind": "all_of", "members": []}, waitpoints=["x"])
        await asyncio.gather(ctx.wait_for_signal("paid"), ctx.suspend("wrong", wrong))

    async with working(app):
        with pytest.raises(ExecutionFailed, match="invalid_suspension"):
            await (await order.submit()).result(TIMEOUT)
    assert (await given.count("waits"), await given.count("waitpoints")) == (0, 0)


@pytest.mark.parametrize(("given", "what"), [([], "nothing"), ([7], "int"), ([{"a": 1}], "dict")])
async def test_any_of_takes_waits_and_nothing_else(app: App, given: list[Any], what: str) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        await ctx.any_of(*given)

    async with working(app):
        with pytest.raises(ExecutionFailed, match=f"TypeError: any_of .*{what}"):
            await (await order.submit()).result(TIMEOUT)


async def test_a_synchronous_handler_can_wait_for_several(app: App, given: Given) -> None:
    @app.task
    def order(ctx: SyncContext) -> str:
        first = ctx.any_of(ctx.unwaited.wait_for_signal("go"), ctx.unwaited.sleep("1h"))
        both = ctx.all_of(ctx.unwaited.sleep("1h"), ctx.unwaited.wait_for_signal("paid", timeout="1h"))
        return f"{first.index} {both}"

    async with working(app):
        execution = await order.submit()
        for times in (1, 2):
            await happens(execution, SUSPENDED, times)
            await later(app, given, execution, hours=1)
        assert await execution.result(TIMEOUT) == "1 [None, None]"
