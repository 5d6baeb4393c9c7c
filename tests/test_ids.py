"""Ids, partitions and cursors: every test vector, and arbitrary text."""

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowfabric import ids
from flowfabric.errors import (
    Invalid,
    InvalidCursor,
    InvalidId,
    InvalidName,
    InvalidNamespace,
    InvalidText,
    WrongPartition,
)
from flowfabric.ids import ExecutionId, Family, FlowId, PartitionKey

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text(encoding="utf-8"))
UUID_TEXT = "550e8400-e29b-41d4-a716-446655440000"
FLOW = FlowId(24, UUID(UUID_TEXT))

Vector = dict[str, Any]
fuzz = settings(deadline=None, max_examples=300)

characters = st.characters(exclude_categories=())
shards = ["{fp:", "{b:", "{", "}", ":", ",", "-", "+", "0", "7", "255", "256", "٣", UUID_TEXT, UUID_TEXT.upper(), "\n"]
any_text = (
    st.text(characters)
    | st.lists(st.sampled_from(shards) | characters, max_size=8).map("".join)
    | st.sampled_from(["{fp:7}:" + UUID_TEXT, "1," + str(FLOW), "AgAAAAAAAAAq"]).flatmap(
        lambda text: st.builds(lambda at, new: text[:at] + new + text[at + 1 :], st.integers(0, len(text)), characters)
    )
)
PARSERS: list[Callable[[str], object]] = [
    ids.parse_execution_id,
    ids.parse_flow_id,
    ids.parse_partition_key,
    ids.decode_event_cursor,
    ids.parse_newest_cursor,
    ids.parse_id_cursor,
    ids.check_name,
]
huge = ["1" * 100_000, "{fp:" + "9" * 100_000 + "}:" + UUID_TEXT, "{b:" + "9" * 100_000 + "}", "\ud800" * 100_000]


@pytest.mark.parametrize("vector", VECTORS["crc16_xmodem"])
def test_crc16_is_xmodem(vector: Vector) -> None:
    data = bytes.fromhex(vector["hex"]) if "hex" in vector else vector["text"].encode()

    assert f"{ids.crc16(data):04x}" == vector["crc"]


@pytest.mark.parametrize("vector", VECTORS["uuid_partitions"])
def test_a_uuid_determines_the_partition_of_a_flow_a_solo_execution_a_budget_and_a_quota(vector: Vector) -> None:
    uuid = UUID(vector["uuid"])

    assert ids.partition_of(uuid, 256) == vector["of_256"]
    assert ids.partition_of(uuid, 32) == vector["of_32"]
    assert str(FlowId.of(uuid)) == vector["flow_id"]
    assert str(ExecutionId.of(uuid)) == vector["solo_execution_id"]
    assert str(PartitionKey(Family.BUDGETS, ids.partition_of(uuid, 32))) == vector["budget_partition_key"]
    assert str(PartitionKey(Family.QUOTAS, ids.partition_of(uuid, 32))) == vector["quota_partition_key"]


@pytest.mark.parametrize("vector", VECTORS["flow_member_ids"])
def test_a_flow_member_carries_the_partition_of_its_flow(vector: Vector) -> None:
    flow_id = ids.parse_flow_id(vector["flow_id"])

    assert str(ExecutionId(flow_id.partition, UUID(vector["member_uuid"]))) == vector["member_id"]
    assert ids.mint_execution_id(beside=flow_id).partition == flow_id.partition


@pytest.mark.parametrize("vector", VECTORS["solo_executions_by_lane"]["cases"])
def test_the_id_of_a_solo_execution_does_not_depend_on_its_lane(vector: Vector) -> None:
    execution_id = ExecutionId.of(UUID(vector["uuid"]))

    assert str(execution_id) == vector["execution_id"]
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
    assert str(PartitionKey(family, ids.partition_of(uuid, 32))) == vector["partition_key"]
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


