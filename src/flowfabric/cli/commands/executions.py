"""`ff executions`: the commands that read executions. `execution_actions.py` has those that change them."""

from datetime import datetime, timedelta
from typing import Any

import click

from flowfabric.app import App
from flowfabric.cli import decoding, remedies, resolve, tables, tracebacks, trees
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.commands import execution_actions as actions
from flowfabric.cli.commands.events import detail_for_people, parse_cursor
from flowfabric.cli.errors import JSON
from flowfabric.cli.frames import Screen
from flowfabric.cli.options import (
    at_moment,
    decoding_app_option,
    execution_argument,
    lane_and_namespace_filters,
    limit_option,
    moment,
    paged,
    tag,
)
from flowfabric.cli.output import page_table, prints
from flowfabric.cli.watching import Watching
from flowfabric.engine import events as event_engine
from flowfabric.model import Attempt, Description, Event, ExecutionTree, Page, PublicState, StepSummary, Summary

CARD = ("execution=execution_id", "task", "version", "state=state.public_state", "reason=explanation.sentence",
        "result", "failure=failure.reason", "namespace", "lane", "priority", "needs", "tags", "creator", "flow=flow_id",
        "parent=parent_id",
        "attempts=counts.attempts", "retries=counts.retries", "reclaims=counts.reclaims", "replays=counts.replays",
        "worker=lease.worker", "instance=lease.instance", "lease expires=lease.expires_at",
        "waitpoints=suspension.waitpoint_keys", "wait times out=suspension.timeout_at",
        "created=created_at", "started=started_at", "due=due_at", "deadline=deadline_at", "ended=ended_at",
        "policy", "arguments=payload")  # fmt: skip

ATTEMPT = ("attempt=number", "type", "state=lifecycle", "failure=failure.class_", "reason=failure.reason", "worker",
           "started=started_at", "ended=ended_at", "instance")  # fmt: skip


class Timeline(Page[Event], frozen=True):
    """Events of an execution; `truncated` if retention has already deleted the first ones."""

    truncated: bool = False


def _timeline(found: Timeline) -> str:
    lines = [
        {"at": each.at, "kind": each.kind, "by": each.by, "detail": detail_for_people(each)} for each in found.items
    ]
    return page_table(("at", "event=kind", "by", "detail"), lines, found, empty="its events have been deleted")


def _states(found: Page[Summary]) -> object:
    return [trees.state(each) for each in found.items]


def _described(found: Description | ExecutionTree) -> str:
    if isinstance(found, ExecutionTree):
        return trees.drawn(found)
    card = tables.card(CARD, found)
    failed = found.last_failure and found.last_failure.traceback
    if not failed or found.state.public_state is PublicState.COMPLETED:
        return card
    return f"{card}\n\ntraceback of the last failed attempt:\n{tracebacks.folded(failed)}"


def _attempts(found: Page[Attempt]) -> str:
    table = page_table(ATTEMPT, found.items, found, empty="no attempts yet")
    return "\n\n".join(filter(None, [table, tracebacks.of_attempts(found.items)]))


@click.group(cls=CommandGroup)
def executions() -> None:
    """List, describe, explain, cancel, override and replay executions (task runs).

    The beginning of an id is enough, at least 8 digits, if no other id begins so.
    """


@executions.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in PublicState]),
    help="Only executions in this state. Repeatable.",
)
@click.option("--task", help="Only executions of this task, such as send_report.")
@lane_and_namespace_filters("executions")
@click.option("--tag", type=tag, metavar="KEY=VALUE", help="Only executions with this tag.")
@click.option("--flow", metavar="ID", help="Only members of this flow.")
@click.option("--parent", metavar="ID", help="Only children of this execution.")
@click.option("--key", help="Only the execution with this idempotency key, in the namespace `default` or --namespace.")
@click.option("--since", type=moment, metavar="WHEN",
              help="Only executions created after this: a duration ago (1h), a date (2026-01-31) or a timestamp "
                   "(2026-01-31T10:00), in UTC unless it has a time zone.")  # fmt: skip
