"""Sweeps get past what they cannot take: replayed members whose upstreams have ended, locked flows, locked siblings."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from flowfabric.engine import attempts, children, claims, executions, flows, schedules, waits
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import Suspension, Swept
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.flows.scene import Graph, graph
from tests.engine.schedules.scene import create
from tests.engine.test_children import born
from tests.given import Given

HOUR = timedelta(hours=1)
SPENT = {"max_reclaim_count": 0}
ANSWER = Suspension(condition={"kind": "single", "waitpoint": "answer"}, waitpoints=["answer"], timeout=HOUR)


async def any_of(conn: Connection, name: str, *upstreams: str, **options: object) -> Graph:
    """A flow in which a member waits for any of the others and cancels the remaining ones."""
    flow = await graph(conn, name)
    for upstream in upstreams:
        await flow.add(upstream, **options)
    await flow.group(name, kind="any_of")
    for upstream in upstreams:
        await flow.link(upstream, name)
    return flow


async def reopened(conn: Connection, **options: object) -> Graph:
    """A flow in which c waits again for a, which was replayed, and for b, which has failed."""
    flow = await any_of(conn, "c", "a", "b", **options)
    await flow.fail("a")
    await flow.fail("b")
    assert await flow.state("c") == "skipped"
    for name in "ca":
        await executions.replay(conn, flow[name], by="ops", deadline=timedelta(days=9))
    return flow


async def lease(flow: Graph, given: Given) -> Swept:
    await flow.claim("a")
    await given.time_passes(minutes=1)
    return await claims.expire_leases(given.conn)


async def deadline(flow: Graph, given: Given) -> Swept:
    await executions.cancel(given.conn, flow["c"])
    await given.time_passes(days=10)
    return await executions.expire_executions(given.conn)


async def attempt_timeout(flow: Graph, given: Given) -> Swept:
    await flow.claim("a", lease=HOUR)
    await given.time_passes(minutes=1)
    return await attempts.time_out_attempts(given.conn)


async def wait_timeout(flow: Graph, given: Given) -> Swept:
    await waits.suspend(given.conn, (await flow.claim("a")).fence, ANSWER)
    await given.time_passes(hours=2)
    return await waits.time_out_waits(given.conn)


SWEEPS: dict[str, Callable[[Graph, Given], Awaitable[Swept]]] = {
    sweep.__name__: sweep for sweep in (lease, deadline, attempt_timeout, wait_timeout)
}


@pytest.mark.parametrize("sweep", SWEEPS)
async def test_a_sweep_sees_a_flow_in_which_a_skipped_member_was_replayed(given: Given, sweep: str) -> None:
    """The upstream that has ended has no ticket to lock."""
    flow = await reopened(given.conn, policy={"attempt_timeout_ms": 1_000})

    assert (await SWEEPS[sweep](flow, given)).moved == 1


async def test_a_flow_in_which_a_skipped_member_was_replayed_is_removed(conn: Connection, given: Given) -> None:
    flow = await reopened(conn)
    for name in "ac":
        await executions.cancel(conn, flow[name])
    await given.time_passes(days=8)
    await executions.remove_ended(conn)

    assert await given.count("flows") == await given.count("executions") == 0


async def test_a_schedule_replaces_a_member_whose_sibling_has_ended(conn: Connection) -> None:
    flow = await graph(conn, "b", "c")
    await create(conn, lane="a", task="a", overlap="replace", every=HOUR)
    flow.members["a"] = mint_execution_id(beside=flow.flow_id)
    await schedules.fire_schedule(conn, "nightly", by="ops", execution_id=flow["a"])
    await flows.add_execution(conn, flow.flow_id, flow["a"])
    await flow.group("c", kind="any_of")
    for name in "ab":
        await flow.link(name, "c")
    for name in "ab":
        await flow.fail(name)
    for name in "ca":
        await executions.replay(conn, flow[name], by="ops")

    async with asyncio.timeout(10):
        assert (await schedules.fire_schedule(conn, "nightly", by="ops")).outcome == "fired"
    assert await flow.state("a") == "cancelled"


async def locked(connect: Connect, *executions_: ExecutionId, flow: Graph | None = None) -> asyncpg.Connection:
    """A session whose open transaction has locked these tickets, or a flow."""
    other = await connect()
    await other.execute("begin")
    await other.execute(
        "select from flowfabric.tickets where id = any ($1) for update", [it.uuid for it in executions_]
    )
    if flow is not None:
        await other.execute("select from flowfabric.flows where id = $1 for update", flow.flow_id.uuid)
    return other


async def test_locked_flows_do_not_keep_retention_from_others(conn: Connection, given: Given, connect: Connect) -> None:
    flow = await graph(conn, "a", "b")
    for name in "ab":
        await flow.complete(name)
    await given.time_passes(seconds=1)
    await given.completed()
    other = await locked(connect, flow=flow)
    await given.time_passes(days=8)
    for _ in range(4):  # the creation of the flow, its two members, and the other execution
        await executions.remove_ended(conn, limit=1)

    assert await given.count("executions") == 2
    await other.close()
    await given.time_passes(minutes=1)
    await executions.remove_ended(conn)
    assert await given.count("executions") == await given.count("flows") == 0


async def test_entries_that_a_stuck_sweep_has_locked_do_not_keep_retention_from_others(
    conn: Connection, given: Given, connect: Connect
) -> None:
    await given.completed()
    stuck = await connect()
    await stuck.execute("begin; select from flowfabric.removals for update")
    await given.completed()
    await given.time_passes(days=8)

    assert (await executions.remove_ended(conn, limit=1)).moved == 1


async def test_a_locked_child_does_not_delay_its_siblings(given: Given, connect: Connect) -> None:
    parent = await given.claimed(lane="parent")
    family = sorted(await born(given, parent, 3))
    await executions.cancel(given.conn, parent.execution_id)
    other = await locked(connect, family[0])
    await children.deliver_child_ends(given.conn)

    assert [await given.state(it) for it in family] == ["waiting", "cancelled", "cancelled"]
    await other.close()
    await given.time_passes(seconds=1)
    await children.deliver_child_ends(given.conn)
    assert await given.state(family[0]) == "cancelled"
    await children.deliver_child_ends(given.conn)
    assert await given.count("child_ends") == 0


async def test_many_families_with_a_locked_child_do_not_delay_another(given: Given, connect: Connect) -> None:
    families = []
    for number in range(12):
        parent = await given.claimed(lane=f"parent {number}")
        families += await born(given, parent)
        await executions.cancel(given.conn, parent.execution_id)
    await locked(connect, *families[:-1])
    for _ in range(2):
        await children.deliver_child_ends(given.conn)

    assert await given.state(families[-1]) == "cancelled"
    assert {await given.state(it) for it in families[:-1]} == {"waiting"}


async def test_a_locked_sibling_does_not_keep_an_expired_lease(given: Given, connect: Connect) -> None:
    """The flow is needed only if the expiry ends the execution."""
    flow = await any_of(given.conn, "c", "a", "b")
    for name in "ab":
        await flow.claim(name)
    await locked(connect, flow["b"], flow=flow)
    await given.time_passes(minutes=1)

    assert (await claims.expire_leases(given.conn)).moved == 1
    assert await flow.state("a") == "waiting"


async def test_a_locked_sibling_does_not_keep_the_last_reclaim_from_ending(given: Given, connect: Connect) -> None:
    """One failure among three decides nothing, so that no other upstream is cancelled."""
    flow = await any_of(given.conn, "d", "a", "b", "c", policy=SPENT)
    for name in "ab":
        await flow.claim(name)
    await locked(connect, flow["b"])
    await given.time_passes(minutes=1)

    assert (await claims.expire_leases(given.conn)).ended == [flow["a"]]
    assert await flow.state("d") == "waiting_dependencies"


async def test_a_wait_that_only_resumes_times_out_although_its_flow_is_locked(given: Given, connect: Connect) -> None:
    flow = await graph(given.conn, b="a")
    wish = Suspension(
        condition={"kind": "single", "waitpoint": "answer"},
        waitpoints=["answer"],
        timeout=HOUR,
        timeout_behavior="auto_resume_with_timeout_signal",
    )
    await waits.suspend(given.conn, (await flow.claim("a")).fence, wish)
    await locked(connect, flow=flow)
    await given.time_passes(hours=2)

    assert (await waits.time_out_waits(given.conn)).moved == 1
