"""Reservations: made, settled, released, and released automatically when the attempt ends."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric import errors
from flowfabric.engine import attempts, budgets, claims, executions, waits
from flowfabric.model import Fence, Reserved, Suspension, Usage
from flowfabric.postgres.driver import Connection
from tests.engine.budgets.scene import TEAM, figures, make, read, settled, spend
from tests.given import Given


async def held(conn: Connection, tokens: int, fence: Fence | None = None) -> UUID:
    """Reserve tokens and return the id of the reservation."""
    answer = await budgets.reserve(conn, TEAM, {"tokens": tokens}, fence=fence)
    assert answer.reservation_id is not None
    return answer.reservation_id


async def test_reserved_amounts_are_not_available_to_others(conn: Connection, given: Given) -> None:
    await make(conn)

    first = await budgets.reserve(conn, TEAM, {"tokens": 60})
    assert first.outcome == "reserved"
    assert await figures(conn) == (0, 60, 0)
    assert await spend(conn, 41) == Usage(
        outcome="hard_breach", dimension="tokens", used=0, reserved=60, hard_limit=100, action="refuse"
    )
    assert await budgets.reserve(conn, TEAM, {"tokens": 41}) == Reserved(
        outcome="hard_breach", dimension="tokens", used=0, reserved=60, hard_limit=100, action="refuse"
    )
    assert (await budgets.reserve(conn, TEAM, {"tokens": 40})).outcome == "reserved"
    assert (await read(conn)).is_full
    assert (await given.events()).count("reservation_made") == 2


async def test_a_reservation_over_the_soft_limit_is_made_and_reports_a_soft_breach(conn: Connection) -> None:
    await make(conn, soft_limits={"tokens": 50})

    answer = await budgets.reserve(conn, TEAM, {"tokens": 60})

    assert (answer.outcome, answer.used, answer.reserved, answer.soft_limit) == ("soft_breach", 0, 60, 50)
    assert answer.reservation_id is not None
    assert await figures(conn) == (0, 60, 0)


async def test_settling_below_the_estimate_frees_the_rest_immediately(conn: Connection, given: Given) -> None:
    await make(conn)

    assert (await settled(conn, 60, 20)).outcome == "settled"
    assert await figures(conn) == (20, 0, 0)
    assert (await given.event("reservation_settled"))["actual"] == {"tokens": 20}


async def test_settling_above_the_estimate_counts_if_it_fits(conn: Connection) -> None:
    await make(conn)

    assert (await settled(conn, 60, 100)).outcome == "settled"
    assert await figures(conn) == (100, 0, 0)


async def test_settling_above_the_limit_counts_the_estimate_and_the_rest_as_overrun(conn: Connection) -> None:
    """The used amount never exceeds the hard limit."""
    await make(conn)
    await spend(conn, 30)

    answer = await settled(conn, 60, 90)

    assert (answer.outcome, answer.dimension, answer.hard_limit) == ("hard_breach", "tokens", 100)
    assert (answer.used, answer.reserved, answer.overrun, answer.action) == (30, 0, {"tokens": 30}, "refuse")
    assert await figures(conn) == (90, 0, 30)
    assert (await read(conn)).breach_count == 1


async def test_overrun_is_split_by_dimension(conn: Connection) -> None:
    await make(conn, hard_limits={"calls": 10, "tokens": 100})
    reserved = await budgets.reserve(conn, TEAM, {"calls": 5, "tokens": 100})
    assert reserved.reservation_id is not None

    answer = await budgets.settle(conn, reserved.reservation_id, {"calls": 20, "tokens": 30, "other": 7})

    assert answer.overrun == {"calls": 15, "other": 7}
    found = await read(conn)
    assert (found.used, found.reserved, found.overrun) == ({"calls": 5, "tokens": 30}, {}, {"calls": 15, "other": 7})


async def test_settling_a_reserved_amount_is_not_a_breach_after_the_limit_was_lowered(
    conn: Connection, given: Given
) -> None:
    await make(conn, on_hard_limit="fail")
    claim = await given.claimed()
    held_ones = [await budgets.reserve(conn, TEAM, {"tokens": 40}, fence=claim.fence) for _ in range(2)]
    await budgets.change_budget(conn, TEAM, hard_limits={"tokens": 30}, by="ops")
    within, above = [each.reservation_id for each in held_ones if each.reservation_id is not None]

    answer = await budgets.settle(conn, within, {"tokens": 35, "calls": 0}, fence=claim.fence)
    assert (answer.outcome, await figures(conn)) == ("settled", (35, 40, 0))
    assert ((await read(conn)).is_full, (await read(conn)).breach_count) == (True, 0)
    answer = await budgets.settle(conn, above, {"tokens": 41}, fence=claim.fence)
    assert (answer.outcome, answer.action, answer.overrun) == ("hard_breach", "fail", {"tokens": 1})
    assert await figures(conn) == (75, 0, 1)


async def test_a_reservation_can_be_settled_with_nothing_spent(conn: Connection) -> None:
    await make(conn)
    reservation = await held(conn, 60)

    assert (await budgets.settle(conn, reservation, {})).outcome == "settled"
    assert await figures(conn) == (0, 0, 0)


async def test_a_second_settlement_returns_the_first_answer_and_counts_nothing(conn: Connection, given: Given) -> None:
    await make(conn, soft_limits={"tokens": 10})
    reservation = await held(conn, 60)
    first = await budgets.settle(conn, reservation, {"tokens": 20})
    assert (first.outcome, first.dimension, first.used, first.soft_limit) == ("soft_breach", "tokens", 20, 10)

    async with given.nothing_changes():
        second = await budgets.settle(conn, reservation, {"tokens": 50})
    assert (second.outcome, second.first, second.used) == ("already_applied", "soft_breach", 20)


async def test_a_reservation_is_released_once(conn: Connection, given: Given) -> None:
    await make(conn)
    reservation = await held(conn, 60)

    assert (await budgets.release(conn, reservation)).amounts == {"tokens": 60}
    async with given.nothing_changes():
        assert (await budgets.release(conn, reservation)).outcome == "noop"
        with pytest.raises(errors.ReservationNotFound, match="was released"):
            await budgets.settle(conn, reservation, {"tokens": 1})
    assert await figures(conn) == (0, 0, 0)


async def test_an_unknown_reservation_is_not_found(conn: Connection, given: Given) -> None:
    await make(conn)

    async with given.nothing_changes():
        with pytest.raises(errors.ReservationNotFound):
            await budgets.settle(conn, uuid4(), {"tokens": 1})
        with pytest.raises(errors.ReservationNotFound):
            await budgets.release(conn, uuid4())


async def test_an_expired_reservation_does_not_count_before_any_sweep(conn: Connection, given: Given) -> None:
    await make(conn)
    await budgets.reserve(conn, TEAM, {"tokens": 100}, ttl=timedelta(minutes=5))
    await given.time_passes(minutes=6)

    assert await figures(conn) == (0, 0, 0)
    assert not (await read(conn)).is_full
    assert (await spend(conn, 100)).outcome == "ok"
    assert (await given.events()).count("reservation_expired") == 1


async def test_the_sweep_ends_expired_reservations_once_and_deletes_them_a_day_later(
    conn: Connection, given: Given
) -> None:
    await make(conn)
    reservation = await held(conn, 60)
    await given.time_passes(minutes=61)

    assert (await budgets.expire_reservations(conn, limit=0)).moved == 0
    assert (await budgets.expire_reservations(conn)).moved == 1
    assert (await budgets.expire_reservations(conn)).moved == 0
    with pytest.raises(errors.ReservationNotFound, match="has expired"):
        await budgets.settle(conn, reservation, {"tokens": 1})
    assert (await given.event("reservation_expired"))["estimate"] == {"tokens": 60}
    await given.time_passes(hours=25)
    assert (await budgets.expire_reservations(conn)).moved == 1
    assert await given.count("reservations") == 0


async def test_a_reservation_of_zero_expires_like_any_other(conn: Connection, given: Given) -> None:
    await make(conn)
    first = await budgets.reserve(conn, TEAM, {"tokens": 0}, dedup_key="k")
    await given.time_passes(minutes=61)

    again = await budgets.reserve(conn, TEAM, {"tokens": 0}, dedup_key="k")
    assert (again.outcome, again.reservation_id == first.reservation_id) == ("reserved", False)
    assert first.reservation_id is not None
    with pytest.raises(errors.ReservationNotFound, match="has expired"):
        await budgets.settle(conn, first.reservation_id, {})


async def test_a_dedup_key_names_one_reservation_while_it_is_open(conn: Connection) -> None:
    await make(conn)
    first = await budgets.reserve(conn, TEAM, {"tokens": 10}, dedup_key="k")

    again = await budgets.reserve(conn, TEAM, {"tokens": 10}, dedup_key="k")
    assert (again.outcome, again.reservation_id) == ("already_applied", first.reservation_id)
    assert (await spend(conn, 1, dedup_key="k")).outcome == "ok"
    assert first.reservation_id is not None
    await budgets.release(conn, first.reservation_id)
    assert (await budgets.reserve(conn, TEAM, {"tokens": 10}, dedup_key="k")).outcome == "reserved"


async def test_an_invalid_reservation_is_refused_and_changes_nothing(conn: Connection, given: Given) -> None:
    await make(conn)
    reservation = await held(conn, 1)

    async with given.nothing_changes():
        for ttl in (timedelta(0), timedelta(hours=25)):
            with pytest.raises(errors.InvalidTime):
                await budgets.reserve(conn, TEAM, {"tokens": 1}, ttl=ttl)
        with pytest.raises(errors.InvalidUsage):
            await budgets.reserve(conn, TEAM, {})
        with pytest.raises(errors.InvalidUsage):
            await budgets.settle(conn, reservation, {"tokens": -1})
        with pytest.raises(errors.BudgetNotFound):
            await budgets.reserve(conn, "nobody", {"tokens": 1})


async def test_a_settlement_beyond_exact_json_numbers_is_refused_and_the_reservation_stays_open(
    conn: Connection, given: Given
) -> None:
    await make(conn, hard_limits={})
    await spend(conn, 2**53 - 2)
    reservation = await held(conn, 1)

    async with given.nothing_changes():
        with pytest.raises(errors.InvalidUsage):
            await budgets.settle(conn, reservation, {"tokens": 2})


async def test_an_executions_reservation_needs_its_lease(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()
    other = await given.claimed()
    reservation = await held(conn, 60, claim.fence)

    async with given.nothing_changes():
        with pytest.raises(errors.FenceRequired):
            await budgets.settle(conn, reservation, {"tokens": 1})
        with pytest.raises(errors.FenceRequired):
            await budgets.release(conn, reservation)
        with pytest.raises(errors.ReservationNotFound):
            await budgets.settle(conn, reservation, {"tokens": 1}, fence=other.fence)
    assert (await budgets.settle(conn, reservation, {"tokens": 1}, fence=claim.fence)).outcome == "settled"


async def test_after_a_crash_the_reclaim_releases_the_estimate(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()
    reservation = await held(conn, 60, claim.fence)
    await given.time_passes(seconds=40)
    assert await figures(conn) == (0, 60, 0)

    await claims.expire_leases(conn)

    assert await figures(conn) == (0, 0, 0)
    with pytest.raises(errors.LeaseLost):
        await budgets.settle(conn, reservation, {"tokens": 1}, fence=claim.fence)
    [again] = await given.claim()
    with pytest.raises(errors.ReservationNotFound, match="ended with its attempt"):
        await budgets.settle(conn, reservation, {"tokens": 1}, fence=again.fence)


ENDINGS: dict[str, Callable[[Connection, Fence], Awaitable[object]]] = {
    "completed": lambda conn, fence: attempts.complete(conn, fence),
    "retried": lambda conn, fence: attempts.fail(conn, fence, "it broke"),
    "cancelled": lambda conn, fence: executions.cancel(conn, fence.execution_id, by="ops"),
    "revoked": lambda conn, fence: claims.revoke(conn, fence.execution_id, by="ops"),
}


async def test_the_end_of_an_attempt_releases_its_reservations(conn: Connection, given: Given) -> None:
    await make(conn)
    await held(conn, 10)
    for lane, ending in ENDINGS.items():
        claim = await given.claimed(lane=lane, policy={"retry": {"max_retries": 1}})
        await held(conn, 30, claim.fence)
        await held(conn, 30, claim.fence)

        await ending(conn, claim.fence)

        assert await figures(conn) == (0, 10, 0), lane
    assert (await given.events()).count("reservation_released") == 2 * len(ENDINGS)
    assert (await given.event("reservation_released"))["cause"] == "attempt_ended"


async def test_a_wait_and_a_delay_keep_the_reservations(conn: Connection, given: Given) -> None:
    await make(conn)
    claim = await given.claimed()
    reservation = await held(conn, 60, claim.fence)

    await attempts.delay(conn, claim.fence, timedelta(0))
    [again] = await given.claim()
    wish = Suspension(condition={"kind": "operator_only"})
    await waits.suspend(conn, again.fence, wish)
    assert await figures(conn) == (0, 60, 0)
    await waits.resume(conn, claim.execution_id, by="ops")
    [last] = await given.claim()
    assert (await budgets.settle(conn, reservation, {"tokens": 5}, fence=last.fence)).outcome == "settled"
    assert await figures(conn) == (5, 0, 0)


async def test_a_reset_keeps_reservations(conn: Connection) -> None:
    await make(conn)
    await spend(conn, 40)
    reservation = await held(conn, 60)

    await budgets.reset_budget(conn, TEAM, by="ops")

    assert await figures(conn) == (0, 60, 0)
    await budgets.settle(conn, reservation, {"tokens": 50})
    assert await figures(conn) == (50, 0, 0)


async def test_an_overrun_is_kept_however_many_dimensions_it_has(conn: Connection) -> None:
    limits = {f"d{number}": 1 for number in range(20)}
    await make(conn, hard_limits=limits)
    await budgets.change_budget(conn, TEAM, hard_limits={"d0": 1}, by="ops")
    for beginning in (0, 16, 32):
        reserved = await budgets.reserve(conn, TEAM, {"e": 1})
        assert reserved.reservation_id is not None
        spent = {"d0": 5, **{f"x{number}": 7 for number in range(beginning, beginning + 16)}}
        done = await budgets.settle(conn, reserved.reservation_id, spent)
        assert done.outcome == "hard_breach"

    overrun = (await read(conn)).overrun
    assert (len(overrun), overrun["d0"], overrun["x47"]) == (49, 15, 7)


async def test_an_overrun_beyond_what_is_counted_exactly_is_kept_as_the_largest_amount(conn: Connection) -> None:
    most = 9_007_199_254_740_991
    await make(conn)
    for _ in range(2):
        reserved = await budgets.reserve(conn, TEAM, {"tokens": 1})
        assert reserved.reservation_id is not None
        done = await budgets.settle(conn, reserved.reservation_id, {"tokens": most})
        assert done.outcome == "hard_breach"

    assert (await read(conn)).overrun == {"tokens": most}
