"""The states a test starts from, and the questions it asks, in one line each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import asyncpg
import msgspec

from flowfabric import testing
from flowfabric.engine import attempts, claims, executions, holds
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, FailureClass, Options, PublicState, Submission
from flowfabric.postgres.driver import Connection, Row

T = TypeVar("T")

BLOCKED = "datname = current_database() and wait_event_type = 'Lock'"

OPTIONS = Options(task="report")
OPTION_FIELDS = set(Options.__struct_fields__)
TABLES = ["executions", "tickets", "attempts", "tags", "idempotency_keys", "removals", "lanes", "workers", "events"]
TABLES += ["waits", "budget_waits", "waitpoints", "signals", "keys", "schedules"]
TABLES += ["quotas", "quota_stripes", "quota_slots", "quota_entries"]
TABLES += ["budgets", "reservations", "spending", "usage_keys", "steps", "streams", "frames"]
TABLES += ["flows", "flow_keys", "flow_edges", "edge_groups"]

# Every ended attempt, as SQL: those that another followed, and the last one of each record.
ENDED_ATTEMPTS = """(select a.* from flowfabric.attempts a union all
    select a.* from flowfabric.executions e cross join lateral flowfabric._last_attempt(e) a) a"""


def submission(**options: object) -> Submission:
    """A submission with these options, whether they are options of the task or of the submission itself."""
    shared = {name: value for name, value in options.items() if name in OPTION_FIELDS}
    own = {name: value for name, value in options.items() if name not in OPTION_FIELDS}
    return Submission(options=msgspec.structs.replace(OPTIONS, **shared) if shared else OPTIONS, **own)  # type: ignore[arg-type]


async def until(holds: Callable[[], Awaitable[object]] | Callable[[], object], *, seconds: float = 30) -> None:
    """Return when the condition holds; for what other threads, processes and sessions do, which takes real time."""
    async with asyncio.timeout(seconds):
        while True:
            found = holds()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.005)


async def claim(conn: Connection, *lanes: str, worker: str = "w", take: int = 1, after_route: int = 0) -> list[Claim]:
    """Claim on this connection, from the lane `default` unless others are named."""
    return await claims.claim(
        conn, worker, instance=f"{worker}-1", lanes=lanes or ["default"], take=take, after_route=after_route
    )


async def state(conn: Connection, execution_id: ExecutionId) -> PublicState:
    """The public state of an execution, read on this connection."""
    return (await executions.describe(conn, execution_id)).state.public_state


class Given:
    """A database in a known state. `Given(conn)` is the same through another connection."""

    worker = "pool"
    instance = "pool-1"

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    async def submitted(self, **options: object) -> ExecutionId:
        """An execution that is ready, or delayed if the options say so."""
        return (await executions.submit(self.conn, submission(**options))).execution_id

    async def held(self, **options: object) -> ExecutionId:
        """An execution that an operator holds."""
        execution_id = await self.submitted(**options)
        await holds.hold(self.conn, execution_id, by="ops", reason="to look at it")
        return execution_id

    async def cancelled(self, **options: object) -> ExecutionId:
        """An execution that was cancelled."""
        execution_id = await self.submitted(**options)
        await executions.cancel(self.conn, execution_id, reason="not wanted", by="ops")
        return execution_id

    async def claim(
        self, *, worker: str = worker, instance: str = instance, lanes: Collection[str] = ("default",), **options: Any
    ) -> list[Claim]:
        """Claim as a worker does: one execution of the lane `default` unless the options say otherwise."""
        return await claims.claim(self.conn, worker, instance=instance, lanes=lanes, **options)

    async def claimed(self, *, lease: timedelta = timedelta(seconds=30), **options: object) -> Claim:
        """An execution that a worker has just claimed; nothing else may be ready in its lane."""
        execution_id = await self.submitted(**options)
        [claim] = await self.claim(lanes=[str(options.get("lane", "default"))], lease=lease)
        assert claim.execution_id == execution_id
        return claim

    async def completed(self, result: bytes | None = None, **options: Any) -> ExecutionId:
        """An execution that has completed."""
        claim = await self.claimed(**options)
        await attempts.complete(self.conn, claim.fence, result)
        return claim.execution_id

    async def failed(self, **options: Any) -> ExecutionId:
        """An execution that has failed permanently."""
        claim = await self.claimed(**options)
        await attempts.fail(self.conn, claim.fence, "it broke", class_=FailureClass.PERMANENT)
        return claim.execution_id

    async def state(self, execution_id: ExecutionId) -> PublicState:
        """The public state of an execution."""
        return await state(self.conn, execution_id)

    async def blocked(self, conn: asyncpg.Connection, call: "asyncio.Future[T]") -> "asyncio.Future[T]":
        """Return the call once its connection waits for a lock; fail if the call ends before that."""
        pid = conn.get_server_pid()

        async def waits() -> bool:
            assert not call.done(), f"did not block: {call.result()}"
            return bool(await self.rows(f"select from pg_stat_activity where pid = $1 and {BLOCKED}", pid))

        await until(waits)
        return call

    async def until_blocked(self, sessions: int = 1) -> None:
        """Return when so many sessions of this database wait for a lock."""

        async def wait() -> bool:
            return len(await self.rows(f"select from pg_stat_activity where {BLOCKED}")) >= sessions

        await until(wait)

    async def ticket(self, execution_id: ExecutionId) -> dict[str, Any]:
        """The ticket of an unfinished execution, column by column."""
        [row] = await self.rows(
            "select * from flowfabric.tickets where partition = $1 and id = $2",
            execution_id.partition,
            execution_id.uuid,
        )
        return dict(row)

    @asynccontextmanager
    async def nothing_changes(self) -> AsyncIterator[None]:
        """Check that the block changes no row and appends no event."""
        before = await self._everything()
        yield
        assert await self._everything() == before

    async def _everything(self) -> dict[str, list[str]]:
        return {
            table: [
                row["line"] for row in await self.rows(f"select t::text as line from flowfabric.{table} t order by 1")
            ]
            for table in TABLES
        }

    async def time_passes(self, **span: float) -> datetime:
        """Move the clock: `given.time_passes(minutes=5)`."""
        return await testing.move_clock(self.conn, timedelta(**span))

    async def rows(self, statement: str, *arguments: object) -> list[Row]:
        """Rows of a query, for tests that look behind the operations."""
        return list(await self.conn.fetch(statement, *arguments))

    async def count(self, table: str) -> int:
        """How many rows a table of the schema `flowfabric` has."""
        [row] = await self.conn.fetch(f"select count(*) from flowfabric.{table}")
        return int(row["count"])

    async def events(self, execution_id: ExecutionId | None = None) -> list[str]:
        """The kinds of the events so far, in order; only those of one execution if it is given."""
        found = await self.conn.fetch(
            "select kind from flowfabric.events where $1::uuid is null or execution = $1 order by id",
            execution_id and execution_id.uuid,
        )
        return [row["kind"] for row in found]

    async def event(self, kind: str, execution_id: ExecutionId | None = None) -> dict[str, Any]:
        """The detail of the latest event of a kind."""
        found = await self.conn.fetch(
            "select flowfabric._event_detail(e)::text as detail from flowfabric.events e "
            "where kind = $1 and ($2::uuid is null or execution = $2) order by id desc limit 1",
            kind,
            execution_id and execution_id.uuid,
        )
        return dict(msgspec.json.decode(found[0]["detail"]))
