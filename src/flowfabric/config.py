"""Every setting, read once: from the arguments first, then from the environment, then the default.

A setting `url` is the argument `url=` and the environment variable `FLOWFABRIC_URL`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

PREFIX = "FLOWFABRIC_"
URL_SHAPE = "it reads postgresql://user:password@host:5432/database, with %-escapes for special characters in a part"
SECRET = {"url": URL_SHAPE, "secret": "it is exactly 64 hexadecimal digits (32 bytes)"}

Partitions = Annotated[int, Meta(ge=1, le=32_767)]


class BadSetting(ValueError):
    """A setting cannot be read; the message names its variable and what it may be."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one process."""

    url: Annotated[str, Meta(pattern=r"^postgres(ql)?://")] | None = None
    """Where Postgres is (`postgresql://…`). Without one, an embedded Postgres is started under `data`."""

    data: Path = Path(".flowfabric")
    """Where the embedded Postgres keeps its data."""

    secret: Annotated[str, Meta(pattern=r"\A[0-9A-Fa-f]{64}\Z")] | None = None
    """The first signing key, 64 hexadecimal digits, installed as `k1` by the first migration; random when left out."""

    pool_size: Annotated[int, Meta(ge=1, le=1_000)] = 4
    """Connections for calls, besides the few that sweep, listen, read the log, hint and renew."""

    pooler: bool = False
    """A transaction-mode pooler (PgBouncer) stands in front of Postgres: no prepared statements, no session state."""

    timeout: Annotated[float, Meta(ge=0.1, le=3_600)] = 10.0
    """Seconds a call waits for a connection, and goes on trying, if it is safe to repeat, while Postgres is away."""

    payload_limit: Annotated[int, Meta(ge=1, le=1_073_741_823)] = 1_048_576
    """Most bytes of a payload, a result or a step's result."""

    retention_ms: Annotated[int, Meta(ge=0, le=315_360_000_000)] = 604_800_000
    """Milliseconds an ended execution is kept, unless its own policy says otherwise."""

    event_retention_ms: Annotated[int, Meta(ge=0, le=315_360_000_000)] = 604_800_000
    """Milliseconds an event is kept, at least: the log is trimmed by whole ranges of a million."""

    subscription_timeout: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    """Seconds a subscription to the log waits for a database that is away before it ends with its cursor."""

    execution_partitions: Partitions = 256
    """How many partitions executions and flows are spread over; fixed by the first migration."""

    budget_partitions: Partitions = 32
    """How many partitions budgets are spread over; fixed by the first migration."""

    quota_partitions: Partitions = 32
    """How many partitions quotas are spread over; fixed by the first migration."""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ, **given: object) -> Self:
        """The settings given here, completed from the environment. Raises `ValueError` naming the bad one.

        An argument that is `None` and a variable that is empty count as not given.
        """
        fields = {field.name: field.type for field in msgspec.structs.fields(cls)}
        if unknown := sorted(given.keys() - fields.keys()):
            raise BadSetting(f"there is no setting {unknown[0]}; settings are {', '.join(fields)}")
        settings: dict[str, Any] = {name: environment.get(variable(name)) or None for name in fields}
        settings |= {name: value for name, value in given.items() if value is not None}
        return cls(**{name: _read(name, fields[name], value) for name, value in settings.items() if value is not None})

    def __repr__(self) -> str:
        """Without the URL, which may hold a password, and the secret."""
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        return [(name, "..." if value and name in SECRET else value) for name, value in shown.items()]


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _read(name: str, kind: Any, value: object) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        if name in SECRET:
            raise BadSetting(f"{variable(name)} cannot be read; {SECRET[name]}") from None
        raise BadSetting(f"{variable(name)} is {str(value)[:80]!r}: {error}") from None


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise TypeError(f"cannot be read as {kind.__name__}")
