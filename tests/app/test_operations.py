"""The namespaces of an app: every operation that people use, without a connection."""

from datetime import timedelta
from typing import Any

import pytest

from docs import public
from flowfabric import App, Context
from flowfabric.calls.operations import NAMESPACES, Scope, operations
from flowfabric.errors import BudgetNotFound, ExecutionNotFound, InvalidId, LaneNotFound
from flowfabric.ids import mint_execution_id
from flowfabric.model import LaneChange, PublicState, ScheduleChange, Swept
from tests.app.scene import TIMEOUT, Heard, working

# The other operations, by who uses them.
OF_WORKERS = {
    *("attempts.complete", "attempts.delay", "attempts.fail", "claims.claim", "claims.claim_granted", "claims.renew"),
    *("claims.issue_grant", "claims.mark_begun_many", "claims.verify_grant", "flows.read_inputs", "holds.hold_changed"),
    *("executions.list_ended", "steps.read_journal", "steps.save_step", "waits.create_waitpoint", "waits.read_signals"),
    *("waits.suspend", "workers.beat", "workers.hold_lock", "workers.register_worker", "workers.unregister_worker"),
    *("children.submit_children", "events.advance_horizon", "events.watch_log", "routes.register_route"),
    *("turns.end_turn", "turns.take_turn", "claims.submit_and_claim", "claims.signal_and_claim"),
    *("streams.append_frame", "streams.append_frames"),
}
OF_THE_APP = {"clock.clock", "executions.submit", "flows.submit_flow", "overview.overview", "waits.deliver_signal"}
OF_A_HANDLE = {"streams.find_valid_frames", "streams.read_frames", "streams.read_summary", "streams.tail_frames"}
OF_THE_COMMAND = {"doctor.diagnose", "executions.match_executions", "flows.match_flows", "tasks.find_task"}
BY_HAND = {
    *("budgets.report_usage", "executions.cancel", "lanes.resume_lane", "schedules.create_schedule"),
    *("executions.override", "schedules.change_schedule", "waits.deliver_approval"),
}


def test_every_operation_of_the_engine_is_in_a_namespace_or_listed_here() -> None:
    named = {operation.function for each in NAMESPACES for operation in each.operations}
    others = OF_WORKERS | OF_THE_APP | OF_A_HANDLE | OF_THE_COMMAND | BY_HAND
    operations = {
        f"{concept}.{name}"
        for concept, module in public.concepts().items()
        for name, function in public.operations(module).items()
        if _is_for_people(function) and name.removesuffix("_many") not in public.operations(module).keys() - {name}
    } - {"waits.deliver_signals"}

    assert operations - named == others
    assert named & others == set()


def test_an_act_on_one_thing_has_the_path_of_the_thing_and_the_name_of_its_method() -> None:
    for namespace in NAMESPACES:
        for operation in namespace.operations:
            thing, _, act = (operation.path or "").rpartition("/")
            if operation.method == "POST" and thing not in ("", "/v1"):
                assert act == namespace.method(operation), operation.path


def test_no_two_operations_have_the_same_method_and_path() -> None:
    places = [(each.method, each.path) for each in operations() if each.path]

    assert len(places) == len(set(places))
    assert {path.split("/")[1] for _, path in places if path} == {"v1"}


def test_what_changes_something_needs_more_than_the_scope_read() -> None:
    assert {each.function for each in operations() if (each.method == "GET") != (each.scope is Scope.READ)} == set()


def _is_for_people(function: Any) -> bool:
    types = getattr(function, "__annotations__", {})
    return "conn" in types and types["return"] is not Swept


async def test_a_budget_is_created_changed_and_described_without_a_connection(app: App) -> None:
    async with app:
        created = await app.budgets.create("team-a", hard_limits={"tokens": 10}, reset_interval="1d", by="ops")
        again = await app.budgets.create("team-a", hard_limits={"tokens": 10}, reset_interval=timedelta(days=1))
        used = await app.budgets.report_usage("team-a", {"tokens": 4}, dedup_key="first")
        await app.budgets.report_usage("team-a", {"tokens": 4}, dedup_key="first")
        budget = await app.budgets.describe("team-a")
        with pytest.raises(BudgetNotFound):
            await app.budgets.describe("team-b")

    assert [created.outcome, again.outcome, used.outcome] == ["created", "exists", "ok"]
    assert budget.used == {"tokens": 4}
    assert budget.next_reset_at is not None
    assert budget.next_reset_at - budget.created_at == timedelta(days=1)


