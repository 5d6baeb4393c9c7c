"""What the doctor makes of what a server says: servers that cannot be had here, in the words of one that can."""

from datetime import timedelta

import asyncpg
import msgspec
import pytest

from flowfabric.config import Config
from flowfabric.doctor import server as judge
from flowfabric.doctor.catalog import read_catalog
from flowfabric.model import Finding, Level
from flowfabric.model.doctor import PreparedTransaction, ServerFacts, TableFacts
from tests.conftest import Server

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def facts(server: Server) -> ServerFacts:
    """What the server of these tests says, made to look well."""
    conn = await asyncpg.connect(server.url("postgres"))
    said = await read_catalog(conn)
    await conn.close()
    good = dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes", "autovacuum", "track_counts"), "on")
    settings = {**said.settings, **good, "idle_in_transaction_session_timeout": "60000"}
    return msgspec.structs.replace(said, settings=settings, connection_count=1, transactions=[], has_test_clock=False)


def judged(facts: ServerFacts, **changes: object) -> list[Finding]:
    return [*judge.judge_server(msgspec.structs.replace(facts, **changes), MINUTE)]


async def test_a_server_that_is_well_has_no_findings(facts: ServerFacts) -> None:
    assert judged(facts) == []


@pytest.mark.parametrize(("number", "version"), [(140_019, "14.19"), (90_624, "9.6.24")])
async def test_a_server_that_is_too_old_is_found(facts: ServerFacts, number: int, version: str) -> None:
    [finding] = judged(facts, version_num=number, version=version)

    assert (finding.check, finding.level, finding.value) == ("server_version", Level.WRONG, version)
    assert finding.problem == f"Postgres {version} is too old; the engine needs 15 or newer"
    assert judged(facts, version_num=150_000) == []


@pytest.mark.parametrize("name", ["fsync", "full_page_writes", "synchronous_commit"])
async def test_settings_that_lose_work_are_found(facts: ServerFacts, name: str) -> None:
    [finding] = judged(facts, settings={**facts.settings, name: "off"})

    assert (finding.check, finding.level, finding.subject) == ("durability", Level.WRONG, name)
    assert "crash" in finding.means


@pytest.mark.parametrize("name", ["autovacuum", "track_counts"])
async def test_settings_that_keep_vacuum_from_working_are_found(facts: ServerFacts, name: str) -> None:
    [finding] = judged(facts, settings={**facts.settings, name: "off"})

    assert (finding.check, finding.level, finding.subject) == ("vacuum", Level.WRONG, name)


async def test_many_dead_rows_are_found(facts: ServerFacts) -> None:
    table = TableFacts(name="tickets", dead_count=60_000, live_count=10, vacuumed_at=None, is_left_out=False)

    [finding] = judged(facts, tables=[table])

    assert finding.problem == "tickets has 60,000 dead and 10 live rows, never vacuumed"
    assert judged(facts, tables=[msgspec.structs.replace(table, live_count=70_000)]) == []
    assert judged(facts, tables=[msgspec.structs.replace(table, dead_count=40_000)]) == []


@pytest.mark.parametrize(("used", "level"), [(72, None), (73, Level.ADVICE), (87, Level.ADVICE), (88, Level.WRONG)])
async def test_connections_that_run_out_are_found(facts: ServerFacts, used: int, level: Level | None) -> None:
    limits = {"max_connections": "100", "superuser_reserved_connections": "3", "reserved_connections": "0"}

    findings = judged(facts, connection_count=used, settings={**facts.settings, **limits})

    assert [(finding.check, finding.level) for finding in findings] == ([("connections", level)] if level else [])


async def test_few_locks_a_standby_and_a_read_only_default_are_found(facts: ServerFacts) -> None:
    [locks] = judged(facts, settings={**facts.settings, "max_locks_per_transaction": "10"})
    [standby] = judged(facts, is_standby=True)
    [read_only] = judged(facts, settings={**facts.settings, "default_transaction_read_only": "on"})

    assert (locks.level, locks.subject, locks.value) == (Level.ADVICE, "max_locks_per_transaction", "10")
    assert (standby.level, standby.problem) == (Level.WRONG, "this server is a standby")
    assert (read_only.level, read_only.check) == (Level.WRONG, "primary")


async def test_what_pins_the_horizon_without_a_session_is_found(facts: ServerFacts) -> None:
    old = PreparedTransaction(gid="transfer", role="app", prepared_at=facts.at - timedelta(hours=3))

    [prepared, slot] = judged(facts, prepared=[old], slots=["standby_2"])

    assert (prepared.level, prepared.value) == (Level.WRONG, "3 h")
    assert prepared.remedy == "run `commit prepared` or `rollback prepared` with 'transfer'"
    assert (slot.level, slot.subject) == (Level.ADVICE, "standby_2")


@pytest.mark.parametrize(
    ("apart", "level"), [(1, None), (-1, None), (5, Level.ADVICE), (-5, Level.ADVICE), (40, Level.WRONG)]
)
async def test_clocks_that_differ_are_found(facts: ServerFacts, apart: int, level: Level | None) -> None:
    findings = [*judge.judge_clock(facts, facts.at - timedelta(seconds=apart))]

    assert [(finding.level, finding.value) for finding in findings] == ([(level, f"{apart:+.1f} s")] if level else [])


async def test_a_pooler_in_session_mode_is_only_worth_a_word(facts: ServerFacts) -> None:
    same = [*judge.judge_pooler(facts, Config(), facts.pid, facts.pid)]
    [session] = judge.judge_pooler(facts, Config(), 1, facts.pid)
    [transaction] = judge.judge_pooler(facts, Config(), 1, 2)
    [needless] = judge.judge_pooler(facts, Config(pooler=True), facts.pid, facts.pid)

    assert same == []
    assert [session.level, transaction.level, needless.level] == [Level.ADVICE, Level.WRONG, Level.ADVICE]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "less than 1 s"), (59.4, "59 s"), (60, "1 min"), (3_725, "1 h 2 min"), (7_205, "2 h"), (90_000, "1 d 1 h")],
)
def test_spans_are_said_in_two_units(seconds: float, said: str) -> None:
    assert judge.in_words(seconds) == said
