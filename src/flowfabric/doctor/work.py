"""What is wrong with the work in a database, judged from what the engine says of it. Nothing here asks Postgres."""

from collections.abc import Iterator

from flowfabric.doctor.server import span
from flowfabric.model.doctor import ConsumerFacts, Finding, Level, WorkFacts
from flowfabric.model.overview import Stuck

CHECKS = ("engine_clock", "signing_key", "log", "consumers", "sweeps", "lanes", "routes")
FAR_BEHIND = 100_000
LITTLE_ROOM = 1_000_000

# What a route is blocked by, as a check, with what it means for the work.
BLOCKED = {
    "no_worker": ("lanes", Level.WRONG, "it waits until somebody comes, for ever if nobody does"),
    "blocked_by_route": ("routes", Level.WRONG, "it waits until somebody comes who can do it, for ever if nobody does"),
    "blocked_by_lane_state": ("lanes", Level.ADVICE, "what is submitted there waits; somebody wanted that"),
}


def judge_work(facts: WorkFacts) -> Iterator[Finding]:
    """Whether the work goes on: the clock, the key, the log, the sweeps, and who is there to work."""
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
        problem=f"the engine's clock has been moved: it is {span(abs(facts.clock_offset_s))} {direction} the server's",
        means="leases, delays, deadlines and retention are all judged by a time that is not",
        remedy="put the real clock back with `ff migrate`; nothing but flowfabric.testing moves it",
    )


def _key(facts: WorkFacts) -> Iterator[Finding]:
    if facts.has_key is False:
        yield Finding(
            check="signing_key",
            level=Level.WRONG,
            value="none",
            problem="there is no key to sign with",
            means="nothing can wait for a signal or an approval, and no grant can be issued: no_active_key",
            remedy="`ff keys rotate KID` installs one",
        )


def _log(facts: WorkFacts) -> Iterator[Finding]:
    if facts.log_room < LITTLE_ROOM:
        yield Finding(
            check="log",
            level=Level.WRONG,
            value=f"{facts.log_room:,}",
            problem=f"the log has room for {facts.log_room:,} more events",
            means="every change writes an event: without room nothing can be submitted, claimed or ended",
            remedy="run the sweep extend_events: `ff sweep --once`, and keep `ff sweep` or a worker running",
        )


def _consumer(consumer: ConsumerFacts, facts: WorkFacts) -> Iterator[Finding]:
    if not consumer.is_cut_off and consumer.behind_count < FAR_BEHIND:
        return
    silent = span(facts.at - consumer.acknowledged_at)
    yield Finding(
        check="consumers",
        level=Level.WRONG if consumer.is_cut_off else Level.ADVICE,
        subject=consumer.name,
        value=f"{consumer.behind_count:,} behind",
        problem=f"consumer {consumer.name} is {consumer.behind_count:,} events behind and last said so {silent} ago",
        means="what it had not read has been removed; its next read is refused: cursor_expired"
        if consumer.is_cut_off
        else "it will miss events once retention removes them",
        remedy="let it start over from the oldest kept"
        if consumer.is_cut_off
        else "see that it runs, and runs fast enough",
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
        value=span(oldest),
        problem="sweeps are not running: "
        + "; ".join(f"what {each.sweep} should have moved is {span(each.late_s)} late" for each in late),
        means="delays, retries, timeouts and lapsed leases stay as they are: work that should go on does not",
        remedy="keep `ff sweep` or a worker (without --no-sweeps) running; `ff sweep --once` shows if one fails",
    )


def _stuck(stuck: Stuck, facts: WorkFacts) -> Finding:
    check, level, means = BLOCKED.get(stuck.reason, ("routes", Level.ADVICE, "it waits until there is room for it"))
    count = "more than 1,000" if stuck.amount > 1_000 else f"{stuck.amount:,}"
    age = span(facts.at - stuck.since)
    return Finding(
        check=check,
        level=level,
        subject=stuck.lane,
        value=f"{count} waiting",
        problem=f"{count} in lane {stuck.lane} cannot be taken, the oldest for {age}: {stuck.why}",
        means=means,
        remedy=stuck.remedy,
    )
