"""Payloads: arguments and results as JSON, to and from the types a handler is annotated with.

Plain types, dataclasses, msgspec Structs, datetimes, decimals, UUIDs and bytes go through msgspec; pydantic models by
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

NAMELESS = {
    inspect.Parameter.VAR_POSITIONAL: "*{}: take a list of that name instead",
    inspect.Parameter.VAR_KEYWORD: "**{}: take a dict of that name instead",
    inspect.Parameter.POSITIONAL_ONLY: "{} by position only: remove the / behind it",
}


class Arguments:
    """The arguments of a handler: how a call becomes a payload, and a payload a call."""

    def __init__(self, handler: Callable[..., object], injected: str | None) -> None:
        parameters = inspect.signature(handler).parameters.values()
        for parameter in parameters:
            if parameter.kind in NAMELESS:
                why = NAMELESS[parameter.kind].format(parameter.name)
                raise TypeError(f"{handler.__qualname__} takes {why}; a payload gives every argument by its name")
        types = hints(handler)
        taken = [parameter for parameter in parameters if parameter.name != injected]
        self._signature = inspect.Signature(taken)
        named_only = any(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in taken)
        self._by_position = None if named_only else [parameter.name for parameter in taken]
        fields = [_field(parameter, types.get(parameter.name, Any)) for parameter in taken]
        struct = msgspec.defstruct(f"{handler.__name__}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
        try:
            self._decoder = msgspec.json.Decoder(struct, dec_hook=_from_builtin)
        except TypeError as error:
            raise TypeError(f"{handler.__qualname__} has an argument that cannot be read from JSON: {error}") from None

    @property
    def names(self) -> Collection[str]:
        """What they are called."""
        return self._signature.parameters

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """The payload of a call. Raises `TypeError` as the call itself would, and `InvalidBody`."""
        if self._by_position is not None and len(args) == len(self._by_position) and not kwargs:
            return encode(dict(zip(self._by_position, args, strict=True)))
        return encode(self.bind(args, kwargs))

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Mapping[str, object]:
        """The arguments of a call by their names. Raises `TypeError` as the call itself would."""
        return self._signature.bind(*args, **kwargs).arguments

    def decode(self, payload: bytes | None, handed: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        """The arguments in a payload, by name, and those that were handed on to it, as far as it takes them.

        What does not fit is a `msgspec.ValidationError` with its path.
        """
        if handed:
            own = msgspec.json.decode(payload or b"{}", type=dict[str, msgspec.Raw])
            taken = {name: msgspec.Raw(value) for name, value in handed.items() if name in self._signature.parameters}
            payload = msgspec.json.encode({**own, **taken})
        return msgspec.structs.asdict(self._decoder.decode(payload or b"{}"))


def encode(value: object) -> bytes:
    """A value as JSON. Raises `InvalidBody` for what JSON has no shape for."""
    try:
        encoded = _json(value)
        # NaN and the infinities are written as null: only where there is a null may there be one.
        if b"null" in encoded and not all(map(isfinite, _floats(msgspec.to_builtins(value, enc_hook=_to_builtin)))):
            raise ValueError("it holds NaN or an infinity, which JSON has no number for")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidBody(f"cannot be written as JSON: {error}", field="payload") from None
    return encoded


def decode(payload: bytes | None, kind: Any) -> Any:
    """The value in a payload, as that type; nothing at all is `None`."""
    return None if payload is None else msgspec.json.decode(payload, type=kind, dec_hook=_from_builtin)


def hints(function: Callable[..., object]) -> dict[str, Any]:
    """The annotations of a function, by name; none where it has none that could be read."""
    if not getattr(function, "__annotations__", True):
        return {}
    try:
        return typing.get_type_hints(function, include_extras=True)
    except TypeError:
        return {}
    except NameError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name} has an annotation that cannot be read: {error}; define it in its module") from None


def returned(function: Callable[..., object]) -> Any:
    """What a function is annotated to return, when awaited if it is to be; anything where it does not say."""
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


def _to_builtin(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no shape in JSON")


_json = msgspec.json.Encoder(enc_hook=_to_builtin).encode


def _from_builtin(kind: type, value: object) -> object:
    if kind is object:
        return value
    validate = getattr(kind, "model_validate", None)
    if not callable(validate):
        raise TypeError(f"a {getattr(kind, '__name__', kind)} cannot be read from JSON")
    return validate(value)
