"""Tags: their names, their values, and changing them later."""

import pytest

from flowfabric import errors, ids
from flowfabric.engine import executions
from flowfabric.errors import InvalidTagKey
from flowfabric.model import Submitted, TagChange
from flowfabric.postgres.driver import Connection
from tests.engine.executions.stored import stored
from tests.given import Given, submission

NAMES = ["customer", "billing.customer", "Customer", "1st", "order-id", "a b", "größe", "{a,b}", "it's", '"', "\n", "."]
NAMES += ["n" * 128, "ü" * 64]
INVALID_NAMES = ["", "n" * 129, "ü" * 64 + "x"]
SIXTY_FOUR = {f"shop.t{number}": str(number) for number in range(64)}


@pytest.mark.parametrize("name", NAMES)
async def test_a_tag_may_have_any_name_of_1_to_128_bytes(conn: Connection, given: Given, name: str) -> None:
    execution_id = await given.submitted(tags={name: "v"})

    assert (await executions.describe(conn, execution_id)).tags == {name: "v"}
    assert await executions.set_tag(conn, execution_id, name, "w") is TagChange.SET
    assert await executions.get_tag(conn, execution_id, name) == "w"
    [found] = (await executions.list_executions(conn, tag=(name, "w"))).items
    assert found.execution_id == execution_id
    assert await executions.set_tag(conn, execution_id, name, None) is TagChange.REMOVED
    assert await executions.get_tag(conn, execution_id, name) is None


async def test_an_invalid_name_is_refused_with_a_submission_and_writes_nothing(conn: Connection, given: Given) -> None:
    before = await stored(given)

    answers = await executions.submit_many(conn, [submission(tags={"a": "v", name: "v"}) for name in INVALID_NAMES])

    assert [type(answer) for answer in answers] == [InvalidTagKey] * len(INVALID_NAMES)
    assert await stored(given) == before


async def test_an_invalid_name_is_refused_by_set_and_get(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()
    before = await stored(given)

    for name in INVALID_NAMES:
        with pytest.raises(InvalidTagKey):
            await executions.set_tag(conn, execution_id, name, "v")
        with pytest.raises(InvalidTagKey):
            await executions.get_tag(conn, execution_id, name)
    assert await stored(given) == before


async def test_setting_and_removing_a_tag_twice_changes_it_once(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted()

    changes = [await executions.set_tag(conn, execution_id, "a.b", value) for value in ("v", "v", "w", None, None)]

    assert changes == ["set", "noop", "set", "removed", "noop"]
    assert await given.events(execution_id) == ["execution_submitted", "tag_set", "tag_set", "tag_set"]
    assert (await executions.describe(conn, execution_id)).tags == {}
    assert await given.count("tags") == 0


async def test_tags_of_an_execution_that_does_not_exist_are_refused(conn: Connection, given: Given) -> None:
    missing = ids.mint_execution_id()

    with pytest.raises(errors.ExecutionNotFound):
        await executions.set_tag(conn, missing, "a.b", "v")
    with pytest.raises(errors.ExecutionNotFound):
        await executions.get_tag(conn, missing, "a.b")
    with pytest.raises(InvalidTagKey):
        await executions.set_tag(conn, missing, "", "v")
    assert await given.events() == []


async def test_a_missing_tag_reads_as_none(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(tags={"a.b": ""})

    assert await executions.get_tag(conn, execution_id, "a.c") is None
    assert await executions.get_tag(conn, execution_id, "a.b") == ""


async def test_tags_are_sorted_and_can_be_changed_after_the_end(conn: Connection, given: Given) -> None:
    execution_id = await given.cancelled(tags={"b.x": "1", "a.y": "2", "a.b": "größe ✓"})

    assert await executions.set_tag(conn, execution_id, "a.z", "3", by="ops") is TagChange.SET

    tags = (await executions.describe(conn, execution_id)).tags
    assert list(tags.items()) == [("a.b", "größe ✓"), ("a.y", "2"), ("a.z", "3"), ("b.x", "1")]


async def test_an_execution_has_at_most_64_tags(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(tags=SIXTY_FOUR)
    before = await stored(given)

    with pytest.raises(errors.InvalidTag, match="65"):
        await executions.set_tag(conn, execution_id, "shop.more", "v")
    assert await stored(given) == before
    assert await executions.set_tag(conn, execution_id, "shop.t0", "changed") is TagChange.SET
    assert await executions.set_tag(conn, execution_id, "shop.t1", None) is TagChange.REMOVED
    assert await executions.set_tag(conn, execution_id, "shop.more", "v") is TagChange.SET


async def test_a_value_has_at_most_256_bytes(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(tags={"a.b": "ü" * 128})
    before = await stored(given)

    with pytest.raises(errors.InvalidTag) as refusal:
        await executions.set_tag(conn, execution_id, "a.b", "ü" * 128 + "x")
    assert "at most 256 bytes" in refusal.value.message
    assert await stored(given) == before


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
async def test_a_tag_that_postgres_cannot_store_is_refused(conn: Connection, given: Given, bad: str) -> None:
    execution_id = await given.submitted()
    before = await stored(given)

    with pytest.raises(errors.InvalidText):
        await executions.set_tag(conn, execution_id, "a.b", bad)
    with pytest.raises(errors.InvalidText):
        await executions.set_tag(conn, execution_id, bad, "v")
    with pytest.raises(errors.InvalidText):
        await executions.set_tag(conn, execution_id, "a.b", "v", by=bad)
    assert await stored(given) == before


async def test_a_refused_tag_does_not_abort_the_callers_transaction(conn: Connection, given: Given) -> None:
    async with conn.transaction():
        [refused, created] = await executions.submit_many(
            conn, [submission(tags={"": "v"}), submission(tags={"a.b": "v"})]
        )

    assert isinstance(refused, InvalidTagKey)
    assert isinstance(created, Submitted)
    assert await executions.get_tag(conn, created.execution_id, "a.b") == "v"
    assert await given.count("executions") == 1
