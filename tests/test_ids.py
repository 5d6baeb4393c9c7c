"""Ids, partitions and cursors: every test vector, and arbitrary text."""

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric import cursors, ids
from flowfabric.errors import (
    Invalid,
    InvalidId,
    InvalidName,
    InvalidNamespace,
    InvalidText,
    WrongPartition,
)
from flowfabric.ids import ExecutionId, Family, FlowId, PartitionKey

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text(encoding="utf-8"))
UUID_TEXT = "550e8400-e29b-41d4-a716-446655440000"
STAMPED = "019df237-3e80-8a31-800c-3f9b71e5d004"
FLOW = FlowId(24, UUID(UUID_TEXT))

Vector = dict[str, Any]
fuzz = settings(deadline=None, max_examples=300)

characters = st.characters(exclude_categories=())
shards = [
    *("{fp:", "{b:", "{", "}", ":", ",", "-", "+", "0", "7", "24", "255", "256", "32768", "٣", "\n"),
    *(UUID_TEXT, UUID_TEXT.upper(), STAMPED, STAMPED.upper()),
]
any_text = (
    st.text(characters)
    | st.lists(st.sampled_from(shards) | characters, max_size=8).map("".join)
    | st.sampled_from(["{fp:7}:" + UUID_TEXT, STAMPED, "{fp:24}:" + STAMPED, "1," + str(FLOW), "AgAAAAAAAAAq"]).flatmap(
        lambda text: st.builds(lambda at, new: text[:at] + new + text[at + 1 :], st.integers(0, len(text)), characters)
    )
)
PARSERS: list[Callable[[str], object]] = [
    ids.parse_execution_id,
    ids.parse_flow_id,
    ids.parse_partition_key,
    cursors.decode_event_cursor,
    cursors.parse_newest_cursor,
    cursors.parse_id_cursor,
    ids.check_name,
    lambda text: ids.read_prefix(text) or ids.parse_execution_id(text),
]
huge = ["1" * 100_000, "{fp:" + "9" * 100_000 + "}:" + UUID_TEXT, "{b:" + "9" * 100_000 + "}", "\ud800" * 100_000]


@pytest.mark.parametrize("vector", VECTORS["crc16_xmodem"])
def test_crc16_is_xmodem(vector: Vector) -> None:
    data = bytes.fromhex(vector["hex"]) if "hex" in vector else vector["text"].encode()

    assert f"{ids.crc16(data):04x}" == vector["crc"]


@pytest.mark.parametrize("vector", VECTORS["uuid_partitions"])
def test_a_uuid_determines_the_partition_of_a_flow_a_solo_execution_a_budget_and_a_quota(vector: Vector) -> None:
    uuid = UUID(vector["uuid"])

    assert ids.partition_of(uuid) == vector["of_256"]
    assert ids.named_partition(uuid, 32) == vector["of_32"]
    assert FlowId.of(uuid).wire == vector["flow_id"]
    assert ExecutionId.of(uuid).wire == vector["solo_execution_id"]
    assert str(ExecutionId.of(uuid)) == str(FlowId.of(uuid)) == vector["uuid"]
    assert str(PartitionKey(Family.BUDGETS, ids.named_partition(uuid, 32))) == vector["budget_partition_key"]
    assert str(PartitionKey(Family.QUOTAS, ids.named_partition(uuid, 32))) == vector["quota_partition_key"]


@pytest.mark.parametrize("vector", VECTORS["stamped_uuids"]["cell_0"])
def test_a_uuid_of_version_8_carries_its_partition(vector: Vector) -> None:
    uuid = UUID(vector["uuid"])
    number = vector["ms"] << 80 | vector["below_ms"] << 64 | int(vector["random"], 16)

    assert ids.stamped(number, vector["partition"]) == uuid
    assert ids.partition_of(uuid) == vector["partition"]
    for parse in (ids.parse_execution_id, ids.parse_flow_id):
        assert str(parse(vector["uuid"])) == str(parse(vector["wire"])) == vector["uuid"]
        assert parse(vector["uuid"]).wire == vector["wire"]


