"""Waiting for the locks of a migration without making everybody else wait.

A statement that changes a table waits for every transaction that uses it, and all later calls wait behind that
statement. So a migration waits only for a moment, undoes what it did, lets the others run, and tries again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from importlib import resources
from typing import TypeVar

import msgspec

from flowfabric.durations import format_duration
from flowfabric.errors import MigrationBlocked, Unavailable
from flowfabric.postgres import call
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.driver import LOCKED, Connection

log = logging.getLogger("flowfabric.schema")

T = TypeVar("T")

LOCK = {"key1": 17990, "key2": 2}
# Longer than the server's `deadlock_timeout`, after which an autovacuum that is in the way is cancelled.
LOCK_TIMEOUT = 1.5
PATIENCE = timedelta(minutes=1)
PATIENCE_WITH_MIGRATIONS = 5  # times as long for another migration, which may itself wait for locks
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 8.0
MOST_NAMED = 5


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session or prepared transaction that holds a lock which a migration needs."""

    pid: int | None = None
    gid: str | None = None
    role: str | None = None
    application: str | None = None
    background: str | None = None
    state: str | None = None
    open_s: int | None = None
    is_migration: bool = False

    def __str__(self) -> str:
        """Such as `pid 4711 (application "reports", role app, idle in transaction for 90 s)`."""
        told = [
            f'application "{self.application}"' if self.application else self.background,
            self.role and f"role {self.role}",
            " for ".join(filter(None, [self.state, f"{self.open_s} s" if self.open_s is not None else None])),
        ]
        name = f"pid {self.pid}" if self.pid is not None else f"prepared transaction '{self.gid}'"
        return f"{name} ({', '.join(filter(None, told))})"


async def take_turn(conn: Connection, patience: timedelta) -> None:
    """Wait until no other migration of this database runs. Raises `MigrationBlocked`.

    Polls, because a wait for a lock that times out would abort the transaction.
    """
    patience *= PATIENCE_WITH_MIGRATIONS
    backoff, end = Backoff(0.02, 0.5), None
    while not await call.builtin(conn, "pg_try_advisory_xact_lock", **LOCK):
        if end is None:
            end = time.monotonic() + patience.total_seconds()
            log.info("another migration of this database is running; waiting up to %s", format_duration(patience))
        elif time.monotonic() > end:
            holders = [holder for holder in await read_holders(conn) if holder.is_migration]
            raise MigrationBlocked(
                f"waited {format_duration(patience)} for another migration of this database{_listed(holders)}; "
                "run `ff migrate` again when it has ended",
                holders=msgspec.to_builtins(holders),
            )
        await backoff.wait()


async def retry(conn: Connection, work: Callable[[], Awaitable[T]], patience: timedelta) -> T:
    """Run `work` in a savepoint, again and again while others hold locks it needs. Raises `MigrationBlocked`.

    The savepoint undoes a try without giving up the turn, so that waiting migrations do not try one after the other.
    """
    end, backoff = time.monotonic() + patience.total_seconds(), Backoff(FIRST_PAUSE, LONGEST_PAUSE)
    while True:
        try:
            async with conn.transaction():
                timeout = f"{LOCK_TIMEOUT * 1_000:.0f}ms"
                await call.builtin(conn, "set_config", setting_name="lock_timeout", new_value=timeout, is_local=True)
                return await work()
        except Unavailable as error:
            if not isinstance(error.__cause__, LOCKED):
                raise
            holders = await read_holders(conn)
            if time.monotonic() + backoff.current > end:
                raise _blocked(holders, patience) from error
        pause = backoff.next()
        log.warning("the migration could not get its locks; trying again in %g s%s", pause, _listed(holders))
        await asyncio.sleep(pause)


def _blocked(holders: Sequence[Holder], patience: timedelta) -> MigrationBlocked:
    return MigrationBlocked(
        f"could not get the locks of the migration within {format_duration(patience)}; open transactions have used the "
        f"tables{_listed(holders)}; commit them or roll them back, or end a session with "
        "`select pg_terminate_backend(PID)`, then run `ff migrate` again; nothing was changed",
        holders=msgspec.to_builtins(holders),
    )


async def read_holders(conn: Connection) -> Sequence[Holder]:
    """Read who holds locks that a migration may need, those with the oldest transaction first."""
    [row] = await call.query(conn, resources.files("flowfabric.schema").joinpath("holders.sql").read_text())
    return call.read(list[Holder], row["holders"])


def _listed(holders: Sequence[Holder]) -> str:
    named = ", ".join(map(str, holders[:MOST_NAMED]))
    return f": {named}{', …' if len(holders) > MOST_NAMED else ''}" if named else ""
