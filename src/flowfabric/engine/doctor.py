"""Doctor: the facts about the work in a database that `ff doctor` judges."""

from flowfabric.model.doctor import WorkFacts
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def diagnose(conn: Connection) -> WorkFacts:
    """Collect the facts: clock, signing key, event log, consumers, sweeps, and stuck work. Changes nothing."""
    return call.read(WorkFacts, await call.value(conn, "diagnose"))
