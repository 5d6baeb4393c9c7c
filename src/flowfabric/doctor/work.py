"""Checks of the queued work, made from facts that the engine returned. This module does not query Postgres."""

from collections.abc import Iterator

from flowfabric.doctor.server import in_words
from flowfabric.model.doctor import ConsumerFacts, Finding, Level, WorkFacts
from flowfabric.model.overview import Stuck

CHECKS = ("engine_clock", "signing_key", "log", "consumers", "sweeps", "lanes", "routes")
FAR_BEHIND = 100_000
LITTLE_ROOM = 1_000_000

# For each reason that blocks a route: its check, its level, and what it means for the executions.
BLOCKED = {
    "no_worker": ("lanes", Level.WRONG, "they wait until a worker starts"),
    "blocked_by_route": ("routes", Level.WRONG, "they wait until a worker with these capabilities starts"),
    "blocked_by_lane_state": ("lanes", Level.ADVICE, "they wait until an operator resumes the lane"),
}


def judge_work(facts: WorkFacts) -> Iterator[Finding]:
    """Check that work makes progress: clock, signing key, event log, consumers, sweeps and workers."""
    yield from _clock(facts)
    yield from _key(facts)
    yield from _log(facts)
    for consumer in facts.consumers:
        yield from _consumer(consumer, facts)
    yield from _sweeps(facts)
    for stuck in facts.stuck:
        yield _stuck(stuck, facts)


def _clock(facts: WorkFacts) -> Iterator[Finding]:
    if abs(facts.clock_offset_s) < 1:
        return
    direction = "ahead of" if facts.clock_offset_s > 0 else "behind"
    yield Finding(
        check="engine_clock",
        level=Level.WRONG,
        value=f"{facts.clock_offset_s:+.0f} s",
        problem=f"the engine's clock was moved: it is {in_words(abs(facts.clock_offset_s))} {direction} the server's",
        means="leases, delays, deadlines and retention use the wrong time",
        remedy="restore the real clock: run `ff migrate`; only flowfabric.testing moves it",
    )


def _key(facts: WorkFacts) -> Iterator[Finding]:
    if facts.has_key is False:
        yield Finding(
            check="signing_key",
            level=Level.WRONG,
            value="none",
            problem="there is no active signing key",
            means="executions cannot wait for signals or approvals, and grants cannot be issued (no_active_key)",
            remedy="install one: run `ff keys rotate KID`",
        )


def _log(facts: WorkFacts) -> Iterator[Finding]:
    if facts.log_room < LITTLE_ROOM:
        yield Finding(
            check="log",
            level=Level.WRONG,
            value=f"{facts.log_room:,}",
            problem=f"the event log has room for only {facts.log_room:,} more events",
            means="every change writes an event: in a full log, executions cannot be submitted, claimed or ended",
            remedy="run the sweep extend_events: `ff sweep --once`; then keep `ff sweep` or a worker running",
        )


def _consumer(consumer: ConsumerFacts, facts: WorkFacts) -> Iterator[Finding]:
    if not consumer.is_cut_off and consumer.behind_count < FAR_BEHIND:
        return
    silent = in_words(facts.at - consumer.acknowledged_at)
    yield Finding(
        check="consumers",
        level=Level.WRONG if consumer.is_cut_off else Level.ADVICE,
        subject=consumer.name,
        value=f"{consumer.behind_count:,} behind",
        problem=f"consumer {consumer.name} is {consumer.behind_count:,} events behind, last seen {silent} ago",
        means="events that it had not read were removed; its next read fails with cursor_expired"
        if consumer.is_cut_off
        else "it will miss events once retention removes them",
        remedy="restart it from the oldest event that is kept"
        if consumer.is_cut_off
        else "make sure that it runs and keeps up",
    )


def _sweeps(facts: WorkFacts) -> Iterator[Finding]:
    late = [each for each in facts.overdue if each.late_s > each.allowed_s]
    if not late:
        return
    oldest = max(each.late_s for each in late)
    yield Finding(
        check="sweeps",
        level=Level.WRONG,
        subject=", ".join(each.sweep for each in late),
        value=in_words(oldest),
        problem="sweeps are not running: "
        + "; ".join(f"{each.sweep} is {in_words(each.late_s)} late" for each in late),
        means="delays, retries, timeouts and expired leases are not processed, so executions do not continue",
        remedy="keep `ff sweep` or a worker without --no-sweeps running; `ff sweep --once` shows which sweep fails",
    )


def _stuck(stuck: Stuck, facts: WorkFacts) -> Finding:
    check, level, means = BLOCKED.get(stuck.reason, ("routes", Level.ADVICE, "they wait until the limit has room"))
    count = "more than 1,000" if stuck.amount > 1_000 else f"{stuck.amount:,}"
    wait = "execution waits" if stuck.amount == 1 else "executions wait"
    age = in_words(facts.at - stuck.since)
    return Finding(
        check=check,
        level=level,
        subject=stuck.lane,
        value=f"{count} waiting",
        problem=f"{count} {wait} in lane {stuck.lane}, the oldest for {age}: {stuck.why}",
        means=means,
        remedy=stuck.remedy,
    )
