"""Diagnose: run all checks of the server, the schema and the queued work, and return the findings."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from flowfabric.config import Config
from flowfabric.doctor import server, work
from flowfabric.doctor.catalog import read_catalog
from flowfabric.engine import doctor as engine
from flowfabric.errors import FlowFabricError, PartitionCountMismatch, SchemaAhead, SchemaBehind
from flowfabric.model import Diagnosis, Finding, Level
from flowfabric.postgres import driver
from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate

LONGEST = timedelta(minutes=1)

SCHEMA: Mapping[type[FlowFabricError], tuple[str, str, str]] = {
    SchemaBehind: ("behind", "processes of this version do not start with this database", "run `ff migrate`"),
    SchemaAhead: ("ahead", "this version does not know the newer schema", "upgrade flowfabric on this machine"),
    PartitionCountMismatch: (
        "other partitions",
        "ids made with these settings would have wrong partitions, so processes with them do not start",
        "use the partition counts that the database was created with",
    ),
}


async def diagnose(conn: Connection, config: Config, *, longest: timedelta = LONGEST) -> Diagnosis:
    """Check the server, the schema and the queued work, and return the findings. Changes nothing.

    A transaction that has been open for longer than `longest` is reported. If the schema is missing or has another
    version, only the server is checked. It also works through a pooler, on a connection opened for a pooler.
    """
    began = datetime.now(UTC)
    facts = await read_catalog(conn)
    local = began + (datetime.now(UTC) - began) / 2
    findings = [*server.judge_server(facts, longest), *server.judge_clock(facts, local)]
    checks = [*server.CHECKS, "pooler", "schema"]
    later = None
    try:
        await migrate.check(conn, config)
        seen = await engine.diagnose(conn)
    except FlowFabricError as error:
        findings.append(_schema_finding(error))
    else:
        later = seen.pid
        findings += work.judge_work(seen)
        checks += work.CHECKS
    findings += server.judge_pooler(facts, config, driver.session_pid(conn), later)
    return Diagnosis(checks=checks, findings=sorted(findings, key=_rank))


def _schema_finding(error: FlowFabricError) -> Finding:
    """Return the finding that says why the work in this database could not be checked."""
    other = (error.code, "the work in this database could not be checked", "fix that error, then run `ff doctor` again")
    value, means, remedy = SCHEMA.get(type(error), other)
    return Finding(check="schema", level=Level.WRONG, value=value, problem=error.message, means=means, remedy=remedy)


def _rank(finding: Finding) -> bool:
    return finding.level is not Level.WRONG