@pytest.mark.parametrize("vector", VECTORS["stamped_uuids"]["other_cells"])
def test_an_id_of_another_cell_is_refused_but_not_when_the_database_is_of_that_cell(
    vector: Vector, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ids.partition_of(UUID(vector["uuid"])) == vector["partition"]
    for parse in (ids.parse_execution_id, ids.parse_flow_id):
        for text in (vector["uuid"], vector["wire"]):
            with pytest.raises(WrongPartition, match=f"cell {vector['partition'] // 256}, and this database is cell 0"):
                parse(text)

    monkeypatch.setattr(ids, "CELL", vector["partition"] // 256)
    assert str(ids.parse_flow_id(vector["wire"])) == vector["uuid"]


@pytest.mark.parametrize("vector", VECTORS["flow_member_ids"])
def test_a_flow_member_carries_the_partition_of_its_flow(vector: Vector) -> None:
    flow_id = ids.parse_flow_id(vector["flow_id"])

    assert str(ExecutionId(flow_id.partition, UUID(vector["member_uuid"]))) == vector["member_id"]
    minted = ids.mint_execution_id(beside=flow_id)
    assert minted == ids.parse_member_id(str(minted.uuid), flow_id)
    assert minted.partition == flow_id.partition


@pytest.mark.parametrize("vector", VECTORS["flow_member_ids"])
def test_a_foreign_uuid_in_a_flow_needs_the_tag_of_the_flow(vector: Vector) -> None:
    flow_id = ids.parse_flow_id(vector["flow_id"])

    with pytest.raises(InvalidId, match=f"use {vector['member_id']}") as refused:
        ids.parse_member_id(vector["member_uuid"], flow_id)
    assert refused.value.fields == {"cause": "missing_tag"}
    assert str(ids.parse_member_id(vector["member_id"], flow_id)) == vector["member_id"]


@pytest.mark.parametrize("vector", VECTORS["solo_executions_by_lane"]["cases"])
def test_the_id_of_a_solo_execution_does_not_depend_on_its_lane(vector: Vector) -> None:
    execution_id = ExecutionId.of(UUID(vector["uuid"]))

    assert execution_id.wire == vector["execution_id"]
    assert ids.crc16(vector["lane"].encode()) % 256 == vector["lane_crc_of_256"] != execution_id.partition


@pytest.mark.parametrize("vector", VECTORS["idempotency_key_partitions"])
def test_an_idempotency_key_is_kept_by_namespace_and_key(vector: Vector) -> None:
    assert ids.crc16(bytes.fromhex(vector["hashed_hex"])) == int(vector["crc"], 16)
    assert ids.idempotency_partition(vector["namespace"], vector["key"]) == vector["partition"]


@pytest.mark.parametrize("vector", VECTORS["named_ids"])
def test_a_budget_or_quota_id_follows_from_its_name(vector: Vector) -> None:
    uuid = ids.named_id(vector["kind"], vector["namespace"], vector["name"])
    by_kind = {"budget": (ids.budget_id, Family.BUDGETS), "quota": (ids.quota_id, Family.QUOTAS)}
    id_of, family = by_kind[vector["kind"]]

    assert str(uuid) == vector["id"]
    assert uuid.version == 8
    assert id_of(vector["namespace"], vector["name"]) == uuid
    assert str(PartitionKey(family, ids.named_partition(uuid, 32))) == vector["partition_key"]
    assert ids.resolve_named_id(vector["kind"], vector["namespace"], vector["name"]) == uuid
    assert ids.resolve_named_id(vector["kind"], vector["namespace"], vector["id"].upper()) == uuid


@pytest.mark.parametrize("name", ["a", "x" * 128, "team a", "~", UUID_TEXT.replace("-", ""), "{" + UUID_TEXT + "}"])
def test_a_name_is_printable_ascii(name: str) -> None:
    assert ids.check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", " a", "a ", " ", "x" * 129, "a\n", "ä", "a\0b", "a\x7f", UUID_TEXT, UUID_TEXT.upper()]
)
def test_an_invalid_name_or_one_that_looks_like_a_uuid_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        ids.budget_id("default", name)


@pytest.mark.parametrize("namespace", ["", "x" * 65, "ä", "a\0b", "a\n", "\ud800"])
def test_an_invalid_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(InvalidNamespace):
        ids.quota_id(namespace, "openai")
    with pytest.raises(InvalidNamespace):
        ids.idempotency_partition(namespace, "key")


@pytest.mark.parametrize("vector", VECTORS["id_parsing"]["valid"])
def test_an_id_is_read_and_written_in_its_canonical_spelling(vector: Vector) -> None:
    execution_id = ids.parse_execution_id(vector["text"])

    assert execution_id.partition == vector["partition"]
    assert str(execution_id) == vector["canonical"]
    assert execution_id.wire == vector["wire"]


@pytest.mark.parametrize("vector", VECTORS["id_parsing"]["invalid"])
@pytest.mark.parametrize("parse", [ids.parse_execution_id, ids.parse_flow_id])
def test_a_malformed_id_is_refused_with_its_cause(parse: Callable[[str], object], vector: Vector) -> None:
    with pytest.raises((InvalidId, WrongPartition)) as refused:
        parse(vector["text"])

    assert refused.value.fields.get("cause", refused.value.code) == vector["cause"]
    assert vector["text"] in refused.value.message


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{FP:1}:" + UUID_TEXT, "invalid_uuid"),
        ("{fp:1}" + UUID_TEXT, "invalid_uuid"),
        (" {fp:1}:" + UUID_TEXT, "invalid_uuid"),
        (STAMPED + "\n", "invalid_uuid"),
        ("{fp:٣}:" + UUID_TEXT, "invalid_partition"),
        ("{fp:+1}:" + UUID_TEXT, "invalid_partition"),
        ("{fp:1}:" + UUID_TEXT + "\n", "invalid_uuid"),
    ],
)
def test_no_other_spelling_of_an_id_is_accepted(text: str, cause: str) -> None:
    with pytest.raises(InvalidId) as refused:
        ids.parse_execution_id(text)

    assert refused.value.fields == {"cause": cause}


