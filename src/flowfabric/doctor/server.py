"""Checks of the server, made from the facts that were read before. This module does not query Postgres."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from flowfabric import durations
from flowfabric.config import Config
from flowfabric.model.doctor import Finding, Level, OpenTransaction, ServerFacts

CHECKS = ("server_version", "primary", "durability", "vacuum", "connections", "settings", "transactions", "clock")
OLDEST_VERSION = 15
MANY_DEAD = 50_000
CLOCK_ADVICE, CLOCK_WRONG = timedelta(seconds=2), timedelta(seconds=30)
UNITS = {"m": "min"}  # "m" could be read as months

LOSES = {
    "fsync": "a crash of the machine can destroy the whole database",
    "full_page_writes": "a crash of the machine can leave half-written pages, which cannot be repaired",
    "synchronous_commit": "a crash loses the last commits, so completed executions may run again",
}


def in_words(duration: timedelta | float) -> str:
    """Format a duration for people, in its largest unit and the next one: `1 h 2 min`."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    parts = [f"{count} {UNITS.get(unit, unit)}" for count, unit in durations.in_two_units(seconds)]
    return " ".join(parts) or "less than 1 s"


def judge_version(facts: ServerFacts) -> Iterator[Finding]:
    """Check that the engine supports this version of Postgres."""
    if facts.version_num < OLDEST_VERSION * 10_000:
        yield Finding(
            check="server_version",
            level=Level.WRONG,
            value=facts.version,
            problem=f"Postgres {facts.version} is too old; the engine needs {OLDEST_VERSION} or newer",
            means="migrations and functions fail, now or after the next upgrade of flowfabric",
            remedy=f"upgrade the server to Postgres {OLDEST_VERSION} or newer (pg_upgrade), then run `ff migrate`",
        )


def judge_server(facts: ServerFacts, longest: timedelta) -> Iterator[Finding]:
    """Check that the server keeps what is committed, has free connections and has no old transactions."""
    yield from judge_version(facts)
    yield from _primary(facts)
    yield from _durability(facts)
    yield from _vacuum(facts)
    yield from _connections(facts)
    yield from _settings(facts)
    yield from _transactions(facts, longest)


def judge_clock(facts: ServerFacts, local: datetime) -> Iterator[Finding]:
    """Check that this machine and the server agree on the time, and that no test clock is installed."""
    apart = facts.at - local
    if abs(apart) >= CLOCK_ADVICE:
        direction = "ahead of" if apart > timedelta() else "behind"
        yield Finding(
            check="clock",
            level=Level.WRONG if abs(apart) >= CLOCK_WRONG else Level.ADVICE,
            value=f"{apart.total_seconds():+.1f} s",
            problem=f"the clock of the database server is {in_words(abs(apart))} {direction} the clock of this machine",
            means="the engine uses the database's clock, so timestamps that this machine computes are off by that much",
            remedy="synchronize both machines with NTP",
        )
    if facts.has_test_clock:
        yield Finding(
            check="clock",
            level=Level.ADVICE,
            subject="test clock",
            value="installed",
            problem="flowfabric.testing has installed a test clock in this database",
            means="one call of move_clock expires every lease and every deadline in this database",
            remedy="if this is not a test database, restore the real clock: run `ff migrate`",
        )


