"""Private: convert arguments and results between JSON and the types that a handler is annotated with.

msgspec converts plain types, dataclasses, msgspec Structs, datetimes, decimals, UUIDs and bytes; pydantic models use
their own methods. Never pickle: a payload may outlive the program that wrote it.
"""

import copy
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from math import isfinite
from typing import Any

import msgspec

from flowfabric.errors import InvalidBody
from flowfabric.payloads.kinds import Changed, Kind, id_schema, kind_of, to_builtin

NAMELESS = {
    inspect.Parameter.VAR_POSITIONAL: ("*{}", "use a list parameter"),
    inspect.Parameter.VAR_KEYWORD: ("**{}", "use a dict parameter"),
    inspect.Parameter.POSITIONAL_ONLY: ("{} by position only", "remove the / after it"),
}


class Arguments:
    """The arguments of a handler: encode a call as a payload, and decode a payload as arguments."""

    def __init__(self, handler: Callable[..., object], injected: str | None) -> None:
        parameters = inspect.signature(handler).parameters.values()
        for parameter in parameters:
            if parameter.kind in NAMELESS:
                what, remedy = NAMELESS[parameter.kind]
                takes = f"{handler.__qualname__} takes {what.format(parameter.name)}"
                raise TypeError(f"{takes}, but a payload passes every argument by name; {remedy}")
        types = hints(handler)
        taken = [parameter for parameter in parameters if parameter.name != injected]
        self._name = handler.__qualname__
        self._signature = inspect.Signature(taken)
        named_only = any(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in taken)
        self._by_position = None if named_only else [parameter.name for parameter in taken]
        fields = [_field(parameter, types.get(parameter.name, Any)) for parameter in taken]
        self._fields = {field[0]: field for field in fields}
        self._kinds: dict[frozenset[str], Kind] = {}
        try:
            self._all = self._kind_of(frozenset(self._fields))
        except TypeError as error:
            raise TypeError(
                f"{handler.__qualname__} has an argument that cannot be read from JSON: {error}; use another type"
            ) from None

    @property
    def names(self) -> Collection[str]:
        """The names of the arguments."""
        return self._signature.parameters

    def schema(self) -> Mapping[str, object] | None:
        """Return the JSON Schema of the arguments; `None` if a type has none, or Postgres could not store it."""
        try:
            schema = msgspec.json.schema(self._all.of, schema_hook=id_schema)
            definitions = schema.pop("$defs")
            schema.update(definitions.pop(schema.pop("$ref").rpartition("/")[2]))
            schema |= {"$defs": definitions} if definitions else {}
            del schema["title"]
            return None if b"\\u0000" in msgspec.json.encode(schema) else schema
        except Exception:  # a type of the app, which may raise anything
            return None

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Encode the arguments of a call. Raises `TypeError` as the call itself would.

        Raises `InvalidBody` if they do not have the annotated types, so that the caller learns it, and not a worker.
        """
        if self._by_position is not None and len(args) == len(self._by_position) and not kwargs:
            return self._checked(dict(zip(self._by_position, args, strict=True)), self._all)
        return self._checked(self.bind(args, kwargs), self._all)

    def encode_some(self, arguments: Mapping[str, object]) -> bytes:
        """Encode some of the arguments, by name; the others come from elsewhere. Raises `InvalidBody` as `encode`."""
        return self._checked(arguments, self._kind_of(frozenset(arguments)))

    def _kind_of(self, names: frozenset[str]) -> Kind:
        if names not in self._kinds:
            fields = [self._fields[name] for name in self._fields if name in names]
            struct = msgspec.defstruct(f"{self._name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
            self._kinds[names] = Kind(struct)
        return self._kinds[names]

    def _checked(self, arguments: Mapping[str, object], kind: Kind) -> bytes:
        encoded = encode(arguments)
        try:
            kind.read_back(arguments, encoded)
        except Changed as error:
            what = f"the arguments do not fit {self._name}: {error}; annotate the parameter with its type"
            raise InvalidBody(what, field="payload") from None
        except (msgspec.ValidationError, TypeError) as error:
            raise InvalidBody(f"the arguments do not fit {self._name}: {error}", field="payload") from None
        return encoded

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Mapping[str, object]:
        """Return the arguments of a call by name. Raises `TypeError` as the call itself would."""
        return self._signature.bind(*args, **kwargs).arguments

    def decode(self, payload: bytes | None, handed: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        """Decode the arguments in a payload, by name; a value in `handed` replaces the argument of the same name.

        Values in `handed` that the handler has no argument for are ignored. A value of the wrong type raises
        `msgspec.ValidationError` with its path.
        """
        if handed:
            own = msgspec.json.decode(payload or b"{}", type=dict[str, msgspec.Raw])
            taken = {name: msgspec.Raw(value) for name, value in handed.items() if name in self._signature.parameters}
            payload = msgspec.json.encode({**own, **taken})
        return msgspec.structs.asdict(self._all.decode(payload or b"{}"))


def encode(value: object) -> bytes:
    """Encode a value as JSON. Raises `InvalidBody` for a value that JSON cannot represent."""
    try:
        encoded = _json(value)
        # msgspec writes NaN and infinities as null, so only a text with a null has to be checked for them.
        if b"null" in encoded and not all(map(isfinite, _floats(msgspec.to_builtins(value, enc_hook=to_builtin)))):
            raise ValueError("it contains NaN or an infinity, which JSON cannot represent")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidBody(f"cannot be written as JSON: {error}", field="payload") from None
    return encoded


def keep(value: object, kind: Any, remedy: str) -> tuple[bytes, Any]:
    """Encode a value to save it, and return it as it is decoded later, so that every run sees the same value.

    Raises `InvalidBody` if it does not have the type, or if a part of unknown type would change; `{}` in the remedy
    stands for the type that would help. The messages continue a sentence about the value.
    """
    encoded = encode(value)
    try:
        return encoded, kind_of(kind).read_back(value, encoded)
    except Changed as error:
        what = f"cannot be saved as it is: {error}; {remedy.format(error.whole or 'TYPE')}"
    except (msgspec.ValidationError, TypeError) as error:
        what = f"does not match its type {name_of(kind)}: {error}; return a value of that type, or correct the type"
    raise InvalidBody(what, field="payload")


def decode(payload: bytes | None, kind: Any) -> Any:
    """Decode a payload as a type; no payload is `None`."""
    return None if payload is None else kind_of(kind).decode(payload)


def read_result(result: bytes | None, kind: Any, of: str) -> Any:
    """Decode the result of an execution. Raises `InvalidBody` if it does not have the type."""
    try:
        return decode(result, kind)
    except (msgspec.MsgspecError, TypeError) as error:
        what = f"the result of {of} does not match the type {name_of(kind)}: {error}; give its type as returns=TYPE"
        raise InvalidBody(what, field="result") from None


def check_kind(kind: Any, of: str) -> Any:
    """Return a type if values of it can be read from JSON. Raises `InvalidBody`."""
    try:
        kind_of(kind)
    except TypeError as error:
        what = f"{of} has the type {name_of(kind)}, which cannot be saved: {error}; use another type"
        raise InvalidBody(what, field="returns") from None
    return kind


def name_of(kind: Any) -> str:
    """Return a type as it is written in code."""
    return kind.__qualname__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def hints(function: Callable[..., object]) -> dict[str, Any]:
    """Return the annotations of a function by name; empty if it has none."""
    if not getattr(function, "__annotations__", True):
        return {}
    try:
        return typing.get_type_hints(function, include_extras=True)
    except TypeError:
        return {}
    except NameError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name} has an annotation that cannot be resolved: {error}; define it in its module") from None


def returned(function: Callable[..., object]) -> Any:
    """Return the annotated return type of a function, of a coroutine its result; `Any` without an annotation."""
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    if isinstance(function, type):
        return function
    found = hints(function if inspect.isroutine(function) else type(function).__call__).get("return", Any)
    if typing.get_origin(found) in (Awaitable, Coroutine):
        found = typing.get_args(found)[-1]
    return found


def _field(parameter: inspect.Parameter, kind: Any) -> tuple[str, Any, Any]:
    if parameter.default is parameter.empty:
        return parameter.name, kind, msgspec.NODEFAULT
    mutable = isinstance(parameter.default, list | dict | set)
    made = (lambda: copy.copy(parameter.default)) if mutable else (lambda: parameter.default)
    return parameter.name, kind, msgspec.field(default_factory=made)


def _floats(value: object) -> Iterator[float]:
    match value:
        case float():
            yield value
        case dict():
            for key, inner in value.items():
                yield from _floats(key)
                yield from _floats(inner)
        case list() | tuple():
            for inner in value:
                yield from _floats(inner)


_json = msgspec.json.Encoder(enc_hook=to_builtin).encode
