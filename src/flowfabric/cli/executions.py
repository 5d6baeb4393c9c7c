"""`ff executions`: looking at what was submitted."""

from typing import Any

import click

from flowfabric import ids
from flowfabric.app import App
from flowfabric.cli import acts, remedies
from flowfabric.cli.answers import answering, listed
from flowfabric.cli.events import read_cursor, told
from flowfabric.cli.options import moment, one_execution, paged, tag, within
from flowfabric.cli.refusals import JSON
from flowfabric.engine import attempts as attempt_engine
from flowfabric.engine import events as event_engine
from flowfabric.engine import executions as engine
from flowfabric.engine import workers as worker_engine
from flowfabric.model import Attempt, Description, Event, Page, PublicState, Summary

CARD = ("execution=execution_id", "task", "state=state.public_state", "because=explanation.sentence",
        "result", "failure=failure.reason", "namespace", "lane", "priority", "needs", "tags", "creator", "flow=flow_id",
        "attempts=counts.attempts", "retries=counts.retries", "reclaims=counts.reclaims", "replays=counts.replays",
        "worker=lease.worker", "instance=lease.instance", "lease until=lease.expires_at",
        "waitpoints=suspension.waitpoint_keys", "waits until=suspension.timeout_at",
        "created=created_at", "started=started_at", "due=due_at", "deadline=deadline_at", "ended=ended_at",
        "policy", "payload")  # fmt: skip


class Timeline(Page[Event], frozen=True):
    """Events of an execution; truncated when retention has removed its beginning."""

    truncated: bool = False


def _laid_out(found: Timeline) -> str:
    lines = [{"at": each.at, "kind": each.kind, "by": each.by, "detail": told(each)} for each in found.items]
    return listed(("at", "kind", "by", "detail"), lines, found, none="no events of it are kept")


@click.group()
def executions() -> None:
    """Looking at what was submitted, and changing its course."""


@executions.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in PublicState]),
    help="Only in this state; may be repeated.",
)
@click.option("--kind", help="Only of this kind: the name of its task.")
@within
@click.option("--tag", type=tag, metavar="KEY=VALUE", help="Only with this tag.")
@click.option("--flow", metavar="ID", help="Only of this flow.")
@click.option("--created-after", type=moment, metavar="MOMENT", help="Only later than this moment.")
@click.option("--created-before", type=moment, metavar="MOMENT", help="Only earlier than this moment.")
@click.option("--order", type=click.Choice(["newest", "id"]), default="newest", show_default=True, help="Which first.")
@paged
@click.option("--ids", "only_ids", is_flag=True, help="The ids alone, a line each, for other commands to read.")
@answering("execution=execution_id", "state=state.public_state", "task", "lane", "namespace", "created=created_at",
           none="no executions match")  # fmt: skip
async def list_executions(
    app: App, states: tuple[PublicState, ...], flow: str | None, only_ids: bool, **wanted: Any
) -> Page[Summary] | Page[str] | None:
    """List executions, the youngest first.

    \b
    Example:
      ff executions list --state failed --lane reports
      ff executions list --state failed --ids --limit 1000 | ff executions replay -
    """
    within_flow = None if flow is None else ids.parse_flow_id(flow, app.config.execution_partitions)
    async with app.database.connection() as conn:
        page = await engine.list_executions(conn, states=states or None, flow=within_flow, **wanted)
    if not only_ids:
        return page
    found = [each.execution_id for each in page.items]
    if click.get_current_context().meta.get(JSON):
        return Page(found, page.next_cursor)
    click.echo("\n".join(found), nl=bool(found))
    return None


@executions.command("show")
@one_execution
@answering(*CARD)
async def show(app: App, execution: str) -> Description:
    """Show all there is to know of an execution, with what it was given and what it returned.

    \b
    Example:
      ff executions show {fp:24}:550e8400-e29b-41d4-a716-446655440000
    """
    execution_id = app.execution(execution).execution_id
    async with app.database.connection() as conn:
        return await engine.describe(conn, execution_id, payload=True, result=True)


@executions.command("explain")
@one_execution
@answering(says=remedies.says)
async def explain(app: App, execution: str) -> remedies.Reason:
    """Say why an execution is where it is, and what would release it.

    \b
    Example:
      ff executions explain {fp:24}:550e8400-e29b-41d4-a716-446655440000
    """
    found = await app.execution(execution).describe()
    async with app.database.connection() as conn:
        live = await worker_engine.list_workers(conn, lane=found.lane, limit=1)
    return remedies.reason(found, served=bool(live.items))


@executions.command("events")
@one_execution
@click.option("--limit", type=click.IntRange(0, 1_000), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", callback=read_cursor, default="oldest", help="Go on where a page ended.")
@answering(shows=_laid_out)
async def list_events(app: App, execution: str, limit: int, cursor: str) -> Timeline:
    """List what has happened to an execution, from its submission on. With --json, all that is in the log.

    \b
    Example:
      ff executions events {fp:24}:550e8400-e29b-41d4-a716-446655440000
    """
    asked = app.execution(execution)
    await asked.state()  # one that is not there is refused, and not without events
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
@one_execution
@paged
@answering("attempt=number", "type", "ended=lifecycle", "failure=failure.class_", "reason=failure.reason", "worker",
           "started=started_at", "until=ended_at", "instance", none="it has not been tried yet")  # fmt: skip
async def list_attempts(app: App, execution: str, limit: int, cursor: str | None) -> Page[Attempt]:
    """List every try at running an execution, and how it ended.

    \b
    Example:
      ff executions attempts {fp:24}:550e8400-e29b-41d4-a716-446655440000
    """
    execution_id = app.execution(execution).execution_id
    async with app.database.connection() as conn:
        return await attempt_engine.list_attempts(conn, execution_id, limit=limit, cursor=cursor)


for act in (acts.cancel, acts.replay, acts.hold, acts.unhold, acts.resume, acts.change_priority, acts.set_tag):
    executions.add_command(act)
