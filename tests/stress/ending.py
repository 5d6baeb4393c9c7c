"""The end of a stress: release everything, let time pass, and everything ends."""

import asyncio
from datetime import timedelta

from flowfabric.engine import attempts, budgets, claims, events, executions, holds, lanes, quotas, schedules, waits
from flowfabric.ids import ExecutionId
from flowfabric.testing import move_clock
from tests.stress.harness import SWEEPS, Actor, Stress
from tests.stress.work import BUDGETS, LANES, QUOTAS

ROUNDS = 60
# Members that wait for what no worker does: an edge that a quorum still needs, or a replay of an upstream.
WAITING_FOR_PEOPLE = """
select t.partition, t.id from flowfabric.tickets t
where t.eligibility = 'blocked_by_dependencies' and not exists (
    select from flowfabric.flow_edges d
    join flowfabric.tickets u on u.partition = d.partition and u.id = d.upstream
    where d.partition = t.partition and d.downstream = t.id and d.state = 'pending')"""
UNFINISHED = "select t.partition, t.id, t.phase::text, t.eligibility::text, t.reason::text from flowfabric.tickets t"


async def end_everything(stress: Stress) -> None:
    """Every execution ends once nothing holds it; the log then tells everything exactly once; no signal is lost."""
    first = stress.actors[0]
    await release_everything(first)
    for _ in range(ROUNDS):
        await asyncio.gather(*(work_and_sweep(actor) for actor in stress.actors[:4]))
        left = await first.conn.fetch(UNFINISHED)
        if not left:
            break
        for row in left:
            if row["phase"] == "suspended":  # no timeout may ever resume it
                await first.call(waits.resume, ExecutionId(row["partition"], row["id"]), by="ops")
        for row in await first.conn.fetch(WAITING_FOR_PEOPLE):
            await first.call(executions.cancel, ExecutionId(row["partition"], row["id"]), by="ops")
        await move_clock(first.conn, timedelta(minutes=2))
    left = await first.conn.fetch(UNFINISHED)
    assert not left, f"{len(left)} executions never ended, such as {left[:3]}"
    await stress.check()
    await check_log(stress)
    await check_signals(stress)


async def release_everything(actor: Actor) -> None:
    """Resume lanes, end holds and schedules, raise limits."""
    conn = actor.conn
    for lane in LANES:
        await lanes.resume_lane(conn, lane, by="ops")
    for schedule in ("allow", "skip", "replace"):
        await schedules.delete_schedule(conn, schedule, by="ops")
    for budget in BUDGETS:
        await budgets.change_budget(conn, budget, by="ops", hard_limits={}, on_hard_limit="refuse")
    for quota in QUOTAS:
        await quotas.change_quota(
            conn, quota, by="ops", max_concurrent=10**6, max_requests_per_window=10**6, window_seconds=1
        )
    held = await conn.fetch(f"{UNFINISHED} where t.eligibility = 'blocked_by_operator'")
    for row in held:
        await actor.call(holds.unhold, ExecutionId(row["partition"], row["id"]), by="ops")


async def work_and_sweep(actor: Actor) -> None:
    """Complete what can be claimed, then run every sweep."""
    while taken := await claims.claim(actor.conn, actor.worker, instance=actor.instance, lanes=LANES, take=100):
        for claim in taken:
            await actor.call(attempts.complete, claim.fence)
    for sweep in SWEEPS.values():
        while (await sweep.run(actor.conn, limit=sweep.limit, passing=0)).moved >= sweep.limit:
            pass


async def check_log(stress: Stress) -> None:
    """A subscriber that has read the log from the start has seen every event exactly once, in order."""
    actor = stress.actors[0]
    while (await stress.read_log(actor)).more:
        pass
    horizon, last = await events.watch_log(actor.conn)
    written = [row["id"] for row in await actor.conn.fetch("select e.id from flowfabric.events e order by e.id")]
    assert horizon == last
    assert stress.world.read == written


async def check_signals(stress: Stress) -> None:
    """Every signal that was accepted is stored, unless its execution has been removed."""
    accepted = stress.world.accepted
    lost = await stress.actors[0].conn.fetch(
        "select x.* from unnest($1::int[], $2::uuid[], $3::uuid[]) as x (partition, execution, id) "
        "join flowfabric.executions e on e.partition = x.partition and e.id = x.execution "
        "where not exists (select from flowfabric.signals s "
        "where s.partition = x.partition and s.execution = x.execution and s.id = x.id)",
        [execution_id.partition for execution_id, _ in accepted],
        [execution_id.uuid for execution_id, _ in accepted],
        [signal_id for _, signal_id in accepted],
    )
    assert not lost, f"{len(lost)} accepted signals are lost, such as {lost[:3]}"
