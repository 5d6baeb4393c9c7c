"""Bring a database to this version: tables by numbered migrations, once each; functions whole, every time.

All of it is one transaction under one lock, so ten processes may start at once and a failure leaves nothing half done.
"""

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.metadata import version
from importlib.resources.abc import Traversable

import msgspec

from flowfabric import db
from flowfabric.config import Config
from flowfabric.db import Connection
from flowfabric.errors import PartitionCountMismatch, SchemaAhead, SchemaBehind

FUNCTION = re.compile(
    r"^create or replace function flowfabric\.(?P<name>\w+)(?P<signature>\(.*?)\nlanguage ", re.DOTALL | re.MULTILINE
)
LOCK = {"key1": 17990, "key2": 2}


class Migration(msgspec.Struct, frozen=True):
    """One step of the tables: `0001_executions.sql`."""

    number: int
    name: str
    text: str


class SchemaState(msgspec.Struct, frozen=True, kw_only=True):
    """What a database has been brought to."""

    last_migration: int
    version: str | None = None
    digest: str | None = None
    execution_partitions: int | None = None
    budget_partitions: int | None = None
    quota_partitions: int | None = None


async def migrate(conn: Connection, config: Config, *, upto: int | None = None) -> Sequence[Migration]:
    """Apply what is missing and return the migrations that were. Safe to repeat, and in many processes at once.

    `upto` stops at an earlier migration, which is how tests make an old database. Raises `SchemaAhead` on a database
    that a newer version has migrated, and changes nothing there.
    """
    async with conn.transaction():
        await db.builtin(conn, "pg_advisory_xact_lock", **LOCK)
        await db.script(conn, _text("migrations/journal.sql"))
        state = await read_state(conn)
        _refuse_ahead(state)
        missing = [m for m in migrations() if state.last_migration < m.number and (upto is None or m.number <= upto)]
        for migration in missing:
            await db.script(conn, migration.text)
            await db.value(conn, "_note_migration", number=migration.number, name=migration.name)
        await _apply_functions(conn)
        await db.value(
            conn,
            "_fix_partitions",
            execution_partitions=config.execution_partitions,
            budget_partitions=config.budget_partitions,
            quota_partitions=config.quota_partitions,
        )
        await db.value(conn, "extend_events")
    return missing


async def check(conn: Connection, config: Config) -> None:
    """Refuse to work on a database of another version, or with other partition counts, than this process expects.

    Raises `SchemaBehind`, `SchemaAhead`, `PartitionCountMismatch`.
    """
    state = await read_state(conn)
    _refuse_ahead(state)
    if state.last_migration < last_migration():
        raise SchemaBehind(
            f"the database is at migration {state.last_migration}, this version needs {last_migration()}; "
            "run `ff migrate`"
        )
    if state.digest != digest() and state.version == version("flowfabric"):
        raise SchemaBehind("the functions in the database are not those of this version; run `ff migrate`")
    for name in ("execution_partitions", "budget_partitions", "quota_partitions"):
        stored, wanted = getattr(state, name), getattr(config, name)
        if stored != wanted:
            raise PartitionCountMismatch(
                f"{name} is {wanted} here and {stored} in the database, where it was fixed by the first migration; "
                f"set FLOWFABRIC_{name.upper()}={stored}"
            )


async def read_state(conn: Connection) -> SchemaState:
    """What this database has been brought to. Raises `SchemaBehind` where there is nothing of ours yet."""
    return msgspec.convert(dict(await db.row(conn, "schema_state")), SchemaState)


@functools.cache
def migrations() -> Sequence[Migration]:
    """All migrations there are, in order."""
    files = sorted(_files("migrations"), key=lambda file: file.name)
    return [Migration(int(f.name[:4]), f.name, f.read_text()) for f in files if f.name[:4].isdigit()]


def last_migration() -> int:
    """The number of the newest migration of this version."""
    return migrations()[-1].number


@functools.cache
def functions() -> Sequence[str]:
    """The text of every file of functions, in order."""
    return [file.read_text() for file in _files("engine") if file.name.endswith(".sql")]


def digest() -> str:
    """What tells the functions of this version from any other."""
    return hashlib.sha256("\0".join(functions()).encode()).hexdigest()[:16]


async def _apply_functions(conn: Connection) -> None:
    found = [match for text in functions() for match in FUNCTION.finditer(text)]
    await db.value(
        conn,
        "_prepare_functions",
        names=[match["name"] for match in found],
        signatures=[" ".join(match["signature"].split()) for match in found],
        version=version("flowfabric"),
        digest=digest(),
    )
    for text in functions():
        await db.script(conn, text)


def _refuse_ahead(state: SchemaState) -> None:
    if state.last_migration > last_migration():
        raise SchemaAhead(
            f"the database is at migration {state.last_migration} (flowfabric {state.version}), this version knows "
            f"{last_migration()}; upgrade flowfabric in this process"
        )


def _text(path: str) -> str:
    return resources.files("flowfabric").joinpath(path).read_text()


def _files(folder: str) -> Iterator[Traversable]:
    """The files of a folder and its folders, by name."""
    return _walk(resources.files("flowfabric").joinpath(folder))


def _walk(folder: Traversable) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry)
        else:
            yield entry
