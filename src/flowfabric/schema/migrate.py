"""Migrate a database to this version: apply each numbered migration once, and replace all functions every time.

Everything happens in one transaction under one advisory lock, so many processes may start at the same time and a
failure changes nothing. `waiting.py` waits for locks.
"""

import functools
import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import timedelta
from importlib import resources
from importlib.metadata import version

import msgspec

from flowfabric import ids
from flowfabric.config import Config, variable
from flowfabric.errors import PartitionCountMismatch, SchemaAhead, SchemaBehind
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection
from flowfabric.schema import waiting
from flowfabric.schema.functions import FUNCTION, files, functions


class Migration(msgspec.Struct, frozen=True):
    """One migration of the tables, such as `0001_initial.sql`."""

    number: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """A hash of the statements, which does not change with comments and spaces."""
        return _hash(" ".join(re.sub(r"--.*", "", self.text).split()))


class SchemaState(msgspec.Struct, frozen=True, kw_only=True):
    """The schema version of a database: its last migration, the release of its functions, its cell, its counts."""

    last_migration: int
    version: str | None = None
    digest: str | None = None
    cell: int | None = None
    budget_partitions: int | None = None
    quota_partitions: int | None = None


async def migrate(
    conn: Connection, config: Config, *, upto: int | None = None, patience: timedelta = waiting.PATIENCE
) -> Sequence[Migration]:
    """Apply the missing migrations and return them. Safe to repeat, and to run in many processes at once.

    Waits up to `patience` for what open transactions have locked, in short tries, so that other calls run in between,
    and five times as long for another migration. `upto` stops at an earlier migration and does not create the
    functions; tests use it to make an old database. Raises `MigrationBlocked`, `SchemaAhead` if a newer version has
    migrated the database or created it for another cell, `SchemaBehind` if its tables are from before the first
    release, `PartitionCountMismatch` if it was created with other counts, and `PrivilegeMissing`. An error changes
    nothing.
    """
    async with conn.transaction():
        await waiting.take_turn(conn, patience)
        return await waiting.retry(conn, lambda: _apply(conn, config, upto), patience)


async def _apply(conn: Connection, config: Config, upto: int | None) -> Sequence[Migration]:
    await call.script(conn, _text("schema/registry.sql"))
    await _refuse_other_layout(conn)
    state = await read_state(conn)
    _refuse_ahead(state)
    _refuse_newer_functions(state)
    missing = [m for m in migrations() if state.last_migration < m.number and (upto is None or m.number <= upto)]
    if upto is None:
        # Before the tables change, because a function that uses a table can prevent the change.
        await _prepare_functions(conn)
    for migration in missing:
        await call.script(conn, migration.text)
        noted = {"number": migration.number, "name": migration.name, "digest": migration.digest}
        await call.value(conn, "_note_migration", **noted)
    if upto is None:
        await _complete(conn, config)
    return missing


async def check(conn: Connection, config: Config) -> None:
    """Check that the database has the version, the cell and the partition counts that this process expects.

    Raises `SchemaBehind`, `SchemaAhead`, `PartitionCountMismatch`.
    """
    state = await read_state(conn)
    if state.digest != digest():
        await _refuse_other_layout(conn)
    _refuse_ahead(state)
    if state.last_migration < last_migration():
        raise SchemaBehind(
            f"the database is at migration {state.last_migration}, this version needs {last_migration()}; "
            "run `ff migrate`"
        )
    if state.digest != digest() and not _is_newer(state):
        raise SchemaBehind(
            f"the functions in the database are from flowfabric {state.version}, not from this version; "
            "run `ff migrate`"
        )
    _refuse_other_deployment(state, config)


async def read_state(conn: Connection) -> SchemaState:
    """Read the schema version of a database. Raises `SchemaBehind` if it has no flowfabric schema."""
    return msgspec.convert(dict(await call.row(conn, "schema_state")), SchemaState)


@functools.cache
def migrations() -> Sequence[Migration]:
    """Return all migrations of this version, in order."""
    numbered = [file for file in files("schema/migrations") if file.name[:4].isdigit()]
    return [Migration(int(file.name[:4]), file.name, file.read_text()) for file in numbered]


def last_migration() -> int:
    """Return the number of the newest migration of this version."""
    return migrations()[-1].number


def digest() -> str:
    """Return a hash of all tables and functions, which identifies this version of them."""
    texts = [_text("schema/registry.sql"), *(migration.digest for migration in migrations()), *functions()]
    return _hash("\0".join(texts))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def _prepare_functions(conn: Connection) -> None:
    found = [match for text in functions() for match in FUNCTION.finditer(text)]
    await call.value(
        conn,
        "_prepare_functions",
        names=[match["name"] for match in found],
        signatures=[" ".join(match["signature"].split()) for match in found],
        version=version("flowfabric"),
        digest=digest(),
    )


async def _complete(conn: Connection, config: Config) -> None:
    for text in functions():
        await call.script(conn, text)
    await call.value(conn, "_turn_off_jit")
    await call.value(
        conn,
        "_fix_deployment",
        cell=ids.CELL,
        budget_partitions=config.budget_partitions,
        quota_partitions=config.quota_partitions,
    )
    _refuse_other_deployment(await read_state(conn), config)
    await call.rows(conn, "extend_events")
    await call.value(conn, "_seed_first_key", secret=config.secret or secrets.token_hex(32))


async def _refuse_other_layout(conn: Connection) -> None:
    """Until 0.1.0 is released, the first migration is edited in place, and there is no way from one text to another."""
    layout = await call.value(conn, "schema_layout")
    if layout is not None and layout != migrations()[0].digest:
        raise SchemaBehind(
            "the tables of this database are from a development version before 0.1.0 and cannot be upgraded; use a "
            "new database, or delete all data with `drop schema flowfabric cascade` (for the embedded Postgres: delete "
            "its directory, .flowfabric by default), and run `ff migrate`"
        )


def _refuse_ahead(state: SchemaState) -> None:
    if state.last_migration > last_migration():
        raise SchemaAhead(
            f"the database is at migration {state.last_migration} (flowfabric {state.version}), this version knows "
            f"only {last_migration()}; upgrade flowfabric in this process"
        )


def _refuse_newer_functions(state: SchemaState) -> None:
    if _is_newer(state):
        raise SchemaAhead(
            f"the functions in the database are from flowfabric {state.version}, a later version, which this process "
            "can use but not replace; upgrade flowfabric in this process before it migrates"
        )


def _is_newer(state: SchemaState) -> bool:
    """Whether the functions are from a later release. Processes of this release can use those too."""
    return _release(state.version or "0") > _release(version("flowfabric"))


def _release(text: str) -> list[int]:
    """Return the numbers of a version, without the suffix of a pre-release."""
    return [int(number) for number in re.findall(r"\d+", text)[:3]]


def _refuse_other_deployment(state: SchemaState, config: Config) -> None:
    if state.cell != ids.CELL:
        raise SchemaAhead(
            f"the database is cell {state.cell}, and this version of flowfabric knows only cell {ids.CELL}; "
            "upgrade flowfabric in this process"
        )
    for name in ("budget_partitions", "quota_partitions"):
        stored, wanted = getattr(state, name), getattr(config, name)
        if stored != wanted:
            raise PartitionCountMismatch(
                f"{name} is {wanted} here and {stored} in the database, where the first migration fixed it; "
                f"set {variable(name)}={stored}"
            )


def _text(path: str) -> str:
    return resources.files("flowfabric").joinpath(path).read_text()
