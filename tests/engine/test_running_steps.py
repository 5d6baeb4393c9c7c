"""The steps that an execution runs: reported with the renewal of its lease, and shown until they are saved."""

from datetime import timedelta

import pytest

from flowfabric.engine import attempts, claims, executions, steps
from flowfabric.errors import InvalidBody, InvalidText, LeaseLost
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, Renewed, ReportedStep, RunningStep, Step
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given

ODD = 'a,"\u202e\n\x1b[31m%2C é🌊'


def step(name: str = "write", number: int = 4, seconds: float = 12, occurrence: int = 1) -> ReportedStep:
    return ReportedStep(name=name, occurrence=occurrence, number=number, elapsed=timedelta(seconds=seconds))


async def told(conn: Connection, claim: Claim, *running: ReportedStep) -> None:
    """Renew with a report."""
    [answer] = await claims.renew_many(conn, [claim.fence], running={claim.fence.lease_id: running})
    assert isinstance(answer, Renewed), answer


async def shown(conn: Connection, it: ExecutionId) -> list[str]:
    """The names that describe and list_steps show as running: both the same."""
    described = (await executions.describe(conn, it)).running
    listed = [each for each in (await steps.list_steps(conn, it)).items if each.state == "running"]
    assert {(each.name, each.started_at) for each in described} == {(each.name, each.started_at) for each in listed}
    return [each.name for each in described]


async def test_a_step_that_runs_is_described_with_its_number_and_its_start(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await told(conn, claim, step())

    described = await executions.describe(conn, claim.execution_id)
    [running] = described.running
    assert isinstance(running, RunningStep)
    assert (running.name, running.occurrence, running.number) == ("write", 1, 4)
    assert described.explanation.sentence.startswith(
        "attempt 1, step 4 'write' for 12 s, runs on pool (instance pool-1)"
    )
    [listed] = (await steps.list_steps(conn, claim.execution_id, results=True)).items
    assert (listed.state, listed.started_at, listed.saved_at, listed.result) == (
        "running",
        running.started_at,
        None,
        None,
    )
    assert listed.lasted is not None
    assert timedelta(seconds=12) <= listed.lasted < timedelta(seconds=20)


async def test_steps_that_run_at_once_are_listed_after_the_saved_ones_on_any_page(
    conn: Connection, given: Given
) -> None:
    claim = await given.claimed()
    await steps.save_step_many(conn, [Step(fence=claim.fence, name=name, occurrence=1) for name in "zy"])
    await told(conn, claim, step("b", 3, 5), step(ODD, 4, 9), step("b", 5, 2, occurrence=2))

    found: list[tuple[str, int, str]] = []
    cursor = None
    while cursor is not None or not found:
        page = await steps.list_steps(conn, claim.execution_id, limit=2, cursor=cursor)
        found += [(each.name, each.occurrence, each.state) for each in page.items]
        cursor = page.next_cursor
    saved = [("y", 1, "completed"), ("z", 1, "completed")]
    assert found == [*saved, (ODD, 1, "running"), ("b", 1, "running"), ("b", 2, "running")]
    described = await executions.describe(conn, claim.execution_id)
    assert [each.number for each in described.running] == [4, 3, 5]
    assert " for 9 s and 2 more, runs on " in described.explanation.sentence


async def test_a_saved_step_does_not_run_any_more_and_has_its_duration(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await told(conn, claim, step("a"), step("b"))
    done = Step(fence=claim.fence, name="a", occurrence=1, lasted=timedelta(seconds=15))
    await steps.save_step(conn, done)

    assert await shown(conn, claim.execution_id) == ["b"]
    [saved, _] = (await steps.list_steps(conn, claim.execution_id)).items
    assert saved.saved_at is not None
    assert (saved.lasted, saved.started_at) == (done.lasted, saved.saved_at - timedelta(seconds=15))


async def test_what_has_no_function_has_no_start_and_no_duration(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await steps.save_step(conn, Step(fence=claim.fence, name="submit:page", occurrence=1))

    [saved] = (await steps.list_steps(conn, claim.execution_id)).items
    assert (saved.state, saved.started_at, saved.lasted) == ("completed", None, None)


async def test_a_later_report_replaces_an_earlier_one_and_a_renewal_without_one_keeps_it(
    conn: Connection, given: Given
) -> None:
    claim = await given.claimed()
    await told(conn, claim, step("a"))
    await claims.renew(conn, claim.fence)
    assert await shown(conn, claim.execution_id) == ["a"]
    await told(conn, claim, step("b"))
    assert await shown(conn, claim.execution_id) == ["b"]
    await told(conn, claim)
    assert await shown(conn, claim.execution_id) == []


async def test_nothing_runs_after_the_run_has_ended_or_under_the_next_lease(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await told(conn, claim, step("a"))
    await given.time_passes(seconds=31)
    assert await shown(conn, claim.execution_id) == []
    await claims.expire_leases(conn)
    assert await shown(conn, claim.execution_id) == []
    [again] = await given.claim()
    assert await shown(conn, claim.execution_id) == []
    await told(conn, again, step("b"))
    await attempts.complete(conn, again.fence, b"1")
    assert await shown(conn, claim.execution_id) == []


async def test_a_report_under_a_lost_lease_changes_nothing(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await claims.revoke(conn, claim.execution_id, by="ops")
    [again] = await given.claim()
    await told(conn, again, step("new"))

    [lost] = await claims.renew_many(conn, [claim.fence], running={claim.fence.lease_id: [step("old")]})
    assert isinstance(lost, LeaseLost)
    assert await shown(conn, claim.execution_id) == ["new"]


async def test_a_report_does_not_wait_for_a_transaction_that_has_locked_the_execution(
    conn: Connection, given: Given, connect: Connect
) -> None:
    claim = await given.claimed()
    other = await connect()
    async with other.transaction():
        await other.execute("select from flowfabric.tickets for update")
        [answer] = await claims.renew_many(conn, [claim.fence], running={claim.fence.lease_id: [step()]})

    assert isinstance(answer, Renewed)
    assert (answer.outcome, await shown(conn, claim.execution_id)) == ("locked", [])


async def test_only_the_twenty_steps_that_run_longest_are_kept(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    await told(conn, claim, *(step(f"page-{n:03}", n, n) for n in range(1, 501)))

    assert await shown(conn, claim.execution_id) == [f"page-{n}" for n in range(500, 480, -1)]


async def test_an_invalid_report_is_refused_alone(conn: Connection, given: Given) -> None:
    odd = [step("a\0"), step(occurrence=2**40), step(number=0), step(seconds=-5), step(seconds=1e11)]
    taken = [await given.claimed() for _ in odd]
    reports = {claim.fence.lease_id: [each] for claim, each in zip(taken, odd, strict=True)}

    answers = await claims.renew_many(conn, [claim.fence for claim in taken], running=reports)
    assert [type(answer) for answer in answers] == [InvalidText, InvalidBody, InvalidBody, Renewed, Renewed]
    [listed] = (await steps.list_steps(conn, taken[3].execution_id)).items
    assert listed.lasted is not None
    assert timedelta() <= listed.lasted < timedelta(seconds=5)


@pytest.mark.parametrize("seconds", [-3.0, 1e9])
async def test_a_duration_that_cannot_be_is_cut(conn: Connection, given: Given, seconds: float) -> None:
    claim = await given.claimed()
    await steps.save_step(conn, Step(fence=claim.fence, name="a", occurrence=1, lasted=timedelta(seconds=seconds)))

    [saved] = (await steps.list_steps(conn, claim.execution_id)).items
    assert saved.lasted == timedelta(seconds=max(seconds, 0))
