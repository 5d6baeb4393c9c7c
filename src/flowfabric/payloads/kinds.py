"""Private: types of values that are written as JSON, and what such a value is when it is read again.

A value is read as its type says. A part of unknown type, such as what is inside a `dict`, is read as plain JSON. So it
must be plain JSON when it is written: a dataclass would come back as a dict, and a tuple as a list.
"""

import functools
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId, FlowId, parse_execution_id, parse_flow_id

SCALARS = frozenset({str, int, float, bool, type(None)})
TEXT = frozenset({str})
NEVER = (typing.NoReturn, typing.Never)
IDS = {ExecutionId: parse_execution_id, FlowId: parse_flow_id}


class Changed(TypeError):
    """A part of unknown type would change when it is written and read again."""

    def __init__(self, message: str, whole: str | None) -> None:
        super().__init__(message)
        self.whole = whole  # the name of the type, if that part is the whole value


class Kind:
    """A type, and how values of it are read from JSON. Raises `TypeError` for a type that JSON cannot be read as."""

    def __init__(self, kind: Any) -> None:
        self.of = kind = Any if kind in NEVER else kind
        self._decode = msgspec.json.Decoder(kind, dec_hook=from_builtin).decode
        self._node = inspect.type_info(kind)
        parts = list(_parts(self._node, set()))
        self._is_open = any(map(_is_unknown, parts))
        self._unchanged = SCALARS if _is_unknown(self._node) else frozenset({kind or type(None)}) & SCALARS
        for part in parts:
            if isinstance(part, inspect.CustomType) and not _is_known(part.cls):
                raise TypeError(f"JSON cannot be read as {part.cls.__name__}")

    def decode(self, encoded: bytes) -> Any:
        """Decode a value. Raises `msgspec.MsgspecError` or `TypeError` if it is no value of this type."""
        return self._decode(encoded)

    def read_back(self, value: object, encoded: bytes) -> Any:
        """Return what an encoded value is when it is decoded later.

        Raises `TypeError` if a part of unknown type would change, and as `decode` if the value has another type.
        """
        if type(value) in self._unchanged:
            return value
        later = self._decode(encoded)
        if self._is_open:
            _check(self._node, value, "")
        return later


def kind_of(kind: Any) -> Kind:
    """Return the kind of a type. Raises `TypeError` for a type that JSON cannot be read as."""
    try:
        hash(kind)
    except TypeError:  # an annotation may contain anything
        return Kind(kind)
    return _kind_of(kind)


@functools.lru_cache(1_000)
def _kind_of(kind: Any) -> Kind:
    return Kind(kind)


def to_builtin(value: object) -> object:
    """Convert a value that msgspec does not know. Raises `TypeError`."""
    if isinstance(value, ExecutionId | FlowId):
        return str(value)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"JSON cannot represent a value of type {type(value).__name__}")


def from_builtin(kind: type, value: Any) -> object:
    """Convert plain JSON to a type that msgspec does not know. Raises `TypeError` or `ValueError`."""
    if kind is object:
        return value
    if kind in IDS:
        try:
            return IDS[kind](str(value))
        except FlowFabricError as error:
            raise ValueError(error.message) from None
    if not _is_known(kind):
        raise TypeError(f"a value of type {getattr(kind, '__name__', kind)} cannot be read from JSON")
    return kind.model_validate(value)  # type: ignore[attr-defined]


def id_schema(kind: type) -> dict[str, object]:
    """Return the JSON Schema of a type that msgspec does not know. Raises `TypeError`."""
    if kind in IDS:
        return {"type": "string"}
    raise TypeError(f"a value of type {getattr(kind, '__name__', kind)} has no JSON Schema")


def _is_known(kind: type) -> bool:
    return kind is object or kind in IDS or callable(getattr(kind, "model_validate", None))


