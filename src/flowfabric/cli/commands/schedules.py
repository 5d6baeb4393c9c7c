"""`ff schedules`: tasks that are submitted again and again, by cron or by interval."""

from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

from flowfabric import payloads
from flowfabric.app import App
from flowfabric.app.encoding import encode_scheduled
from flowfabric.app.schedules import submitted
from flowfabric.cli import decoding
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.options import (
    F,
    app_option,
    by_option,
    decoding_app_option,
    decorated,
    default_of,
    duration,
    given,
    json_object,
    namespace_filter,
    namespace_option,
    paged,
    reason_option,
    tag,
    timestamp,
)
from flowfabric.cli.output import prints
from flowfabric.cli.submissions import checking_arguments, with_options
from flowfabric.engine import schedules as engine
from flowfabric.model import CatchUp, Fired, Options, Overlap, Page, Schedule, Submission, Timing
from flowfabric.payloads.codecs import PLAIN

COLUMNS = ("schedule=name", "namespace", "state", "when", "next=next_tick_at", "last=last_tick_at", "task=options.task",
           "lane=options.lane", "error=refusal.message")  # fmt: skip
CARD = (*COLUMNS, "arguments=payload", "priority", "next five=ticks", "catch up=timing.catch_up",
        "overlap=timing.overlap", "until=timing.until", "last execution=last_execution_id", "tags",
        "declared in code=declared", "created=created_at", "changed=changed_at", "by", "paused since=pause.since",
        "paused by=pause.by", "reason=pause.reason", "error since=refusal.since")  # fmt: skip
TIMING = set(Timing.__struct_fields__)

schedule_argument = click.argument("schedule")


def timing_options(*, creating: bool) -> Callable[[F], F]:
    """The options that say when a schedule runs, to create or to change it."""
    anchor = default_of("when the schedule is created", creating=creating)
    options = (
        click.option("--cron", metavar="EXPRESSION",
                     help='Run at these times: minute, hour, day, month, weekday, such as "0 9 * * 1-5".'),
        click.option("--tz", metavar="ZONE",
                     help=f"Time zone of --cron, such as Europe/Berlin.{default_of('UTC', creating=creating)}"),
        click.option("--every", type=duration, metavar="DURATION", help="Run at this interval, such as 15m."),
        click.option("--anchor", type=timestamp, metavar="TIMESTAMP",
                     help=f"Start of the first --every interval.{anchor}"),
        click.option("--jitter", type=duration, metavar="DURATION",
                     help="Delay each run by up to this long, such as 30s, to spread the load."),
        click.option("--catch-up", type=click.Choice([word.value for word in CatchUp]),
                     help="Which missed runs to make up for: none, the last one, or all."
                          f"{default_of('last', creating=creating)}"),
        click.option("--catch-up-window", type=duration, metavar="DURATION",
                     help="Ignore missed runs that are older than this, with --catch-up all."
                          f"{default_of('1d', creating=creating)}"),
        click.option("--overlap", type=click.Choice([word.value for word in Overlap]),
                     help="If the previous execution has not ended: start another one, skip this run, or cancel the "
                          f"previous one.{default_of('allow', creating=creating)}"),
        click.option("--until", type=timestamp, metavar="TIMESTAMP",
                     help="Last moment at which it may run, such as 2026-12-24T18:00:00Z."),
    )  # fmt: skip
    return lambda command: decorated(command, options)


def submission_options(*, creating: bool) -> Callable[[F], F]:
    """The options of the executions that a schedule submits."""
    lane = default_of("the task's, or default", creating=creating)
    options = (
        click.option("--lane", help=f"Lane (queue) of the executions.{lane}"),
        click.option("--priority", type=click.IntRange(0, 9_000), help="Priority in the lane, highest first."),
        click.option("--tag", "tags", multiple=True, type=tag, metavar="KEY=VALUE",
                     help="Tag of the executions, such as billing.customer=4711. Repeatable."),
        click.option("--deadline", type=duration, metavar="DURATION",
                     help="Expire each execution that has not ended this long after its submission, such as 2h."),
    )  # fmt: skip
    return lambda command: decorated(command, options)


def state_change(command: Callable[..., Any]) -> Callable[..., None]:
    """What pause, resume and delete share."""
    options = (schedule_argument, namespace_option("schedule"), reason_option, by_option)
    return decorated(prints(sentence=_outcome)(command), options)


def _outcome(done: dict[str, str]) -> str:
    outcome = "nothing to change" if done["outcome"] == "noop" else done["outcome"]
    return f"schedule {done['schedule']}: {outcome}"


@click.group(cls=CommandGroup)
def schedules() -> None:
    """Submit a task again and again, by cron or by interval."""


@schedules.command("list")
@namespace_filter("schedules")
@paged
@prints(*COLUMNS, empty="no schedules; to create one: ff schedules create SCHEDULE TASK, or @app.schedule")
async def list_schedules(app: App, namespace: str | None, limit: int, cursor: str | None) -> Page[Schedule]:
    """List schedules, when each one runs next, and the error of one that cannot run.

    \b
    Example:
      ff schedules list
    """
    return await app.schedules.list(namespace=namespace, limit=limit, cursor=cursor)


@schedules.command("describe")
@schedule_argument
@namespace_option("schedule")
@decoding_app_option
@prints(*CARD)
async def describe_schedule(app: App, schedule: str, namespace: str) -> Schedule:
    """Describe a schedule, with its next five runs.

    \b
    Example:
      ff schedules describe nightly
    """
    return decoding.schedule(app, await app.schedules.describe(schedule, namespace=namespace))