def judge_pooler(facts: ServerFacts, config: Config, greeted: int, later: int | None) -> Iterator[Finding]:
    """Check for a pooler: compare the session ids at connect (`greeted`), at the first query and at a later query."""
    rotates = later is not None and later != facts.pid
    if not config.pooler and (rotates or greeted != facts.pid):
        yield Finding(
            check="pooler",
            level=Level.WRONG if rotates else Level.ADVICE,
            value=f"sessions {', '.join(map(str, dict.fromkeys([greeted, facts.pid, later or facts.pid])))}",
            problem="a connection pooler is in front of Postgres"
            + (", and every transaction runs in another session" if rotates else ""),
            means="in transaction mode, prepared statements sometimes fail and notifications do not arrive",
            remedy="set FLOWFABRIC_POOLER=true or connect to Postgres directly; in session mode nothing is needed",
        )
    if config.pooler and not rotates and greeted == facts.pid:
        yield Finding(
            check="pooler",
            level=Level.ADVICE,
            value="FLOWFABRIC_POOLER=true",
            problem="FLOWFABRIC_POOLER is set, but no pooler was detected",
            means="every call is prepared again, which is slower, and workers receive no notifications",
            remedy="unset FLOWFABRIC_POOLER if processes connect to Postgres directly",
        )


def _primary(facts: ServerFacts) -> Iterator[Finding]:
    read_only = facts.settings.get("default_transaction_read_only") == "on"
    if facts.is_standby or read_only:
        yield Finding(
            check="primary",
            level=Level.WRONG,
            value="standby" if facts.is_standby else "default_transaction_read_only = on",
            problem="this server is a standby" if facts.is_standby else "transactions are read-only on this server",
            means="executions cannot be submitted, claimed or ended",
            remedy="set FLOWFABRIC_URL to the primary, for example with target_session_attrs=read-write",
        )


def _durability(facts: ServerFacts) -> Iterator[Finding]:
    for name, loss in LOSES.items():
        if facts.settings.get(name) == "off":
            yield Finding(
                check="durability",
                level=Level.WRONG,
                subject=name,
                value="off",
                problem=f"{name} is off",
                means=loss,
                remedy=f"set {name} = on in postgresql.conf and reload",
            )


def _vacuum(facts: ServerFacts) -> Iterator[Finding]:
    for name in ("autovacuum", "track_counts"):
        if facts.settings.get(name) == "off":
            yield Finding(
                check="vacuum",
                level=Level.WRONG,
                subject=name,
                value="off",
                problem=f"{name} is off",
                means="dead rows are never removed, so claims become slower and slower",
                remedy=f"set {name} = on in postgresql.conf and reload",
            )
    for table in facts.tables:
        if table.is_left_out or (table.dead_count >= MANY_DEAD and table.dead_count > table.live_count):
            vacuumed = (
                f"last vacuumed at {table.vacuumed_at:%Y-%m-%d %H:%M:%S} UTC" if table.vacuumed_at else "never vacuumed"
            )
            yield Finding(
                check="vacuum",
                level=Level.WRONG,
                subject=f"flowfabric.{table.name}",
                value=f"{table.dead_count:,} dead",
                problem=f"{table.name} has {table.dead_count:,} dead and {table.live_count:,} live rows, {vacuumed}"
                + ("; autovacuum_enabled is off for this table" if table.is_left_out else ""),
                means="every claim and every sweep has to skip the dead rows",
                remedy=f"end old transactions (see the check `transactions`), then `vacuum flowfabric.{table.name}`"
                + (f"; `alter table flowfabric.{table.name} reset (autovacuum_enabled)`" if table.is_left_out else ""),
            )


def _connections(facts: ServerFacts) -> Iterator[Finding]:
    reserved = sum(
        int(facts.settings.get(name, 0)) for name in ("superuser_reserved_connections", "reserved_connections")
    )
    most = int(facts.settings["max_connections"]) - reserved
    if facts.connection_count * 4 >= most * 3:
        yield Finding(
            check="connections",
            level=Level.WRONG if facts.connection_count * 10 >= most * 9 else Level.ADVICE,
            value=f"{facts.connection_count} of {most}",
            problem=f"{facts.connection_count} of {most} connections are in use",
            means="new processes may not get connections: each needs up to FLOWFABRIC_POOL_SIZE + 6",
            remedy="raise max_connections, lower FLOWFABRIC_POOL_SIZE, or use a pooler (FLOWFABRIC_POOLER=true)",
        )


