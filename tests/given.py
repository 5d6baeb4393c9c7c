"""What a test starts from, in one line each."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec

from flowfabric import testing
from flowfabric.engine import attempts, claims, executions, holds
from flowfabric.ids import ExecutionId
from flowfabric.model import Claim, FailureClass, Options, Submission
from flowfabric.postgres.driver import Connection, Row

OPTIONS = Options(task="report")
OPTION_FIELDS = set(Options.__struct_fields__)
TABLES = ["executions", "tickets", "attempts", "tags", "idempotency_keys", "removals", "lanes", "workers", "events"]
TABLES += ["suspensions", "waitpoints", "signals", "keys", "schedules"]
TABLES += ["quotas", "quota_slots", "quota_entries"]
TABLES += ["budgets", "reservations", "spending", "usage_keys", "steps"]
TABLES += ["flows", "flow_keys", "flow_edges", "edge_groups"]


def submission(**options: object) -> Submission:
    """A submission; its own fields and those of its options may be mixed."""
    shared = {name: value for name, value in options.items() if name in OPTION_FIELDS}
    own = {name: value for name, value in options.items() if name not in OPTION_FIELDS}
    return Submission(options=msgspec.structs.replace(OPTIONS, **shared) if shared else OPTIONS, **own)  # type: ignore[arg-type]


class Given:
    """A database in some state."""

    worker = "pool"
    instance = "pool-1"

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    async def submitted(self, **options: object) -> ExecutionId:
        """An execution that waits, or is delayed when the options say so."""
        return (await executions.submit(self.conn, submission(**options))).execution_id

    async def held(self, **options: object) -> ExecutionId:
        """An execution that an operator holds back."""
        execution_id = await self.submitted(**options)
        await holds.hold(self.conn, execution_id, by="ops", reason="to look at it")
        return execution_id

    async def cancelled(self, **options: object) -> ExecutionId:
        """An execution that has ended, cancelled."""
        execution_id = await self.submitted(**options)
        await executions.cancel(self.conn, execution_id, reason="not wanted", by="ops")
        return execution_id

    async def claim(
        self, *, worker: str = worker, instance: str = instance, lanes: Collection[str] = ("default",), **options: Any
    ) -> list[Claim]:
        """What a worker gets when it asks; one execution of the lane `default` unless told otherwise."""
        return await claims.claim(self.conn, worker, instance=instance, lanes=lanes, **options)

    async def claimed(self, *, lease: timedelta = timedelta(seconds=30), **options: object) -> Claim:
        """An execution that a worker has just claimed; nothing else may wait in its lane."""
        execution_id = await self.submitted(**options)
        [claim] = await self.claim(lanes=[str(options.get("lane", "default"))], lease=lease)
        assert claim.execution_id == execution_id
        return claim

    async def completed(self, result: bytes | None = None, **options: Any) -> ExecutionId:
        """An execution that has ended well."""
        claim = await self.claimed(**options)
        await attempts.complete(self.conn, claim.fence, result)
        return claim.execution_id

    async def failed(self, **options: Any) -> ExecutionId:
        """An execution that has failed for good."""
        claim = await self.claimed(**options)
        await attempts.fail(self.conn, claim.fence, "it broke", class_=FailureClass.PERMANENT)
        return claim.execution_id

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
        """Whatever is done inside leaves every row as it was, and no event."""
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
        """Later: `given.time_passes(minutes=5)`."""
        return await testing.move_clock(self.conn, timedelta(**span))

    async def rows(self, statement: str, *arguments: object) -> list[Row]:
        """What is stored, for tests that look behind the operations."""
        return list(await self.conn.fetch(statement, *arguments))

    async def count(self, table: str) -> int:
        """How many rows a table of ours has."""
        [row] = await self.conn.fetch(f"select count(*) from flowfabric.{table}")
        return int(row["count"])

    async def events(self, execution_id: ExecutionId | None = None) -> list[str]:
        """The kinds of the events so far, in order; of one execution when it is given."""
        found = await self.conn.fetch(
            "select kind from flowfabric.events where $1::uuid is null or execution = $1 order by id",
            execution_id and execution_id.uuid,
        )
        return [row["kind"] for row in found]

    async def event(self, kind: str, execution_id: ExecutionId | None = None) -> dict[str, Any]:
        """The detail of the last event of a kind."""
        found = await self.conn.fetch(
            "select detail::text from flowfabric.events where kind = $1 and ($2::uuid is null or execution = $2) "
            "order by id desc limit 1",
            kind,
            execution_id and execution_id.uuid,
        )
        return dict(msgspec.json.decode(found[0]["detail"]))