@schedules.command("create")
@schedule_argument
@click.argument("task")
@click.argument("arguments", type=json_object, default="{}", metavar="[JSON]")
@app_option
@timing_options(creating=True)
@submission_options(creating=True)
@click.option("--namespace", help="Namespace (tenant) of the schedule.  [default: the task's, or default]")
@click.option("--paused", is_flag=True, help="Do not run it before `ff schedules resume`.")
@by_option
@prints(sentence=_outcome)
async def create_schedule(
    app: App, schedule: str, task: str, arguments: Mapping[str, Any], paused: bool, by: str, **options: Any
) -> dict[str, str]:
    """Submit TASK again and again, with its arguments as a JSON object. Safe to repeat with the same options.

    \b
    Example:
      ff schedules create nightly report '{"topic": "tides"}' --cron "0 3 * * *" --tz Europe/Berlin
      ff schedules create pulse check --every 15m --overlap skip
    """
    asked, wanted = _submission(app, task, arguments), given(options)
    timing = Timing(**{field: wanted.pop(field) for field in TIMING & wanted.keys()})
    async with app.database.connection() as conn:
        outcome = await engine.create_schedule(
            conn,
            schedule,
            await encode_scheduled(conn, app, schedule, with_options(asked, wanted)),
            timing,
            paused=paused,
            by=by,
            payload_limit=app.config.payload_limit,
        )
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("change")
@schedule_argument
@click.option("--arguments", type=json_object, metavar="JSON", help="New arguments of the task, as a JSON object.")
@click.option("--no-until", is_flag=True, help="Remove the end that --until set.")
@timing_options(creating=False)
@submission_options(creating=False)
@namespace_option("schedule")
@by_option
@prints(sentence=_outcome)
async def change_schedule(
    app: App,
    schedule: str,
    arguments: Mapping[str, Any] | None,
    no_until: bool,
    namespace: str,
    by: str,
    **options: Any,
) -> dict[str, str]:
    """Change a schedule; options that are not given stay as they are. Safe to repeat.

    Runs that were missed before the change are not made up for. If a schedule is declared in the code of an app, a
    worker of that app changes it back when it starts.

    \b
    Example:
      ff schedules change nightly --cron "30 4 * * *"
    """
    wanted = given(options)
    if no_until and "until" in wanted:
        raise click.UsageError("--until and --no-until contradict each other; use only one of them")
    async with app.database.connection() as conn:
        current = await engine.describe_schedule(conn, schedule, namespace=namespace)
        timing = {field: wanted.pop(field) for field in TIMING & wanted.keys()}
        if "cron" in timing:
            timing = {"every": None, "anchor": None, **timing}
        elif "every" in timing:
            timing = {"cron": None, "tz": "UTC", **timing}
        if no_until:
            timing["until"] = None
        asked = engine.submission_of(current)
        if arguments is not None:
            plain = msgspec.structs.replace(asked.options, encoding=PLAIN)
            asked = msgspec.structs.replace(asked, payload=payloads.encode(arguments), options=plain)
        outcome = await engine.change_schedule(
            conn,
            schedule,
            namespace=namespace,
            submission=with_options(asked, wanted),
            timing=msgspec.structs.replace(current.timing, **timing),
            by=by,
            payload_limit=app.config.payload_limit,
        )
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("pause")
@state_change
async def pause_schedule(app: App, schedule: str, namespace: str, by: str, reason: str | None) -> dict[str, str]:
    """Pause a schedule. Executions that it has submitted continue; runs missed while paused are not made up for.

    Safe to repeat.

    \b
    Example:
      ff schedules pause nightly --reason "the printer is down"
    """
    outcome = await app.schedules.pause(schedule, namespace=namespace, by=by, reason=reason)
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("resume")
@state_change
async def resume_schedule(app: App, schedule: str, namespace: str, by: str, reason: str | None) -> dict[str, str]:
    """Resume a paused schedule with its next run. Safe to repeat.

    \b
    Example:
      ff schedules resume nightly
    """
    outcome = await app.schedules.resume(schedule, namespace=namespace, by=by, reason=reason)
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("delete")
@state_change
async def delete_schedule(app: App, schedule: str, namespace: str, by: str, reason: str | None) -> dict[str, str]:
    """Delete a schedule. Executions that it has submitted continue.

    \b
    Example:
      ff schedules delete nightly
    """
    outcome = await app.schedules.delete(schedule, namespace=namespace, by=by, reason=reason)
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("fire")
@schedule_argument
@namespace_option("schedule")
@by_option
@prints("outcome", "execution=execution_id", "lane", "cancelled=ended")
async def fire_schedule(app: App, schedule: str, namespace: str, by: str) -> Fired:
    """Run a schedule once now, even if it is paused. Its regular runs are not affected.

    \b
    Example:
      ff schedules fire nightly
    """
    return await app.schedules.fire(schedule, namespace=namespace, by=by)


def _submission(app: App, task: str, arguments: Mapping[str, Any]) -> Submission:
    """What the schedule submits: as the task of the app says, if `--app` is given."""
    if not app.tasks:
        return Submission(options=Options(task=task), payload=payloads.encode(arguments))
    with checking_arguments(task, arguments):
        return submitted(app, task, arguments)
