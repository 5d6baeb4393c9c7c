"""Submitting and claiming in one call while another session is in the middle of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from flowfabric.engine import claims, executions, lanes, quotas, routes
from flowfabric.errors import RowLocked
from flowfabric.model import Slots, Submission
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import OPTIONS, Given, claim, submission
from tests.races import Race

Call = Callable[[Connection], Awaitable[Any]]


@pytest.fixture
async def race(given: Given, connect: Connect) -> Race:
    """Two sessions; the route exists, because one that is new in an open transaction is waited for."""
    await routes.register_route(given.conn, OPTIONS)
    return Race(given, await connect(), await connect())


def submit_and_claim(*asked: Submission, free: int = 10, wait: bool = False) -> Call:
    slots = Slots(worker="pool", instance="pool-1", lanes=["default"], free=free, request=uuid4())
    return lambda conn: claims.submit_and_claim(conn, asked or [submission()], slots, wait=wait)


async def test_what_another_session_is_claiming_is_left_to_it(race: Race, given: Given) -> None:
    older = await given.submitted()

    [answer], [taken] = await race.passes(claim, submit_and_claim())
    assert taken.execution_id == answer.execution_id != older


async def test_what_another_session_has_not_committed_is_not_waited_for(race: Race) -> None:
    def urgent(conn: Connection) -> Awaitable[Any]:
        return executions.submit(conn, submission(priority=9))

    [answer], [taken] = await race.passes(urgent, submit_and_claim())
    assert taken.execution_id == answer.execution_id


async def test_two_who_submit_at_once_lease_their_own(race: Race) -> None:
    seen = []

    async def first(conn: Connection) -> None:
        seen.append(await submit_and_claim()(conn))

    seen.append(await race.passes(first, submit_and_claim()))
    assert all(answer.execution_id == taken.execution_id for [answer], [taken] in seen)


@pytest.mark.parametrize("room", [1, 100])
async def test_the_last_slot_of_a_quota_is_taken_once_and_nobody_waits_for_it(
    race: Race, given: Given, room: int
) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=room)
    limited = submission(quotas=["model"])
    await routes.register_route(given.conn, limited.options)

    _, leased = await race.passes(submit_and_claim(limited), submit_and_claim(limited))
    assert len(leased) == (room > 1)


async def test_a_lane_that_is_being_paused_gives_what_a_claim_would_give_until_the_commit(
    race: Race, given: Given
) -> None:
    [answer], [taken] = await race.passes(lambda conn: lanes.pause_lane(conn, "default", by="ops"), submit_and_claim())
    assert taken.execution_id == answer.execution_id
    _, nothing = await submit_and_claim()(given.conn)
    assert nothing == []


async def test_a_key_of_an_open_transaction_refuses_the_call_and_leases_nothing(race: Race, given: Given) -> None:
    await given.submitted()

    def keyed(conn: Connection) -> Awaitable[Any]:
        return executions.submit(conn, submission(key="a"))

    async with race.one.transaction():
        await keyed(race.one)
        with pytest.raises(RowLocked):
            await submit_and_claim(submission(key="a"), submission())(race.two)
    assert "lease_acquired" not in await given.events()


async def test_many_sessions_that_submit_and_claim_never_lease_one_twice(given: Given, connect: Connect) -> None:
    await quotas.create_quota(given.conn, "model", max_concurrent=9)
    sessions = [await connect() for _ in range(8)]
    some = [submission(quotas=["model"]), submission(priority=1), submission(namespace="other")]
    limited, *_ = [await routes.register_route(given.conn, item.options) for item in some]

    async def work(conn: Connection) -> list[Any]:
        return [(await submit_and_claim(*some, free=2)(conn))[1] for _ in range(10)]

    taken = [c for each in await asyncio.gather(*map(work, sessions)) for some in each for c in some]
    assert len({c.execution_id for c in taken}) == len(taken) > 0
    assert len({c.fence.lease_id for c in taken}) == len(taken)
    assert 0 < sum(c.route == limited for c in taken) <= 9
