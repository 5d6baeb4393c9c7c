"""Diagnosing: facts about the engine and its work, for the doctor to judge."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from flowfabric.config import Config
from flowfabric.doctor import server, work
from flowfabric.doctor.catalog import read_catalog
from flowfabric.errors import FlowFabricError, PartitionCountMismatch, SchemaAhead, SchemaBehind
from flowfabric.model import Diagnosis, Finding, Level
from flowfabric.model.doctor import WorkFacts
from flowfabric.postgres import call, driver
from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate

LONGEST = timedelta(minutes=1)

SCHEMA: Mapping[type[FlowFabricError], tuple[str, str, str]] = {
    SchemaBehind: ("behind", "processes of this version refuse to start", "run `ff migrate`"),
    SchemaAhead: ("ahead", "this version does not know the newer schema", "upgrade flowfabric on this machine"),
    PartitionCountMismatch: (
        "other partitions",
        "ids created with these settings would use the wrong partitions, so processes refuse to start",
        "use the partition count that the database was created with",
    ),
}


async def diagnose(conn: Connection, config: Config, *, longest: timedelta = LONGEST) -> Diagnosis:
    """Check the server, the schema and the work, and report what is wrong; changes nothing.

    A transaction open for longer than `longest` is reported. If the schema is missing or of another version, only the
    server is checked. It also works through a pooler, on a connection that was opened for one.
    """
    began = datetime.now(UTC)
    facts = await read_catalog(conn)
    local = began + (datetime.now(UTC) - began) / 2
    findings = [*server.judge_server(facts, longest), *server.judge_clock(facts, local)]
    checks = [*server.CHECKS, "pooler", "schema"]
    later = None
    try:
        await migrate.check(conn, config)
        seen = call.read(WorkFacts, await call.value(conn, "diagnose"))
    except FlowFabricError as refusal:
        findings.append(_unread(refusal))
    else:
        later = seen.pid
        findings += work.judge_work(seen)
        checks += work.CHECKS
    findings += server.judge_pooler(facts, config, driver.session_pid(conn), later)
    return Diagnosis(checks=checks, findings=sorted(findings, key=_rank))


def _unread(refusal: FlowFabricError) -> Finding:
    """The finding for work that could not be checked."""
    value, means, remedy = SCHEMA.get(
        type(refusal), (refusal.code, "the work in this database could not be checked", "fix the problem named above")
    )
    return Finding(check="schema", level=Level.WRONG, value=value, problem=refusal.message, means=means, remedy=remedy)


def _rank(finding: Finding) -> bool:
    return finding.level is not Level.WRONG