async def test_executions_are_listed_and_changed_by_their_id_as_text(app: App) -> None:
    @app.task
    async def report(ctx: Context) -> str:
        return await ctx.step("write", lambda: "done")

    async with app:
        execution = await report.submit()
        found = await app.executions.list(task="report")
        held = await app.executions.hold(str(execution.execution_id), by="ops")
        moved = await app.executions.override(
            execution.execution_id.wire, "success", result=[1], reason="known", by="me"
        )
        with pytest.raises(InvalidId):
            await app.executions.describe("nonsense")
        with pytest.raises(ExecutionNotFound):
            await app.executions.cancel(mint_execution_id())

        assert [each.execution_id for each in found.items] == [execution.execution_id]
        assert (held, moved.public_state) == ("held", PublicState.COMPLETED)
        assert await app.execution(execution.execution_id).result(TIMEOUT) == [1]


async def test_an_operation_that_makes_work_claimable_notifies_the_workers(app: App) -> None:
    async with app:
        await app.submit("report", {"lane": "reports"})
        await app.lanes.pause("reports", by="ops")
        heard = await Heard.listening(app)
        change = await app.lanes.resume("reports", by="ops")

        assert (change, await heard.first()) == (LaneChange.ACTIVE, "reports")
        assert (await app.lanes.describe("reports")).waiting_count == 1
        with pytest.raises(LaneNotFound, match="reports"):
            await app.lanes.describe("reprots")


async def test_a_schedule_can_change_its_timing_and_what_it_submits(app: App) -> None:
    @app.task
    async def report(topic: str) -> str:
        return topic

    async with app:
        await app.schedules.create("tides", report, {"topic": "tides"}, every="1h")
        changed = await app.schedules.change("tides", every="2h", by="ops")
        same = await app.schedules.change("tides", report, {"topic": "tides"}, by="ops")
        other = await app.schedules.change("tides", "report", {"topic": "stars"}, by="ops")
        with pytest.raises(TypeError, match="task"):
            await app.schedules.change("tides", arguments={"topic": "stars"}, by="ops")
        schedule = await app.schedules.describe("tides")

    assert [changed, same, other] == [ScheduleChange.CHANGED, ScheduleChange.NOOP, ScheduleChange.CHANGED]
    assert (schedule.timing.every, schedule.payload) == (timedelta(hours=2), b'{"topic":"stars"}')


async def test_an_approval_and_a_signal_are_sent_by_id(app: App) -> None:
    @app.task
    async def publish(ctx: Context) -> bool:
        return (await ctx.approval("publish", subject="tides")).approved

    async with working(app):
        execution = await publish.submit()
        await _suspended(app)
        [waiting] = (await app.waitpoints.list_suspended()).items
        await app.approvals.approve(str(execution.execution_id), "publish", by="ada", subject="tides")

        assert await execution.result(TIMEOUT) is True
        assert waiting.waitpoint_keys == ["publish"]


def test_code_without_await_has_the_same_operations(app: App) -> None:
    with app.sync() as sync:
        sync.quotas.create("model", max_concurrent=2)
        sync.lanes.configure("reports")

        assert [quota.name for quota in sync.quotas.list().items] == ["model"]
        assert [lane.name for lane in sync.lanes.list().items] == ["reports"]


def test_a_closed_app_says_how_to_open_it(app: App) -> None:
    assert repr(app.lanes) == f"<lanes of {app!r}>"
    with pytest.raises(RuntimeError, match="not open"):
        app.sync().lanes.list()


async def _suspended(app: App) -> None:
    """Return when an execution is suspended."""
    log = await app.log.subscribe("")
    if not (await app.waitpoints.list_suspended()).items:
        async for event in log:
            if event.kind == "execution_suspended":
                return