@click.option("--until", type=moment, metavar="WHEN",
              help="Only executions created before this, written as for --since.")  # fmt: skip
@click.option(
    "--lease-expired",
    is_flag=True,
    help="Only active executions whose lease has expired: their worker is gone, and no sweep has run since.",
)
@click.option("--order", type=click.Choice(["newest", "id"]), default="newest", show_default=True,
              help="Sort by creation, newest first, or by id.")  # fmt: skip
@paged
@click.option("--ids", "only_ids", is_flag=True, help="Print only the ids, one per line, to pipe into other commands.")
@prints("execution=execution_id", "state=state.public_state", "task", "lane", "reason=explanation.sentence",
        "namespace", "created=created_at", "parent=parent_id",
        empty="no executions match", watching=Watching(_states, ended=lambda _: False))  # fmt: skip
async def list_executions(
    app: App,
    states: tuple[PublicState, ...],
    flow: str | None,
    parent: str | None,
    since: timedelta | datetime | None,
    until: timedelta | datetime | None,
    only_ids: bool,
    **wanted: Any,
) -> Page[Summary] | Page[str] | None:
    """List executions, newest first.

    \b
    Example:
      ff executions list --state failed --lane reports --since 1h
      ff executions list --state failed --ids --limit 1000 | ff executions replay -
    """
    if only_ids and click.get_current_context().params.get("watch"):
        raise click.UsageError("--ids cannot be combined with --watch; leave one of them out")
    of_flow = None if flow is None else await resolve.flow_id(app, flow)
    of_parent = None if parent is None else await resolve.execution_id(app, parent)
    now = await app.now()
    page = await app.executions.list(
        states=states or None,
        flow=of_flow,
        parent=of_parent,
        created_after=at_moment(since, now),
        created_before=at_moment(until, now),
        **wanted,
    )
    if not only_ids:
        return page
    found = [str(each.execution_id) for each in page.items]
    if click.get_current_context().meta.get(JSON):
        return Page(found, page.next_cursor)
    click.echo("\n".join(found), nl=bool(found))
    return None


@executions.command("describe")
@execution_argument
@decoding_app_option
@click.option("--tree", is_flag=True,
              help="Show its children too, their children, and so on: at most 20 of each, failed and unfinished ones "
                   "first, and 200 in all. The others are counted by state.")  # fmt: skip
@prints(layout=_described, watching=Watching(trees.states, ended=trees.has_ended))
async def describe(app: App, execution: str, tree: bool) -> Description | ExecutionTree:
    """Describe an execution: its state and why, its arguments, its result, its attempts and its lease.

    If it has not completed, the traceback of its last failed attempt follows, without the frames of flowfabric. --json
    prints it whole. With --watch it continues until the execution has ended.

    \b
    Example:
      ff executions describe 019df237-3e80-8a31-800c-3f9b71e5d004
      ff executions describe 019df237-3e80-8a31-800c-3f9b71e5d004 --tree --watch
    """
    execution_id = await resolve.execution_id(app, execution)
    if tree:
        return await app.executions.read_tree(execution_id)
    return decoding.execution(
        app, await app.executions.describe(execution_id, payload=True, result=True, last_failure=True)
    )


@executions.command("explain")
@execution_argument
@prints(sentence=remedies.as_text)
async def explain(app: App, execution: str) -> remedies.Explanation:
    """Explain why an execution is in its state, and print the command that would release it.

    \b
    Example:
      ff executions explain 019df237-3e80-8a31-800c-3f9b71e5d004
    """
    found = await (await resolve.execution(app, execution)).describe()
    live = await app.workers.list(lane=found.lane, limit=1)
    return remedies.explain(found, served=bool(live.items))


@executions.command("events")
@execution_argument
@limit_option
@click.option("--cursor", callback=parse_cursor, default="oldest",
              help="Show the next page: the value that the previous one printed after `more:`.")  # fmt: skip
