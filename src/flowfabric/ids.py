"""Private: ids, partition keys and cursors, and how they are written as text.

    execution, flow    {fp:24}:550e8400-e29b-41d4-a716-446655440000
    partition key      {fp:24}, {b:16}, {q:7}
    budget, quota      a UUID derived from kind, namespace and name
    event cursor       AgAAAAAAAAAq
    list cursor        the id of the last item, or its time in microseconds, a comma and its id

Every parser returns a value or raises a `FlowFabricError`, for any text. `str` of a value is its canonical form.
"""

import base64
import binascii
import hashlib
import os
import re
import struct
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, Self, TypeVar
from uuid import UUID

import msgspec

from flowfabric.errors import InvalidCursor, InvalidId, InvalidName, InvalidNamespace, InvalidText, WrongPartition

_INDEX = re.compile(r"0|[1-9][0-9]{0,4}")  # a partition is a smallint; limits the digits that int() has to parse
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ENTITY_ID = re.compile(rf"\{{fp:({_INDEX.pattern})\}}:({_UUID.pattern})")
_TAG = re.compile(r"\{fp:([^}]*)\}:")
_NAMESPACE = re.compile(r"[ -~]{1,64}")
_NAME = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")
_EVENT_CURSOR = re.compile(r"[A-Za-z0-9_-]{12}")
_MICROSECONDS = re.compile(r"0|-?[1-9][0-9]{0,17}")

_TWO_WORDS = struct.Struct(">QQ")

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Family(StrEnum):
    """What a partition key partitions: executions and flows together, budgets, or quotas."""

    EXECUTIONS = "fp"
    BUDGETS = "b"
    QUOTAS = "q"


ANY_COUNT: Final = 32_768  # accepts every partition that fits in a smallint: for ids that the engine itself returned
PARTITION_COUNTS: Final[Mapping[Family, int]] = {Family.EXECUTIONS: 256, Family.BUDGETS: 32, Family.QUOTAS: 32}


def shown(value: str) -> str:
    """Format a text for a message: quoted, escaped, and cut to 80 characters."""
    return repr(value) if len(value) <= 80 else f"{value[:80]!r}…"


def check_text(value: str, what: str) -> str:
    """Return the text if Postgres can store it. Raises `InvalidText`, whose message names the text by `what`."""
    if "\0" not in value and (value.isascii() or _is_utf8(value)):
        return value
    position = next(at for at, character in enumerate(value) if character == "\0" or "\ud800" <= character <= "\udfff")
    raise InvalidText(f"{what} {shown(value)} contains U+0000 or a lone surrogate at position {position}; remove it")


def check_filter(value: str | None, what: str) -> str | None:
    """Return a filter of a list, or `None` for no filter. Raises `InvalidName` for an empty filter, `InvalidText`.

    An empty filter matches nothing, and is usually a mistake of a caller whose variable is empty.
    """
    if value == "":
        raise InvalidName(f"{what} {shown(value)} is invalid; use a name, or remove the filter")
    return value if value is None else check_text(value, what)


def kept_text(value: str, most: int = 4_096) -> str:
    """Make a text storable and cut it to `most` bytes, so that recording an error message never fails."""
    storable = _UNSTORABLE.sub("\ufffd", value[:most]).encode()
    return storable[:most].decode(errors="ignore")


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def crc16(data: bytes) -> int:
    """CRC16-XMODEM: polynomial 0x1021, start 0, no reflection, no final xor."""
    return binascii.crc_hqx(data, 0)


def partition_of(uuid: UUID, count: int) -> int:
    """Return the partition of a flow, an execution outside a flow, a budget or a quota."""
    return crc16(uuid.bytes) % count


def idempotency_partition(namespace: str, key: str, count: int = 256) -> int:
    """Return the partition of an idempotency key. Raises `InvalidNamespace`, `InvalidText`."""
    hashed = f"{check_namespace(namespace)}\0{check_text(key, 'idempotency key')}"
    return crc16(hashed.encode()) % count


def uuid7() -> UUID:
    """Return a new UUID version 7: milliseconds, then the fraction of the millisecond, then 62 random bits.

    The time is this machine's. It only keeps ids of the same time together on disk; no decision depends on it.
    """
    return msgspec.convert(_bytes7(1)[0], UUID)


def _bytes7(many: int) -> list[bytes]:
    """Return the bytes of `many` new UUIDs version 7, each a fraction of a microsecond after the one before it."""
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    first = milliseconds << 12 | (nanoseconds << 12) // 1_000_000
    tails = struct.unpack(f">{many}Q", os.urandom(8 * many))
    pack = _TWO_WORDS.pack
    return [
        pack(moment >> 12 << 16 | 0x7000 | moment & 0xFFF, 1 << 63 | tail >> 2)
        for moment, tail in enumerate(tails, first)
    ]


