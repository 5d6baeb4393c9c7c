"""What is wrong with a server, judged from what it says of itself. Nothing here asks Postgres."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from flowfabric import durations
from flowfabric.config import Config
from flowfabric.model.doctor import Finding, Level, OpenTransaction, ServerFacts

CHECKS = ("server_version", "primary", "durability", "vacuum", "connections", "settings", "transactions", "clock")
OLDEST_VERSION = 15
MANY_DEAD = 50_000
CLOCK_ADVICE, CLOCK_WRONG = timedelta(seconds=2), timedelta(seconds=30)
UNITS = {"m": "min"}  # m would be metres to some, and months to others

LOSES = {
    "fsync": "a crash of the machine can destroy the whole database",
    "full_page_writes": "a crash of the machine can leave pages half written, which nothing repairs",
    "synchronous_commit": "a crash forgets what was committed just before it: completed work is run again",
}


def span(amount: timedelta | float) -> str:
    """A span for people: its largest unit and the next one."""
    seconds = amount.total_seconds() if isinstance(amount, timedelta) else amount
    said = [f"{count} {UNITS.get(unit, unit)}" for count, unit in durations.in_two_units(seconds)]
    return " ".join(said) or "less than 1 s"


def judge_version(facts: ServerFacts) -> Iterator[Finding]:
    """Whether the server is one the engine runs on."""
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
    """Whether the server is set up for work that must not be lost, and nobody is in the way."""
    yield from judge_version(facts)
    yield from _primary(facts)
    yield from _durability(facts)
    yield from _vacuum(facts)
    yield from _connections(facts)
    yield from _settings(facts)
    yield from _transactions(facts, longest)


def judge_clock(facts: ServerFacts, local: datetime) -> Iterator[Finding]:
    """Whether this machine and the server agree on the time, and whether the engine's clock can be moved."""
    apart = facts.at - local
    if abs(apart) >= CLOCK_ADVICE:
        direction = "ahead of" if apart > timedelta() else "behind"
        yield Finding(
            check="clock",
            level=Level.WRONG if abs(apart) >= CLOCK_WRONG else Level.ADVICE,
            value=f"{apart.total_seconds():+.1f} s",
            problem=f"the clock of the database is {span(abs(apart))} {direction} that of this machine",
            means="the engine goes by the database's clock: deadlines given here as a moment are off by that",
            remedy="let both follow the same time servers (NTP)",
        )
    if facts.has_test_clock:
        yield Finding(
            check="clock",
            level=Level.ADVICE,
            subject="test clock",
            value="installed",
            problem="flowfabric.testing has installed a clock here that can be moved",
            means="one call of move_clock lets every lease and every deadline of this database pass",
            remedy="in a database that is not for tests, put the real clock back: `ff migrate`",
        )


def judge_pooler(facts: ServerFacts, config: Config, greeted: int, later: int | None) -> Iterator[Finding]:
    """Whether a pooler stands in between, from who answered: at the greeting, then, and once more."""
    rotates = later is not None and later != facts.pid
    if not config.pooler and (rotates or greeted != facts.pid):
        yield Finding(
            check="pooler",
            level=Level.WRONG if rotates else Level.ADVICE,
            value=f"sessions {', '.join(map(str, dict.fromkeys([greeted, facts.pid, later or facts.pid])))}",
            problem="a pooler stands between here and Postgres"
            + (", and every transaction runs in another session" if rotates else ""),
            means="in transaction mode prepared statements fail now and then, and no hint gets through",
            remedy="set FLOWFABRIC_POOLER=true, or connect to Postgres itself; in session mode it does no harm",
        )
    if config.pooler and not rotates and greeted == facts.pid:
        yield Finding(
            check="pooler",
            level=Level.ADVICE,
            value="FLOWFABRIC_POOLER=true",
            problem="FLOWFABRIC_POOLER is set and there is no sign of a pooler",
            means="every call is prepared anew, which costs time, and workers go without hints",
            remedy="leave FLOWFABRIC_POOLER out where processes connect to Postgres itself",
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
                means="dead rows are never cleared away: claims get slower by the hour",
                remedy=f"set {name} = on in postgresql.conf and reload",
            )
    for table in facts.tables:
        if table.is_left_out or (table.dead_count >= MANY_DEAD and table.dead_count > table.live_count):
            vacuumed = (
                f"vacuumed last at {table.vacuumed_at:%Y-%m-%d %H:%M:%S} UTC" if table.vacuumed_at else "never vacuumed"
            )
            yield Finding(
                check="vacuum",
                level=Level.WRONG,
                subject=f"flowfabric.{table.name}",
                value=f"{table.dead_count:,} dead",
                problem=f"{table.name} has {table.dead_count:,} dead rows to {table.live_count:,} live ones, {vacuumed}"
                + ("; autovacuum_enabled is off for it" if table.is_left_out else ""),
                means="every claim and every sweep reads past them",
                remedy=f"end old transactions first (see there), then `vacuum flowfabric.{table.name}`"
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
            means="the next processes to start are turned away: a process takes up to FLOWFABRIC_POOL_SIZE + 6",
            remedy="raise max_connections, lower FLOWFABRIC_POOL_SIZE, or use a pooler (FLOWFABRIC_POOLER=true)",
        )


def _settings(facts: ServerFacts) -> Iterator[Finding]:
    if facts.settings.get("idle_in_transaction_session_timeout") == "0":
        yield Finding(
            check="settings",
            level=Level.ADVICE,
            subject="idle_in_transaction_session_timeout",
            value="0",
            problem="idle_in_transaction_session_timeout is 0: a forgotten transaction stays open for ever",
            means="one such session keeps vacuum from clearing anything away, and its locks keep work from moving",
            remedy="in psql: alter role current_user set idle_in_transaction_session_timeout = '5min'",
        )
    if int(facts.settings.get("max_locks_per_transaction", 64)) < 64:
        yield Finding(
            check="settings",
            level=Level.ADVICE,
            subject="max_locks_per_transaction",
            value=facts.settings["max_locks_per_transaction"],
            problem="max_locks_per_transaction is below the default of 64",
            means="a look that opens many ranges of the log may run out of locks",
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
                problem=f"transaction {prepared.gid!r} of {prepared.role} was prepared {span(age)} ago and not ended",
                means="vacuum clears away nothing younger than that, and its locks stay",
                remedy=f"`commit prepared` or `rollback prepared` {prepared.gid!r}",
            )
    for slot in facts.slots:
        yield Finding(
            check="transactions",
            level=Level.ADVICE,
            subject=slot,
            value="inactive",
            problem=f"replication slot {slot} is inactive and remembers an old transaction",
            means="vacuum clears away nothing younger than that, and the disk fills with WAL",
            remedy=f"start what reads it, or drop it: `select pg_drop_replication_slot('{slot}')`",
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
        means.append("vacuum clears away nothing younger than it")
    if each.writes_events:
        means.append("it has written to the log and not committed, so no reader gets past that place")
    return Finding(
        check="transactions",
        level=Level.WRONG if each.writes_events or (idle and each.pins) else Level.ADVICE,
        subject=str(each.pid),
        value=span(age),
        problem=f"{who} has had a transaction open for {span(age)}" + (", doing nothing" if idle else ""),
        means="; ".join(means) or "its locks are held for as long",
        remedy=f"mend the program that forgot it; to end it now: `select pg_terminate_backend({each.pid})`",
    )
