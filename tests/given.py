"""What a test starts from, in one line each."""

from datetime import datetime, timedelta

import msgspec

from flowfabric import testing
from flowfabric.db import Connection, Row
from flowfabric.engine import executions, operator
from flowfabric.ids import ExecutionId
from flowfabric.model import Submission, Terms

TERMS = Terms(kind="report")
TERM_FIELDS = set(Terms.__struct_fields__)


def submission(**options: object) -> Submission:
    """A submission; options of its terms and its own may be mixed."""
    terms = {name: value for name, value in options.items() if name in TERM_FIELDS}
    own = {name: value for name, value in options.items() if name not in TERM_FIELDS}
    return Submission(terms=msgspec.structs.replace(TERMS, **terms) if terms else TERMS, **own)  # type: ignore[arg-type]


class Given:
    """A database in some state."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    async def submitted(self, **options: object) -> ExecutionId:
        """An execution that waits, or is delayed when the options say so."""
        return (await executions.submit(self.conn, submission(**options))).execution_id

    async def held(self, **options: object) -> ExecutionId:
        """An execution that an operator holds back."""
        execution_id = await self.submitted(**options)
        await operator.hold(self.conn, execution_id, by="ops", why="to look at it")
        return execution_id

    async def cancelled(self, **options: object) -> ExecutionId:
        """An execution that has ended, cancelled."""
        execution_id = await self.submitted(**options)
        await executions.cancel(self.conn, execution_id, reason="not wanted", by="ops")
        return execution_id

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
