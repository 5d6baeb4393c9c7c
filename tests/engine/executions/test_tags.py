"""Tags: their keys, their values, and changing them later."""

import json
from pathlib import Path

import pytest

from flowfabric import errors, ids
from flowfabric.engine import executions
from flowfabric.errors import InvalidTagKey
from flowfabric.model import Submitted, TagChange
from flowfabric.postgres.driver import Connection
from tests.engine.executions.stored import stored
from tests.given import Given, submission

TAG_KEYS = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["tag_keys"]
SIXTY_FOUR = {f"shop.t{number}": str(number) for number in range(64)}


async def test_every_good_key_is_accepted_with_a_submission_and_later(conn: Connection, given: Given) -> None:
    for key in TAG_KEYS["valid"]:
        execution_id = await given.submitted(tags={key: "v"})
        assert (await executions.describe(conn, execution_id)).tags == {key: "v"}
        assert await executions.set_tag(conn, execution_id, key, "w") is TagChange.SET
        assert await executions.get_tag(conn, execution_id, key) == "w"


async def test_every_bad_key_is_refused_with_a_submission_and_writes_nothing(conn: Connection, given: Given) -> None:
    """Behaviour 21."""
    bad = [*TAG_KEYS["invalid"], "a.b\n", "ä.b", "a." + "b" * 127]
    before = await stored(given)

    answers = await executions.submit_many(conn, [submission(tags={"a.b": "v", key: "v"}) for key in bad])

    assert [type(answer) for answer in answers] == [InvalidTagKey] * len(bad)
    assert await stored(given) == before


async def test_every_bad_key_is_refused_later_too(conn: Connection, given: Given) -> None:
    """Behaviour 21."""
    execution_id = await given.submitted()
    before = await stored(given)

    for key in TAG_KEYS["invalid"]:
        with pytest.raises(InvalidTagKey):
            await executions.set_tag(conn, execution_id, key, "v")
        with pytest.raises(InvalidTagKey):
            await executions.get_tag(conn, execution_id, key)
    assert await stored(given) == before


async def test_a_tag_is_set_once_however_often_it_is_said_and_removed_once(conn: Connection, given: Given) -> None:
    """Behaviour 21."""
    execution_id = await given.submitted()

    changes = [await executions.set_tag(conn, execution_id, "a.b", value) for value in ("v", "v", "w", None, None)]

    assert changes == ["set", "noop", "set", "removed", "noop"]
    assert await given.events(execution_id) == ["execution_submitted", "tag_set", "tag_set", "tag_set"]
    assert (await executions.describe(conn, execution_id)).tags == {}
    assert await given.count("tags") == 0


async def test_a_missing_execution_has_no_tags_to_set_or_read(conn: Connection, given: Given) -> None:
    """Behaviour 21."""
    missing = ids.mint_execution_id()

    with pytest.raises(errors.ExecutionNotFound):
        await executions.set_tag(conn, missing, "a.b", "v")
    with pytest.raises(errors.ExecutionNotFound):
        await executions.get_tag(conn, missing, "a.b")
    with pytest.raises(InvalidTagKey):
        await executions.set_tag(conn, missing, "plain", "v")
    assert await given.events() == []


async def test_a_missing_tag_reads_as_none(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(tags={"a.b": ""})

    assert await executions.get_tag(conn, execution_id, "a.c") is None
    assert await executions.get_tag(conn, execution_id, "a.b") == ""


async def test_tags_come_sorted_and_can_be_changed_after_the_end(conn: Connection, given: Given) -> None:
    execution_id = await given.cancelled(tags={"b.x": "1", "a.y": "2", "a.b": "größe ✓"})

    assert await executions.set_tag(conn, execution_id, "a.z", "3", by="ops") is TagChange.SET

    tags = (await executions.describe(conn, execution_id)).tags
    assert list(tags.items()) == [("a.b", "größe ✓"), ("a.y", "2"), ("a.z", "3"), ("b.x", "1")]


async def test_an_execution_has_at_most_64_tags(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(tags=SIXTY_FOUR)
    before = await stored(given)

    with pytest.raises(errors.InvalidTag, match="65 tags"):
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
    assert "257 bytes; shorten it to 256" in refusal.value.message
    assert await stored(given) == before


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
async def test_a_tag_that_postgres_cannot_store_is_refused(conn: Connection, given: Given, bad: str) -> None:
    """Pitfall P19."""
    execution_id = await given.submitted()
    before = await stored(given)

    with pytest.raises(errors.InvalidText):
        await executions.set_tag(conn, execution_id, "a.b", bad)
    with pytest.raises(errors.InvalidText):
        await executions.set_tag(conn, execution_id, bad, "v")
    with pytest.raises(errors.InvalidText):
        await executions.set_tag(conn, execution_id, "a.b", "v", by=bad)
    assert await stored(given) == before


async def test_a_refused_tag_leaves_the_transaction_to_its_caller(conn: Connection, given: Given) -> None:
    async with conn.transaction():
        [refused, created] = await executions.submit_many(
            conn, [submission(tags={"plain": "v"}), submission(tags={"a.b": "v"})]
        )

    assert isinstance(refused, InvalidTagKey)
    assert isinstance(created, Submitted)
    assert await executions.get_tag(conn, created.execution_id, "a.b") == "v"
    assert await given.count("executions") == 1
