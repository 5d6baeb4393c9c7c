"""Calls that many callers share wait for no lock: an item whose flow or ticket is locked is refused, the others act."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import attempts, claims, flows, steps
from flowfabric.errors import ExecutionNotActive, RowLocked
from flowfabric.model import Completion, Delay, FailureReport, Fence, Link, Member, Step
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.flows.scene import graph
from tests.given import Given, submission
from tests.sql.test_flow_sweeps import any_of, locked

Merged = Callable[[Connection, Sequence[Fence]], Awaitable[list[Any]]]


async def complete(conn: Connection, fences: Sequence[Fence]) -> list[Any]:
    return await attempts.complete_many(conn, [Completion(fence=fence) for fence in fences], wait=False)


async def fail(conn: Connection, fences: Sequence[Fence]) -> list[Any]:
    return await attempts.fail_many(conn, [FailureReport(fence=fence, reason="no") for fence in fences], wait=False)


async def delay(conn: Connection, fences: Sequence[Fence]) -> list[Any]:
    return await attempts.delay_many(conn, [Delay(fence=fence) for fence in fences], wait=False)


async def save_step(conn: Connection, fences: Sequence[Fence]) -> list[Any]:
    wanted = [Step(fence=fence, name="step", occurrence=1, result=b"1") for fence in fences]
    return await steps.save_step_many(conn, wanted, wait=False)


CALLS: dict[str, Merged] = {call.__name__: call for call in (complete, fail, delay, save_step)}


def refused(answers: list[Any]) -> list[bool]:
    return [isinstance(answer, RowLocked) for answer in answers]


@pytest.mark.parametrize("name", CALLS)
async def test_an_item_whose_ticket_is_locked_is_refused_alone(given: Given, connect: Connect, name: str) -> None:
    held = [await given.claimed() for _ in range(3)]
    flow = await graph(given.conn, b="a")
    fences = [claim.fence for claim in [*held, await flow.claim("a")]]
    other = await locked(connect, held[1].execution_id, flow["a"])

    assert refused(await CALLS[name](given.conn, fences)) == [False, True, False, True]
    await other.close()
    assert refused(await CALLS[name](given.conn, [fences[1], fences[3]])) == [False, False]


@pytest.mark.parametrize("name", ["complete", "fail"])
async def test_an_item_whose_flow_is_locked_is_refused_alone(given: Given, connect: Connect, name: str) -> None:
    one, two = await graph(given.conn, b="a"), await graph(given.conn, d="c")
    fences = [(await one.claim("a")).fence, (await two.claim("c")).fence, (await given.claimed()).fence]
    await locked(connect, flow=one)

    assert refused(await CALLS[name](given.conn, fences)) == [True, False, False]
    assert await two.state("d") == ("waiting" if name == "complete" else "skipped")


@pytest.mark.parametrize("behind", ["the upstream it would cancel", "the member it would release"])
async def test_an_end_that_affects_a_locked_member_is_refused_alone(
    given: Given, connect: Connect, behind: str
) -> None:
    flow = await any_of(given.conn, "c", "a", "b")
    await flow.add("other")
    fences = [(await flow.claim(name)).fence for name in ("a", "other")]
    await locked(connect, flow["b" if behind.startswith("the up") else "c"])

    assert refused(await complete(given.conn, fences)) == [True, False]


async def test_an_end_that_leaves_its_group_pending_locks_no_other_upstream(given: Given, connect: Connect) -> None:
    flow = await graph(given.conn, "a", "b", "c", "d")
    await flow.group("d", kind="quorum", k=2, on_satisfied="cancel_remaining")
    for name in "abc":
        await flow.link(name, "d")
    fences = [(await flow.claim(name)).fence for name in ("a", "b")]
    await locked(connect, flow["c"])

    assert refused(await complete(given.conn, fences[:1])) == [False]
    assert refused(await complete(given.conn, fences[1:])) == [True]  # this one satisfies the group and cancels c


async def test_a_locked_member_costs_a_large_batch_of_its_flow_only_a_few_looks_at_the_flow(
    conn: asyncpg.Connection, given: Given, connect: Connect
) -> None:
    pairs = range(100)
    members = [Member(name=f"{side}{n}", submission=submission(lane=side)) for side in ("up", "down") for n in pairs]
    links = [Link(upstream=f"up{n}", downstream=f"down{n}") for n in pairs]
    made = await flows.submit_flow(conn, "pairs", members, links)
    fences = [claim.fence for claim in await given.claim(lanes=["up"], take=len(pairs))]
    await locked(connect, made.executions["down50"])
    await conn.execute("set track_functions = 'pl'")

    async with conn.transaction():
        answers = await complete(conn, fences)
        [looks] = await given.rows("select calls from pg_stat_xact_user_functions where funcname = '_affected'")
    assert refused(answers).count(True) == 1
    assert looks["calls"] <= 20
    assert len(await given.claim(lanes=["down"], take=1_000)) == len(pairs) - 1


async def test_an_item_about_an_ended_execution_is_not_taken_for_a_locked_one(given: Given) -> None:
    flow = await graph(given.conn, b="a")
    fences = [(await given.claimed()).fence, (await flow.claim("a")).fence]
    await complete(given.conn, fences)

    assert {type(answer) for answer in await complete(given.conn, [*fences, *fences])} == {ExecutionNotActive}


async def test_two_items_about_one_locked_execution_are_both_refused(given: Given, connect: Connect) -> None:
    flow = await graph(given.conn, "a")
    fence = (await flow.claim("a")).fence
    await locked(connect, flow=flow)

    assert refused(await complete(given.conn, [fence, fence])) == [True, True]
    await claims.renew(given.conn, fence)