def test_a_flow_id_has_the_partition_that_its_uuid_names() -> None:
    assert ids.parse_flow_id(UUID_TEXT) == ids.parse_flow_id(FLOW.wire) == FLOW
    with pytest.raises(WrongPartition, match=f"use {UUID_TEXT}"):
        ids.parse_flow_id("{fp:25}:" + UUID_TEXT)


def test_an_id_whose_uuid_names_another_partition_is_written_with_its_tag() -> None:
    assert str(ExecutionId(25, UUID(UUID_TEXT))) == "{fp:25}:" + UUID_TEXT
    assert str(ExecutionId(25, UUID(STAMPED))) == "{fp:25}:" + STAMPED


def test_ids_are_values_in_the_order_of_the_tables() -> None:
    low, high = UUID(int=1), UUID(int=2)

    assert sorted([ExecutionId(10, low), ExecutionId(2, high), ExecutionId(2, low)]) == [
        ExecutionId(2, low),
        ExecutionId(2, high),
        ExecutionId(10, low),
    ]
    assert len({ExecutionId(2, low), ExecutionId(2, low)}) == 1
    assert len({ExecutionId(2, low), FlowId(2, low)}) == 2
    with pytest.raises(AttributeError):
        ExecutionId(2, low).partition = 3


@pytest.mark.parametrize("vector", VECTORS["partition_key_parsing"]["valid"])
def test_a_partition_key_is_read_and_written(vector: Vector) -> None:
    key = ids.parse_partition_key(vector["text"])

    assert key == PartitionKey(Family(vector["family"]), vector["index"])
    assert str(key) == vector["text"]


