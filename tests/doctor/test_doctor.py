"""The doctor, on real servers and databases with real problems."""

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec

from flowfabric import testing
from flowfabric.config import Config
from flowfabric.doctor import diagnose
from flowfabric.doctor.work import judge_work
from flowfabric.engine import attempts, claims, events, executions, lanes, turns, workers
from flowfabric.engine import doctor as engine
from flowfabric.model import FailureClass, Finding, Level
from flowfabric.postgres.database import Database
from flowfabric.postgres.driver import Connection
from flowfabric.schema import migrate
from flowfabric.sweeps import run_each, sweeps
from tests import sources
from tests.conftest import Connect
from tests.engine.budgets.scene import make
from tests.engine.events.log import write_directly
from tests.engine.streams.scene import appended
from tests.engine.stuck import everything_stuck
from tests.engine.waits.scene import waiting
from tests.given import Given, submission
from tests.postgres.test_pooler import rotating  # noqa: F401 - a fixture

CONFIG = Config()
AT_ONCE = timedelta()

# Sweeps that are not watched, with the reason: their rows have no age, or being late does no harm.
NOT_WATCHED = {
    "return_orphans": "an orphan has no age when it is found, and its leases expire anyway",
    "resume_budget_waits": "a budget wait has no due time",
    "extend_events": "the check `log` watches the room in the log",
    "retire_signing_keys": "an expired key verifies nothing, removed or not",
    "remove_idempotency_keys": "an expired idempotency key blocks nothing",
    "trim_windows": "entries outside their window do not count, trimmed or not",
    "trim_events": "the retention of events is a setting of the process that sweeps",
}


async def found(conn: Connection, check: str, **options: Any) -> list[Finding]:
    """The findings of one check."""
    diagnosis = await diagnose(conn, CONFIG, **options)
    assert check in diagnosis.checks
    return [finding for finding in diagnosis.findings if finding.check == check]


async def test_a_healthy_database_with_work_and_workers_has_no_findings(conn: Connection, given: Given) -> None:
    await workers.register_worker(conn, "pool", instance="pool-1", lanes=["default"])
    await given.claimed()
    await given.submitted()
    await given.submitted(delay=timedelta(hours=1))

    # The test server is not durable, for speed, and has a movable clock: both are expected findings.
    checks = (
        "schema",
        "engine_clock",
        "signing_key",
        "log",
        "consumers",
        "sweeps",
        "retention",
        "lanes",
        "routes",
        "pooler",
    )
    assert [finding for check in checks for finding in await found(conn, check)] == []


async def test_without_a_schema_only_the_server_is_checked_and_nothing_is_created(empty_url: str) -> None:
    conn = await asyncpg.connect(empty_url)

    diagnosis = await diagnose(conn, CONFIG)

    assert {"server_version", "transactions", "schema"} <= set(diagnosis.checks)
    assert {"sweeps", "lanes"} & set(diagnosis.checks) == set()
    [schema] = [finding for finding in diagnosis.findings if finding.check == "schema"]
    assert (schema.level, schema.value, schema.remedy) == (Level.WRONG, "behind", "run `ff migrate`")
    assert await conn.fetchval("select to_regnamespace('flowfabric')") is None
    await conn.close()


async def test_a_schema_behind_this_version_is_found(empty_url: str) -> None:
    conn = await asyncpg.connect(empty_url)
    await migrate.migrate(conn, CONFIG, upto=0)

    [schema] = await found(conn, "schema")

    assert (schema.level, schema.value) == (Level.WRONG, "behind")
    assert schema.problem.startswith("the database is at migration 0, this version needs ")
    await migrate.migrate(conn, CONFIG)
    assert await found(conn, "schema") == []
    await conn.close()


async def test_a_schema_ahead_of_this_version_is_found(conn: Connection) -> None:
    await conn.execute("insert into flowfabric.migrations (number, name) values (9999, '9999_later.sql')")

    [schema] = await found(conn, "schema")

    assert (schema.level, schema.value, schema.remedy) == (Level.WRONG, "ahead", "upgrade flowfabric on this machine")


async def test_other_partition_counts_are_found(conn: Connection) -> None:
    diagnosis = await diagnose(conn, Config(quota_partitions=7))

    [schema] = [finding for finding in diagnosis.findings if finding.check == "schema"]
    assert schema.value == "other partitions"
    assert "quota_partitions is 7 here and 32 in the database" in schema.problem


