"""Private: ids and partition keys, and how they are written as text.

    execution, flow    019df237-3e80-8a31-800c-3f9b71e5d004, or with its partition as a tag: {fp:24}:019df237-…
    partition key      {fp:24}, {b:16}, {q:7}
    budget, quota      a UUID derived from kind, namespace and name

The UUID of an execution or flow has version 8 and carries its partition: 48 bits of milliseconds, the version, 12 bits
below the millisecond, the variant, 15 bits of partition, 47 random bits. If a caller brings a UUID of another version,
its partition is computed from its checksum, unless a tag names another.

Every parser returns a value or raises a `FlowFabricError`, for any text. `str` of a value is its canonical form.
"""

import binascii
import functools
import hashlib
import os
import re
import struct
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, Self, TypeVar
from uuid import UUID

import msgspec

from flowfabric.errors import InvalidId, InvalidName, InvalidNamespace, InvalidText, WrongPartition

_INDEX = re.compile(r"0|[1-9][0-9]{0,4}")  # a partition is a smallint; limits the digits that int() has to parse
UUID_TEXT = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ENTITY_ID = re.compile(rf"(?:\{{fp:({_INDEX.pattern})\}}:)?({UUID_TEXT.pattern})")
_TAG = re.compile(r"\{fp:([^}]*)\}:")
_NAMESPACE = re.compile(r"[ -~]{1,64}")
_NAME = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")

_TWO_WORDS = struct.Struct(">QQ")

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class Family(StrEnum):
    """What a partition key partitions: executions and flows together, budgets, or quotas."""

    EXECUTIONS = "fp"
    BUDGETS = "b"
    QUOTAS = "q"


CELL: int = 0
"""The cell of every database of this release. Cell c owns the partitions 256c to 256c+255 of executions and flows."""

PER_CELL: Final = 256
PARTITION_COUNTS: Final[Mapping[Family, int]] = {Family.EXECUTIONS: 32_768, Family.BUDGETS: 32, Family.QUOTAS: 32}

_VERSION_8: Final = 8 << 76 | 2 << 62
_VERSION: Final = 0xF << 76 | 3 << 62
_PARTITION: Final = 0x7FFF << 47
_DERIVED: Final = 1 << 127  # as a time the year 6429 or later: no minted id has this bit

SHORTEST_PREFIX: Final = 8


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


def partition_of(uuid: UUID) -> int:
    """Return the partition that a UUID names: the one in its bits, or computed from its checksum."""
    return uuid.int >> 47 & 0x7FFF if is_stamped(uuid) else PER_CELL * CELL + crc16(uuid.bytes) % PER_CELL


def is_stamped(uuid: UUID) -> bool:
    """Whether a UUID carries its partition in its own bits."""
    return uuid.int & _VERSION == _VERSION_8


def stamped(number: int, partition: int) -> UUID:
    """Return a UUID of version 8 that carries the partition; its other bits are those of the number."""
    return UUID(int=number & ~(_VERSION | _PARTITION) | _VERSION_8 | partition << 47)


def named_partition(uuid: UUID, count: int) -> int:
    """Return the partition of a budget or a quota."""
    return crc16(uuid.bytes) % count


def idempotency_partition(namespace: str, key: str) -> int:
    """Return the partition of an idempotency key. Raises `InvalidNamespace`, `InvalidText`."""
    hashed = f"{check_namespace(namespace)}\0{check_text(key, 'idempotency key')}"
    return PER_CELL * CELL + crc16(hashed.encode()) % PER_CELL