@pytest.mark.parametrize("vector", VECTORS["partition_key_parsing"]["invalid"])
def test_a_malformed_partition_key_is_refused_with_its_cause(vector: Vector) -> None:
    with pytest.raises((InvalidId, WrongPartition)) as refused:
        ids.parse_partition_key(vector["text"])

    assert refused.value.fields.get("cause", refused.value.code) == vector["cause"]


def test_a_minted_uuid_is_version_8_of_its_moment_and_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_790_000_000_123_500_000)

    minted = ids.mint_execution_id()

    assert (minted.uuid.version, minted.uuid.variant) == (8, "specified in RFC 4122")
    assert minted.uuid.int >> 80 == 1_790_000_000_123
    assert minted.uuid.int >> 64 & 0xFFF == 0x800
    assert minted.uuid.int >> 47 & 0x7FFF == minted.partition
    assert not minted.is_derived


def test_minted_uuids_are_unique_and_ordered_by_time() -> None:
    minted = [ids.mint_execution_id().uuid for _ in range(100_000)]

    assert len(set(minted)) == len(minted)
    assert all(a.int >> 64 <= b.int >> 64 for a, b in pairwise(minted))


def test_ids_minted_together_are_unique_ordered_and_in_the_partition_of_their_uuid() -> None:
    minted = ids.mint_execution_ids(10_000)

    uuids = [each.uuid for each in minted]
    assert len(set(uuids)) == 10_000
    assert uuids == sorted(uuids)
    assert {(uuid.version, uuid.variant) for uuid in uuids} == {(8, "specified in RFC 4122")}
    assert minted == [ExecutionId.of(uuid) for uuid in uuids]
    assert ids.mint_execution_ids(0) == []


@pytest.mark.parametrize("cell", [0, 3, 127])
def test_minted_and_derived_ids_read_back_and_spread_over_the_partitions_of_the_cell(
    cell: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "CELL", cell)
    minted = ids.mint_execution_ids(10_000)
    derived = [ExecutionId.derived(uuid4().bytes) for _ in range(10_000)]
    flow_id = ids.mint_flow_id()

    for each in (minted, derived):
        assert [ids.parse_execution_id(str(execution.uuid)) for execution in each] == each
        assert {execution.partition for execution in each} == set(range(256 * cell, 256 * cell + 256))
    assert ids.parse_flow_id(str(flow_id.uuid)) == flow_id
    assert ids.mint_execution_id(beside=flow_id).partition == flow_id.partition
    assert ExecutionId.of(UUID(UUID_TEXT)).partition == 256 * cell + 24


@fuzz
@given(st.binary(min_size=16, max_size=32), st.uuids())
def test_a_derived_id_is_always_the_same_in_the_partition_of_its_flow_and_never_that_of_a_minted_one(
    digest: bytes, flow: UUID
) -> None:
    flow_id = FlowId.of(ids.stamped(flow.int, flow.int % 256))
    alone, beside = ExecutionId.derived(digest), ExecutionId.derived(digest, beside=flow_id)

    assert alone == ExecutionId.derived(digest) == ids.parse_execution_id(str(alone))
    assert beside == ids.parse_member_id(str(beside.uuid), flow_id)
    assert beside.partition == flow_id.partition
    assert alone.is_derived
    assert alone.uuid.version == 8


@fuzz
@given(st.uuids(), st.integers(8, 32), st.booleans())
def test_the_beginning_of_an_id_finds_it(uuid: UUID, length: int, upper: bool) -> None:
    digits = uuid.hex[:length]
    text = next(str(uuid)[:end] for end in range(37) if str(uuid)[:end].replace("-", "") == digits)
    found = ids.read_prefix(text.upper() if upper else text)

    assert found is not None
    assert found[0] <= uuid <= found[1]
    assert found[1].int - found[0].int == 16 ** (32 - length) - 1
    assert ids.read_prefix(text + "-") == (found if str(uuid)[len(text) : len(text) + 1] == "-" else None)


