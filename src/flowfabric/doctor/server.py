"""Judge a server from the facts of its catalogs. Nothing here queries Postgres."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from flowfabric import durations
from flowfabric.config import Config
from flowfabric.model.doctor import Finding, Level, OpenTransaction, ServerFacts

CHECKS = ("server_version", "primary", "durability", "vacuum", "connections", "settings", "transactions", "clock")
OLDEST_VERSION = 15
MANY_DEAD = 50_000
CLOCK_ADVICE, CLOCK_WRONG = timedelta(seconds=2), timedelta(seconds=30)
UNITS = {"m": "min"}  # a bare m could mean metres or months

LOSES = {
    "fsync": "a crash of the machine can destroy the whole database",
    "full_page_writes": "a crash of the machine can leave half-written pages, which nothing repairs",
    "synchronous_commit": "a crash loses the last commits before it: completed executions run again",
}


def span(amount: timedelta | float) -> str:
    """A duration for people: its largest unit and the next one."""
    seconds = amount.total_seconds() if isinstance(amount, timedelta) else amount
    said = [f"{count} {UNITS.get(unit, unit)}" for count, unit in durations.in_two_units(seconds)]
    return " ".join(said) or "less than 1 s"


def judge_version(facts: ServerFacts) -> Iterator[Finding]:
    """Check that the engine supports this Postgres version."""
    if facts.version_num < OLDEST_VERSION * 10_000:
        yield Finding(
            check="server_version",
            level=Level.WRONG,
            value=facts.version,
            problem=f"Postgres {facts.version} is too old; the engine needs {OLDEST_VERSION} or newer",
            means="migrations and functions fail, now or with the next release",
            remedy=f"upgrade the server to Postgres {OLDEST_VERSION} or newer (pg_upgrade), then run `ff migrate`",
        )


def judge_server(facts: ServerFacts, longest: timedelta) -> Iterator[Finding]:
    """Check that the server is durable, vacuums, has connections left, and has no forgotten transactions."""
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
            problem=f"the clock of the database is {span(abs(apart))} {direction} that of this machine",
            means="the engine uses the database's clock: absolute deadlines computed here are off by that much",
            remedy="synchronize both with the same time servers (NTP)",
        )
    if facts.has_test_clock:
        yield Finding(
            check="clock",
            level=Level.ADVICE,
            subject="test clock",
            value="installed",
            problem="flowfabric.testing has installed a movable clock here",
            means="one call of move_clock can expire every lease and deadline of this database",
            remedy="if this is not a test database, restore the real clock: `ff migrate`",
        )


def judge_pooler(facts: ServerFacts, config: Config, greeted: int, later: int | None) -> Iterator[Finding]:
    """Detect a connection pooler from the backend pids: at connect, at the first query and at a later one."""
    rotates = later is not None and later != facts.pid
    if not config.pooler and (rotates or greeted != facts.pid):
        yield Finding(
            check="pooler",
            level=Level.WRONG if rotates else Level.ADVICE,
            value=f"sessions {', '.join(map(str, dict.fromkeys([greeted, facts.pid, later or facts.pid])))}",
            problem="this connection goes through a pooler"
            + (", and each transaction runs in a different session" if rotates else ""),
            means="in transaction mode prepared statements fail sometimes, and no notification gets through",
            remedy="set FLOWFABRIC_POOLER=true, or connect to Postgres directly; a pooler in session mode is fine",
        )
    if config.pooler and not rotates and greeted == facts.pid:
        yield Finding(
            check="pooler",
            level=Level.ADVICE,
            value="FLOWFABRIC_POOLER=true",
            problem="FLOWFABRIC_POOLER is set, but there is no sign of a pooler",
            means="every call is prepared again, which costs time, and workers get no notifications",
            remedy="unset FLOWFABRIC_POOLER if processes connect to Postgres directly",
        )


def _primary(facts: ServerFacts) -> Iterator[Finding]:
    read_only = facts.settings.get("default_transaction_read_only") == "on"
    if facts.is_standby or read_only:
        yield Finding(
            check="primary",
            level=Level.WRONG,
            value="standby" if facts.is_standby else "default_transaction_read_only = on",
            problem="this server is a standby" if facts.is_standby else "transactions are read-only here",
            means="nothing can be submitted, claimed or ended",
            remedy="point FLOWFABRIC_URL at the primary, for example with target_session_attrs=read-write",
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
                means="dead rows are never removed: claims get slower by the hour",
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
                problem=f"{table.name} has {table.dead_count:,} dead rows, {table.live_count:,} live ones, {vacuumed}"
                + ("; autovacuum_enabled is off for it" if table.is_left_out else ""),
                means="every claim and every sweep reads past the dead rows",
                remedy=f"end old transactions first (see the transactions check), then `vacuum flowfabric.{table.name}`"
                + (f"; `alter table flowfabric.{table.name} reset (autovacuum_enabled)`" if table.is_left_out else ""),
            )


def _connections(facts: ServerFacts) -> Iterator[Finding]:
    kept = sum(int(facts.settings.get(name, 0)) for name in ("superuser_reserved_connections", "reserved_connections"))
    most = int(facts.settings["max_connections"]) - kept
    if facts.connection_count * 4 >= most * 3:
        yield Finding(
            check="connections",
            level=Level.WRONG if facts.connection_count * 10 >= most * 9 else Level.ADVICE,
            value=f"{facts.connection_count} of {most}",
            problem=f"{facts.connection_count} of {most} connections are in use",
            means="new processes will be refused: each takes up to FLOWFABRIC_POOL_SIZE + 6 connections",
            remedy="raise max_connections, lower FLOWFABRIC_POOL_SIZE, or use a pooler (FLOWFABRIC_POOLER=true)",
        )


def _settings(facts: ServerFacts) -> Iterator[Finding]:
    if facts.settings.get("idle_in_transaction_session_timeout") == "0":
        yield Finding(
            check="settings",
            level=Level.ADVICE,
            subject="idle_in_transaction_session_timeout",
            value="0",
            problem="idle_in_transaction_session_timeout is 0: a forgotten transaction stays open forever",
            means="one such session keeps vacuum from removing dead rows, and its locks block executions",
            remedy="in psql: alter role current_user set idle_in_transaction_session_timeout = '5min'",
        )
    if int(facts.settings.get("max_locks_per_transaction", 64)) < 64:
        yield Finding(
            check="settings",
            level=Level.ADVICE,
            subject="max_locks_per_transaction",
            value=facts.settings["max_locks_per_transaction"],
            problem="max_locks_per_transaction is below the default of 64",
            means="a query over many partitions of the log may run out of locks",
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
                value=span(age),
                problem=f"transaction {prepared.gid!r} of {prepared.role} has been prepared for {span(age)}",
                means="vacuum cannot remove younger dead rows, and its locks stay",
                remedy=f"`commit prepared` or `rollback prepared` {prepared.gid!r}",
            )
    for slot in facts.slots:
        yield Finding(
            check="transactions",
            level=Level.ADVICE,
            subject=slot,
            value="inactive",
            problem=f"replication slot {slot} is inactive and keeps an old transaction id",
            means="vacuum cannot remove younger dead rows, and the disk fills with WAL",
            remedy=f"start the replica that reads it, or drop it: `select pg_drop_replication_slot('{slot}')`",
        )
    if not facts.sees_all:
        yield Finding(
            check="transactions",
            level=Level.ADVICE,
            value="hidden",
            problem="this role cannot see the transactions of other roles",
            means="an old transaction that keeps vacuum from working may have been missed",
            remedy="run the doctor as a role with pg_read_all_stats: `grant pg_read_all_stats to` it",
        )


def _open_transaction(each: OpenTransaction, age: timedelta) -> Finding:
    who = f"session {each.pid} ({', '.join(filter(None, (each.role, each.application))) or 'unknown'})"
    idle = each.state.startswith("idle in transaction")
    means = []
    if each.pins:
        means.append("vacuum cannot remove younger dead rows")
    if each.writes_events:
        means.append("it has written events and not committed, so no reader of the log gets past them")
    return Finding(
        check="transactions",
        level=Level.WRONG if each.writes_events or (idle and each.pins) else Level.ADVICE,
        subject=str(each.pid),
        value=span(age),
        problem=f"{who} has had a transaction open for {span(age)}" + (" and is idle" if idle else ""),
        means="; ".join(means) or "its locks stay that long",
        remedy=f"fix the program that left it open; to end it now: `select pg_terminate_backend({each.pid})`",
    )
