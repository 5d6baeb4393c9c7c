"""Payloads: arguments and results as JSON, to and from the types a handler is annotated with.

Plain types, dataclasses, msgspec Structs, datetimes, decimals, UUIDs and bytes go through msgspec; pydantic models by
their own methods. Never pickle: a payload may outlive the program that wrote it.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from flowfabric.errors import InvalidBody


class Arguments:
    """The arguments of a handler: how a call becomes a payload, and a payload a call."""

    def __init__(self, handler: Callable[..., object], injected: str | None) -> None:
        parameters = inspect.signature(handler).parameters.values()
        hints = typing.get_type_hints(handler)
        self._taken = [parameter for parameter in parameters if parameter.name != injected]
        for parameter in self._taken:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(
                    f"{handler.__qualname__}: parameter {parameter.name} has no name a payload could give; name it"
                )
        self._signature = inspect.Signature(self._taken)
        self._struct = msgspec.defstruct(
            f"{handler.__name__} arguments",
            [_field(parameter, hints) for parameter in self._taken],
            forbid_unknown_fields=True,
        )

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """The payload of a call. Raises `TypeError` as the call itself would, and `InvalidBody`."""
        return encode(self._signature.bind(*args, **kwargs).arguments)

    def decode(self, payload: bytes | None) -> dict[str, Any]:
        """The arguments in a payload, by name. Raises `msgspec.ValidationError` with the path of what does not fit."""
        decoded = msgspec.json.decode(payload or b"{}", type=self._struct, dec_hook=_from_builtin)
        return {parameter.name: getattr(decoded, parameter.name) for parameter in self._taken}


def encode(value: object) -> bytes:
    """A value as JSON. Raises `InvalidBody` for what JSON has no shape for."""
    try:
        return msgspec.json.encode(value, enc_hook=_to_builtin)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidBody(f"cannot be written as JSON: {error}", field="payload") from None


def decode(payload: bytes | None, kind: Any) -> Any:
    """The value in a payload, as that type; nothing at all is `None`."""
    return None if payload is None else msgspec.json.decode(payload, type=kind, dec_hook=_from_builtin)


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[str, Any, Any]:
    default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
    if isinstance(default, list | dict | set):
        default = msgspec.field(default_factory=lambda: type(parameter.default)(parameter.default))
    return parameter.name, hints.get(parameter.name, Any), default


def _to_builtin(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no shape in JSON")


def _from_builtin(kind: type, value: object) -> object:
    validate = getattr(kind, "model_validate", None)
    if not callable(validate):
        raise TypeError(f"{kind.__name__} cannot be read from JSON")
    try:
        return validate(value)
    except ValueError as error:
        raise ValueError(str(error)) from None
