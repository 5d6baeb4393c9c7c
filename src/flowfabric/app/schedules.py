"""Schedules of an app: tasks submitted by cron or at an interval, declared in code or created at run time."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

from flowfabric import durations
from flowfabric.app.encoding import encode_scheduled
from flowfabric.app.tasks import Task, unknown_task
from flowfabric.engine import schedules
from flowfabric.errors import FlowFabricError, ScheduleAlreadyExists, Unavailable
from flowfabric.model import Schedule, ScheduleChange, Submission, Timing
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app import App

log = logging.getLogger("flowfabric.schedules")

Scheduled = TypeVar("Scheduled", bound=Task[..., Any])


class TimingOptions(TypedDict, total=False):
    """When a schedule ticks, and what happens to missed and overlapping ticks."""

    cron: str
    tz: str
    every: str | timedelta
    anchor: datetime
    jitter: str | timedelta
    catch_up: Literal["none", "last", "all"]
    catch_up_window: str | timedelta
    overlap: Literal["allow", "skip", "replace"]
    until: datetime


DURATIONS = ("every", "jitter", "catch_up_window")


class Declaration(NamedTuple):
    """A schedule declared in code."""

    name: str
    submission: Submission
    timing: Timing
    version: int

    @property
    def key(self) -> tuple[str, str]:
        return self.submission.options.namespace, self.name


def read_timing(options: Mapping[str, Any]) -> Timing:
    """Check a timing and parse its durations.

    Raises `TypeError` for an unknown option, `ValueError` for an invalid duration, and `InvalidSchedule`.
    """
    if unknown := sorted(options.keys() - TimingOptions.__annotations__.keys()):
        known = ", ".join(TimingOptions.__annotations__)
        raise TypeError(f"schedule option {unknown[0]!r} is unknown; use {known}")
    read = {name: durations.read_duration(options[name]) for name in DURATIONS if name in options}
    return schedules.check_timing(Timing(**{**options, **read}))


def declaring(
    declarations: dict[tuple[str, str], Declaration],
    name: str | None,
    arguments: Mapping[str, object] | None,
    timing: Timing,
) -> Callable[[Scheduled], Scheduled]:
    """Return the decorator that adds a declaration.

    Raises `TypeError` if the decorated object is not a task or the arguments do not fit it, and `ValueError` if the
    name is in use.
    """

    def declare(task: Scheduled) -> Scheduled:
        if not isinstance(task, Task):
            raise TypeError(f"{getattr(task, '__qualname__', task)} is not a task; put @app.schedule above @app.task")
        declared = Declaration(name or task.name, task.submission(**(arguments or {})), timing, task.version)
        if (other := declarations.get(declared.key)) is not None:
            is_version = declared.name == task.name and declared.version != other.version
            remedy = "put @app.schedule above the newest version only" if is_version else "use another name"
            raise ValueError(f"schedule {declared.name!r} already exists; {remedy}")
        declarations[declared.key] = declared
        return task

    return declare


def submitted(app: "App", task: Task[..., Any] | str, arguments: Mapping[str, object] | None) -> Submission:
    """Build the submission of a schedule. Raises `UnknownTask` if the app has no such task, and `TypeError`."""
    found = app.tasks.get(task) if isinstance(task, str) else task
    if found is None:
        raise unknown_task(app.tasks, str(task))
    return found.submission(**(arguments or {}))


async def create_schedule(
    app: "App",
    name: str,
    task: Task[..., Any] | str,
    arguments: Mapping[str, object] | None = None,
    *,
    by: str | None = None,
    paused: bool = False,
    **timing: Unpack[TimingOptions],
) -> ScheduleChange:
    """Submit a task again and again, by `cron` and `tz` or `every` so often, until the schedule is deleted.

    Safe to repeat: an identical schedule answers `NOOP`. Raises `UnknownTask`, `InvalidSchedule`,
    `ScheduleAlreadyExists`.
    """
    asked, when = submitted(app, task, arguments), read_timing(timing)
    limit = app.config.payload_limit
    return await app.database.run(
        lambda conn: _create(conn, app, name, asked, when, by=by, paused=paused, payload_limit=limit),
        repeat=True,
    )


async def change_schedule(
    app: "App",
    name: str,
    task: Task[..., Any] | str | None = None,
    arguments: Mapping[str, object] | None = None,
    *,
    by: str | None = None,
    namespace: str = "default",
    **timing: Unpack[TimingOptions],
) -> ScheduleChange:
    """Change when a schedule ticks, what it submits, or both: the timing, and the task with all its arguments.

    What is not given stays. A timing replaces the whole timing. Safe to repeat: no difference answers `NOOP`. Raises
    `ScheduleNotFound`, `UnknownTask`, `InvalidSchedule`.
    """
    if task is None and arguments is not None:
        raise TypeError("arguments need their task; pass both: app.schedules.change(name, task, arguments)")
    asked = None if task is None else submitted(app, task, arguments)
    when = read_timing(timing) if timing else None
    limit = app.config.payload_limit

    async def change(conn: Connection) -> ScheduleChange:
        sent = None if asked is None else await encode_scheduled(conn, app, name, asked)
        return await schedules.change_schedule(
            conn, name, namespace=namespace, submission=sent, timing=when, by=by, payload_limit=limit
        )

    return await app.database.run(change, repeat=True)


async def _create(
    conn: Connection, app: "App", name: str, submission: Submission, timing: Timing, **options: Any
) -> ScheduleChange:
    encoded = await encode_scheduled(conn, app, name, submission)
    return await schedules.create_schedule(conn, name, encoded, timing, **options)


async def make_declared(app: "App") -> None:
    """Create or change the schedules declared in code; a refused one is logged and does not stop the others."""
    for declared in app.scheduled.values():
        newest = app.tasks[declared.submission.options.task]
        if declared.version != newest.version:
            log.error(
                "could not declare schedule %s, because it is above version %d of its task; the stored schedule, if "
                "any, is kept; put @app.schedule above version %d, which it would start",
                *(declared.name, declared.version, newest.version),
            )
            continue
        try:
            made = await app.database.run(lambda conn, each=declared: _make(conn, each, app), repeat=True)  # type: ignore[misc]
        except FlowFabricError as refusal:
            log.error(
                "could not declare schedule %s; the stored schedule, if any, is kept: %s",
                *(declared.name, refusal),
            )
        else:
            if made is not ScheduleChange.NOOP:
                log.info("schedule %s was %s", declared.name, made)
    with suppress(Unavailable):  # only a warning
        for left in await app.database.run(lambda conn: _left_over(conn, app), repeat=True):
            log.warning(
                "schedule %s in namespace %s is no longer declared in code and still runs; delete it with "
                "`ff schedules delete`",
                *(left.name, left.namespace),
            )


async def _make(conn: Connection, declared: Declaration, app: "App") -> ScheduleChange:
    name, submission, timing, _ = declared
    submission = await encode_scheduled(conn, app, name, submission)
    limit = app.config.payload_limit
    try:
        return await schedules.create_schedule(conn, name, submission, timing, declared=True, payload_limit=limit)
    except ScheduleAlreadyExists:
        return await schedules.change_schedule(
            conn,
            name,
            namespace=submission.options.namespace,
            submission=submission,
            timing=timing,
            declared=True,
            payload_limit=limit,
        )


async def _left_over(conn: Connection, app: "App") -> list[Schedule]:
    """List the schedules that the code of this app declared once and no longer does."""
    cursor, found = None, list[Schedule]()
    while True:
        page = await schedules.list_schedules(conn, cursor=cursor, limit=1_000)
        found += [
            schedule
            for schedule in page.items
            if schedule.declared
            and schedule.options.task in app.tasks
            and (schedule.namespace, schedule.name) not in app.scheduled
        ]
        cursor = page.next_cursor
        if cursor is None:
            return found
