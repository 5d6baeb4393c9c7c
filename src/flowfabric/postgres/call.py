"""Calls: one function of the schema `flowfabric`, one round trip.

A call works on our own connection and on a caller's, also inside a transaction that is already open.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from flowfabric import errors
from flowfabric.ids import EntityId
from flowfabric.model import Page
from flowfabric.postgres import driver
from flowfabric.postgres.driver import Connection, Row

T = TypeVar("T")

LONGEST_PAGE = 1_000


async def rows(conn: Connection, function: str, /, **arguments: object) -> Sequence[Row]:
    """Call a function and return its rows."""
    statement = _statement(function, tuple(arguments), driver.lock_limit(conn))
    try:
        return await driver.fetch(conn, statement, list(arguments.values()))
    except driver.DRIVER as error:
        if (refused := driver.refused(error)) is not None:
            raise refused from None
        if (failed := driver.failed(conn, error)) is not None:
            raise failed from error
        raise


async def row(conn: Connection, function: str, /, **arguments: object) -> Row:
    """Call a function that returns exactly one row."""
    [only] = await rows(conn, function, **arguments)
    return only


async def value(conn: Connection, function: str, /, **arguments: object) -> Any:
    """Call a function that returns one value."""
    [only] = (await row(conn, function, **arguments)).values()
    return only


async def builtin(conn: Connection, function: str, /, **arguments: object) -> Any:
    """Call a function of Postgres itself and return its value."""
    places = ", ".join(f"${number}" for number in range(1, len(arguments) + 1))
    with driver.translated(conn):
        [row] = await conn.fetch(f"select {function}({places}) as value", *arguments.values())
    return row["value"]


async def query(conn: Connection, text: str) -> Sequence[Row]:
    """Run the one statement of a file and return its rows; for databases without our functions."""
    with driver.translated(conn):
        return await conn.fetch(text)


async def script(conn: Connection, text: str) -> None:
    """Run several statements at once: a migration, or the functions of a concept."""
    with driver.translated(conn):
        await conn.execute(text)


def read(kind: type[T], text: str) -> T:
    """Decode a JSON answer as a type."""
    decoder: msgspec.json.Decoder[T] = _decoder(cast("Any", kind))
    return decoder.decode(text)


def take(limit: int) -> int:
    """Clamp a limit to what a page may hold; SQL refuses numbers below 0. Raises `InvalidLimit` for other types."""
    if not isinstance(limit, int):
        raise errors.InvalidLimit(f"limit {limit!r:.82} is invalid; use a whole number")
    return max(min(limit, LONGEST_PAGE), -LONGEST_PAGE)


def page(found: Sequence[T], limit: int, cursor: Callable[[T], str]) -> Page[T]:
    """Make a page of the rows found; SQL reads one row more than a page holds, which shows whether more follow."""
    items = found[: min(limit, LONGEST_PAGE)]
    return Page(items, cursor(items[-1]) if items and len(found) > len(items) else None)


def refusal(code: str, detail: str) -> errors.FlowFabricError:
    """The error that a set-based function returned for one item of a batch."""
    fields = msgspec.json.decode(detail, type=dict[str, object])
    return errors.from_code(code, str(fields.pop("message")), fields)


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_custom)


def _custom(kind: type, value: Any) -> object:
    """Read an id, which SQL writes as an object; any other type is `object`, whose values are plain JSON."""
    return kind(value["partition"], UUID(value["uuid"])) if issubclass(kind, EntityId) else value


@functools.cache
def _statement(function: str, names: tuple[str, ...], lock_limit: str | None) -> str:
    arguments = ", ".join(f"{name} => ${number}" for number, name in enumerate(names, 1))
    called = f"select * from flowfabric.{function}({arguments})"  # noqa: S608 - names from our code, values as parameters
    if lock_limit is None:
        return called
    # The offset, which is 0, makes Postgres set the limit before it calls the function.
    return (
        f"select f.* from (select set_config('lock_timeout', '{lock_limit}', true) as lock_limit) l "  # noqa: S608
        f"cross join lateral ({called} offset (l.lock_limit is null)::int) f"
    )
