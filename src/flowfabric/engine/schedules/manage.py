"""Managing schedules: create, change, pause, resume and delete them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from flowfabric import calls
from flowfabric.engine.schedules.list import describe_schedule
from flowfabric.engine.schedules.ticks import Ticks, encode_timing
from flowfabric.errors import InvalidBody, InvalidSchedule
from flowfabric.ids import check_text, kept_text
from flowfabric.model import Schedule, ScheduleChange, Submission, Timing
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

PAYLOAD_LIMIT = 1_048_576
STALE = "stale"


async def create_schedule(
    conn: Connection,
    name: str,
    submission: Submission,
    timing: Timing,
    *,
    paused: bool = False,
    declared: bool = False,
    by: str | None = None,
    payload_limit: int = PAYLOAD_LIMIT,
) -> ScheduleChange:
    """Create a schedule that submits an execution repeatedly, in the namespace of the submission.

    Safe to repeat: the same schedule answers `NOOP`. Raises `InvalidSchedule` with its `field`,
    `ScheduleAlreadyExists`, and what `submit` raises for options, payload and tags.
    """
    now: datetime = await call.value(conn, "clock")
    return ScheduleChange(
        await call.value(
            conn,
            "create_schedule",
            **_submitted(name, submission),
            **_timed(timing, timing.anchor or now, now),
            paused=paused,
            declared=declared,
            by=by and check_text(by, "by"),
            payload_limit=payload_limit,
        )
    )


async def change_schedule(
    conn: Connection,
    name: str,
    *,
    namespace: str = "default",
    submission: Submission | None = None,
    timing: Timing | None = None,
    declared: bool = False,
    by: str | None = None,
    payload_limit: int = PAYLOAD_LIMIT,
) -> ScheduleChange:
    """Change the submission or the timing of a schedule, or both; omitted parts stay unchanged.

    Its next tick is the first one from now on. Safe to repeat: no difference answers `NOOP`. Raises `ScheduleNotFound`,
    `InvalidSchedule` with its `field`, and what `submit` raises for options, payload and tags.
    """
    while True:
        there = await describe_schedule(conn, name, namespace=namespace)
        now: datetime = await call.value(conn, "clock")
        wanted, sent = timing or there.timing, submission or submission_of(there)
        if sent.options.namespace != namespace:
            raise InvalidSchedule(
                "a schedule cannot be moved to another namespace; create a new schedule there", field="namespace"
            )
        anchor = there.anchor_at if wanted.every == there.timing.every else now
        changed = await call.value(
            conn,
            "change_schedule",
            **_submitted(name, sent),
            **_timed(wanted, wanted.anchor or anchor, max(now, there.last_tick_at or now)),
            revision=there.revision,
            declared=declared,
            by=by and check_text(by, "by"),
            payload_limit=payload_limit,
        )
        if changed != STALE:
            return ScheduleChange(changed)


async def pause_schedule(
    conn: Connection, name: str, *, namespace: str = "default", by: str, reason: str | None = None
) -> ScheduleChange:
    """Pause a schedule; executions it has submitted continue, and ticks that pass in the meantime are not caught up.

    Safe to repeat: a paused schedule answers `NOOP`. Raises `ScheduleNotFound`, `InvalidBody`.
    """
    return ScheduleChange(await call.value(conn, "pause_schedule", **_act(name, namespace, by, reason)))


async def resume_schedule(
    conn: Connection, name: str, *, namespace: str = "default", by: str, reason: str | None = None
) -> ScheduleChange:
    """Resume a paused schedule at the first tick from now on.

    Safe to repeat: one that is not paused answers `NOOP`. Raises `ScheduleNotFound`, `InvalidBody`, `InvalidSchedule`.
    """
    while True:
        there = await describe_schedule(conn, name, namespace=namespace)
        now: datetime = await call.value(conn, "clock")
        following = Ticks(there.timing, there.anchor_at).following(max(now, there.last_tick_at or now))
        resumed = await call.value(
            conn,
            "resume_schedule",
            **_act(name, namespace, by, reason),
            revision=there.revision,
            next_tick_at=following,
        )
        if resumed != STALE:
            return ScheduleChange(resumed)


async def delete_schedule(
    conn: Connection, name: str, *, namespace: str = "default", by: str, reason: str | None = None
) -> ScheduleChange:
    """Delete a schedule; executions it has submitted continue. Raises `ScheduleNotFound`, `InvalidBody`."""
    return ScheduleChange(await call.value(conn, "delete_schedule", **_act(name, namespace, by, reason)))


def _act(name: str, namespace: str, by: str, reason: str | None) -> dict[str, Any]:
    return {
        "namespace": check_text(namespace, "namespace"),
        "name": check_text(name, "schedule"),
        "by": check_text(by, "by"),
        "reason": reason and kept_text(reason),
    }


def _timed(timing: Timing, anchor: datetime, after: datetime) -> dict[str, Any]:
    """The timing as arguments. Raises `InvalidSchedule`, also if there is no further tick."""
    following = Ticks(timing, anchor).following(after)
    if following is None:
        raise InvalidSchedule(
            f"until {timing.until} is invalid because no tick comes before it; use a later time", field="until"
        )
    return {
        "timing": encode_timing(timing),
        "anchor_at": anchor.astimezone(UTC),
        "next_tick_at": following,
        "overlap": str(timing.overlap),
    }


def _submitted(name: str, submission: Submission) -> dict[str, Any]:
    """The submission as arguments. Raises `InvalidSchedule` for options that cannot be repeated."""
    for field in ("key", "execution_id", "delay"):
        if getattr(submission, field) not in (None, timedelta()):
            raise InvalidSchedule(
                f"{field} {getattr(submission, field)} is invalid for a schedule; remove it", field=field
            )
    if not isinstance(submission.deadline, timedelta | None):
        raise InvalidSchedule(
            f"deadline {submission.deadline} is invalid; use a duration from the tick", field="deadline"
        )
    return {
        "namespace": check_text(submission.options.namespace, "namespace"),
        "name": check_text(name, "schedule"),
        "options": _json(submission.options, "options"),
        "payload": calls.expect(bytes, submission.payload, "payload"),
        "priority": calls.priority(submission.priority),
        "tags": _json(submission.tags, "tags") if submission.tags else None,
        "deadline_ms": calls.span(submission.deadline, "deadline"),
    }


def _json(value: object, field: str) -> str:
    try:
        return check_text(calls.json_text(value, field), field)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidBody(
            f"{field} cannot be written as JSON: {error}; use strings, numbers, lists and objects", field=field
        ) from None


def submission_of(there: Schedule) -> Submission:
    """Return the submission that a schedule makes at each tick."""
    deadline = None if there.deadline_ms is None else timedelta(milliseconds=there.deadline_ms)
    return Submission(
        options=there.options, payload=there.payload, priority=there.priority, tags=there.tags, deadline=deadline
    )
