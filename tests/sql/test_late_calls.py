"""Calls under a lease that wait for a lock: the lease is checked by the clock after the lock, not before it."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from flowfabric import errors
from flowfabric.engine import attempts, executions, steps, waits
from flowfabric.model import Completion, FailureClass, Fence, Step
from tests.given import Given
from tests.races import Call, Race


@pytest.fixture
async def fence(given: Given) -> Fence:
    return (await given.claimed()).fence


def prioritize(fence: Fence) -> Call:
    return lambda conn: executions.change_priority(conn, fence.execution_id, 7, by="ops")


LATE: dict[str, Callable[[Fence], Call]] = {
    "complete": lambda fence: lambda conn: attempts.complete(conn, fence),
    "fail": lambda fence: lambda conn: attempts.fail(conn, fence, "no", class_=FailureClass.PERMANENT),
    "delay": lambda fence: lambda conn: attempts.delay(conn, fence, timedelta(minutes=1)),
    "step": lambda fence: lambda conn: steps.save_step(conn, Step(fence=fence, name="a", occurrence=1, result=b"1")),
    "waitpoint": lambda fence: lambda conn: waits.create_waitpoint(conn, fence, "go"),
}


@pytest.mark.parametrize("name", LATE)
async def test_a_call_that_waited_until_its_lease_had_expired_is_refused(
    race: Race, given: Given, fence: Fence, name: str
) -> None:
    _, refusal = await race.both(prioritize(fence), LATE[name](fence), meanwhile=3600)

    assert isinstance(refusal, errors.LeaseLost), repr(refusal)
    assert refusal.fields == {"cause": "expired"}
    assert await given.count("attempts") == await given.count("steps") == 0


async def test_a_batch_that_waited_for_its_last_lock_refuses_the_leases_that_expired_meanwhile(
    race: Race, given: Given, fence: Fence
) -> None:
    others = [(await given.claimed(lane=f"lane-{number}")).fence for number in range(4)]
    everything = [fence, *others]
    last = max(everything, key=lambda it: (it.execution_id.partition, it.execution_id.uuid))
    batch = [Completion(fence=it) for it in everything]

    _, answers = await race.both(prioritize(last), lambda conn: attempts.complete_many(conn, batch), meanwhile=3600)

    assert [type(answer) for answer in answers] == [errors.LeaseLost] * 5
