"""Plans that a session made while there were no waits must also read little when there are many."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from flowfabric.engine import attempts, budgets, children, claims, executions, steps, waits
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import ChildToSubmit, Claim, Completion, FailureClass, FailureReport, Step, Suspension, Wish
from tests.conftest import Connect
from tests.engine.budgets.scene import report_of
from tests.engine.waits.scene import ANY, OPERATOR_ONLY, Waiting, approvals, to, wish
from tests.given import Given, submission
from tests.sql.full_waits import OPEN, Meter, empty, fill
from tests.sql.reading import pin

FEW = OPEN  # a plan that scans all open waits reads twice as much: each in the index and in the table
HOUR = timedelta(hours=1)


async def claimed(m: Meter, amount: int = 1) -> list[Claim]:
    """What a worker claims in its own lane: the resumed executions, or else so many new ones."""
    taken: list[Claim] = await m("claim", claims.claim(m.conn, "w", instance="w-1", lanes=["few"], take=amount))
    if not taken:
        await executions.submit_many(m.conn, [submission(lane="few")] * amount)
        taken = await m("claim", claims.claim(m.conn, "w", instance="w-1", lanes=["few"], take=amount))
    assert len(taken) == amount
    return taken


async def suspended(
    m: Meter, name: str, condition: Any = ANY, keys: tuple[str, ...] = ("w",), **options: Any
) -> Waiting:
    [it] = await claimed(m)
    return Waiting(it, await m(name, waits.suspend(m.conn, it.fence, wish(condition, keys, **options))))


async def looked_at(m: Meter, it: ExecutionId) -> None:
    for name in ("list_waits", "list_waitpoints"):
        await m(name, getattr(waits, name)(m.conn, it))
    await m("list_suspended", waits.list_suspended(m.conn, limit=5))
    await m("explain", executions.explain(m.conn, it))
    await m("describe", executions.describe(m.conn, it))
    await m("read_journal", steps.read_journal(m.conn, it))
    await m("list_steps", steps.list_steps(m.conn, it, results=True))


async def a_wait_and_its_signal(m: Meter) -> None:
    [it] = await claimed(m)
    await m("save_step", steps.save_step(m.conn, Step(fence=it.fence, name="a", occurrence=1, result=b"1")))
    await m("save_step again", steps.save_step(m.conn, Step(fence=it.fence, name="a", occurrence=1, result=b"1")))
    point = await m("create_waitpoint", waits.create_waitpoint(m.conn, it.fence, "w"))
    await m("create_waitpoint again", waits.create_waitpoint(m.conn, it.fence, "w"))
    asked = wish(ANY, [("w", point.waitpoint_id)], idempotency_key="k", name="wait", occurrence=1)
    await m("suspend", waits.suspend(m.conn, it.fence, asked))
    await m("suspend again", waits.suspend(m.conn, it.fence, asked))
    await looked_at(m, it.execution_id)
    go = to(it.execution_id, point.waitpoint_id, point.token, "go", idempotency_key="k", payload=b"1")
    await m("deliver_signal", waits.deliver_signal(m.conn, go))
    await m("deliver_signal again", waits.deliver_signal(m.conn, go))
    [it] = await claimed(m)
    assert it.resumed
    await looked_at(m, it.execution_id)
    await m("complete", attempts.complete_many(m.conn, [Completion(fence=it.fence)]))


async def a_signal_that_arrives_before_its_wait(m: Meter) -> None:
    [it] = await claimed(m)
    point = await m("create_waitpoint", waits.create_waitpoint(m.conn, it.fence, "w"))
    await waits.create_waitpoint(m.conn, it.fence, "other")
    await m("deliver_signal", waits.deliver_signal(m.conn, to(it.execution_id, point.waitpoint_id, point.token, "go")))
    answer = await m("suspend", waits.suspend(m.conn, it.fence, wish(ANY, [("w", point.waitpoint_id)])))
    assert answer.outcome == "already_satisfied"
    await m("complete", attempts.complete_many(m.conn, [Completion(fence=it.fence)]))


async def signals_to_several(m: Meter) -> None:
    taken = await claimed(m, 3)
    both = {"kind": "all_of", "members": [ANY, {"kind": "single", "waitpoint": "v"}]}
    asked = [Waiting(it, await waits.suspend(m.conn, it.fence, wish(both, ("w", "v")))) for it in taken]
    some = [one.signal(key=key) for one in asked for key in ("w", "v")]
    await m("deliver_signals", waits.deliver_signals(m.conn, [some[0], some[2]]))
    await m("deliver_signals, the rest", waits.deliver_signals(m.conn, some))
    for it in await claimed(m, 3):
        await m(
            "fail",
            attempts.fail_many(m.conn, [FailureReport(fence=it.fence, reason="x", class_=FailureClass.PERMANENT)]),
        )


async def decisions(m: Meter) -> None:
    it = await suspended(m, "suspend", approvals(2), reason_code="waiting_for_approval", about=b"1")
    await looked_at(m, it.execution_id)
    for who in ("ann", "ann", "bob"):
        await m("deliver_approval", waits.deliver_approval(m.conn, it.execution_id, "w", "approve", by=who))
    await executions.cancel(m.conn, it.execution_id)
    it = await suspended(m, "suspend without waitpoints", OPERATOR_ONLY, ())
    await m("resume", waits.resume(m.conn, it.execution_id, by="ops"))
    await executions.cancel(m.conn, it.execution_id)
    it = await suspended(m, "suspend")
    await m("resume", waits.resume(m.conn, it.execution_id, by="ops"))
    await m("cancel", executions.cancel(m.conn, it.execution_id))
    it = await suspended(m, "suspend")
    await m("cancel", executions.cancel(m.conn, it.execution_id))
    await m("replay", executions.replay(m.conn, it.execution_id, by="ops"))
    await executions.cancel(m.conn, it.execution_id)
    await m("replay from the beginning", executions.replay(m.conn, it.execution_id, by="ops", from_scratch=True))
    await executions.cancel(m.conn, it.execution_id)


async def timeouts_and_expiries(m: Meter) -> None:
    for behavior in ("fail", "cancel", "expire", "auto_resume", "escalate"):
        for _ in range(2):
            await suspended(m, "suspend with a timeout", timeout=HOUR, timeout_behavior=behavior)
    [it] = await claimed(m)
    await waits.create_waitpoint(m.conn, it.fence, "w", expires_in=HOUR)
    await waits.create_waitpoint(m.conn, it.fence, "v", expires_in=HOUR)
    await m.conn.execute("select flowfabric.move_clock('1 hour')")
    assert (await m("close_waitpoints", waits.close_waitpoints(m.conn))).moved == 2
    assert (await m("time_out_waits", waits.time_out_waits(m.conn))).moved == 10
    assert (await m("time_out_waits, none", waits.time_out_waits(m.conn))).moved == 0
    assert (await m("close_waitpoints, none", waits.close_waitpoints(m.conn))).moved == 0
    await executions.cancel(m.conn, it.execution_id)
    for it in await claimed(m, 2):
        await m("fail", attempts.fail_many(m.conn, [FailureReport(fence=it.fence, reason="x")]))


async def born(m: Meter, parent: Claim, *names: str) -> list[ExecutionId]:
    """Children of a running parent."""
    asked = [
        ChildToSubmit(
            fence=parent.fence,
            name=name,
            occurrence=1,
            execution_id=mint_execution_id(),
            submission=submission(lane="nursery"),
        )
        for name in names
    ]
    await m("submit_children", children.submit_children(m.conn, asked))
    await m("submit_children again", children.submit_children(m.conn, asked))
    return [one.execution_id for one in asked]


def wishes(child: ExecutionId, until: datetime) -> list[Wish]:
    """Five waits: a signal, two alternative signals, a child and a sleep."""
    asked = {key: Suspension(condition={**ANY, "waitpoint": key}, waitpoints=[key]) for key in ("w", "v", "u")}
    return [
        Wish(name="w", occurrence=1, what=asked["w"]),
        Wish(name="v", occurrence=1, what=asked["v"], choice=1),
        Wish(name="u", occurrence=1, what=asked["u"], choice=1),
        Wish(name="child", occurrence=1, what=child),
        Wish(name="sleep", occurrence=1, what=until),
    ]


async def token_of(m: Meter, it: Claim, key: str) -> Any:
    """A signal to a waitpoint of one of several waits."""
    row = await m.conn.fetchrow(
        "select w.id, flowfabric._waitpoint_token(w.partition, w.execution, w.id, w.kid) as token "
        "from flowfabric.waitpoints w where w.execution = $1 and w.key = $2",
        it.execution_id.uuid,
        key,
    )
    return to(it.execution_id, row["id"], row["token"], "go")


async def a_family_and_waits_together(m: Meter) -> None:
    [it] = await claimed(m)
    first, second = await born(m, it, "a", "b")
    now = await m.conn.fetchval("select flowfabric.clock()")
    asked = wishes(first, now + HOUR)
    await m("suspend", waits.suspend(m.conn, it.fence, asked))
    await looked_at(m, it.execution_id)
    await m("deliver_signal to a part", waits.deliver_signal(m.conn, await token_of(m, it, "v")))
    [child, other] = await claims.claim(m.conn, "w", instance="w-1", lanes=["nursery"], take=2)
    await m("complete a child", attempts.complete_many(m.conn, [Completion(fence=child.fence)]))
    assert (await m("deliver_child_ends", children.deliver_child_ends(m.conn, limit=2))).moved >= 1
    await m.conn.execute("select flowfabric.move_clock('1 hour')")
    assert (await m("time_out_waits", waits.time_out_waits(m.conn))).moved == 1
    [it] = await claimed(m)
    await looked_at(m, it.execution_id)
    await m(
        "suspend again",
        waits.suspend(m.conn, it.fence, [asked[0], *wishes(second, now + 3 * HOUR)[3:]]),
    )
    await m("cancel", executions.cancel(m.conn, it.execution_id))
    swept = await m("deliver_child_ends to orphans", children.deliver_child_ends(m.conn, limit=20))
    assert swept.ended == [other.execution_id]
    await m("replay", executions.replay(m.conn, it.execution_id, by="ops"))
    await executions.cancel(m.conn, it.execution_id)


async def parts_ended_by_others(m: Meter) -> None:
    for end in ("resume", "signals", "release"):
        [it] = await claimed(m)
        now = await m.conn.fetchval("select flowfabric.clock()")
        asked = wishes(it.execution_id, now + HOUR)
        del asked[3]
        await m("suspend", waits.suspend(m.conn, it.fence, asked))
        if end == "resume":
            await m("resume", waits.resume(m.conn, it.execution_id, by="ops"))
        elif end == "signals":
            some = [await token_of(m, it, key) for key in ("w", "v")]
            await m("deliver_signals to parts", waits.deliver_signals(m.conn, some))
        else:
            await waits.resume(m.conn, it.execution_id, by="ops")
            [it] = await claimed(m)
            await m("suspend with one", waits.suspend(m.conn, it.fence, asked[:1]))
        await m("cancel", executions.cancel(m.conn, it.execution_id))


async def reservations(m: Meter) -> None:
    name = f"team-{mint_execution_id().uuid}"
    await budgets.create_budget(m.conn, name, hard_limits={"tokens": 100})

    async def reserved() -> tuple[Claim, Any]:
        [it] = await claimed(m)
        return it, await m("reserve", budgets.reserve(m.conn, name, {"tokens": 9}, fence=it.fence, dedup_key="k"))

    it, held = await reserved()
    await m("settle", budgets.settle(m.conn, held.reservation_id, {"tokens": 1}, fence=it.fence))
    held = await m("reserve", budgets.reserve(m.conn, name, {"tokens": 9}, fence=it.fence))
    await m("release", budgets.release(m.conn, held.reservation_id, fence=it.fence))
    await m("report_usage", budgets.report_usage(m.conn, report_of(1, name, fence=it.fence)))
    await m("list_spending", budgets.list_spending(m.conn, it.execution_id))
    await m("release_usage", budgets.release_usage(m.conn, name, it.execution_id, by="ops"))
    await executions.cancel(m.conn, it.execution_id)
    it, _ = await reserved()
    await m("complete", attempts.complete_many(m.conn, [Completion(fence=it.fence)]))
    it, _ = await reserved()
    await m(
        "fail", attempts.fail_many(m.conn, [FailureReport(fence=it.fence, reason="x", class_=FailureClass.PERMANENT)])
    )
    it, _ = await reserved()
    await m("cancel", executions.cancel(m.conn, it.execution_id))
    it, _ = await reserved()
    await waits.suspend(m.conn, it.fence, wish(ANY, timeout=HOUR / 2))
    await m.conn.execute("select flowfabric.move_clock('30 minutes')")
    assert (await m("time_out_waits", waits.time_out_waits(m.conn))).moved == 1
    it, _ = await reserved()
    await m.conn.execute("select flowfabric.move_clock('1 hour')")
    await m("expire_reservations", budgets.expire_reservations(m.conn))
    await m("describe_budget", budgets.describe_budget(m.conn, name))
    await executions.cancel(m.conn, it.execution_id)


async def a_budget_that_is_used_up(m: Meter) -> None:
    name = f"team-{mint_execution_id().uuid}"
    await budgets.create_budget(m.conn, name, hard_limits={"tokens": 10}, on_hard_limit="suspend")
    for call in ("change_budget", "resume_budget_waits"):
        taken = await claimed(m, 2)
        for it in taken:
            await m("report_usage", budgets.report_usage(m.conn, report_of(20, name, fence=it.fence)))
        await m("explain", executions.explain(m.conn, taken[0].execution_id))
        if call == "change_budget":
            await m(call, budgets.change_budget(m.conn, name, hard_limits={"tokens": 100}, by="ops"))
        else:
            await m.conn.execute("update flowfabric.budgets set hard_limits = '{}' where name = $1", name)
            await m(call, budgets.resume_budget_waits(m.conn))
        for it in taken:
            await executions.cancel(m.conn, it.execution_id)
        await budgets.change_budget(m.conn, name, hard_limits={"tokens": 10}, by="ops")


async def removals(m: Meter) -> None:
    for it in await claimed(m, 10):
        await waits.create_waitpoint(m.conn, it.fence, "go")
        await executions.set_tag(m.conn, it.execution_id, "a.b", "c")
        await attempts.complete(m.conn, it.fence)
    await m.conn.execute("select flowfabric.move_clock('8 days')")
    assert (await m("remove_ended", executions.remove_ended(m.conn))).moved == 10


STORIES: list[Callable[[Meter], Awaitable[None]]] = [
    a_wait_and_its_signal,
    a_signal_that_arrives_before_its_wait,
    signals_to_several,
    decisions,
    timeouts_and_expiries,
    a_family_and_waits_together,
    parts_ended_by_others,
    reservations,
    a_budget_that_is_used_up,
    removals,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_plans_made_without_waits_read_little_when_there_are_many(
    connect: Connect, given: Given, story: Callable[[Meter], Awaitable[None]]
) -> None:
    conn = await connect()
    await story(Meter(given.conn))
    await empty(given.conn)
    await pin(await connect())
    for _ in range(7):  # Postgres switches to a generic plan after five executions
        async with conn.transaction():
            await story(Meter(conn))
    await fill(given.conn)
    m = Meter(conn)

    async with conn.transaction():
        await story(m)

    assert {name: rows for name, rows in m.read.items() if rows > FEW} == {}