@pytest.mark.parametrize("vector", VECTORS["id_parsing"]["invalid"])
@pytest.mark.parametrize("parse", [ids.parse_execution_id, ids.parse_flow_id])
def test_a_malformed_id_is_refused_with_its_cause(parse: Callable[[str], object], vector: Vector) -> None:
    with pytest.raises(InvalidId) as refused:
        parse(vector["text"])

    assert refused.value.fields == {"cause": vector["cause"]}
    assert repr(vector["text"]) in refused.value.message


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{FP:1}:" + UUID_TEXT, "missing_tag"),
        ("{fp:1}" + UUID_TEXT, "missing_tag"),
        (" {fp:1}:" + UUID_TEXT, "missing_tag"),
        ("{fp:٣}:" + UUID_TEXT, "invalid_partition"),
        ("{fp:+1}:" + UUID_TEXT, "invalid_partition"),
        ("{fp:1}:" + UUID_TEXT + "\n", "invalid_uuid"),
    ],
)
def test_no_other_spelling_of_an_id_is_accepted(text: str, cause: str) -> None:
    with pytest.raises(InvalidId) as refused:
        ids.parse_execution_id(text)

    assert refused.value.fields == {"cause": cause}


def test_the_partition_of_an_id_is_below_the_count_of_the_database() -> None:
    assert ids.parse_execution_id("{fp:7}:" + UUID_TEXT, count=8).partition == 7
    with pytest.raises(InvalidId, match="0 to 7"):
        ids.parse_execution_id("{fp:8}:" + UUID_TEXT, count=8)


def test_a_flow_id_carries_the_partition_of_its_own_uuid() -> None:
    assert ids.parse_flow_id(str(FLOW)) == FLOW
    with pytest.raises(WrongPartition, match=f"{{fp:24}}:{UUID_TEXT}"):
        ids.parse_flow_id("{fp:25}:" + UUID_TEXT)


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
        ExecutionId(2, low).partition = 3  # type: ignore[misc]


@pytest.mark.parametrize("vector", VECTORS["partition_key_parsing"]["valid"])
def test_a_partition_key_is_read_and_written(vector: Vector) -> None:
    key = ids.parse_partition_key(vector["text"])

    assert key == PartitionKey(Family(vector["family"]), vector["index"])
    assert str(key) == vector["text"]


@pytest.mark.parametrize("vector", VECTORS["partition_key_parsing"]["invalid"])
def test_a_malformed_partition_key_is_refused_with_its_cause(vector: Vector) -> None:
    with pytest.raises(InvalidId) as refused:
        ids.parse_partition_key(vector["text"])

    assert refused.value.fields == {"cause": vector["cause"]}


def test_a_minted_uuid_is_version_7_of_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_790_000_000_123_500_000)

    uuid = ids.uuid7()

    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert uuid.int >> 80 == 1_790_000_000_123
    assert uuid.int >> 64 & 0xFFF == 0x800


def test_minted_uuids_are_unique_and_ordered_by_time() -> None:
    minted = [ids.uuid7() for _ in range(100_000)]

    assert len(set(minted)) == len(minted)
    assert all(a.int >> 64 <= b.int >> 64 for a, b in pairwise(minted))


def test_ids_minted_together_are_unique_ordered_and_in_the_partition_of_their_uuid() -> None:
    minted = ids.mint_execution_ids(10_000, count=8)

    uuids = [each.uuid for each in minted]
    assert len(set(uuids)) == 10_000
    assert uuids == sorted(uuids)
    assert {(uuid.version, uuid.variant) for uuid in uuids} == {(7, "specified in RFC 4122")}
    assert minted == [ExecutionId.of(uuid, 8) for uuid in uuids]
    assert ids.mint_execution_ids(0) == []


def test_minted_ids_read_back_and_spread_over_the_partitions() -> None:
    executions = [ids.mint_execution_id(count=8) for _ in range(1_000)]
    flow_id = ids.mint_flow_id(count=8)

    assert [ids.parse_execution_id(str(minted), count=8) for minted in executions] == executions
    assert {minted.partition for minted in executions} == set(range(8))
    assert ids.parse_flow_id(str(flow_id), count=8) == flow_id


