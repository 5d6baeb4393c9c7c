"""Doctor: the facts about the work in a database that `ff doctor` judges."""

from flowfabric.model.doctor import WorkFacts
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

LARGE_STREAM = 100 << 20


async def diagnose(conn: Connection, *, large_stream: int = LARGE_STREAM) -> WorkFacts:
    """Collect the facts: clock, signing key, event log, consumers, sweeps, stuck work and output. Changes nothing.

    Running executions that keep at least `large_stream` bytes of output are named.
    """
    return call.read(WorkFacts, await call.value(conn, "diagnose", large_stream_bytes=large_stream))
