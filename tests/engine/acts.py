"""Every operation that writes, called once or in several ways, each on rows that only it needs."""

import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
from msgspec.structs import replace

from flowfabric import engine
from flowfabric.config import Config
from flowfabric.engine import (
    attempts,
    budgets,
    children,
    claims,
    events,
    executions,
    flows,
    holds,
    lanes,
    quotas,
    routes,
    schedules,
    signing_keys,
    steps,
    streams,
    turns,
    waits,
    workers,
)
from flowfabric.ids import ExecutionId
from flowfabric.model import (
    Claim,
    EdgePolicy,
    FrameToAppend,
    Grant,
    Link,
    Member,
    Options,
    Reserved,
    Slots,
    Step,
    Timing,
    Wish,
)
from flowfabric.sweeps import sweeps
from tests.engine.budgets.scene import TEAM, make, report_of
from tests.engine.flows.scene import Graph, graph
from tests.engine.schedules.scene import create
from tests.engine.test_children import asked
from tests.engine.waits.scene import Waiting, waiting, wish
from tests.given import Given, submission
from tests.sources import sql_functions

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
OTHER: dict[str, Any] = {"lane": "others"}

Act = Callable[[asyncpg.Connection], Awaitable[Any]]


class Scene(NamedTuple):
    """What the operations work on."""

    ready: ExecutionId
    held: ExecutionId
    ended: ExecutionId
    running: Claim
    reserved: Reserved
    waiting: Waiting
    flow: Graph
    grant: Grant


async def scene(given: Given) -> Scene:
    conn = given.conn
    await make(conn)
    await quotas.create_quota(conn, "gpu", max_concurrent=5)
    await create(conn, "nightly", every=DAY, **OTHER)
    await workers.register_worker(conn, "u", instance="u-1", lanes=["others"])
    await given.submitted(lane="granted")
    [grant] = await claims.issue_grant(conn, "u", instance="u-1", lanes=["granted"], ttl=timedelta(minutes=1))
    running = await given.claimed(lane="running", lease=HOUR, quotas=["gpu"])
    return Scene(
        ready=await given.submitted(**OTHER),
        held=await given.held(**OTHER),
        ended=await given.cancelled(**OTHER),
        running=running,
        reserved=await budgets.reserve(conn, TEAM, {"tokens": 1}, fence=running.fence, ttl=HOUR),
        waiting=await waiting(given, submitted={"task": "whole"}),
        flow=await graph(conn, b="a"),
        grant=grant,
    )


def acts_on_executions(it: Scene) -> Iterator[tuple[str, Act]]:
    ready, fence = it.ready, it.running.fence
    for options in ({}, {"key": "k"}, {"tags": {"a": "b"}}, {"needs": {"gpu"}}, {"namespace": "new"}, {"lane": "new"}):
        yield "submit", lambda conn, options=options: executions.submit(conn, submission(task="other", **options))  # type: ignore[misc]
    yield "submit", lambda conn: executions.submit(conn, submission(task="other", budgets=[TEAM], quotas=["gpu"]))
    yield "submit", lambda conn: executions.submit_many(conn, [submission(task="other")] * 500)
    for one in (ready, it.held, it.running.execution_id, it.waiting.execution_id, it.flow["a"]):
        yield "cancel", lambda conn, one=one: executions.cancel(conn, one, by="ops")  # type: ignore[misc]
    yield "replay", lambda conn: executions.replay(conn, it.ended, by="ops")
    yield "override", lambda conn: executions.override(conn, ready, "success", by="ops", reason="it is known")
    yield "change_priority", lambda conn: executions.change_priority(conn, ready, 7, by="ops")
    yield "set_tag", lambda conn: executions.set_tag(conn, ready, "colour", "red")
    yield "set_tag", lambda conn: executions.set_tag(conn, it.ended, "colour", "red")
    yield "hold", lambda conn: holds.hold(conn, ready, by="ops")
    yield "hold_changed", lambda conn: holds.hold_changed(conn, fence, "an earlier run saved 'b'", steps=["b"])
    yield "unhold", lambda conn: holds.unhold(conn, it.held, by="ops")
    yield "complete", lambda conn: attempts.complete(conn, fence)
    yield "fail", lambda conn: attempts.fail(conn, fence, "it broke")
    yield "delay", lambda conn: attempts.delay(conn, fence, HOUR)
    yield "save_step", lambda conn: steps.save_step(conn, Step(fence=fence, name="s", occurrence=1, result=b"1"))
    frame = FrameToAppend(fence=fence, payload=b"{}")
    yield "append_frames", lambda conn: streams.append_frames(conn, [frame])
    yield "append_frames", lambda conn: streams.append_frames(conn, [replace(frame, mode="summary")])
    yield "submit_children", lambda conn: children.submit_children(conn, [asked(it.running)])


