"""The state that a worker keeps between claims."""

from flowfabric.worker.claiming import Position
from tests.given import Given


async def test_while_claims_are_fast_every_claim_starts_at_the_front(given: Given) -> None:
    position, claim = Position(), await given.claimed()
    assert position.last() is None

    position.moved([claim], 0.005, from_front=True)

    assert (position.last(), position.route) == (None, claim.route)


async def test_after_a_slow_claim_claims_continue_from_the_last_execution_for_ten_times_as_long(given: Given) -> None:
    position, claim = Position(), await given.claimed()

    position.moved([claim], 60.0, from_front=True)
    assert position.last() == claim

    position.moved([], 60.0, from_front=False)  # a claim that continues does not count, however long it took
    assert position.last() == claim


async def test_a_claim_of_many_executions_may_take_longer(given: Given) -> None:
    position, claim = Position(), await given.claimed()

    position.moved([claim] * 1_000, 0.05, from_front=True)

    assert position.last() is None
