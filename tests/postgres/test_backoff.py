"""Backoff: how the pauses grow, where they stop growing, and what jitter does."""

import asyncio

import pytest

from flowfabric.postgres.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(1, 5)

    assert [backoff.next() for _ in range(5)] == [1, 2, 4, 5, 5]


def test_equal_first_and_longest_give_a_constant_pause() -> None:
    backoff = Backoff(0.5, 0.5)

    assert [backoff.next() for _ in range(3)] == [0.5, 0.5, 0.5]


def test_current_is_the_pause_that_comes_next() -> None:
    backoff = Backoff(1, 5)

    assert [(backoff.current, backoff.next()) for _ in range(4)] == [(1, 1), (2, 2), (4, 4), (5, 5)]


def test_reset_starts_from_the_first_pause_again() -> None:
    backoff = Backoff(1, 60)
    for _ in range(4):
        backoff.next()

    backoff.reset()

    assert [backoff.next() for _ in range(3)] == [1, 2, 4]


def test_a_changed_first_pause_counts_after_the_next_reset() -> None:
    backoff = Backoff(1, 60)
    backoff.next()

    backoff.first = 10

    assert backoff.next() == 2
    backoff.reset()
    assert backoff.next() == 10


def test_jitter_shortens_each_pause_by_up_to_its_share() -> None:
    pauses = [Backoff(10, 60, jitter=0.2).next() for _ in range(200)]

    assert all(8 <= pause <= 10 for pause in pauses)
    assert len(set(pauses)) > 100  # processes that failed together do not retry together


def test_jitter_does_not_add_up() -> None:
    backoff = Backoff(1, 8, jitter=0.5)

    for longest in (1, 2, 4, 8, 8):
        assert backoff.current == longest
        assert longest / 2 <= backoff.next() <= longest


def test_two_backoffs_are_independent() -> None:
    one, other = Backoff(1, 8), Backoff(1, 8)
    one.next()

    assert (one.current, other.current) == (2, 1)


async def test_waiting_sleeps_for_the_next_pause() -> None:
    backoff = Backoff(3_600, 7_200)

    waiting = asyncio.create_task(backoff.wait())
    await asyncio.sleep(0)  # let the task begin its pause

    assert (waiting.done(), backoff.current) == (False, 7_200)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