@functools.total_ordering
class EntityId:
    """The id of an execution or a flow; ordered by partition, then UUID, like the tables."""

    # Not a msgspec Struct: inside a payload an id is written as its text, and a Struct would be written as an object.
    __slots__ = __match_args__ = ("partition", "uuid")

    partition: int
    uuid: UUID

    def __init__(self, partition: int, uuid: UUID) -> None:
        _set_partition(self, partition)
        _set_uuid(self, uuid)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of {type(self).__name__} cannot be changed; make another id")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.uuid == other.uuid and self.partition == other.partition

    def __lt__(self, other: Self) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return (self.partition, self.uuid) < (other.partition, other.uuid)

    def __hash__(self) -> int:
        return hash((type(self), self.partition, self.uuid))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(partition={self.partition}, uuid={self.uuid!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[int, UUID]]:
        return type(self), (self.partition, self.uuid)

    @classmethod
    def of(cls, uuid: UUID) -> Self:
        """Return the id with the partition that the UUID itself names."""
        return cls(partition_of(uuid), uuid)

    @classmethod
    def derived(cls, digest: bytes, *, beside: "FlowId | None" = None) -> Self:
        """Return the id made from a digest of at least 16 bytes, which no minted id is equal to.

        With `beside`, it is in the partition of that flow; otherwise the digest chooses the partition.
        """
        number = int.from_bytes(digest[:16]) | _DERIVED
        own = PER_CELL * CELL + (number >> 47) % PER_CELL
        partition = own if beside is None else beside.partition
        return cls(partition, stamped(number, partition))

    @property
    def is_derived(self) -> bool:
        """Whether the id may have been made from a digest, as those of children and of scheduled executions are."""
        return self.uuid.int & _DERIVED != 0

    @property
    def wire(self) -> str:
        """The id with its partition as a tag, `{fp:N}:<uuid>`: the form that is signed."""
        return f"{{fp:{self.partition}}}:{self.uuid}"

    def __str__(self) -> str:
        """The UUID; with the tag only if the UUID alone would name another partition."""
        return str(self.uuid) if partition_of(self.uuid) == self.partition else self.wire


_set_partition, _set_uuid = (EntityId.__dict__[name].__set__ for name in EntityId.__slots__)


class ExecutionId(EntityId):
    """The id of an execution. A member of a flow is in the partition of its flow."""

    __slots__ = ()


class FlowId(EntityId):
    """The id of a flow. Its partition is always the one that its UUID names."""

    __slots__ = ()


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


def mint_execution_id(*, beside: FlowId | None = None) -> ExecutionId:
    """Return a new execution id; with `beside`, in the partition of that flow."""
    [minted] = mint_execution_ids(1)
    if beside is None or minted.partition == beside.partition:
        return minted
    return ExecutionId(beside.partition, stamped(minted.uuid.int, beside.partition))


def mint_execution_ids(many: int) -> list[ExecutionId]:
    """Return `many` new execution ids, much faster than one at a time, each a fraction of a microsecond after the last.

    The time is this machine's. It only keeps ids of the same time together on disk; no decision depends on it.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    first = milliseconds << 12 | (nanoseconds << 12) // 1_000_000
    words = struct.unpack(f">{many}Q", os.urandom(8 * many))
    pack, cell = _TWO_WORDS.pack, 1 << 63 | CELL << 55
    minted = [
        pack(moment >> 12 << 16 | 0x8000 | moment & 0xFFF, cell | word >> 9) for moment, word in enumerate(words, first)
    ]
    # One call of msgspec makes all UUIDs; making them one at a time would double the cost of this function.
    uuids = msgspec.convert(minted, list[UUID])
    home = PER_CELL * CELL
    return [ExecutionId(home + (word >> 56), uuid) for word, uuid in zip(words, uuids, strict=True)]


def mint_flow_id() -> FlowId:
    """Return a new flow id."""
    [minted] = mint_execution_ids(1)
    return FlowId(minted.partition, minted.uuid)


def parse_execution_id(text: str) -> ExecutionId:
    """Parse an execution id. Raises `InvalidId` with its `cause`, `WrongPartition`."""
    return check_partition(read_execution_id(text))


def parse_flow_id(text: str) -> FlowId:
    """Parse a flow id. Raises `InvalidId` with its `cause`, `WrongPartition`."""
    return check_partition(FlowId(*_parse_entity_id(text)))


def parse_member_id(text: str, flow_id: FlowId) -> ExecutionId:
    """Parse the id of a member of a flow. Raises `InvalidId` with its `cause`, `WrongPartition`.

    A UUID that does not carry its partition needs the tag of the flow.
    """
    member = parse_execution_id(text)
    if member.partition != flow_id.partition and not (text.startswith("{") or is_stamped(member.uuid)):
        raise InvalidId(
            f"id {shown(text)} does not carry the partition of flow {flow_id}; "
            f"use {ExecutionId(flow_id.partition, member.uuid)}",
            cause="missing_tag",
        )
    return member


def check_partition(given: AnyId) -> AnyId:
    """Return the id if it is of this cell and its partition agrees with its UUID. Raises `WrongPartition`."""
    own = type(given).of(given.uuid)
    if given != own and (isinstance(given, FlowId) or is_stamped(given.uuid)):
        raise WrongPartition(f"id {given.wire} names another partition than its UUID; use {own}")
    if given.partition // PER_CELL != CELL:
        raise WrongPartition(
            f"id {given.wire} belongs to cell {given.partition // PER_CELL}, and this database is cell {CELL}; "
            "use the database that it came from"
        )
    return given


def read_execution_id(text: str) -> ExecutionId:
    """Parse an execution id that the engine wrote, without checking its cell. Raises `InvalidId` with its `cause`."""
    return ExecutionId(*_parse_entity_id(text))


def read_flow_id(text: str) -> FlowId:
    """Parse a flow id that the engine wrote, without checking its cell. Raises `InvalidId` with its `cause`."""
    return FlowId(*_parse_entity_id(text))


def read_execution_ids(texts: Sequence[str] | None) -> Sequence[ExecutionId]:
    """Parse the execution ids in an answer of the engine, which may be null."""
    return [read_execution_id(text) for text in texts] if texts else ()


def read_prefix(text: str) -> tuple[UUID, UUID] | None:
    """Return the lowest and the highest UUID that begin like a text, or `None` if it is not the beginning of a UUID.

    Raises `InvalidId` with the cause `too_short` for fewer than 8 digits.
    """
    digits = text.replace("-", "")
    if not re.fullmatch(r"[0-9A-Fa-f]{1,32}", digits):
        return None
    lowest, highest = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    if not str(highest).startswith(text.lower()):
        return None
    if len(digits) < SHORTEST_PREFIX:
        raise InvalidId(
            f"id {shown(text)} is too short; use at least its first {SHORTEST_PREFIX} digits", cause="too_short"
        )
    return lowest, highest


def _parse_entity_id(text: str) -> tuple[int, UUID]:
    match = _ENTITY_ID.fullmatch(text)
    if match is None:
        raise _invalid_id(text)
    uuid = UUID(match[2])
    if match[1] is None:
        return partition_of(uuid), uuid
    partition = int(match[1])
    if partition >= PARTITION_COUNTS[Family.EXECUTIONS]:
        raise _invalid_id(text)
    return partition, uuid


def _invalid_id(text: str) -> InvalidId:
    tag = _TAG.match(text)
    if tag is not None and not _is_partition(tag[1], PARTITION_COUNTS[Family.EXECUTIONS]):
        return _invalid_partition("id", text, PARTITION_COUNTS[Family.EXECUTIONS])
    return InvalidId(
        f"id {shown(text)} is not a UUID; use 32 hexadecimal digits as 8-4-4-4-12",
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
    """Parse a partition key. Raises `InvalidId` with its `cause`, `WrongPartition` for a partition of another cell."""
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
    key = PartitionKey(family, int(index))
    if family is Family.EXECUTIONS and key.partition // PER_CELL != CELL:
        raise WrongPartition(
            f"partition key {key} belongs to cell {key.partition // PER_CELL}, and this database is cell {CELL}; "
            f"use {PER_CELL * CELL} to {PER_CELL * CELL + PER_CELL - 1}"
        )
    return key


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
    return UUID(text) if UUID_TEXT.fullmatch(text) else named_id(kind, namespace, text)


def check_name(name: str) -> str:
    """Return the name if it is valid for a budget or quota. Raises `InvalidName`."""
    if UUID_TEXT.fullmatch(name):
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
