"""`ff events`: the event log."""

from collections.abc import AsyncIterator
from typing import Any

import click

from flowfabric.app import App
from flowfabric.cli import resolve
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.formatting import cell, timestamp
from flowfabric.cli.options import lane_and_namespace_filters, tag
from flowfabric.cli.output import prints
from flowfabric.engine import events as engine
from flowfabric.model import Event, EventFilter, EventKind

FOR_PROGRAMS = {"epoch", "lease_id", "suspension_id", "waitpoint_id", "signal_id", "signals", "kid", "digest",
                "about_digest", "source_identity"}  # fmt: skip


def detail_for_people(event: Event) -> dict[str, object]:
    """The detail of an event without ids and digests, which only `--json` prints."""
    return {key: value for key, value in event.detail.items() if key not in FOR_PROGRAMS}


def _line(event: Event) -> str:
    about = str(event.execution_id or event.flow_id or event.subject or "")
    by = f"by {event.by}" if event.by else ""
    return "  ".join(filter(None, [timestamp(event.at), event.kind, about, by, cell(detail_for_people(event))]))


def parse_cursor(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """A cursor of the event log; `oldest` is the oldest event that is stored."""
    return engine.OLDEST if value == "oldest" else value


def complete_kind(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """The kinds that a shell offers as completions."""
    return [kind.value for kind in EventKind if kind.startswith(begun)]


async def filtered(app: App, **wanted: Any) -> EventFilter:
    """The filter that the options describe. Raises `InvalidId`, `WrongPartition`, `NotFound`."""
    execution, flow, kinds = wanted.pop("execution"), wanted.pop("flow"), wanted.pop("kinds")
    return EventFilter(
        execution_id=None if execution is None else await resolve.execution_id(app, execution),
        flow_id=None if flow is None else await resolve.flow_id(app, flow),
        kinds=kinds or None,
        **wanted,
    )


@click.group(cls=CommandGroup)
def events() -> None:
    """Follow the event log."""


@events.command("tail")
@click.option(
    "--cursor",
    metavar="CURSOR",
    callback=parse_cursor,
    help="Start after the event with this cursor, or with the `oldest` stored event.  "
    "[default: now; with --once: oldest]",
)
@click.option("--once", is_flag=True, help="Exit after the last stored event instead of waiting for new ones.")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many, then exit.")
@click.option("--kind", "kinds", multiple=True, shell_complete=complete_kind,
              help="Only events of this kind, such as execution_failed. Repeatable.")  # fmt: skip
@click.option("--execution", metavar="ID", help="Only events of this execution.")
@click.option("--flow", metavar="ID", help="Only events of this flow.")
@click.option("--tag", type=tag, metavar="KEY=VALUE", help="Only events of executions with this tag.")
@click.option("--by", metavar="NAME", help="Only events caused by this person.")
@click.option("--acts", is_flag=True, help="Only events caused by a person (operator actions).")
@click.option("--leases", is_flag=True, help="Only leases: acquired, renewed, and how each one ended.")
@lane_and_namespace_filters("events")
@prints(sentence=_line)
async def tail(
    app: App, cursor: str | None, once: bool, limit: int | None, **wanted: Any
) -> AsyncIterator[Event]:  # fmt: skip
    """Print new events until ctrl-c, one per line.

    With --json each line has all the fields of the event, and its `cursor`. To continue after a restart without missing
    an event, pass the last one to --cursor.

    \b
    Example:
      ff events tail --kind execution_failed --kind execution_expired
      ff events tail --once --json --cursor AgAAAAAAAAAq
    """
    only, count = await filtered(app, **wanted), 0
    found = _stored(app, cursor or engine.OLDEST, only) if once else await app.log.subscribe(cursor or "", only)
    async for event in found:
        yield event
        count += 1
        if count == limit:
            return


async def _stored(app: App, cursor: str, only: EventFilter) -> AsyncIterator[Event]:
    more = True
    while more:
        async with app.database.connection() as conn:
            page = await engine.read_events(conn, cursor, only)
        for event in page.events:
            yield event
        cursor, more = page.cursor, page.more
