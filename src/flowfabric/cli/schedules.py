"""`ff schedules`: what is submitted again and again."""

from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

from flowfabric import payloads
from flowfabric.app import App
from flowfabric.app.schedules import submitted
from flowfabric.cli.answers import answering
from flowfabric.cli.asking import as_in_app, asked_with, called_with
from flowfabric.cli.options import F, acting, given, json_object, moment, of_namespace, paged, span, tag
from flowfabric.engine import schedules as engine
from flowfabric.model import CatchUp, Fired, Options, Overlap, Page, Schedule, Submission, Timing

COLUMNS = ("schedule=name", "namespace", "state", "when", "next=next_tick_at", "last=last_tick_at", "task=options.task",
           "lane=options.lane", "refused=refusal.message")  # fmt: skip
ALL = (*COLUMNS, "arguments=payload", "priority", "next five=ticks", "catch up=timing.catch_up",
       "overlap=timing.overlap", "until=timing.until", "last execution=last_execution_id", "tags", "declared",
       "created=created_at", "changed=changed_at", "by", "paused since=pause.since", "paused by=pause.by",
       "why=pause.why", "refused since=refusal.since")  # fmt: skip
OF_TIMING = set(Timing.__struct_fields__)

one_schedule = click.argument("schedule")
why = click.option("--why", help="What for; the log keeps it.")


def timed(command: F) -> F:
    """When a schedule ticks."""
    for option in (
        click.option("--until", type=moment, metavar="MOMENT", help="No tick after this: 2026-12-24T18:00:00Z."),
        click.option(
            "--overlap", type=click.Choice([word.value for word in Overlap]), help="When the one before is unfinished."
        ),
        click.option("--catch-up-window", type=span, metavar="SPAN", help="How old a tick may be that `all` runs."),
        click.option(
            "--catch-up",
            type=click.Choice([word.value for word in CatchUp]),
            help="Which ticks to run that were missed.",
        ),
        click.option("--jitter", type=span, metavar="SPAN", help="Begin up to so much later than the tick."),
        click.option("--anchor", type=moment, metavar="MOMENT", help="What --every counts from."),
        click.option("--every", type=span, metavar="SPAN", help="Again after so long: 15m."),
        click.option("--tz", metavar="ZONE", help="The time zone of --cron, such as Europe/Berlin.  [default: UTC]"),
        click.option("--cron", help='Minute, hour, day, month, weekday: "0 9 * * 1-5".'),
    ):
        command = option(command)
    return command


def submitting(command: F) -> F:
    """What a schedule submits."""
    for option in (
        click.option("--deadline", type=span, metavar="SPAN", help="When each must have ended, from its submission."),
        click.option("--tag", "tags", multiple=True, type=tag, metavar="KEY=VALUE", help="What to find them by."),
        click.option("--priority", type=click.IntRange(0, 9_000), help="Higher goes first."),
        click.option("--lane", help="Where they queue."),
    ):
        command = option(command)
    return command


def switching(command: Callable[..., Any]) -> Callable[..., None]:
    """What pausing, resuming and deleting share."""
    switched = answering(says=_done)(command)
    for option in (acting, why, of_namespace, one_schedule):
        switched = option(switched)
    return switched


def _done(done: dict[str, str]) -> str:
    outcome = "nothing to change, it is so already" if done["outcome"] == "noop" else done["outcome"]
    return f"schedule {done['schedule']}: {outcome}"


@click.group()
def schedules() -> None:
    """What is submitted again and again."""


@schedules.command("list")
@click.option("--namespace", help="Only of this namespace.")
@paged
@answering(*COLUMNS, none="no schedules yet; `ff schedules create` makes one, and so does @app.schedule")
async def list_schedules(app: App, namespace: str | None, limit: int, cursor: str | None) -> Page[Schedule]:
    """List the schedules, when each ticks next, and why one cannot.

    \b
    Example:
      ff schedules list
    """
    async with app.database.connection() as conn:
        return await engine.list_schedules(conn, namespace=namespace, limit=limit, cursor=cursor)


@schedules.command("show")
@one_schedule
@of_namespace
@answering(*ALL)
async def show_schedule(app: App, schedule: str, namespace: str) -> Schedule:
    """Show one schedule, with its next five ticks.

    \b
    Example:
      ff schedules show nightly
    """
    async with app.database.connection() as conn:
        return await engine.describe_schedule(conn, schedule, namespace=namespace)