async def test_an_idle_transaction_that_stops_vacuum_is_found(conn: Connection, connect: Connect) -> None:
    idle = await connect()
    await idle.execute("set application_name = 'forgetful'; begin isolation level repeatable read; select 1")

    [finding] = await found(conn, "transactions", longest=AT_ONCE)

    pid = await idle.fetchval("select pg_backend_pid()")
    assert (finding.level, finding.subject) == (Level.WRONG, str(pid))
    assert finding.problem.startswith(f"session {pid} (")
    assert ", forgetful) has had a transaction open for " in finding.problem
    assert finding.problem.endswith(" and is idle")
    assert finding.means == "vacuum cannot remove rows that died since it started"
    assert f"select pg_terminate_backend({pid})" in finding.remedy
    await idle.execute("rollback")
    assert await found(conn, "transactions", longest=AT_ONCE) == []


async def test_a_transaction_is_given_a_minute(conn: Connection, connect: Connect) -> None:
    await (await connect()).execute("begin isolation level repeatable read; select 1")

    assert await found(conn, "transactions") == []


async def test_a_writer_that_holds_back_the_log_is_found(conn: Connection, connect: Connect) -> None:
    writer = await connect()
    await write_directly(writer)
    transaction = writer.transaction()
    await transaction.start()
    await executions.submit(writer, submission())

    [finding] = await found(conn, "transactions", longest=AT_ONCE)

    assert finding.level is Level.WRONG
    assert "it has written to the event log without committing" in finding.means
    await transaction.rollback()


async def test_an_idle_transaction_that_pins_nothing_is_only_advice(conn: Connection, connect: Connect) -> None:
    await (await connect()).execute("begin; select 1")

    [finding] = await found(conn, "transactions", longest=AT_ONCE)

    assert (finding.level, finding.means) == (Level.ADVICE, "it keeps its locks until it ends")


async def test_a_lane_without_workers_is_found(conn: Connection, given: Given) -> None:
    await given.submitted(lane="reports")
    await given.time_passes(minutes=5)

    [finding] = await found(conn, "lanes")

    assert (finding.level, finding.subject, finding.value) == (Level.WRONG, "reports", "1 waiting")
    assert finding.problem.startswith("1 in lane reports cannot be claimed, the oldest for 5 min")
    assert finding.problem.endswith(": no live worker serves lane reports")
    assert finding.remedy == "start a worker: ff worker FILE.py:app --lanes reports"
    await workers.register_worker(conn, "pool", instance="pool-1", lanes=["reports"])
    assert await found(conn, "lanes") == []


async def test_a_route_without_capable_worker_and_a_paused_lane_are_found(conn: Connection, given: Given) -> None:
    await everything_stuck(given)

    [route] = await found(conn, "routes")
    by_lane = {finding.subject: finding for finding in await found(conn, "lanes")}

    assert (route.level, route.subject) == (Level.WRONG, "gpus")
    assert "nearest worker crew lacks {gpu}" in route.problem
    assert {lane: finding.level for lane, finding in by_lane.items()} == {"paused": Level.ADVICE, "lonely": Level.WRONG}
    assert "by ada: the printer burns" in by_lane["paused"].problem


async def test_sweeps_that_do_not_run_are_found(conn: Connection, given: Given, database: Database) -> None:
    await given.submitted(lane="delayed", delay=timedelta(seconds=5))
    await given.submitted(lane="late", deadline=timedelta(seconds=5))
    await given.claimed()
    await waiting(given, submitted={"lane": "waits"}, timeout=timedelta(seconds=5), timeout_behavior="fail")
    await workers.register_worker(conn, "pool", instance="pool-1", lanes=["default"])
    await given.time_passes(seconds=50)
    assert await found(conn, "sweeps") == []

    await given.time_passes(minutes=5)
    [finding] = await found(conn, "sweeps")

    assert (finding.level, finding.value[:5]) == (Level.WRONG, "5 min")
    assert finding.subject is not None
    late = {"promote_due", "expire_executions", "expire_leases", "time_out_waits", "expire_workers"}
    assert set(finding.subject.split(", ")) == late
    assert "promote_due is 5 min" in finding.problem
    await run_each(database, sweeps(CONFIG))
    assert await found(conn, "sweeps") == []


async def test_a_removal_that_has_not_caught_up_for_a_day_is_advice(conn: Connection, given: Given) -> None:
    process = uuid4()
    for _ in range(24):
        await turns.take_turn(conn, "remove_ended", process, turn=timedelta(hours=1, minutes=1))
        assert await found(conn, "retention") == []
        await given.time_passes(hours=1)

    [finding] = await found(conn, "retention")
    assert (finding.level, finding.value, finding.subject) == (Level.ADVICE, "1 d", "remove_ended")
    await turns.end_turn(conn, "remove_ended", process)
    assert await found(conn, "retention") == []