class EntityId(msgspec.Struct, frozen=True, order=True, gc=False):
    """The id of an execution or a flow; ordered by partition, then UUID, like the tables."""

    partition: int
    uuid: UUID

    @classmethod
    def of(cls, uuid: UUID, count: int = 256) -> Self:
        """Return the id with the partition that is computed from the UUID."""
        return cls(partition_of(uuid, count), uuid)

    def __str__(self) -> str:
        return f"{{fp:{self.partition}}}:{self.uuid}"


class ExecutionId(EntityId, frozen=True, order=True, gc=False):
    """The id of an execution. Its partition is that of its flow, or outside a flow computed from its own UUID."""


class FlowId(EntityId, frozen=True, order=True, gc=False):
    """The id of a flow. Its partition is always computed from its UUID."""


AnyId = TypeVar("AnyId", bound=EntityId)


def expect_id(kind: type[AnyId], given: AnyId, what: str) -> AnyId:
    """Return the id if it has the expected type. Raises `InvalidId`, for example for the text of an id."""
    if isinstance(given, kind):
        return given
    parse = "parse_flow_id" if issubclass(kind, FlowId) else "parse_execution_id"
    raise InvalidId(
        f"{what} {shown(str(given))} is of type {type(given).__name__}; use a value of type {kind.__name__}, "
        f"which flowfabric.ids.{parse} makes from text",
        cause="invalid_type",
    )


def mint_execution_id(count: int = 256, *, beside: FlowId | None = None) -> ExecutionId:
    """Return a new execution id; with `beside`, in the partition of that flow."""
    uuid = uuid7()
    return ExecutionId.of(uuid, count) if beside is None else ExecutionId(beside.partition, uuid)


def mint_execution_ids(many: int, count: int = 256) -> list[ExecutionId]:
    """Return `many` new execution ids, much faster than one at a time."""
    minted = _bytes7(many)
    # One call of msgspec makes all UUIDs; making them one at a time would double the cost of this function.
    uuids = msgspec.convert(minted, list[UUID])
    return [ExecutionId(crc16(each) % count, uuid) for each, uuid in zip(minted, uuids, strict=True)]


def mint_flow_id(count: int = 256) -> FlowId:
    """Return a new flow id."""
    return FlowId.of(uuid7(), count)


def parse_execution_id(text: str, count: int = 256) -> ExecutionId:
    """Parse an execution id; any partition below `count` is valid. Raises `InvalidId` with its `cause`."""
    return ExecutionId(*_parse_entity_id(text, count))


def parse_flow_id(text: str, count: int = 256) -> FlowId:
    """Parse a flow id. Raises `InvalidId` with its `cause`, or `WrongPartition` if the UUID has another partition."""
    flow_id = FlowId(*_parse_entity_id(text, count))
    expected = FlowId.of(flow_id.uuid, count)
    if flow_id != expected:
        raise WrongPartition(f"flow id {shown(text)} does not have the partition of its UUID; use {expected}")
    return flow_id


def read_execution_ids(texts: Sequence[str] | None) -> Sequence[ExecutionId]:
    """Parse the execution ids in an answer of the engine, which may be null."""
    return [parse_execution_id(text, ANY_COUNT) for text in texts] if texts else ()


def _parse_entity_id(text: str, count: int) -> tuple[int, UUID]:
    match = _ENTITY_ID.fullmatch(text)
    if match is None:
        raise _invalid_id(text, count)
    partition = int(match[1])
    if partition >= count:
        raise _invalid_id(text, count)
    return partition, UUID(match[2])


def _invalid_id(text: str, count: int) -> InvalidId:
    tag = _TAG.match(text)
    if tag is None:
        return InvalidId(f"id {shown(text)} has no partition; use {{fp:N}}:<uuid>", cause="missing_tag")
    if not _is_partition(tag[1], count):
        return _invalid_partition("id", text, count)
    return InvalidId(
        f"id {shown(text)} does not end in a UUID; use 32 hexadecimal digits as 8-4-4-4-12",
        cause="invalid_uuid",
    )


def _invalid_partition(what: str, text: str, count: int) -> InvalidId:
    return InvalidId(
        f"{what} {shown(text)} has an invalid partition; use 0 to {count - 1}, without leading zeros",
        cause="invalid_partition",
    )


def _is_partition(text: str, count: int) -> bool:
    return _INDEX.fullmatch(text) is not None and int(text) < count


class PartitionKey(msgspec.Struct, frozen=True, order=True):
    """One partition of one family, such as `{b:16}`."""

    family: Family
    partition: int

    def __str__(self) -> str:
        return f"{{{self.family}:{self.partition}}}"


def parse_partition_key(text: str, counts: Mapping[Family, int] = PARTITION_COUNTS) -> PartitionKey:
    """Parse a partition key. Raises `InvalidId` with its `cause`."""
    if not (text.startswith("{") and text.endswith("}")):
        raise InvalidId(
            f"partition key {shown(text)} is invalid because it has no braces; use {{fp:N}}", cause="missing_braces"
        )
    word, colon, index = text[1:-1].partition(":")
    if not colon:
        raise InvalidId(
            f"partition key {shown(text)} is invalid because it has no colon; use {{fp:N}}", cause="malformed_body"
        )
    family = next((family for family in Family if family == word), None)
    if family is None:
        raise InvalidId(
            f"partition key {shown(text)} is invalid because its family is unknown; use fp, b or q",
            cause="unknown_family",
        )
    if not _is_partition(index, counts[family]):
        raise _invalid_partition("partition key", text, counts[family])
    return PartitionKey(family, int(index))