@pytest.mark.parametrize(
    "text", ["", "0199x", "01-99", UUID_TEXT + "0", "{fp:24}:" + UUID_TEXT, UUID_TEXT.replace("-", "")]
)
def test_any_other_text_is_not_the_beginning_of_an_id(text: str) -> None:
    assert ids.read_prefix(text) is None


@pytest.mark.parametrize("text", ["0", "019df23"])
def test_the_beginning_of_an_id_has_at_least_eight_digits(text: str) -> None:
    with pytest.raises(InvalidId, match="at least its first 8 digits") as refused:
        ids.read_prefix(text)

    assert refused.value.fields == {"cause": "too_short"}


@pytest.mark.parametrize("text", ["", "plain", "Zoë", "\U0001f30a", "\ufffd", "\x01\n"])
def test_text_that_postgres_can_store_is_returned(text: str) -> None:
    assert ids.check_text(text, "note") is text


@pytest.mark.parametrize("bad", ["\0", "\ud800"])
def test_text_that_postgres_cannot_store_is_refused_without_repeating_it(bad: str) -> None:
    with pytest.raises(InvalidText, match=r"note 'Zoë.* position 3") as refused:
        ids.check_text(f"Zoë{bad}", "note")

    assert bad not in refused.value.message


def test_a_message_shows_at_most_80_characters_of_the_value() -> None:
    assert ids.shown("x" * 80) == f"'{'x' * 80}'"
    assert ids.shown("x" * 100_000) == f"'{'x' * 80}'…"


def read_or_refusal(parse: Callable[[str], object], text: str) -> object:
    """The result of a parser; the message of an error must be text that can be sent."""
    try:
        return parse(text)
    except Invalid as error:
        refused = error
    assert "\0" not in refused.message
    assert len(refused.message.encode()) < 1_000
    return refused


@fuzz
@given(any_text)
def test_any_text_is_an_id_or_a_partition_key_or_refused(text: str) -> None:
    for parse in (ids.parse_execution_id, ids.parse_flow_id, ids.parse_partition_key):
        match read_or_refusal(parse, text):
            case InvalidId() as refused:
                assert refused.fields.keys() == {"cause"}
            case WrongPartition() as refused:
                assert refused.fields == {}
            case ExecutionId() | FlowId() as value:
                assert text.lower() in (str(value), value.wire)
                assert parse(str(value)) == parse(value.wire) == value
            case value:
                assert str(value) == text
                assert parse(str(value)) == value


@fuzz
@given(any_text)
def test_any_text_names_a_budget_or_is_refused(text: str) -> None:
    assert isinstance(read_or_refusal(lambda name: ids.budget_id("default", name), text), UUID | InvalidName)
    assert isinstance(
        read_or_refusal(lambda name: ids.resolve_named_id("quota", "default", name), text), UUID | InvalidName
    )
    assert isinstance(read_or_refusal(lambda key: ids.idempotency_partition("default", key), text), int | InvalidText)


@pytest.mark.parametrize("text", huge, ids=["digits", "id", "partition key", "surrogates"])
def test_a_huge_text_is_refused_with_a_short_message(text: str) -> None:
    for parse in PARSERS:
        assert isinstance(read_or_refusal(parse, text), Invalid)


@fuzz
@given(st.integers(0, 255), st.uuids())
def test_every_id_reads_back_as_itself(partition: int, uuid: UUID) -> None:
    execution_id = ExecutionId(ids.partition_of(uuid) if ids.is_stamped(uuid) else partition, uuid)

    assert ids.read_execution_id(str(execution_id)) == ids.read_execution_id(execution_id.wire) == execution_id
    assert ids.read_flow_id(str(FlowId.of(uuid))) == FlowId.of(uuid)
    minted = ExecutionId(partition, ids.stamped(uuid.int, partition))
    assert ids.parse_execution_id(str(minted)) == ids.parse_execution_id(str(minted.uuid)) == minted