def _settings(facts: ServerFacts) -> Iterator[Finding]:
    if facts.settings.get("idle_in_transaction_session_timeout") == "0":
        yield Finding(
            check="settings",
            level=Level.ADVICE,
            subject="idle_in_transaction_session_timeout",
            value="0",
            problem="idle_in_transaction_session_timeout is 0, so a forgotten transaction stays open for ever",
            means="such a transaction stops vacuum from removing dead rows, and its locks block other calls",
            remedy="in psql: alter role current_user set idle_in_transaction_session_timeout = '5min'",
        )
    isolation = facts.settings.get("default_transaction_isolation", "read committed")
    if isolation not in ("read committed", "read uncommitted"):  # only behind a pooler: other sessions set it
        yield Finding(
            check="settings",
            level=Level.WRONG,
            subject="default_transaction_isolation",
            value=isolation,
            problem=f"transactions run at isolation level {isolation}",
            means="calls that meet at one row fail, and the event log cannot be read",
            remedy="in psql: alter role current_user set default_transaction_isolation = 'read committed'",
        )
    if int(facts.settings.get("max_locks_per_transaction", 64)) < 64:
        yield Finding(
            check="settings",
            level=Level.ADVICE,
            subject="max_locks_per_transaction",
            value=facts.settings["max_locks_per_transaction"],
            problem="max_locks_per_transaction is below the default of 64",
            means="a query that reads many partitions of the event log may run out of locks",
            remedy="set max_locks_per_transaction = 64 or more and restart Postgres",
        )


def _transactions(facts: ServerFacts, longest: timedelta) -> Iterator[Finding]:
    for each in facts.transactions:
        if facts.at - each.began_at > longest:
            yield _open_transaction(each, facts.at - each.began_at)
    for prepared in facts.prepared:
        if (age := facts.at - prepared.prepared_at) > longest:
            yield Finding(
                check="transactions",
                level=Level.WRONG,
                subject=prepared.gid,
                value=in_words(age),
                problem=f"transaction {prepared.gid!r} of {prepared.role} has been prepared for {in_words(age)}",
                means="vacuum cannot remove rows that died since then, and its locks are kept",
                remedy=f"run `commit prepared` or `rollback prepared` with {prepared.gid!r}",
            )
    for slot in facts.slots:
        yield Finding(
            check="transactions",
            level=Level.ADVICE,
            subject=slot,
            value="inactive",
            problem=f"replication slot {slot} is inactive and holds back an old transaction id",
            means="vacuum cannot remove rows that died since then, and the disk fills with WAL",
            remedy=f"start its consumer, or drop it: `select pg_drop_replication_slot('{slot}')`",
        )
    if not facts.sees_all:
        yield Finding(
            check="transactions",
            level=Level.ADVICE,
            value="hidden",
            problem="this role cannot see the transactions of other roles",
            means="an old transaction that stops vacuum may have been missed",
            remedy="run `grant pg_read_all_stats to` this role, or run the doctor as a role that has it",
        )


def _open_transaction(each: OpenTransaction, age: timedelta) -> Finding:
    who = f"session {each.pid} ({', '.join(filter(None, (each.role, each.application))) or 'unknown'})"
    idle = each.state.startswith("idle in transaction")
    means = []
    if each.pins:
        means.append("vacuum cannot remove rows that died since it started")
    if each.writes_events:
        means.append("it has written to the event log without committing, so readers wait for it")
    return Finding(
        check="transactions",
        level=Level.WRONG if each.writes_events or (idle and each.pins) else Level.ADVICE,
        subject=str(each.pid),
        value=in_words(age),
        problem=f"{who} has had a transaction open for {in_words(age)}" + (" and is idle" if idle else ""),
        means="; ".join(means) or "it keeps its locks until it ends",
        remedy=f"fix the program that left it open; to end it now: `select pg_terminate_backend({each.pid})`",
    )
