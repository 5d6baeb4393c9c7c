"""Judge the work in a database from the facts that `diagnose` collected. Nothing here queries Postgres."""

import shlex
from collections.abc import Iterator
from datetime import timedelta

from flowfabric.doctor.server import in_words
from flowfabric.model.doctor import ConsumerFacts, Finding, LargeStream, Level, WorkFacts
from flowfabric.model.overview import Stuck

CHECKS = ("engine_clock", "signing_key", "log", "consumers", "sweeps", "retention", "lanes", "routes", "tasks", "code",
          "streams")  # fmt: skip
FAR_BEHIND = 100_000
LITTLE_ROOM = 1_000_000
LONG_REMOVAL = timedelta(days=1)
MUCH_OUTPUT = 10 << 30

# Per reason why a route is blocked: the check, its level, and what it means for the executions.
BLOCKED = {
    "no_worker": ("lanes", Level.WRONG, "they wait until a worker for this lane starts"),
    "no_task": ("tasks", Level.WRONG, "they wait until a worker that has this task starts"),
    "no_version": ("tasks", Level.WRONG, "they wait until a worker that has this version starts"),
    "blocked_by_route": ("routes", Level.WRONG, "they wait until a worker with these capabilities starts"),
    "code_changed": ("code", Level.WRONG, "they are held until an operator decides; what they have saved is kept"),
    "blocked_by_lane_state": ("lanes", Level.ADVICE, "executions submitted there wait; an operator wanted that"),
}


def judge_work(facts: WorkFacts) -> Iterator[Finding]:
    """Check the clock, signing key, log, consumers, sweeps, retention and output, and whether workers can claim."""
    yield from _clock(facts)
    yield from _key(facts)
    yield from _log(facts)
    for consumer in facts.consumers:
        yield from _consumer(consumer, facts)
    yield from _sweeps(facts)
    yield from _retention(facts)
    for stuck in facts.stuck:
        yield _stuck(stuck, facts)
    yield from _streams(facts)


def _clock(facts: WorkFacts) -> Iterator[Finding]:
    if abs(facts.clock_offset_s) < 1:
        return
    direction = "ahead of" if facts.clock_offset_s > 0 else "behind"
    yield Finding(
        check="engine_clock",
        level=Level.WRONG,
        value=f"{facts.clock_offset_s:+.0f} s",
        problem=f"the engine's clock was moved: it is {in_words(abs(facts.clock_offset_s))} {direction} the server's",
        means="leases, delays, deadlines and retention all follow the wrong time",
        remedy="restore the real clock with `ff migrate`; only flowfabric.testing moves it",
    )


def _key(facts: WorkFacts) -> Iterator[Finding]:
    if facts.has_key is False:
        yield Finding(
            check="signing_key",
            level=Level.WRONG,
            value="none",
            problem="no signing key is active",
            means="no execution can wait for a signal or an approval, and no grant can be issued: no_active_key",
            remedy="install one: `ff signing-keys rotate KID`",
        )


def _log(facts: WorkFacts) -> Iterator[Finding]:
    if facts.log_room < LITTLE_ROOM:
        yield Finding(
            check="log",
            level=Level.WRONG,
            value=f"{facts.log_room:,}",
            problem=f"the log has room for {facts.log_room:,} more events",
            means="every change writes an event: when the log is full, nothing can be submitted, claimed or ended",
            remedy="run the sweep extend_events: `ff sweep --once`, and keep `ff sweep` or a worker running",
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
        problem=f"consumer {consumer.name} is {consumer.behind_count:,} events behind, acknowledged {silent} ago",
        means="retention has removed events it had not read; its next read is refused: cursor_expired"
        if consumer.is_cut_off
        else "it will miss events once retention removes them",
        remedy="restart it from the oldest event kept"
        if consumer.is_cut_off
        else "make sure that it runs, and fast enough",
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
        means="delays, retries, timeouts and expired leases are not handled: executions that should continue do not",
        remedy="keep `ff sweep` or a worker (without --no-sweeps) running; `ff sweep --once` shows if one fails",
    )


