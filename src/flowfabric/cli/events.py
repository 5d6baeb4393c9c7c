"""`ff events`: the log of all that happens."""

from collections.abc import AsyncIterator
from typing import Any

import click

from flowfabric import ids
from flowfabric.app import App
from flowfabric.cli.answers import answering
from flowfabric.cli.options import tag, within
from flowfabric.cli.texts import cell, moment
from flowfabric.engine import events as engine
from flowfabric.model import Event, EventFilter, EventKind

FOR_PROGRAMS = {"epoch", "lease_id", "suspension_id", "waitpoint_id", "signal_id", "signals", "kid", "digest",
                "about_digest", "source_identity"}  # fmt: skip


def told(event: Event) -> dict[str, object]:
    """What people want of its detail; ids and digests are in the JSON."""
    return {key: value for key, value in event.detail.items() if key not in FOR_PROGRAMS}


def says(event: Event) -> str:
    """An event as a line."""
    about = str(event.execution_id or event.flow_id or event.subject or "")
    by = f"by {event.by}" if event.by else ""
    return "  ".join(filter(None, [moment(event.at), event.kind, about, by, cell(told(event))]))


def read_cursor(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """A cursor of the log, or `oldest`."""
    return engine.OLDEST if value == "oldest" else value


def complete_kind(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """The kinds that a shell offers for what has been typed."""
    return [kind.value for kind in EventKind if kind.startswith(begun)]


def filtered(app: App, **wanted: Any) -> EventFilter:
    """The filter that the options stand for. Raises `InvalidId`, `WrongPartition`."""
    execution, flow, kinds = wanted.pop("execution"), wanted.pop("flow"), wanted.pop("kinds")
    return EventFilter(
        execution_id=None if execution is None else app.execution(execution).execution_id,
        flow_id=None if flow is None else ids.parse_flow_id(flow, app.config.execution_partitions),
        kinds=kinds or None,
        **wanted,
    )


@click.group()
def events() -> None:
    """The log of all that happens."""


@events.command("tail")
@click.option(
    "--cursor",
    metavar="CURSOR",
    callback=read_cursor,
    help="Begin behind this event, or with the `oldest` kept.  [default: now; with --once the oldest]",
)
@click.option("--once", is_flag=True, help="End when all there is has been shown.")
@click.option("--limit", type=click.IntRange(1), help="End after so many.")
@click.option(
    "--kind", "kinds", multiple=True, shell_complete=complete_kind, help="Only of this kind; may be repeated."
)
@click.option("--execution", metavar="ID", help="Only of this execution.")
@click.option("--flow", metavar="ID", help="Only of this flow.")
@click.option("--tag", type=tag, metavar="KEY=VALUE", help="Only of executions with this tag.")
@click.option("--by", metavar="NAME", help="Only what this person did.")
@click.option("--acts", is_flag=True, help="Only what people did.")
@within
@answering(says=says)
async def tail(
    app: App, cursor: str | None, once: bool, limit: int | None, **wanted: Any
) -> AsyncIterator[Event]:  # fmt: skip
    """Follow the log until ctrl-c, an event a line. No event is ever left out, also across restarts.

    With --json each line has all that is in the log, and the `cursor` to go on from behind it.

    \b
    Example:
      ff events tail --kind execution_failed --kind execution_expired
      ff events tail --once --json --cursor AgAAAAAAAAAq
    """
    only, count = filtered(app, **wanted), 0
    found = _there_is(app, cursor or engine.OLDEST, only) if once else await app.log.subscribe(cursor or "", only)
    async for event in found:
        yield event
        count += 1
        if count == limit:
            return


async def _there_is(app: App, cursor: str, only: EventFilter) -> AsyncIterator[Event]:
    more = True
    while more:
        async with app.database.connection() as conn:
            page = await engine.read_events(conn, cursor, only)
        for event in page.events:
            yield event
        cursor, more = page.cursor, page.more
