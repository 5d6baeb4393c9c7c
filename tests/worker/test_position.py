"""What a worker remembers of its last claim."""

from flowfabric.worker.claiming import Position
from tests.given import Given


async def test_while_looking_is_cheap_every_claim_looks_from_the_front(given: Given) -> None:
    position, claim = Position(), await given.claimed()
    assert position.last() is None

    position.moved([claim], 0.005, from_front=True)

    assert (position.last(), position.route) == (None, claim.route)


async def test_once_it_is_slow_claims_go_on_from_the_last_one_for_ten_times_as_long(given: Given) -> None:
    position, claim = Position(), await given.claimed()

    position.moved([claim], 60.0, from_front=True)
    assert position.last() == claim

    position.moved([], 60.0, from_front=False)  # however long that took
    assert position.last() == claim


async def test_what_a_claim_gives_may_take_its_time(given: Given) -> None:
    position, claim = Position(), await given.claimed()

    position.moved([claim] * 1_000, 0.05, from_front=True)

    assert position.last() is None
