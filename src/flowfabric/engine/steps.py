"""Steps: named, saved results inside a handler, and the journal a run begins with."""

from collections.abc import Sequence

from flowfabric import calls
from flowfabric.calls import Act
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId, check_text
from flowfabric.model import Journal, JournalEntry, Saved, Step
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

RESULT_LIMIT = 1_048_576


async def save_step(conn: Connection, step: Step, *, result_limit: int = RESULT_LIMIT) -> Saved:
    """Keep the result of a step; the first one of a name and occurrence counts, and `duplicate` brings it.

    On a connection of the caller's it joins the transaction open there: what the step wrote and its result commit
    together. Raises `LeaseLost`, `ExecutionNotActive`, `InvalidName`, `PayloadTooLarge`, `TooManySteps`.
    """
    return calls.only(await save_step_many(conn, [step], result_limit=result_limit))


async def save_step_many(
    conn: Connection, steps: Sequence[Step], *, result_limit: int = RESULT_LIMIT
) -> list[Saved | FlowFabricError]:
    """Keep the results of many steps, as if one after the other, and answer each in its place."""
    return await calls.each_fenced(conn, "save_step", steps, _act, Saved, result_limit=result_limit)


async def read_journal(
    conn: Connection, execution_id: ExecutionId, *, begun: Journal | None = None
) -> list[JournalEntry]:
    """Everything a handler need not do again: saved steps, sleeps, and waits that have ended.

    `begun` is the beginning of it, where a claim has brought that.
    """
    entries = list(begun.entries) if begun else []
    more = begun is None or begun.more
    while more:
        place = {"after_name": entries[-1].name, "after_occurrence": entries[-1].occurrence} if entries else {}
        journal = call.read(Journal, await call.value(conn, "read_journal", **calls.about(execution_id), **place))
        entries += journal.entries
        more = journal.more
    return entries


def _act(step: Step) -> Act:
    values = {
        "names": check_text(step.name, "step name"),
        "occurrences": step.occurrence,
        "results": step.result,
        "dues_at": step.due_at,
        "encodings": None if step.encoding == "json" else check_text(step.encoding, "encoding"),
    }
    return Act(step.fence, values, len(step.result or b""))
