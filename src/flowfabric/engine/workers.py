"""Workers: which worker processes are live. Used for blocked_by_route and by `ff top`."""

from collections.abc import Collection, Sequence
from datetime import timedelta

import msgspec

from flowfabric import calls
from flowfabric.ids import check_filter, check_text
from flowfabric.model import (
    Beat,
    MarkedDead,
    Page,
    Registered,
    RegisteredTask,
    Swept,
    Worker,
    WorkerDescription,
)
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

LOCK_CLASS = 17991


async def register_worker(
    conn: Connection,
    worker: str,
    *,
    instance: str,
    lanes: Collection[str],
    capabilities: Collection[str] = (),
    namespace: str | None = None,
    tasks: Collection[RegisteredTask] | None = None,
    ttl: timedelta = timedelta(seconds=30),
    holds_lock: bool = False,
    wait: bool = True,
) -> Registered:
    """Register a worker instance with the lanes it serves, its capabilities and its tasks; safe to repeat.

    `tasks` are at most 1,000, with at most 256 KiB of JSON. Without them the instance may have any task. With
    `holds_lock` the instance promises to have called `hold_lock` on a connection that lives as long as it does:
    if that connection is lost and the instance does not register again, its leases end after about a second. Without
    `wait`, raises `RowLocked` if another transaction keeps the entry locked.
    Raises `InvalidWorker`, `InvalidLane`, `InvalidCapabilities`, `InvalidTasks`, `InvalidLimit`, `InstanceReassigned`.
    """
    answer = await call.row(
        conn,
        "register_worker",
        worker=check_text(worker, "worker"),
        instance=check_text(instance, "instance"),
        lanes=[check_text(lane, "lane") for lane in lanes],
        capabilities=calls.words(capabilities, "capability"),
        namespace=check_filter(namespace, "namespace"),
        ttl_ms=calls.span(ttl, "ttl"),
        holds_lock=holds_lock,
        wait=wait,
        tasks=None if tasks is None else calls.json_text(list(tasks), "tasks"),
    )
    return msgspec.convert(dict(answer), Registered)


async def hold_lock(conn: Connection, instance: str) -> None:
    """Hold the lock that shows that this instance is alive, until the connection ends. Not for use with a pooler."""
    number = await call.value(conn, "worker_lock", instance=check_text(instance, "instance"))
    await call.builtin(conn, "pg_advisory_lock_shared", key1=LOCK_CLASS, key2=number)


async def beat(conn: Connection, instances: Sequence[str]) -> list[Beat]:
    """Send heartbeats for instances; an unregistered one must register again. Answers in the given order."""
    found = await call.rows(conn, "beat", instances=[check_text(instance, "instance") for instance in instances])
    return [msgspec.convert(dict(row), Beat) for row in found]


async def mark_dead(conn: Connection, instance: str, *, by: str, reason: str | None = None) -> MarkedDead:
    """Declare an instance dead: remove it and revoke every lease it holds.

    Raises `InvalidWorker`, `InvalidBody`.
    """
    answer = await call.row(
        conn,
        "mark_dead",
        instance=check_text(instance, "instance"),
        by=check_text(by, "by"),
        reason=reason and check_text(reason, "reason"),
    )
    return msgspec.convert(dict(answer), MarkedDead)


async def list_workers(
    conn: Connection,
    *,
    namespace: str | None = None,
    lane: str | None = None,
    expired: bool = False,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[Worker]:
    """List the live instances by name; with `expired` also expired ones that no sweep has removed yet.

    Raises `InvalidLimit`.
    """
    found = await call.rows(
        conn,
        "list_workers",
        namespace=check_filter(namespace, "namespace"),
        lane=check_filter(lane, "lane"),
        expired=expired,
        after=check_text(cursor or "", "cursor"),
        take=call.take(limit),
    )
    items = [msgspec.convert({**row, "namespace": row["namespace_name"]}, Worker) for row in found]
    return call.page(items, limit, lambda worker: worker.instance)


async def describe_worker(conn: Connection, instance: str) -> WorkerDescription | None:
    """Describe a live instance, with all its tasks and the schemas of their arguments; `None` if there is none."""
    found = await call.value(conn, "describe_worker", instance=check_text(instance, "instance"))
    return None if found is None else call.read(WorkerDescription, found)


async def expire_workers(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Remove instances whose registration has expired; their leases expire separately."""
    return await calls.sweep(conn, "expire_workers", limit, passing)


async def return_orphans(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """End the leases of instances whose lock has been missing for about a second, whatever their expiry.

    If more than half of all instances lose their locks together, the server or the network is the cause, and they have
    15 seconds to register again. Tickets that another transaction has locked are left for the next pass.
    """
    return await calls.sweep(conn, "return_orphans", limit, passing)


async def unregister_worker(conn: Connection, instance: str) -> bool:
    """Unregister an instance that is shutting down; returns whether it was registered."""
    answer = await call.value(conn, "unregister_worker", instance=check_text(instance, "instance"))
    return bool(answer == "unregistered")
