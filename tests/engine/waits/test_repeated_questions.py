"""A question that is asked again on the same waitpoint: which decisions count for it, and which are repeats."""

from datetime import timedelta
from hashlib import sha256

from flowfabric.engine import waits
from flowfabric.model import Claim, Suspension, Wish
from flowfabric.postgres.driver import Connection
from tests.engine.waits.scene import approvals, state
from tests.given import Given

DRAFT, REVISED = b'"draft 1"', b'"draft 2"'


def digest(about: bytes) -> bytes:
    return sha256(about).digest()


async def ask(given: Given, claim: Claim, turn: int, about: bytes | None, *, approvers: int = 1, bind: bool) -> None:
    """Ask for a decision, or sleep for an hour, whichever comes first, as `any_of` in a loop does."""
    question = Suspension(condition=approvals(approvers), waitpoints=["w"], about=about, bind=bind)
    nap = claim.expires_at + timedelta(hours=1)
    wishes = [
        Wish(name="publish", occurrence=turn, what=question, choice=1),
        Wish(name="nap", occurrence=turn, what=nap, choice=1),
    ]
    assert (await waits.suspend(given.conn, claim.fence, wishes)).outcome == "suspended"


async def nobody_decides(given: Given) -> Claim:
    """The alternative of the question ends instead; the run continues."""
    await given.time_passes(hours=2)
    await waits.time_out_waits(given.conn)
    [claim] = await given.claim()
    return claim


async def decide(conn: Connection, claim: Claim, name: str, by: str, about: bytes | None = None) -> str | None:
    """The effect of a decision, or `duplicate`."""
    carried = None if about is None else digest(about)
    done = await waits.deliver_approval(conn, claim.execution_id, "w", name, by=by, digest=carried)
    return done.effect or done.outcome


async def test_a_rejection_of_the_next_draft_counts_although_the_person_rejected_the_first(given: Given) -> None:
    claim = await given.claimed()
    await ask(given, claim, 1, DRAFT, bind=True)
    claim = await nobody_decides(given)
    assert await decide(given.conn, claim, "reject", "ann", DRAFT) == "buffered_for_pending_waitpoint"
    assert await decide(given.conn, claim, "reject", "ann", DRAFT) == "duplicate"
    await ask(given, claim, 2, REVISED, bind=True)

    assert await decide(given.conn, claim, "reject", "ann", REVISED) == "resume_condition_satisfied"
    assert await decide(given.conn, claim, "reject", "ann", REVISED) == "duplicate"


async def test_an_unbound_question_does_not_inherit_decisions_on_an_earlier_one(given: Given) -> None:
    claim = await given.claimed()
    await ask(given, claim, 1, DRAFT, approvers=2, bind=False)
    assert await decide(given.conn, claim, "approve", "ann") == "appended_to_waitpoint"
    claim = await nobody_decides(given)
    assert await decide(given.conn, claim, "approve", "bob") == "buffered_for_pending_waitpoint"
    await ask(given, claim, 2, REVISED, approvers=2, bind=False)

    assert await decide(given.conn, claim, "approve", "bob") == "appended_to_waitpoint"
    assert await state(given.conn, claim.execution_id) == "suspended"
    assert await decide(given.conn, claim, "approve", "ann") == "resume_condition_satisfied"


async def test_a_question_without_a_subject_does_not_inherit_decisions_on_an_earlier_one(given: Given) -> None:
    claim = await given.claimed()
    await ask(given, claim, 1, None, approvers=2, bind=False)
    assert await decide(given.conn, claim, "approve", "ann") == "appended_to_waitpoint"
    claim = await nobody_decides(given)
    assert await decide(given.conn, claim, "approve", "ann") == "duplicate"
    await ask(given, claim, 2, None, approvers=2, bind=False)

    assert await decide(given.conn, claim, "approve", "ann") == "appended_to_waitpoint"
    assert await decide(given.conn, claim, "approve", "bob") == "resume_condition_satisfied"


async def test_decisions_count_on_when_the_same_subject_is_asked_about_again(given: Given) -> None:
    claim = await given.claimed()
    await ask(given, claim, 1, DRAFT, approvers=2, bind=True)
    assert await decide(given.conn, claim, "approve", "ann", DRAFT) == "appended_to_waitpoint"
    claim = await nobody_decides(given)
    await ask(given, claim, 2, DRAFT, approvers=2, bind=True)

    assert await decide(given.conn, claim, "approve", "ann", DRAFT) == "duplicate"
    assert await decide(given.conn, claim, "approve", "bob", DRAFT) == "resume_condition_satisfied"


async def test_a_decision_that_came_before_a_bound_question_does_not_swallow_the_one_with_its_digest(
    given: Given,
) -> None:
    claim = await given.claimed()
    await waits.create_waitpoint(given.conn, claim.fence, "w")
    assert await decide(given.conn, claim, "reject", "ann") == "buffered_for_pending_waitpoint"
    await ask(given, claim, 1, DRAFT, bind=True)

    assert await decide(given.conn, claim, "reject", "ann", DRAFT) == "resume_condition_satisfied"


async def test_a_repeat_of_a_decision_that_came_before_its_question_is_a_duplicate(given: Given) -> None:
    claim = await given.claimed()
    await waits.create_waitpoint(given.conn, claim.fence, "w")
    await decide(given.conn, claim, "approve", "ann")
    await ask(given, claim, 1, DRAFT, approvers=2, bind=False)

    assert await decide(given.conn, claim, "approve", "ann") == "duplicate"
    assert await decide(given.conn, claim, "approve", "bob") == "resume_condition_satisfied"
    assert await decide(given.conn, claim, "approve", "ann") == "duplicate"
