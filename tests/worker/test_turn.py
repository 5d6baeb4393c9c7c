"""What a worker remembers of its last claim."""

from flowfabric.worker.turn import Turn
from tests.given import Given


async def test_a_worker_goes_on_from_the_last_one_while_there_is_enough(given: Given) -> None:
    turn, claim = Turn(), await given.claimed()

    turn.took([claim], 1, looked=True, took=60.0)
    assert (turn.last(), turn.route) == (claim, claim.route)

    turn.took([claim], 2, looked=False, took=0.0)
    assert (turn.last(), turn.route) == (None, claim.route)


async def test_a_worker_looks_from_the_front_at_first_and_when_it_is_time(given: Given) -> None:
    turn, claim = Turn(), await given.claimed()

    turn.took([claim], 1, looked=False, took=0.0)  # as if the last look had been long ago

    assert turn.last() is None