def _retention(facts: WorkFacts) -> Iterator[Finding]:
    if facts.removing_since is None or facts.at - facts.removing_since < LONG_REMOVAL:
        return
    spent = in_words(facts.at - facts.removing_since)
    yield Finding(
        check="retention",
        level=Level.ADVICE,
        subject="remove_ended",
        value=spent,
        problem=f"the removal of ended executions has been running for {spent} and is not done",
        means="it pauses to leave the server to running work, and removes fewer executions than end: the tables grow",
        remedy="when there is little work, run `ff sweep --once`, which removes everything without pauses",
    )


def _streams(facts: WorkFacts) -> Iterator[Finding]:
    for large in facts.large_streams:
        yield _large_stream(large)
    if facts.frames_bytes >= MUCH_OUTPUT and facts.frames_bytes * 2 > facts.database_bytes:
        share = facts.frames_bytes / facts.database_bytes
        yield Finding(
            check="streams",
            level=Level.ADVICE,
            subject="flowfabric.frames",
            value=_gib(facts.frames_bytes),
            problem=f"the output of executions takes {_gib(facts.frames_bytes)}, {share:.0%} of the database",
            means="frames are kept as long as their execution, unless their lane or policy says otherwise",
            remedy="delete them earlier: ff lanes configure LANE --stream-retention 1d",
        )


def _large_stream(large: LargeStream) -> Finding:
    lane = shlex.quote(large.lane)
    attempts = f"{large.attempts:,} attempts" if large.attempts > 1 else "1 attempt"
    return Finding(
        check="streams",
        level=Level.ADVICE,
        subject=large.execution_id,
        value=_mib(large.bytes),
        problem=f"execution {large.execution_id} runs in lane {large.lane} and keeps about {_mib(large.bytes)} of "
        f"output: {large.frames:,} frames of {attempts}",
        means="it grows until each attempt has reached its retention, and stays until the execution is removed",
        remedy=f"keep fewer frames from the next attempt on: ff lanes configure {lane} --stream-retention-maxlen 1000; "
        f"delete them sooner: --stream-retention 1h; store large data elsewhere and append a reference",
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"


def _stuck(stuck: Stuck, facts: WorkFacts) -> Finding:
    check, level, means = BLOCKED.get(
        stuck.reason, ("routes", Level.ADVICE, "they wait until the budget or quota has room")
    )
    count = "more than 1,000" if stuck.amount > 1_000 else f"{stuck.amount:,}"
    age = in_words(facts.at - stuck.since)
    return Finding(
        check=check,
        level=level,
        subject=stuck.lane,
        value=f"{count} waiting",
        problem=f"{count} in lane {stuck.lane} cannot be claimed, the oldest for {age}: {stuck.sentence}",
        means=means,
        remedy=route_remedy(stuck),
    )


def route_remedy(stuck: Stuck) -> str:
    """What to do about ready executions that no worker can claim, with the command to type."""
    lane = shlex.quote(stuck.lane)
    match stuck.reason:
        case "blocked_by_lane_state":
            return f"when the cause is fixed: ff lanes resume {lane}"
        case "blocked_by_route":
            needs = shlex.quote((stuck.subject or "").replace(", ", ","))
            return f"start a capable worker: ff worker FILE.py:app --lanes {lane} --capabilities {needs}"
        case "code_changed":
            return changed_remedy(shlex.quote(stuck.subject or ""))
        case "no_task":
            return (
                f"start a worker whose app has it: ff worker FILE.py:app --lanes {lane}; if the name is misspelt: "
                f"ff executions list --task {shlex.quote(stuck.subject or '')} --ids | ff executions cancel -"
            )
        case "no_version":
            task, _, version = (stuck.subject or "").rpartition(" version ")
            return (
                f"start a worker whose app has version {version}: ff worker FILE.py:app --lanes {lane}; or start them "
                "again under another version: ff executions replay EXECUTION --from-scratch; what is left: "
                f"ff tasks describe {shlex.quote(task)}"
            )
        case "blocked_by_budget":
            return "raise the budget, reset it, or wait for its next reset: ff budgets list"
        case "blocked_by_quota":
            return "wait for room, or raise the quota: ff quotas list"
        case _:
            return f"start a worker: ff worker FILE.py:app --lanes {lane}"


def changed_remedy(execution: str) -> str:
    """What to do about an execution that is held because its code has changed, with the commands to type."""
    return (
        "deploy a fix, with was= for a renamed step and retired= for a removed one, then: "
        f"ff executions unhold {execution}; or run it again from a step, or from the beginning: "
        f"ff executions replay {execution} --from STEP, or --from-scratch"
    )
