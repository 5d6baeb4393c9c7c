"""Every setting, read once: from the arguments first, then from the environment, then the default.

A setting `url` is the argument `url=` and the environment variable `FLOWFABRIC_URL`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

PREFIX = "FLOWFABRIC_"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one process."""

    url: str | None = None
    """Where Postgres is (`postgresql://…`). Without one, an embedded Postgres is started under `data`."""

    data: Path = Path(".flowfabric")
    """Where the embedded Postgres keeps its data."""

    pool_size: int = 4
    """Connections for calls, besides the few that listen, read the log, hint and renew."""

    pooler: bool = False
    """A transaction-mode pooler (PgBouncer) stands in front of Postgres: no prepared statements, no session state."""

    patience: float = 10.0
    """Seconds a call that is safe to repeat goes on trying when Postgres cannot be reached."""

    payload_limit: int = 1_048_576
    """Most bytes of a payload, a result or a step's result."""

    execution_partitions: int = 256
    """How many partitions executions and flows are spread over; fixed by the first migration."""

    budget_partitions: int = 32
    """How many partitions budgets are spread over; fixed by the first migration."""

    quota_partitions: int = 32
    """How many partitions quotas are spread over; fixed by the first migration."""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ, **given: object) -> Self:
        """The settings given here, completed from the environment. Raises `ValueError` naming the bad one."""
        variables = {name: PREFIX + name.upper() for name in cls.__struct_fields__}
        settings = {name: environment[variable] for name, variable in variables.items() if environment.get(variable)}
        try:
            return msgspec.convert({**settings, **given}, cls, strict=False, dec_hook=_path)
        except msgspec.ValidationError as error:
            raise ValueError(
                f"a setting cannot be read: {error}; settings are {', '.join(variables.values())}"
            ) from None

    def __repr__(self) -> str:
        """Without the URL, which may hold a password."""
        return f"Config(url={'set' if self.url else None}, data={str(self.data)!r}, pooler={self.pooler})"


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise TypeError(f"cannot be read as {kind.__name__}")
