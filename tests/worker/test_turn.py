"""What a worker remembers of its last claim."""

from flowfabric.worker.turn import Turn
from tests.given import Given


async def test_while_looking_is_cheap_every_claim_looks_from_the_front(given: Given) -> None:
    turn, claim = Turn(), await given.claimed()
    assert turn.last() is None

    turn.took([claim], 0.005, looked=True)

    assert (turn.last(), turn.route) == (None, claim.route)


async def test_once_it_is_slow_claims_go_on_from_the_last_one_for_ten_times_as_long(given: Given) -> None:
    turn, claim = Turn(), await given.claimed()

    turn.took([claim], 60.0, looked=True)
    assert turn.last() == claim

    turn.took([], 60.0, looked=False)  # however long that took
    assert turn.last() == claim


async def test_what_a_claim_gives_may_take_its_time(given: Given) -> None:
    turn, claim = Turn(), await given.claimed()

    turn.took([claim] * 1_000, 0.05, looked=True)

    assert turn.last() is None
