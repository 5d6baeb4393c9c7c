"""Maps: at most so many children have started and not ended; the next one has its turn when one ends."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric.engine import attempts, children, claims, executions, holds
from flowfabric.errors import InvalidBody
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import ChildMap, ChildToSubmit, Claim, FailureClass, FoundChild
from tests.conftest import Connect
from tests.given import Given, submission

NEW = FoundChild(outcome="new")


class Scene:
    """A parent that maps a task over items, and what becomes of its children."""

    def __init__(self, given: Given, parent: Claim, most: int) -> None:
        self.given = given
        self.parent = parent
        self.map = ChildMap(uuid4(), most)
        self.children: list[ExecutionId] = []

    async def submit(self, many: int, ending: str = "cancel", **options: object) -> Sequence[ChildToSubmit]:
        begin = len(self.children) + 1
        asked = [
            ChildToSubmit(
                fence=self.parent.fence,
                name="submit:child",
                occurrence=number,
                execution_id=mint_execution_id(),
                submission=submission(lane="nursery", **options),
                on_parent_end="let_run" if ending == "let_run" else "cancel",
                map=self.map,
            )
            for number in range(begin, begin + many)
        ]
        assert await children.submit_children(self.given.conn, asked) == [NEW] * many
        self.children += [child.execution_id for child in asked]
        return asked

    async def numbers(self, state: str = "waiting") -> list[int]:
        """The positions, from 0, of the children in a state."""
        return [number for number, child in enumerate(self.children) if await self.given.state(child) == state]

    async def run(self, many: int) -> list[Claim]:
        return await self.given.claim(lanes=["nursery"], take=many)

    async def end(self, claim: Claim) -> None:
        await attempts.complete(self.given.conn, claim.fence, b"1")
        await self.pass_turns()

    async def pass_turns(self) -> None:
        await children.deliver_child_ends(self.given.conn)

    async def is_over(self) -> bool:
        return await self.given.count("maps") == 0 and await self.given.count("map_children") == 0


async def mapped(given: Given, many: int, most: int, **options: object) -> Scene:
    scene = Scene(given, await given.claimed(lease=timedelta(hours=1)), most)
    await scene.submit(many, **options)  # type: ignore[arg-type]
    return scene


async def test_children_beyond_the_bound_are_blocked_until_others_have_ended(given: Given) -> None:
    scene = await mapped(given, 5, 2)
    assert await scene.numbers("waiting_dependencies") == [2, 3, 4]

    first, second = await scene.run(10)
    await scene.end(second)
    assert await scene.numbers() == [2]
    await scene.end(first)
    assert await scene.numbers() == [2, 3]
    for claim in await scene.run(10):
        await scene.end(claim)
    [last] = await scene.run(10)
    assert last.execution_id == scene.children[4]
    await scene.end(last)
    assert await scene.is_over()


async def test_children_submitted_later_join_the_map(given: Given) -> None:
    scene = await mapped(given, 2, 3)
    await scene.submit(4)
    assert await scene.numbers() == [0, 1, 2]

    for claim in await scene.run(3):
        await scene.end(claim)
    assert await scene.numbers() == [3, 4, 5]
    for claim in await scene.run(3):
        await scene.end(claim)
    await scene.submit(2)
    assert await scene.numbers() == [6, 7], "a map whose children have all ended begins again"


async def test_a_child_that_waits_or_retries_keeps_its_turn(given: Given) -> None:
    policy = {"retry": {"max_retries": 3}}
    scene = await mapped(given, 4, 2, policy=policy)
    one, two = await scene.run(2)
    await attempts.delay(given.conn, one.fence, timedelta(hours=1))
    await attempts.fail(given.conn, two.fence, "no luck", class_=FailureClass.TRANSIENT)
    await scene.pass_turns()

    assert await scene.numbers("waiting_dependencies") == [2, 3]


async def test_a_blocked_child_that_is_cancelled_or_expires_gives_no_turn(given: Given) -> None:
    scene = await mapped(given, 5, 1, deadline=timedelta(minutes=30))
    await executions.cancel(given.conn, scene.children[1], by="ops")
    await scene.pass_turns()
    assert await scene.numbers() == [0]
    [claim] = await scene.run(1)
    await scene.end(claim)
    assert await scene.numbers() == [2]

    await given.time_passes(minutes=40)
    await executions.expire_executions(given.conn)
    await scene.pass_turns()
    assert await scene.numbers("expired") == [2, 3, 4]
    assert await scene.is_over()


@pytest.mark.parametrize("ending", ["cancel", "let_run"])
async def test_when_the_parent_fails_blocked_children_end_with_it_or_have_their_turns(
    given: Given, ending: str
) -> None:
    scene = await mapped(given, 4, 1, ending=ending)
    [running] = await scene.run(1)
    await attempts.fail(given.conn, scene.parent.fence, "no luck", class_=FailureClass.PERMANENT)
    await attempts.complete(given.conn, running.fence, b"1")
    for _ in range(3):
        await scene.pass_turns()

    if ending == "cancel":
        assert await scene.numbers("cancelled") == [1, 2, 3]
        assert len(await scene.run(9)) == 0
    else:
        for number in (1, 2, 3):
            assert await scene.numbers() == [number]
            [claim] = await scene.run(9)
            await scene.end(claim)
    assert await scene.is_over()


async def test_no_child_starts_between_the_end_of_its_parent_and_its_own(given: Given) -> None:
    scene = await mapped(given, 3, 1)
    [running] = await scene.run(1)
    await attempts.complete(given.conn, running.fence, b"1")
    await executions.cancel(given.conn, scene.parent.execution_id, by="ops")
    await given.rows("update flowfabric.child_ends set retry_at = now() + interval '1 day' where parent is null")
    await scene.pass_turns()

    assert await scene.numbers() == []
    assert await scene.numbers("waiting_dependencies") == [1, 2]


async def test_a_parent_that_completes_leaves_its_children_their_turns(given: Given) -> None:
    scene = await mapped(given, 3, 1)
    await attempts.complete(given.conn, scene.parent.fence, b"1")
    for number in (0, 1, 2):
        assert await scene.numbers() == [number]
        [claim] = await scene.run(9)
        await scene.end(claim)
    assert await scene.is_over()


async def test_a_held_child_is_blocked_again_when_it_is_unheld_before_its_turn(given: Given) -> None:
    scene = await mapped(given, 3, 1)
    await holds.hold(given.conn, scene.children[1], by="ops")
    await holds.unhold(given.conn, scene.children[1], by="ops")
    assert await scene.numbers() == [0]

    await holds.hold(given.conn, scene.children[1], by="ops")
    [claim] = await scene.run(9)
    await scene.end(claim)
    assert await scene.run(9) == [], "it has its turn, and is held"
    await holds.unhold(given.conn, scene.children[1], by="ops")
    assert await scene.numbers() == [1]


async def test_a_delayed_child_has_its_turn_and_then_its_delay(given: Given) -> None:
    scene = await mapped(given, 2, 1, delay=timedelta(minutes=30))
    assert await scene.numbers("delayed") == [0]
    await given.time_passes(minutes=40)
    [claim] = await scene.run(9)
    await scene.end(claim)

    [claim] = await scene.run(9)
    assert claim.execution_id == scene.children[1]


async def test_explain_says_that_a_child_waits_for_its_turn(given: Given) -> None:
    scene = await mapped(given, 4, 1)

    found = await executions.explain(given.conn, scene.children[3])
    assert found.sentence == (
        "waits for its turn: at most 1 of the children that execution "
        f"{scene.parent.execution_id} has mapped run at once; 2 ahead of it"
    )
    assert (found.waits_for, found.released_by) == ("turn", "complete")


async def test_a_map_that_is_locked_is_left_for_the_next_pass(given: Given, connect: Connect) -> None:
    scene, other = await mapped(given, 3, 1), await connect()
    [claim] = await scene.run(1)
    await attempts.complete(given.conn, claim.fence, b"1")
    async with other.transaction():
        await other.execute("select from flowfabric.maps for update")
        await scene.pass_turns()
        assert await given.count("child_ends") == 1
        assert await scene.numbers() == []

    await scene.pass_turns()
    assert await scene.numbers() == [1]


async def test_a_turn_for_children_that_are_all_locked_is_given_in_the_next_pass(
    given: Given, connect: Connect
) -> None:
    scene, other = await mapped(given, 2, 1), await connect()
    [claim] = await scene.run(1)
    await attempts.complete(given.conn, claim.fence, b"1")
    async with other.transaction():
        await other.execute("select from flowfabric.tickets where id = $1 for update", scene.children[1].uuid)
        await scene.pass_turns()
        assert await given.count("child_ends") == 0
        assert await scene.numbers() == []

    await scene.pass_turns()
    assert await scene.numbers() == [1]


async def test_a_child_whose_worker_dies_keeps_its_turn_until_it_has_ended(given: Given) -> None:
    scene = await mapped(given, 3, 1)
    await scene.run(1)
    await given.time_passes(minutes=5)
    await claims.expire_leases(given.conn)
    await scene.pass_turns()

    [again] = await scene.run(9)
    assert (again.execution_id, again.attempt.number) == (scene.children[0], 2)
    await scene.end(again)
    assert await scene.numbers() == [1]


async def test_a_repeated_submission_takes_no_second_turn(given: Given) -> None:
    scene = Scene(given, await given.claimed(), 2)
    asked = await scene.submit(3)
    again = await children.submit_children(given.conn, asked)
    assert [found.outcome for found in again if isinstance(found, FoundChild)] == ["saved"] * 3
    assert await given.count("map_children") == 3
    assert await scene.numbers() == [0, 1]


@pytest.mark.parametrize("most", [0, -1, 1 << 31])
async def test_an_invalid_bound_is_refused(given: Given, most: int) -> None:
    parent = await given.claimed()
    child = ChildToSubmit(
        fence=parent.fence,
        name="submit:child",
        occurrence=1,
        execution_id=mint_execution_id(),
        submission=submission(),
        map=ChildMap(uuid4(), most),
    )
    [refused] = await children.submit_children(given.conn, [child])
    assert isinstance(refused, InvalidBody)
    assert refused.fields["field"] == "max_running"