@schedules.command("create")
@one_schedule
@click.argument("task")
@click.argument("arguments", type=json_object, default="{}", metavar="[JSON]")
@as_in_app
@timed
@submitting
@click.option("--namespace", help="Whose it is.  [default: the task's, or default]")
@click.option("--paused", is_flag=True, help="Let it begin with `ff schedules resume`.")
@acting
@answering(says=_done)
async def create_schedule(
    app: App, schedule: str, task: str, arguments: Mapping[str, Any], paused: bool, by: str, **options: Any
) -> dict[str, str]:
    """Have TASK submitted again and again, with its arguments as a JSON object. Safe to repeat.

    \b
    Example:
      ff schedules create nightly report '{"topic": "tides"}' --cron "0 3 * * *" --tz Europe/Berlin
      ff schedules create pulse check --every 15m --overlap skip
    """
    asked, wanted = _asked(app, task, arguments), given(options)
    timing = Timing(**{field: wanted.pop(field) for field in OF_TIMING & wanted.keys()})
    async with app.database.connection() as conn:
        outcome = await engine.create_schedule(
            conn,
            schedule,
            asked_with(asked, wanted),
            timing,
            paused=paused,
            by=by,
            payload_limit=app.config.payload_limit,
        )
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("change")
@one_schedule
@click.option("--arguments", type=json_object, metavar="JSON", help="Call it with these from now on.")
@click.option("--no-until", is_flag=True, help="Let it tick without an end again.")
@timed
@submitting
@of_namespace
@acting
@answering(says=_done)
async def change_schedule(
    app: App,
    schedule: str,
    arguments: Mapping[str, Any] | None,
    no_until: bool,
    namespace: str,
    by: str,
    **options: Any,
) -> dict[str, str]:
    """Change a schedule; what is not given stays. Its next tick is the first from now on. Safe to repeat.

    One that stands in the code of an app is changed back when a worker of that app starts.

    \b
    Example:
      ff schedules change nightly --cron "30 4 * * *"
    """
    wanted = given(options)
    if no_until and "until" in wanted:
        raise click.UsageError("--until and --no-until say the opposite; give one of them")
    async with app.database.connection() as conn:
        there = await engine.describe_schedule(conn, schedule, namespace=namespace)
        timing = {field: wanted.pop(field) for field in OF_TIMING & wanted.keys()}
        if "cron" in timing:
            timing = {"every": None, "anchor": None, **timing}
        elif "every" in timing:
            timing = {"cron": None, "tz": "UTC", **timing}
        if no_until:
            timing["until"] = None
        asked = engine.submission_of(there)
        if arguments is not None:
            asked = msgspec.structs.replace(asked, payload=payloads.encode(arguments))
        outcome = await engine.change_schedule(
            conn,
            schedule,
            namespace=namespace,
            submission=asked_with(asked, wanted),
            timing=msgspec.structs.replace(there.timing, **timing),
            by=by,
            payload_limit=app.config.payload_limit,
        )
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("pause")
@switching
async def pause_schedule(app: App, schedule: str, namespace: str, by: str, why: str | None) -> dict[str, str]:
    """Stop a schedule. What it has submitted goes on; ticks that pass meanwhile are not caught up. Safe to repeat.

    \b
    Example:
      ff schedules pause nightly --why "the printer burns"
    """
    async with app.database.connection() as conn:
        outcome = await engine.pause_schedule(conn, schedule, namespace=namespace, by=by, why=why)
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("resume")
@switching
async def resume_schedule(app: App, schedule: str, namespace: str, by: str, why: str | None) -> dict[str, str]:
    """Let a paused schedule go on, from the next tick. Safe to repeat.

    \b
    Example:
      ff schedules resume nightly
    """
    async with app.database.connection() as conn:
        outcome = await engine.resume_schedule(conn, schedule, namespace=namespace, by=by, why=why)
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("delete")
@switching
async def delete_schedule(app: App, schedule: str, namespace: str, by: str, why: str | None) -> dict[str, str]:
    """Remove a schedule. What it has submitted goes on.

    \b
    Example:
      ff schedules delete nightly
    """
    async with app.database.connection() as conn:
        outcome = await engine.delete_schedule(conn, schedule, namespace=namespace, by=by, why=why)
    return {"schedule": schedule, "outcome": outcome}


@schedules.command("fire")
@one_schedule
@of_namespace
@acting
@answering("outcome", "execution=execution_id", "lane", "replaced=ended")
async def fire_schedule(app: App, schedule: str, namespace: str, by: str) -> Fired:
    """Submit what a schedule says now, also when it is paused. Its ticks come as they would.

    \b
    Example:
      ff schedules fire nightly
    """
    partitions = app.config.execution_partitions
    async with app.database.connection() as conn:
        fired = await engine.fire_schedule(conn, schedule, namespace=namespace, by=by, partitions=partitions)
    await app.wake(fired.lane)
    app.notify_ended(fired.ended)
    return fired


def _asked(app: App, task: str, arguments: Mapping[str, Any]) -> Submission:
    """What is to be submitted; as the code of the app says, where it was given."""
    if not app.tasks:
        return Submission(options=Options(task=task), payload=payloads.encode(arguments))
    with called_with(task, arguments):
        return submitted(app, task, arguments)