async def test_a_removal_that_is_late_counts_as_a_sweep_that_does_not_run_unless_it_runs(
    conn: Connection, given: Given
) -> None:
    await given.completed(policy={"retention_ms": 0})
    await given.time_passes(hours=2)
    assert [finding.subject for finding in await found(conn, "sweeps")] == ["remove_ended"]

    await turns.take_turn(conn, "remove_ended", uuid4(), turn=timedelta(minutes=2))
    assert await found(conn, "sweeps") == []


async def test_running_executions_that_keep_much_output_are_found(conn: Connection, given: Given) -> None:
    policy = {"stream": {"retention_maxlen": 32}, "retry": {"max_retries": 1}}
    large, small = await given.claimed(lane="agents", policy=policy), await given.claimed()
    ended = await given.claimed()
    for claim, count in ((large, 60), (small, 8), (ended, 60)):
        await appended(conn, claim, *[b"x" * 65_536] * count)
    await attempts.complete(conn, ended.fence)
    await attempts.fail(conn, large.fence, "down", class_=FailureClass.TRANSIENT)
    await given.time_passes(minutes=5)
    [again] = await given.claim(lanes=["agents"])
    await appended(conn, again, b"x" * 65_536)

    facts = await engine.diagnose(conn, large_stream=1 << 20)
    [found] = facts.large_streams
    assert (found.execution_id, found.lane, found.attempts) == (str(large.execution_id), "agents", 2)
    assert (found.frames, found.bytes) == (41, 41 * 65_536)
    [finding] = [it for it in judge_work(facts) if it.check == "streams"]
    assert (finding.level, finding.subject, finding.value) == (Level.ADVICE, str(large.execution_id), "3 MiB")
    assert "ff lanes configure agents --stream-retention-maxlen" in finding.remedy
    assert (await engine.diagnose(conn)).large_streams == []


async def test_a_database_that_is_mostly_output_is_found(conn: Connection) -> None:
    facts = await engine.diagnose(conn)
    assert 0 < facts.frames_bytes < facts.database_bytes
    assert [it for it in judge_work(facts) if it.check == "streams"] == []

    full = msgspec.structs.replace(facts, frames_bytes=30 << 30, database_bytes=40 << 30)
    [finding] = [it for it in judge_work(full) if it.check == "streams"]
    assert (finding.subject, finding.value) == ("flowfabric.frames", "30.0 GiB")
    assert "75% of the database" in finding.problem


async def test_frames_that_are_not_trimmed_are_found(conn: Connection, given: Given, database: Database) -> None:
    claim = await given.claimed(policy={"stream": {"retention_ms": 1_000}})
    await appended(conn, claim, b"1")
    await attempts.complete(conn, claim.fence)
    await given.time_passes(minutes=6)

    assert [finding.subject for finding in await found(conn, "sweeps")] == ["trim_frames"]
    await run_each(database, sweeps(CONFIG))
    assert await found(conn, "sweeps") == []


async def test_an_expired_grant_is_found(conn: Connection, given: Given) -> None:
    await given.submitted()
    await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["default"], ttl=timedelta(seconds=5))
    await given.time_passes(minutes=5)

    assert [finding.subject for finding in await found(conn, "sweeps")] == ["expire_grants"]


async def test_a_budget_that_was_not_reset_is_found(conn: Connection, given: Given) -> None:
    await make(conn, reset_interval=timedelta(minutes=1))
    await given.time_passes(minutes=10)

    assert [finding.subject for finding in await found(conn, "sweeps")] == ["reset_budgets"]


def test_every_sweep_is_watched_or_has_its_reason() -> None:
    [overdue] = [function for function in sources.sql_functions() if function.name == "_overdue"]
    watched = set(re.findall(r"select '(\w+)', ", overdue.code))

    assert {sweep.name for sweep in sweeps(CONFIG)} == watched | NOT_WATCHED.keys()


async def test_a_moved_clock_is_found_and_restored(conn: Connection, given: Given) -> None:
    assert await found(conn, "engine_clock") == []
    await given.time_passes(hours=2)

    [finding] = await found(conn, "engine_clock")

    assert (finding.level, finding.value) == (Level.WRONG, "+7200 s")
    assert finding.problem == "the engine's clock was moved: it is 2 h ahead of the server's"
    assert [finding.subject for finding in await found(conn, "clock")] == ["test clock"]
    await migrate.migrate(conn, CONFIG)
    assert await found(conn, "engine_clock") + await found(conn, "clock") == []