@pytest.mark.parametrize("vector", VECTORS["event_cursors"]["valid"])
def test_an_event_cursor_is_the_event_id_in_twelve_characters(vector: Vector) -> None:
    event_id = int(vector["event_id"])

    assert ids.encode_event_cursor(event_id) == vector["text"]
    assert ids.decode_event_cursor(vector["text"]) == event_id
    assert base64url(vector["hex"]) == vector["text"]


def test_an_empty_event_cursor_means_from_now_on() -> None:
    assert ids.decode_event_cursor("") is None


def base64url(raw_hex: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(raw_hex)).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        *map(base64url, VECTORS["event_cursors"]["invalid_hex"]),
        "An//////////",
        "AgAAAAAAAAAq\n",
        "AgAAAAAAAAAq====",
        "AgAA AAAAAAq",
        "AgAAAAAAAAÄq",
        "42",
    ],
)
def test_any_other_event_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor) as refused:
        ids.decode_event_cursor(text)

    assert refused.value.fields == {"cause": "malformed"}


@fuzz
@given(st.datetimes(timezones=st.just(UTC)), st.integers(0, 255), st.uuids())
@example(datetime.min.replace(tzinfo=UTC), 0, UUID(int=0))
@example(datetime.max.replace(tzinfo=UTC), 255, UUID(int=0))
@example(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), 0, UUID(int=0))
def test_a_newest_cursor_is_exact_to_the_microsecond(created_at: datetime, partition: int, uuid: UUID) -> None:
    execution_id = ExecutionId(partition, uuid)

    assert ids.parse_newest_cursor(ids.newest_cursor(created_at, execution_id)) == (created_at, execution_id)


def test_a_newest_cursor_is_the_same_in_every_time_zone() -> None:
    created_at = datetime(2026, 11, 3, 9, 30, 0, 1, UTC)
    elsewhere = created_at.astimezone(timezone(timedelta(hours=-5)))
    execution_id = ExecutionId(24, UUID(UUID_TEXT))

    assert ids.newest_cursor(created_at, execution_id) == f"1793698200000001,{execution_id}"
    assert ids.newest_cursor(elsewhere, execution_id) == f"1793698200000001,{execution_id}"


@pytest.mark.parametrize("text", ["", "1", ",", f"1,{UUID_TEXT}", f"01,{FLOW}", f"-0,{FLOW}", f"{10**18 - 1},{FLOW}"])
def test_any_other_list_cursor_is_refused(text: str) -> None:
    for parse in (ids.parse_newest_cursor, ids.parse_id_cursor):
        with pytest.raises(InvalidCursor) as refused:
            parse(text)
        assert refused.value.fields == {"cause": "malformed"}


def test_an_id_cursor_is_the_execution_id() -> None:
    assert ids.parse_id_cursor("{fp:7}:" + UUID_TEXT) == ExecutionId(7, UUID(UUID_TEXT))


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
            case WrongPartition():
                assert parse is ids.parse_flow_id
            case value:
                assert str(value) == text.lower()
                assert parse(str(value)) == value


@fuzz
@given(any_text)
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    match read_or_refusal(ids.decode_event_cursor, text):
        case int(event_id):
            assert ids.encode_event_cursor(event_id) == text
        case other:
            assert other is None or isinstance(other, InvalidCursor)
    match read_or_refusal(ids.parse_newest_cursor, text):
        case (datetime() as created_at, ExecutionId() as execution_id):
            assert ids.newest_cursor(created_at, execution_id) == text.lower()
        case other:
            assert isinstance(other, InvalidCursor)


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
    execution_id = ExecutionId(partition, uuid)

    assert ids.parse_execution_id(str(execution_id)) == execution_id
    assert ids.parse_flow_id(str(FlowId.of(uuid))) == FlowId.of(uuid)


@fuzz
@given(st.integers(0, 2**63 - 1))
def test_every_event_id_reads_back_from_its_cursor(event_id: int) -> None:
    assert ids.decode_event_cursor(ids.encode_event_cursor(event_id)) == event_id