NamedKind = Literal["budget", "quota"]


def named_id(kind: NamedKind, namespace: str, name: str) -> UUID:
    """Return the id of a budget or quota. Raises `InvalidNamespace`, `InvalidName`."""
    hashed = f"{kind}\0{check_namespace(namespace)}\0{check_name(name)}"
    digest = bytearray(hashlib.sha256(hashed.encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return UUID(bytes=bytes(digest))


def budget_id(namespace: str, name: str) -> UUID:
    """Return the id of a budget. Raises `InvalidNamespace`, `InvalidName`."""
    return named_id("budget", namespace, name)


def quota_id(namespace: str, name: str) -> UUID:
    """Return the id of a quota. Raises `InvalidNamespace`, `InvalidName`."""
    return named_id("quota", namespace, name)


def resolve_named_id(kind: NamedKind, namespace: str, text: str) -> UUID:
    """Return the id of a budget or quota from text: a UUID is the id itself, any other text is a name."""
    return UUID(text) if _UUID.fullmatch(text) else named_id(kind, namespace, text)


def check_name(name: str) -> str:
    """Return the name if it is valid for a budget or quota. Raises `InvalidName`."""
    if _UUID.fullmatch(name):
        raise InvalidName(
            f"name {shown(name)} is invalid because it would be read as an id; use a name that is not a UUID"
        )
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"name {shown(name)} is invalid; use 1 to 128 printable ASCII characters, without spaces at the ends"
        )
    return name


def check_namespace(namespace: str) -> str:
    """Return the namespace if it is valid. Raises `InvalidNamespace`."""
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidNamespace(f"namespace {shown(namespace)} is invalid; use 1 to 64 printable ASCII characters")
    return namespace


def encode_event_cursor(event_id: int) -> str:
    """Return the cursor after an event; the cursor of event 0 is before the oldest event that is kept."""
    return base64.urlsafe_b64encode(b"\x02" + event_id.to_bytes(8)).decode()


def decode_event_cursor(text: str) -> int | None:
    """Return the event id to read after, or `None` for an empty cursor, which reads only new events.

    Raises `InvalidCursor`.
    """
    if text == "":
        return None
    # Nine bytes fill exactly twelve base64 characters, so every cursor has one text only.
    raw = base64.urlsafe_b64decode(text) if _EVENT_CURSOR.fullmatch(text) else b""
    if raw[:1] != b"\x02" or raw[1] >= 0x80:
        raise invalid_cursor(text)
    return int.from_bytes(raw[1:])


def newest_cursor(created_at: datetime, execution_id: ExecutionId) -> str:
    """Return the cursor after an execution in a list ordered by `newest`, exact to the microsecond."""
    return f"{(created_at - _EPOCH) // _MICROSECOND},{execution_id}"


def parse_newest_cursor(text: str, count: int = 256) -> tuple[datetime, ExecutionId]:
    """Parse the cursor of a list ordered by `newest`: when its last item was created, and its id.

    Raises `InvalidCursor`.
    """
    microseconds, _, execution_id = text.partition(",")
    if not _MICROSECONDS.fullmatch(microseconds):
        raise invalid_cursor(text)
    try:
        return _EPOCH + int(microseconds) * _MICROSECOND, parse_execution_id(execution_id, count)
    except (OverflowError, InvalidId):
        raise invalid_cursor(text) from None


def parse_id_cursor(text: str, count: int = 256) -> ExecutionId:
    """Parse the cursor of a list ordered by `id`, which is the id of its last item. Raises `InvalidCursor`."""
    try:
        return parse_execution_id(text, count)
    except InvalidId:
        raise invalid_cursor(text) from None


def waitpoint_cursor(created_at: datetime, waitpoint_id: UUID) -> str:
    """Return the cursor after a waitpoint in a list of waitpoints."""
    return f"{(created_at - _EPOCH) // _MICROSECOND},{waitpoint_id}"


def parse_waitpoint_cursor(text: str) -> tuple[datetime, UUID]:
    """Parse the cursor of a list of waitpoints: when the last one was created, and its id. Raises `InvalidCursor`."""
    microseconds, _, waitpoint_id = text.partition(",")
    if not (_MICROSECONDS.fullmatch(microseconds) and _UUID.fullmatch(waitpoint_id)):
        raise invalid_cursor(text)
    try:
        return _EPOCH + int(microseconds) * _MICROSECOND, UUID(waitpoint_id)
    except OverflowError:
        raise invalid_cursor(text) from None


def invalid_cursor(text: str) -> InvalidCursor:
    """Return the error for a cursor that this call did not return."""
    return InvalidCursor(
        f"cursor {shown(text)} is invalid for this call; use a cursor that it returned, or none to start again",
        cause="malformed",
    )