async def test_a_clock_that_was_set_back_is_found(conn: Connection) -> None:
    await testing.move_clock(conn, -timedelta(minutes=1))

    [finding] = await found(conn, "engine_clock")

    assert finding.problem.endswith("it is 1 min behind the server's")


async def test_a_setting_that_loses_work_is_found(conn: Connection) -> None:
    for value, expected in [("off", [(Level.WRONG, "off")]), ("on", [])]:
        await conn.execute(f"set synchronous_commit = {value}")
        findings = [finding for finding in await found(conn, "durability") if finding.subject == "synchronous_commit"]
        assert [(finding.level, finding.value) for finding in findings] == expected


async def test_transactions_that_may_idle_forever_are_advice(conn: Connection) -> None:
    for value, expected in [("0", ["idle_in_transaction_session_timeout"]), ("'5min'", [])]:
        await conn.execute(f"set idle_in_transaction_session_timeout = {value}")
        assert [finding.subject for finding in await found(conn, "settings")] == expected


async def test_a_stricter_isolation_level_is_found(conn: Connection) -> None:
    await conn.execute("set idle_in_transaction_session_timeout = '5min'")
    for value, expected in [("serializable", [(Level.WRONG, "serializable")]), ("read committed", [])]:
        await conn.execute(f"set default_transaction_isolation = '{value}'")
        assert [(finding.level, finding.value) for finding in await found(conn, "settings")] == expected


async def test_a_table_left_out_by_vacuum_is_found(conn: Connection) -> None:
    await conn.execute("alter table flowfabric.tickets set (autovacuum_enabled = off)")

    [finding] = await found(conn, "vacuum")

    assert (finding.level, finding.subject) == (Level.WRONG, "flowfabric.tickets")
    assert finding.remedy.endswith("`alter table flowfabric.tickets reset (autovacuum_enabled)`")


async def test_a_missing_key_is_found(conn: Connection) -> None:
    await conn.execute("delete from flowfabric.keys")

    [finding] = await found(conn, "signing_key")

    assert (finding.level, finding.remedy) == (Level.WRONG, "install one: `ff signing-keys rotate KID`")


async def test_a_log_without_room_is_found(conn: Connection) -> None:
    for number in range(1, 17):
        await conn.execute(f"drop table flowfabric.events_{number}")

    [finding] = await found(conn, "log")

    assert (finding.level, finding.value) == (Level.WRONG, "999,999")
    await events.extend_events(conn)
    assert await found(conn, "log") == []


async def test_a_consumer_whose_events_are_gone_is_found(conn: Connection, given: Given) -> None:
    await given.submitted()
    cursor = (await events.read_events(conn)).cursor
    await events.acknowledge(conn, "billing", cursor)
    assert await found(conn, "consumers") == []
    await conn.execute("update flowfabric.horizon set oldest = 1000000")

    [finding] = await found(conn, "consumers")

    assert (finding.level, finding.subject) == (Level.WRONG, "billing")
    assert "cursor_expired" in finding.means


async def test_a_pooler_nobody_mentioned_is_found(rotating: str) -> None:  # noqa: F811
    async with Database(Config(pooler=True, pool_size=1), rotating) as database, database.connection() as conn:
        [finding] = await found(conn, "pooler")

        assert (finding.level, finding.remedy[:26]) == (Level.WRONG, "set FLOWFABRIC_POOLER=true")
        mentioned = await diagnose(conn, Config(pooler=True))
        assert [each for each in mentioned.findings if each.check == "pooler"] == []


async def test_a_role_without_privileges_gets_a_finding(conn: Connection) -> None:
    await conn.execute("begin; create role passer_by; set local role passer_by")

    diagnosis = await diagnose(conn, CONFIG)
    await conn.execute("rollback")

    assert [finding.value for finding in diagnosis.findings if finding.check == "transactions"] == ["hidden"]
    [schema] = [finding for finding in diagnosis.findings if finding.check == "schema"]
    assert (schema.value, schema.problem[:17]) == ("privilege_missing", "permission denied")


async def test_a_diagnosis_changes_nothing_and_needs_no_write_privilege(conn: Connection, given: Given) -> None:
    await everything_stuck(given)
    await lanes.pause_lane(conn, "gpus", by="ada")

    async with given.nothing_changes():
        await conn.execute("begin read only")
        assert (await diagnose(conn, CONFIG)).wrong_count > 0
        await conn.execute("rollback")