def acts_on_claims_and_waits(it: Scene) -> Iterator[tuple[str, Act]]:
    fence = it.running.fence
    who: dict[str, Any] = {"instance": "u-1", "lanes": ["others", "default"]}
    yield "claim", lambda conn: claims.claim(conn, "u", take=3, **who)
    slots, asked_for = Slots(worker="u", free=3, **who), submission(task="other", lane="others")
    yield "submit_and_claim", lambda conn: claims.submit_and_claim(conn, [asked_for], slots)
    yield "signal_and_claim", lambda conn: claims.signal_and_claim(conn, [it.waiting.signal()], slots)
    yield "issue_grant", lambda conn: claims.issue_grant(conn, "u", take=3, **who)
    yield "verify_grant", lambda conn: claims.verify_grant(conn, it.grant.grant_key)
    yield "claim_granted", lambda conn: claims.claim_granted(conn, it.grant.grant_key, "u", instance="u-1")
    yield "renew", lambda conn: claims.renew(conn, fence)
    yield "revoke", lambda conn: claims.revoke(conn, it.running.execution_id, by="ops")
    yield "create_waitpoint", lambda conn: waits.create_waitpoint(conn, fence, "w")
    yield "suspend", lambda conn: waits.suspend(conn, fence, wish())
    yield (
        "suspend",
        lambda conn: waits.suspend(conn, fence, [Wish(name="a", occurrence=1, what=wish())]),
    )
    yield "deliver_signal", lambda conn: waits.deliver_signal(conn, it.waiting.signal())
    yield "deliver_approval", lambda conn: waits.deliver_approval(conn, it.waiting.execution_id, "w", "no", by="ops")
    yield "resume", lambda conn: waits.resume(conn, it.waiting.execution_id, by="ops")
    yield "register_worker", lambda conn: workers.register_worker(conn, "u", instance="u-1", lanes=["new"])
    yield "register_worker", lambda conn: workers.register_worker(conn, "u", instance="u-2", lanes=["new"])
    yield "beat", lambda conn: workers.beat(conn, ["u-1"])
    yield "mark_dead", lambda conn: workers.mark_dead(conn, "u-1", by="ops")
    yield "unregister_worker", lambda conn: workers.unregister_worker(conn, "u-1")


def acts_on_limits(it: Scene) -> Iterator[tuple[str, Act]]:
    fence, reserved = it.running.fence, it.reserved.reservation_id
    assert reserved is not None
    yield "report_usage", lambda conn: budgets.report_usage(conn, report_of(1, fence=fence, dedup_key="k"))
    yield "reserve", lambda conn: budgets.reserve(conn, TEAM, {"tokens": 1})
    yield "settle", lambda conn: budgets.settle(conn, reserved, {"tokens": 1}, fence=fence)
    yield "release", lambda conn: budgets.release(conn, reserved, fence=fence)
    yield "create_budget", lambda conn: make(conn, "new")
    yield "change_budget", lambda conn: budgets.change_budget(conn, TEAM, hard_limits={"tokens": 9}, by="ops")
    yield "reset_budget", lambda conn: budgets.reset_budget(conn, TEAM, by="ops")
    yield "release_usage", lambda conn: budgets.release_usage(conn, TEAM, it.running.execution_id, by="ops")
    yield "create_quota", lambda conn: quotas.create_quota(conn, "new", max_concurrent=1)
    yield "change_quota", lambda conn: quotas.change_quota(conn, "gpu", max_concurrent=9, by="ops")
    yield "configure_lane", lambda conn: lanes.configure_lane(conn, "default", keep_renewals=True)
    yield "configure_lane", lambda conn: lanes.configure_lane(conn, "new")
    yield "pause_lane", lambda conn: lanes.pause_lane(conn, "default", by="ops")
    yield "drain_lane", lambda conn: lanes.drain_lane(conn, "default", by="ops")
    yield "resume_lane", lambda conn: lanes.resume_lane(conn, "default", by="ops")
    yield "register_route", lambda conn: routes.register_route(conn, Options(task="report", needs={"gpu"}))
    yield "seed_key", lambda conn: signing_keys.seed_key(conn, "k1", "ab" * 32)
    yield "rotate_key", lambda conn: signing_keys.rotate_key(conn, "k2", "ab" * 32)


