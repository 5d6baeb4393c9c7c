"""Steps: named results that a handler saves, and the journal that a run reads at its start."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec

from flowfabric import calls
from flowfabric.calls import Act
from flowfabric.cursors import invalid_cursor
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId, check_text
from flowfabric.model import Journal, JournalEntry, Page, Saved, Step, StepSummary
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

RESULT_LIMIT = 1_048_576
RUNNING = "running"  # in a cursor, instead of a time: steps that run come after the saved ones


class _Page(msgspec.Struct):
    """A page of a journal; `unread` are the waits whose signals are too large for it, by their place in the page."""

    entries: Sequence[JournalEntry]
    more: bool
    unread: Mapping[int, UUID]


async def save_step(conn: Connection, step: Step, *, result_limit: int = RESULT_LIMIT) -> Saved:
    """Save the result of a step; the first result of a name and occurrence wins, and `duplicate` returns it.

    Joins the transaction that is open on `conn`: the step's own writes and its result commit together. Raises
    `LeaseLost`, `ExecutionNotActive`, `ExecutionNotFound`, `InvalidName`, `PayloadTooLarge`, `TooManySteps`.
    """
    return calls.only(await save_step_many(conn, [step], result_limit=result_limit))


async def save_step_many(
    conn: Connection, steps: Sequence[Step], *, result_limit: int = RESULT_LIMIT, wait: bool = True
) -> list[Saved | FlowFabricError]:
    """Save the results of many steps, as if one after the other, and return one result per item, in order.

    Without `wait`, an item whose execution or flow another transaction has locked is refused with `RowLocked`, so
    that the other items do not wait for it.
    """
    return await calls.each_fenced(conn, "save_step", steps, _act, Saved, result_limit=result_limit, wait=wait)


async def list_steps(
    conn: Connection,
    execution_id: ExecutionId,
    *,
    results: bool = False,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[StepSummary]:
    """List the steps and sleeps that an execution has saved, in the order in which they were saved, and those that run.

    Steps that run are last; they are listed after about a second. With `results`, a page has at most 1 MiB of them, or
    one step. Raises `ExecutionNotFound`, `InvalidCursor`, `InvalidLimit`.
    """
    found = await call.rows(
        conn,
        "list_steps",
        **calls.about(execution_id),
        with_results=results,
        take=call.take(limit),
        **_position(cursor),
    )
    items = [msgspec.convert(row, StepSummary) for row in found]
    fitting = [item for item, row in zip(items, found, strict=True) if row["fits"]]
    page = call.page(fitting, limit, _cursor)
    if fitting and len(fitting) < len(items):
        return Page(page.items, _cursor(page.items[-1]))
    return page


def _position(cursor: str | None) -> dict[str, object]:
    if not cursor:
        return {}
    at, occurrence, name = [*cursor.split(","), "", ""][:3]
    try:
        after = None if at == RUNNING else datetime.fromisoformat(at)
    except ValueError:
        raise invalid_cursor(cursor) from None
    known = cursor.isascii() and cursor.count(",") == 2 and (not after or after.tzinfo) and occurrence.isdigit()
    if not known or len(occurrence) > 9 or "\0" in unquote(name):
        raise invalid_cursor(cursor)
    return {"after_at": after, "after_occurrence": int(occurrence), "after_name": unquote(name)}


def _cursor(last: StepSummary) -> str:
    return f"{last.saved_at.isoformat() if last.saved_at else RUNNING},{last.occurrence},{quote(last.name, safe='')}"


async def read_journal(
    conn: Connection, execution_id: ExecutionId, *, begun: Journal | None = None
) -> list[JournalEntry]:
    """Read the journal of an execution: saved steps, sleeps and completed waits.

    `begun` is the first part of the journal, if the claim returned it.
    """
    entries = list(begun.entries) if begun else []
    more = begun is None or begun.more
    while more:
        place = {"after_name": entries[-1].name, "after_occurrence": entries[-1].occurrence} if entries else {}
        page = call.read(_Page, await call.value(conn, "read_journal", **calls.about(execution_id), **place))
        for number, entry in enumerate(page.entries):
            if number in page.unread:
                entry = msgspec.structs.replace(
                    entry, signals=await calls.read_signals(conn, execution_id, page.unread[number])
                )
            entries.append(entry)
        more = page.more
    return entries


def _act(step: Step) -> Act:
    values = {
        "names": check_text(step.name, "step name"),
        "occurrences": calls.expect(int, step.occurrence, "occurrence"),
        "results": step.result,
        "dues_at": step.due_at,
        "spans_ms": calls.span(step.lasted, "duration of a step"),
        "encodings": None if step.encoding == "json" else check_text(step.encoding, "encoding"),
    }
    return Act(step.fence, values, len(step.result or b""))
