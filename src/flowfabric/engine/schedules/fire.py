"""Firing: submit one execution per tick, exactly once, whichever process fires it and whatever crashes."""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from flowfabric import calls
from flowfabric.engine.schedules.ticks import Decision, Ticks, execution_id, put_off
from flowfabric.errors import InvalidSchedule
from flowfabric.ids import ExecutionId, check_text, mint_execution_id, read_execution_ids
from flowfabric.model import Fired, Swept, Timing
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row

log = logging.getLogger("flowfabric.schedules")


async def fire_schedule(
    conn: Connection,
    name: str,
    *,
    namespace: str = "default",
    by: str,
    execution_id: ExecutionId | None = None,
) -> Fired:
    """Submit the execution of a schedule now, on request, even if it is paused. Its ticks are not affected.

    Safe to repeat with an `execution_id`. Raises `ScheduleNotFound`, `InvalidBody`, and what `submit` refuses.
    """
    chosen = mint_execution_id() if execution_id is None else execution_id
    fired = await call.row(
        conn,
        "fire_schedule",
        namespace=check_text(namespace, "namespace"),
        name=check_text(name, "schedule"),
        **calls.about(chosen),
        by=check_text(by, "by"),
    )
    [started] = read_execution_ids([fired["execution_id"]])
    ended = read_execution_ids(fired["ended"])
    return Fired(outcome=fired["outcome"], execution_id=started, lane=fired["lane"], ended=ended)


async def fire_schedules(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Submit an execution for each due tick, once, and move the schedules to their next tick.

    A schedule whose submission is refused keeps its tick, records why, and is retried; the others continue.
    """
    moved, lanes, ended = 0, set[str](), list[ExecutionId]()
    while True:
        due = await call.rows(conn, "_due_schedules", take=limit - moved, passing=passing)
        if not due and limit:
            return Swept(moved=moved, lanes=sorted(lanes), ended=ended)
        swept = await call.row(
            conn,
            "fire_schedules",
            take=limit - moved,
            passing=passing,
            **_decided([_decide(row) for row in due]),
        )
        for sentence in swept["refused"] or ():
            log.warning("could not fire a schedule; the sweep will retry: %s", sentence)
        moved += swept["moved"]
        lanes.update(swept["lanes"] or ())
        ended += read_execution_ids(swept["ended"])
        if moved >= limit:
            return Swept(moved=moved, lanes=sorted(lanes), ended=ended)
        # A schedule that catches up tick by tick may be due again immediately, and others may be due behind those that
        # are locked.
        passing += 0 if swept["moved"] else len(due)


def _decide(row: Row) -> dict[str, Any]:
    """Compute the ticks of a due schedule; if that fails, record the fault for this schedule only."""
    timing, fault = Timing(), None
    try:
        timing = call.read(Timing, row["timing"])
        decision = Ticks(timing, row["anchor_at"]).decide(row["next_tick_at"], row["now"])
    except (InvalidSchedule, msgspec.DecodeError) as error:
        message = error.message if isinstance(error, InvalidSchedule) else str(error)
        fault = msgspec.json.encode({"code": InvalidSchedule.code, "message": message}).decode()
        decision = Decision(None, None)
    about = row["namespace"], row["name"], decision.tick or row["next_tick_at"]
    chosen = execution_id(*about)
    return {
        "namespaces": row["namespace"],
        "names": row["name"],
        "read_ticks": row["next_tick_at"],
        "ticks": decision.tick,
        "followings": decision.following,
        "dues": put_off(*about, timing.jitter) if timing.jitter else None,
        "partitions": chosen.partition,
        "ids": chosen.uuid,
        "faults": fault,
    }


def _decided(decisions: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {field: [decision[field] for decision in decisions] for field in decisions[0]} if decisions else {}