def acts_on_flows_and_the_rest(it: Scene) -> Iterator[tuple[str, Act]]:
    flow, member = it.flow.flow_id, submission(task="other")
    two, link = [Member(name=name, submission=member) for name in "ab"], Link(upstream="a", downstream="b")
    yield "create_flow", lambda conn: flows.create_flow(conn, "report", key="k")
    yield "submit_flow", lambda conn: flows.submit_flow(conn, "report", two, [link])
    yield "add_execution", lambda conn: flows.add_execution(conn, flow, member)
    yield "add_edge", lambda conn: _add_an_edge(conn, it.flow)
    yield "set_edge_group", lambda conn: flows.set_edge_group(conn, flow, it.flow["a"], EdgePolicy("any_of"))
    yield "cancel_flow", lambda conn: flows.cancel_flow(conn, flow, by="ops")
    yield "set_flow_tag", lambda conn: flows.set_flow_tag(conn, flow, "colour", "red")
    yield "create_schedule", lambda conn: create(conn, "new", **OTHER)
    yield (
        "change_schedule",
        lambda conn: schedules.change_schedule(conn, "nightly", timing=Timing(every=HOUR), by="ops"),
    )
    yield "pause_schedule", lambda conn: schedules.pause_schedule(conn, "nightly", by="ops")
    yield "resume_schedule", lambda conn: schedules.resume_schedule(conn, "nightly", by="ops")
    yield "fire_schedule", lambda conn: schedules.fire_schedule(conn, "nightly", by="ops")
    yield "delete_schedule", lambda conn: schedules.delete_schedule(conn, "nightly", by="ops")
    yield "read_events", lambda conn: events.read_events(conn, events.OLDEST)
    yield "watch_log", events.watch_log
    yield "advance_horizon", events.advance_horizon
    yield "acknowledge", _acknowledge
    yield "take_turn", lambda conn: turns.take_turn(conn, sweep="remove_ended", holder=uuid4(), turn=HOUR)
    yield "end_turn", lambda conn: turns.end_turn(conn, sweep="remove_ended", holder=uuid4())


async def _add_an_edge(conn: asyncpg.Connection, flow: Graph) -> None:
    added = await flows.add_execution(conn, flow.flow_id, submission(task="other"))
    await flows.add_edge(conn, flow.flow_id, flow["a"], added.execution_id)


async def _acknowledge(conn: asyncpg.Connection) -> None:
    await events.acknowledge(conn, "accounting", (await events.read_events(conn, "")).cursor)


def acts(it: Scene) -> list[tuple[str, Act]]:
    concepts = (acts_on_executions, acts_on_claims_and_waits, acts_on_limits, acts_on_flows_and_the_rest)
    return [act for concept in concepts for act in concept(it)]


def operations() -> set[str]:
    """The operations that may write, but sweeps: they are called by their loop, not by users."""
    functions = {function.name: function for function in sql_functions()}
    return {
        name
        for concept in engine.__all__
        for name, _ in inspect.getmembers(
            importlib.import_module(f"{engine.__name__}.{concept}"), inspect.iscoroutinefunction
        )
        if name in functions and not {"stable", "immutable"} & set(functions[name].text.partition("$$")[0].split())
    } - {sweep.name for sweep in sweeps(Config())}
