"""Bring a database to this version: tables by numbered migrations, once each; functions whole, every time.

All of it is one transaction under one lock, so ten processes may start at once and a failure leaves nothing half done.
"""

import functools
import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.metadata import version
from importlib.resources.abc import Traversable

import msgspec

from flowfabric.config import Config, variable
from flowfabric.errors import PartitionCountMismatch, SchemaAhead, SchemaBehind
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

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

    `upto` stops at an earlier migration and leaves the functions out, which is how tests make an old database. Raises
    `SchemaAhead` on a database that a newer version has migrated, `PartitionCountMismatch` on one made with other
    counts, and `PrivilegeMissing`; then nothing is changed.
    """
    async with conn.transaction():
        await call.builtin(conn, "pg_advisory_xact_lock", **LOCK)
        await call.script(conn, _text("schema/registry.sql"))
        state = await read_state(conn)
        _refuse_ahead(state)
        _refuse_newer_functions(state)
        missing = [m for m in migrations() if state.last_migration < m.number and (upto is None or m.number <= upto)]
        if upto is None:
            # Before the tables change, because a function may stand in the way of that.
            await _prepare_functions(conn)
        for migration in missing:
            await call.script(conn, migration.text)
            await call.value(conn, "_note_migration", number=migration.number, name=migration.name)
        if upto is None:
            await _complete(conn, config)
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
    if state.digest != digest() and not _is_newer(state):
        raise SchemaBehind(
            f"the functions in the database are those of flowfabric {state.version}, not of this version; "
            "run `ff migrate`"
        )
    _refuse_other_partitions(state, config)


async def read_state(conn: Connection) -> SchemaState:
    """What this database has been brought to. Raises `SchemaBehind` where there is nothing of ours yet."""
    return msgspec.convert(dict(await call.row(conn, "schema_state")), SchemaState)


@functools.cache
def migrations() -> Sequence[Migration]:
    """All migrations there are, in order."""
    files = sorted(_files("schema/migrations"), key=lambda file: file.name)
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
    await call.value(
        conn,
        "_fix_partitions",
        execution_partitions=config.execution_partitions,
        budget_partitions=config.budget_partitions,
        quota_partitions=config.quota_partitions,
    )
    _refuse_other_partitions(await read_state(conn), config)
    await call.rows(conn, "extend_events")
    await call.value(conn, "_seed_first_key", secret=config.secret or secrets.token_hex(32))


def _refuse_ahead(state: SchemaState) -> None:
    if state.last_migration > last_migration():
        raise SchemaAhead(
            f"the database is at migration {state.last_migration} (flowfabric {state.version}), this version knows "
            f"{last_migration()}; upgrade flowfabric in this process"
        )


def _refuse_newer_functions(state: SchemaState) -> None:
    if _is_newer(state):
        raise SchemaAhead(
            f"the functions in the database are those of flowfabric {state.version}, which serve this version too; "
            "upgrade flowfabric in this process before it migrates"
        )


def _is_newer(state: SchemaState) -> bool:
    """Whether a later release applied the functions. Those serve this one too."""
    return _release(state.version or "0") > _release(version("flowfabric"))


def _release(text: str) -> list[int]:
    """The numbers of a version, without what marks a pre-release."""
    return [int(number) for number in re.findall(r"\d+", text)[:3]]


def _refuse_other_partitions(state: SchemaState, config: Config) -> None:
    for name in ("execution_partitions", "budget_partitions", "quota_partitions"):
        stored, wanted = getattr(state, name), getattr(config, name)
        if stored != wanted:
            raise PartitionCountMismatch(
                f"{name} is {wanted} here and {stored} in the database, where it was fixed by the first migration; "
                f"set {variable(name)}={stored}"
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