@prints(layout=_timeline)
async def list_events(app: App, execution: str, limit: int, cursor: str) -> Timeline:
    """List the events of an execution, oldest first. --json prints all their fields.

    \b
    Example:
      ff executions events 019df237-3e80-8a31-800c-3f9b71e5d004
    """
    asked = await resolve.execution(app, execution)
    await asked.state()  # an unknown id is an error, not an empty list
    found: list[Event] = []
    truncated = False
    async with app.database.connection() as conn:
        while True:
            page = await event_engine.read_events(
                conn, cursor, event_engine.timeline(asked.execution_id), limit=limit - len(found)
            )
            found += page.events
            cursor, truncated = page.cursor, truncated or page.truncated
            if not page.more or len(found) >= limit:
                return Timeline(found, cursor if page.more else None, truncated)


@executions.command("attempts")
@execution_argument
@paged
@prints(layout=_attempts)
async def list_attempts(app: App, execution: str, limit: int, cursor: str | None) -> Page[Attempt]:
    """List the attempts of an execution, and how each one ended, with its traceback.

    The frames of flowfabric in a traceback are only counted. --json prints it whole.

    \b
    Example:
      ff executions attempts 019df237-3e80-8a31-800c-3f9b71e5d004
    """
    execution_id = await resolve.execution_id(app, execution)
    return await app.executions.list_attempts(execution_id, limit=limit, cursor=cursor)


@executions.command("steps")
@execution_argument
@decoding_app_option
@click.option("--results", is_flag=True, help="Show the results too, at most 1 MiB per page.")
@paged
@prints("step=name", "occurrence", "kind", "state", "started=started_at", "took=lasted", "bytes=size", "result",
        "saved=saved_at", "sleeps until=due_at",
        empty="no step has been saved, and none has run for a second")  # fmt: skip
async def list_steps(app: App, execution: str, results: bool, limit: int, cursor: str | None) -> Page[StepSummary]:
    """List the steps and sleeps of an execution: those that it has saved, in that order, and those that it runs now.

    A step that runs is listed when it has run for about a second. A run that starts again skips the saved ones.

    \b
    Example:
      ff executions steps 019df237-3e80-8a31-800c-3f9b71e5d004 --results
    """
    execution_id = await resolve.execution_id(app, execution)
    page = await app.executions.list_steps(execution_id, results=results, limit=limit, cursor=cursor)
    return Page([decoding.step(app, execution_id, each) for each in page.items], page.next_cursor)


@executions.command("tail")
@execution_argument
@click.option("--cursor", metavar="CURSOR", help="Start after the frame with this cursor, as --json prints it.")
@click.option("--attempt", type=click.IntRange(1), help="Only the frames of this attempt.")
@click.option("--all", "everything", is_flag=True, help="Also what a later attempt has replaced, with a mark after it.")
@prints()
async def tail(app: App, execution: str, cursor: str | None, attempt: int | None, everything: bool) -> None:
    """Print what an execution puts out, past and new, until it ends: text as it comes, other frames one per line.

    Follows retries: when another attempt replaces the one you see, a line says so. Progress is a bar on standard error,
    if that is a terminal. With --json each frame is a line, with its `cursor`.

    \b
    Example:
      ff executions tail 019df237-3e80-8a31-800c-3f9b71e5d004
      ff executions tail 019df237-3e80-8a31-800c-3f9b71e5d004 --json --cursor 1:1790000000000-3
    """
    found = await resolve.execution(app, execution)
    screen = Screen()
    try:
        async for frame in found.frames(cursor, attempts=attempt or ("all" if everything else "valid")):
            screen.write(frame)
    finally:
        screen.end()


for action in (actions.cancel, actions.override, actions.replay, actions.hold, actions.unhold, actions.resume,
               actions.change_priority, actions.set_tag):  # fmt: skip
    executions.add_command(action)
