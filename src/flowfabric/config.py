"""Private: every setting, read once: from the arguments first, then from the environment, then the default.

A setting `url` is the argument `url=` and the environment variable `FLOWFABRIC_URL`.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from flowfabric import durations
from flowfabric.errors import BadSetting

PREFIX = "FLOWFABRIC_"
URL_SHAPE = "use postgresql://user:password@host:5432/database, with special characters in a part %-escaped"
SECRET = {"url": URL_SHAPE, "secret": "use exactly 64 hexadecimal digits (32 bytes)"}

# Shortest and longest value of the settings that are durations.
DURATIONS = {
    "timeout": (timedelta(seconds=0.1), timedelta(hours=1)),
    "call_timeout": (timedelta(seconds=0.1), timedelta(hours=1)),
    "retention": (timedelta(), timedelta(days=3_650)),
    "event_retention": (timedelta(), timedelta(days=3_650)),
    "subscription_timeout": (timedelta(), timedelta(days=1)),
}

Partitions = Annotated[int, Meta(ge=1, le=32_767)]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one process."""

    url: Annotated[str, Meta(pattern=r"^postgres(ql)?://")] | None = None
    """Where Postgres is (`postgresql://…`). Without it, an embedded Postgres starts under `data`."""

    data: Path = Path(".flowfabric")
    """Directory of the embedded Postgres."""

    secret: Annotated[str, Meta(pattern=r"\A[0-9A-Fa-f]{64}\Z")] | None = None
    """The first signing key, 64 hexadecimal digits; the first migration stores it as `k1`. Random by default."""

    pool_size: Annotated[int, Meta(ge=1, le=1_000)] = 4
    """Connections for calls, besides those for sweeps, notifications, the event log and lease renewal."""

    pooler: bool = False
    """A transaction-mode pooler (PgBouncer) is in front of Postgres: use no prepared statements or session state."""

    timeout: timedelta = timedelta(seconds=10)
    """How long a call waits for a connection, and how long a repeatable call is retried while Postgres is away."""

    call_timeout: timedelta = timedelta(seconds=10)
    """How long a call waits for its answer before its connection is dropped; sweeps wait six times as long."""

    payload_limit: Annotated[int, Meta(ge=1, le=1_073_741_823)] = 1_048_576
    """Largest payload, result or step result, in bytes."""

    retention: timedelta = timedelta(days=7)
    """How long an ended execution is kept, unless its own policy says otherwise."""

    event_retention: timedelta = timedelta(days=7)
    """How long an event is kept, at least: the log is trimmed in whole ranges of a million."""

    subscription_timeout: timedelta = timedelta(seconds=60)
    """How long a subscription to the log waits for an unavailable database before it ends with its cursor."""

    budget_partitions: Partitions = 32
    """How many partitions budgets are spread over; fixed by the first migration."""

    quota_partitions: Partitions = 32
    """How many partitions quotas are spread over; fixed by the first migration."""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ, **given: object) -> Self:
        """Read the settings from the arguments, then from the environment. Raises `BadSetting`.

        An argument that is `None` and a variable that is empty count as not given.
        """
        fields = {field.name: field.type for field in msgspec.structs.fields(cls)}
        if unknown := sorted(given.keys() - fields.keys()):
            raise BadSetting(f"setting {unknown[0]!r} is unknown; use {', '.join(fields)}")
        settings: dict[str, Any] = {name: environment.get(variable(name)) or None for name in fields}
        settings |= {name: value for name, value in given.items() if value is not None}
        return cls(**{name: _read(name, fields[name], value) for name, value in settings.items() if value is not None})

    def __repr__(self) -> str:
        """Omit the URL, which may contain a password, and the secret."""
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        return [(name, "..." if value and name in SECRET else value) for name, value in shown.items()]


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def _read(name: str, kind: Any, value: object) -> Any:
    if name in DURATIONS:
        return _read_duration(name, value)
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        if name in SECRET:
            raise BadSetting(f"{variable(name)} is invalid; {SECRET[name]}") from None
        raise BadSetting(f"{variable(name)} {str(value)[:80]!r} is invalid: {error}") from None


def _read_duration(name: str, value: object) -> timedelta:
    shortest, longest = DURATIONS[name]
    try:
        duration = durations.read_duration(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise BadSetting(f"{variable(name)}: {error}") from None
    if not shortest <= duration <= longest:
        given, least, most = map(durations.format_duration, (duration, shortest, longest))
        raise BadSetting(f"{variable(name)} {given!r} is invalid; use {least} to {most}")
    return duration


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise TypeError(f"cannot be read as {kind.__name__}")
