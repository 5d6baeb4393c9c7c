"""Waits of a handler: it suspends, holds no resources, and gets the answer when it runs again."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric import App, Context, Execution, ExecutionFailed, Suspension, SyncContext, Verdict
from flowfabric.engine import attempts, waits
from flowfabric.errors import ApprovalDigestMismatch
from flowfabric.model import CreatedWaitpoint, SignalToSend
from tests.app.scene import TIMEOUT, happens, later, working
from tests.given import Given

SUSPENDED = "execution_suspended"


async def test_a_signal_arrives_with_its_payload(app: App, caplog: pytest.LogCaptureFixture) -> None:
    tokens: list[str] = []

    @app.task
    async def order(ctx: Context) -> str:
        paid = await ctx.create_waitpoint("paid")
        await ctx.step("mail", tokens.append, paid.token)
        signal = await ctx.wait_for_signal("paid")
        assert signal is not None
        return f"{signal.source_identity} {(signal.payload or b'').decode()}"

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        ignored = await execution.signal("paid", token=tokens[0], name="payed")
        assert ignored.effect == "signal_ignored_matcher_failed"
        assert "signal 'payed' to waitpoint 'paid'" in caplog.text
        caplog.clear()
        await execution.signal("paid", {"amount": 3}, token=tokens[0], source="bank")
        assert "ignored" not in caplog.text
        assert await execution.result(TIMEOUT) == 'bank {"amount":3}'
    assert len(tokens) == 1


async def test_no_signal_is_mistaken_for_a_timeout(app: App, given: Given) -> None:
    points: list[CreatedWaitpoint] = []

    @app.task
    async def order(ctx: Context) -> tuple[bool, bool]:
        points.extend([await ctx.create_waitpoint(key) for key in ("paid", "publish")])
        paid = await ctx.wait_for_signal("paid")
        return paid is not None, (await ctx.approval("publish")).approved

    async with working(app):
        execution = await order.submit()
        for number, name in enumerate(("paid", "approve")):
            await happens(execution, SUSPENDED, number + 1)
            sent = SignalToSend(
                execution_id=execution.execution_id,
                waitpoint_id=points[number].waitpoint_id,
                token=points[number].token,
                name=name,
                category="system",
            )
            await waits.deliver_signal(given.conn, sent)
            await app.wake("default")
        assert await execution.result(TIMEOUT) == (True, True)


async def test_a_waitpoint_is_created_once_however_often_the_handler_runs(app: App, given: Given) -> None:
    seen: list[str] = []

    @app.task
    async def order(ctx: Context) -> None:
        seen.append((await ctx.create_waitpoint("paid")).token)
        await ctx.wait_for_signal("paid")
        await ctx.sleep("51ms")

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await execution.signal("paid", token=seen[0])
        await execution.result(TIMEOUT)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert await given.count("waitpoints") == 1


async def test_a_signal_that_arrived_before_the_wait_is_returned(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        paid = await ctx.create_waitpoint("paid")

        async def pay() -> None:
            await app.execution(ctx.execution_id).signal("paid", token=paid.token, source="quick")

        await ctx.step("pay", pay)
        signal = await ctx.wait_for_signal("paid")
        return "none" if signal is None else signal.source_identity

    async with working(app):
        assert await (await order.submit()).result(TIMEOUT) == "quick"


async def test_no_signal_in_time_is_none(app: App, given: Given) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        return f"{await ctx.wait_for_signal('paid', timeout='30d')}"

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await later(app, given, execution, days=30)
        assert await execution.result(TIMEOUT) == "None"


async def test_any_condition_can_be_waited_for(app: App) -> None:
    tokens: dict[str, str] = {}
    either = {"kind": "any_of", "members": [{"kind": "single", "waitpoint": key} for key in ("a", "b")]}

    @app.task
    async def order(ctx: Context) -> list[str]:
        for key in ("a", "b"):
            tokens[key] = (await ctx.create_waitpoint(key)).token
        return [signal.name for signal in await ctx.suspend("one", Suspension(condition=either, waitpoints=["a", "b"]))]

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await execution.signal("b", token=tokens["b"], name="hello")
        assert await execution.result(TIMEOUT) == ["hello"]


def publishing(app: App, **options: Any) -> Any:
    @app.task
    async def publish(ctx: Context) -> Verdict:
        return await ctx.approval("publish", **options)

    return publish


async def asked(task: Any) -> Execution[Verdict]:
    execution: Execution[Verdict] = await task.submit()
    await happens(execution, SUSPENDED)
    return execution


async def test_an_approval_is_approved(app: App) -> None:
    publish = publishing(app, subject={"text": "draft"})

    async with working(app):
        execution = await asked(publish)
        await execution.approve("publish", by="ann", subject={"text": "draft"}, note="well done")
        assert await execution.result(TIMEOUT) == Verdict(approved=True, by=["ann"], note="well done")


async def test_an_approval_is_rejected(app: App) -> None:
    publish = publishing(app)

    async with working(app):
        execution = await asked(publish)
        await execution.reject("publish", by="bob")
        assert await execution.result(TIMEOUT) == Verdict(approved=False, by=["bob"])


async def test_an_approval_that_nobody_gives_times_out(app: App, given: Given) -> None:
    publish = publishing(app, timeout="2d")

    async with working(app):
        execution = await asked(publish)
        await later(app, given, execution, days=2)
        assert await execution.result(TIMEOUT) == Verdict(approved=False, timed_out=True, by=[])


async def test_two_approvers_are_two_people(app: App) -> None:
    publish = publishing(app, approvers=2)

    async with working(app):
        execution = await asked(publish)
        for by in ("ann", "ann"):
            await execution.approve("publish", by=by)
        assert await execution.state() == "suspended"
        await execution.approve("publish", by="bob")
        assert await execution.result(TIMEOUT) == Verdict(approved=True, by=["ann", "bob"])


async def test_a_decision_on_another_subject_does_not_count(app: App) -> None:
    publish = publishing(app, subject="draft")

    async with working(app):
        execution = await asked(publish)
        for shown in ("another draft", None):
            with pytest.raises(ApprovalDigestMismatch):
                await execution.approve("publish", by="ann", subject=shown)
        assert await execution.state() == "suspended"


async def test_an_approval_without_binding_accepts_any_subject(app: App) -> None:
    publish = publishing(app, subject="draft", bind=False)

    async with working(app):
        execution = await asked(publish)
        await execution.approve("publish", by="ann")
        assert (await execution.result(TIMEOUT)).approved


async def test_an_approval_needs_an_approver(app: App) -> None:
    publish = publishing(app, approvers=0)

    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"approvers.*0"):
            await (await publish.submit()).result(TIMEOUT)


async def test_a_sleep_holds_no_lease_and_the_same_attempt_resumes(app: App, given: Given) -> None:
    runs: list[int] = []

    @app.task
    async def report(ctx: Context, until: datetime | None) -> int:
        runs.append(ctx.attempt)
        await (ctx.sleep("12h") if until is None else ctx.sleep_until(until))
        return len(runs)

    async with working(app):
        for until in (None, datetime.now(UTC) + timedelta(hours=20)):
            runs.clear()
            execution = await report.submit(until)
            await happens(execution, "execution_delayed")
            assert (await execution.state(), (await execution.describe()).lease) == ("delayed", None)
            await later(app, given, execution, hours=12)
            assert await execution.result(TIMEOUT) == 2
            assert runs == [1, 1]


async def test_a_short_sleep_and_a_moment_in_the_past_do_not_suspend(app: App) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        await ctx.sleep("5ms")
        await ctx.sleep_until(datetime(2020, 1, 1, tzinfo=UTC))

    async with working(app):
        execution = await report.submit()
        await execution.result(TIMEOUT)
        assert "execution_delayed" not in [event.kind async for event in execution.events()]


async def test_concurrent_sleeps_begin_together(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep("2h"), ctx.sleep("1h"), ctx.sleep("3h"))

    async with working(app):
        execution = await report.submit()
        for times in (1, 2, 3):
            await happens(execution, "execution_delayed", times)
            await later(app, given, execution, minutes=61)
        await execution.result(TIMEOUT)


async def test_a_signal_for_the_second_of_two_waits_is_kept(app: App) -> None:
    tokens: dict[str, str] = {}

    @app.task
    async def order(ctx: Context) -> list[str]:
        for key in ("paid", "packed"):
            tokens[key] = (await ctx.create_waitpoint(key)).token
        found = await asyncio.gather(ctx.wait_for_signal("paid"), ctx.wait_for_signal("packed"), ctx.sleep("51ms"))
        return [signal.source_identity for signal in found[:2] if signal is not None]

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        await execution.signal("packed", token=tokens["packed"], source="packer")
        await execution.signal("paid", token=tokens["paid"], source="payer")
        assert await execution.result(TIMEOUT) == ["payer", "packer"]


async def test_steps_beside_a_wait_end_before_the_run_suspends(app: App, given: Given) -> None:
    calls: list[str] = []

    @app.task
    async def order(ctx: Context) -> None:
        async def chain() -> None:
            for name in ("a", "b", "c"):
                await ctx.step(name, calls.append, name)

        await asyncio.gather(ctx.wait_for_signal("paid", timeout="1h"), chain())

    async with working(app):
        execution = await order.submit()
        await happens(execution, SUSPENDED)
        assert await given.count("steps") == 3
        await later(app, given, execution, hours=1)
        await execution.result(TIMEOUT)
    assert calls == ["a", "b", "c"]


async def test_waits_in_a_task_group_unwind_like_any_other(app: App, given: Given) -> None:
    @app.task
    async def report(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep("1h"))
            group.create_task(ctx.step("x", int))
        return "rested"

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        await later(app, given, execution, hours=1)
        assert await execution.result(TIMEOUT) == "rested"


async def test_finally_runs_at_every_unwinding_and_its_steps_only_at_the_end(app: App, given: Given) -> None:
    seen: list[str] = []

    @app.task
    async def report(ctx: Context) -> None:
        try:
            await ctx.sleep("1h")
        except Exception:
            seen.append("caught")
        finally:
            seen.append("finally")
            await ctx.step("tidy", seen.append, "tidy")

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        assert seen == ["finally"]
        await later(app, given, execution, hours=1)
        await execution.result(TIMEOUT)
    assert seen == ["finally", "finally", "tidy"]


async def test_a_handler_that_swallows_the_unwinding_fails_permanently(app: App) -> None:
    @app.task(retries=5)
    async def report(ctx: Context) -> str:
        try:
            await ctx.sleep("1h")
        except BaseException:
            return "awake"
        return "rested"

    @app.task(retries=5)
    async def careless(ctx: Context) -> None:
        with suppress(BaseException):
            await ctx.sleep("1h")
        await ctx.step("after", print)

    @app.task(retries=5)
    def blocking(ctx: SyncContext) -> None:
        with suppress(BaseException):
            ctx.sleep("1h")

    async with working(app):
        for task in (report, careless, blocking):
            await fails_at_once(app, await task.submit(), "unwinds a waiting run; catch Exception, not BaseException")


async def test_a_gather_that_returns_exceptions_fails_permanently_and_names_all_settled(app: App) -> None:
    @app.task(retries=5)
    async def collected(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep("1h"), return_exceptions=True)

    @app.task(retries=5)
    async def counted(ctx: Context) -> int:
        found: Any = await asyncio.gather(ctx.sleep("1h"), return_exceptions=True)
        return int(sum(found))

    @app.task(retries=5)
    async def saved(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep("1h"), ctx.wait_for_signal("go"), return_exceptions=True)
        await ctx.step("save", print)

    @app.task(retries=5)
    async def waited(ctx: Context) -> None:
        await asyncio.wait([asyncio.ensure_future(ctx.sleep("1h"))])

    async with working(app):
        for task in (collected, counted, saved, waited):
            said = r"gather\(..., return_exceptions=True\) .* use ctx.all_settled"
            await fails_at_once(app, await task.submit(), said)


async def fails_at_once(app: App, execution: Execution[Any], said: str) -> None:
    with pytest.raises(ExecutionFailed, match=said):
        await execution.result(TIMEOUT)
    assert len((await attempts_of(app, execution)).items) == 1


async def test_a_wait_that_is_cancelled_before_the_run_suspends_is_dropped(app: App) -> None:
    async def fail() -> None:
        raise ValueError("no paper")

    @app.task
    async def grouped(ctx: Context) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.wait_for_signal("paid"))
                group.create_task(ctx.step("print", fail))
        except ExceptionGroup:
            return await ctx.step("tell", str, "told")
        return "printed"

    @app.task
    async def gathered(ctx: Context) -> str:
        try:
            await asyncio.gather(ctx.wait_for_signal("paid"), ctx.step("print", fail))
        except ValueError:
            return "told"
        return "printed"

    async with working(app):
        for task in (grouped, gathered):
            assert await (await task.submit()).result(TIMEOUT) == "told"


async def test_a_run_continues_to_its_next_wait_after_one_that_was_cancelled(app: App, given: Given) -> None:
    timed_out = asyncio.Event()

    @app.task
    async def report(ctx: Context) -> str:
        printing = asyncio.create_task(ctx.step("print", timed_out.wait))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await ctx.wait_for_signal("paid")
        timed_out.set()
        await printing
        await ctx.sleep("1h")
        return "rested"

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        assert await given.count("waitpoints") == 0


async def attempts_of(app: App, execution: Execution[Any]) -> Any:
    return await app.database.run(lambda conn: attempts.list_attempts(conn, execution.execution_id))


async def test_a_synchronous_handler_waits_in_the_same_way(app: App, given: Given) -> None:
    @app.task
    def report(ctx: SyncContext) -> str:
        ctx.sleep("1h")
        verdict = ctx.approval("publish")
        return "published" if verdict.approved else "withdrawn"

    async with working(app):
        execution = await report.submit()
        await happens(execution, "execution_delayed")
        await later(app, given, execution, hours=1)
        await happens(execution, SUSPENDED)
        await execution.approve("publish", by="ann")
        assert await execution.result(TIMEOUT) == "published"


async def test_a_wait_that_an_operator_ends_returns_no_signal(app: App, given: Given) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        return f"{await ctx.wait_for_signal('paid')} {(await ctx.approval('publish')).approved}"

    async with working(app):
        execution = await order.submit()
        for times in (1, 2):
            await happens(execution, SUSPENDED, times)
            await waits.resume(given.conn, execution.execution_id, by="ops")
            await app.wake("default")
        assert await execution.result(TIMEOUT) == "None False"


async def test_the_same_name_can_be_waited_for_again(app: App, given: Given) -> None:
    @app.task
    async def order(ctx: Context) -> list[bytes | None]:
        found = []
        for _ in range(3):
            token = (await ctx.create_waitpoint("more")).token
            await ctx.step("publish", tokens.append, token)
            signal = await ctx.wait_for_signal("more")
            found.append(None if signal is None else signal.payload)
        return found

    tokens: list[str] = []
    async with working(app):
        execution = await order.submit()
        for number in range(3):
            await happens(execution, SUSPENDED, number + 1)
            await execution.signal("more", number, token=tokens[number])
        assert await execution.result(TIMEOUT) == [b"0", b"1", b"2"]