def _is_unknown(node: inspect.Type) -> bool:
    """Whether nothing is known about the values of a type, so that they are read as plain JSON."""
    match node:
        case inspect.CustomType():
            return node.cls is object
        case inspect.UnionType():
            return any(map(_is_unknown, node.types))
    return isinstance(node, inspect.AnyType)


def _parts(node: inspect.Type, seen: set[Any]) -> Iterator[inspect.Type]:
    """Yield a type and the types inside it, each class once."""
    yield node
    inner: Iterable[inspect.Type] = ()
    match node:
        case inspect.CollectionType():
            inner = (node.item_type,)
        case inspect.TupleType():
            inner = node.item_types
        case inspect.DictType():
            inner = (node.key_type, node.value_type)
        case inspect.UnionType():
            inner = node.types
        case inspect.Metadata():
            inner = (node.type,)
        case _ if _has_fields(node) and node.cls not in seen:
            seen.add(node.cls)
            inner = (field.type for field in node.fields)
    for part in inner:
        yield from _parts(part, seen)


def _has_fields(node: Any) -> "typing.TypeGuard[inspect.DataclassType]":
    return hasattr(node, "fields")


def _check(node: inspect.Type, value: Any, path: str) -> None:
    """Check the parts of a value whose types are unknown; the others have been decoded. Raises a `TypeError`."""
    if _is_unknown(node):
        _check_plain(value, path)
        return
    match node:
        case inspect.CollectionType():
            for number, each in enumerate(value):
                _check(node.item_type, each, f"{path}[{number}]")
        case inspect.TupleType():
            for number, (kind, each) in enumerate(zip(node.item_types, value, strict=False)):
                _check(kind, each, f"{path}[{number}]")
        case inspect.DictType():
            _check_items(node, value, path)
        case inspect.UnionType():
            for kind in node.types:
                if _may_be(kind, value):
                    _check(kind, value, path)
        case inspect.Metadata():
            _check(node.type, value, path)
        case _ if _has_fields(node):
            for field in node.fields:
                inner = value.get(field.name) if isinstance(value, Mapping) else getattr(value, field.name, None)
                _check(field.type, inner, f"{path}.{field.name}")


def _check_items(node: inspect.DictType, value: object, path: str) -> None:
    if not isinstance(value, Mapping):
        raise _changed(value, path)
    for key, each in value.items():
        if type(key) is not str and _is_unknown(node.key_type):
            raise _changed(key, path, "a key")
        _check(node.value_type, each, f"{path}.{key}")


def _may_be(kind: inspect.Type, value: object) -> bool:
    match kind:
        case inspect.CollectionType() | inspect.TupleType():
            return isinstance(value, list | tuple | set | frozenset)
        case inspect.DictType():
            return isinstance(value, Mapping)
        case _ if _has_fields(kind):
            cls = typing.get_origin(kind.cls) or kind.cls
            return isinstance(value, Mapping if typing.is_typeddict(cls) else cls)
    return False


def _check_plain(value: object, path: str) -> None:
    """Raise a `TypeError` for a value that is not plain JSON. A list of numbers or texts costs one pass in C."""
    if type(value) is dict:
        if not TEXT.issuperset(map(type, value)):
            raise _changed(next(key for key in value if type(key) is not str), path, "a key")
        if not SCALARS.issuperset(map(type, value.values())):
            for key, each in value.items():
                _check_plain(each, f"{path}.{key}")
    elif type(value) is list:
        if not SCALARS.issuperset(map(type, value)):
            for number, each in enumerate(value):
                _check_plain(each, f"{path}[{number}]")
    elif type(value) not in SCALARS:
        raise _changed(value, path)


def _changed(value: object, path: str, what: str = "a value") -> Changed:
    name = type(value).__name__
    where = f" at `${path}`" if path else ""
    whole = None if path or what != "a value" else name
    return Changed(f"{what} of type {name}{where} would be read back as plain JSON, because its type is unknown", whole)
