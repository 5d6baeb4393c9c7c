"""`ff workers`: worker processes that are registered."""

from collections.abc import Mapping
from typing import Any

import click

from flowfabric.app import App
from flowfabric.cli import tables
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.errors import CommandError
from flowfabric.cli.options import by_option, paged, reason_option
from flowfabric.cli.output import prints
from flowfabric.ids import shown
from flowfabric.model import Page, Worker, WorkerDescription

CARD = ("worker", "instance", "lanes", "capabilities", "namespace", "running=active_count",
        "registered=registered_at", "last heartbeat=beat_at")  # fmt: skip


def _described(found: WorkerDescription) -> str:
    card = tables.card(CARD, found)
    if found.tasks is None:
        return f"{card}\n\nit has not registered its tasks"
    lines = [{"task": each.name, "version": each.version, "lane": each.lane, "arguments": _arguments(each.schema)}
             for each in found.tasks]  # fmt: skip
    return f"{card}\n\n{tables.table(('task', 'version', 'lane', 'arguments'), lines)}"


def _arguments(schema: Mapping[str, Any] | None) -> list[str]:
    """The names of the arguments, those with a default in brackets."""
    needed = (schema or {}).get("required", ())
    return [*needed, *(f"[{name}]" for name in (schema or {}).get("properties", ()) if name not in needed)]


@click.group(cls=CommandGroup)
def workers() -> None:
    """List and describe worker processes, and mark one as dead."""


@workers.command("list")
@click.option("--lane", help="Only workers that serve this lane (queue).")
@click.option("--namespace", help="Only workers that serve this namespace (tenant).")
@click.option("--expired", is_flag=True, help="Also workers whose last heartbeat is too old.")
@paged
@prints("worker", "instance", "lanes", "tasks", "capabilities", "namespace", "running=active_count",
        "last heartbeat=beat_at",
        empty="no live workers found; to start one: ff worker FILE.py:app")  # fmt: skip
async def list_workers(
    app: App, lane: str | None, namespace: str | None, expired: bool, limit: int, cursor: str | None
) -> Page[Worker]:
    """List live workers: the lanes they serve, their tasks, and how many executions they run.

    The names of the first 20 tasks are shown; describe shows all of them.

    \b
    Example:
      ff workers list --lane reports
    """
    return await app.workers.list(lane=lane, namespace=namespace, expired=expired, limit=limit, cursor=cursor)


@workers.command("describe")
@click.argument("instance")
@prints(layout=_described)
async def describe(app: App, instance: str) -> WorkerDescription:
    """Describe a live worker process and its tasks. --json prints the JSON Schema of the arguments of each task.

    \b
    Example:
      ff workers describe worker@web-1:4711:9f2c
    """
    found = await app.workers.describe(instance)
    if found is None:
        raise await _unknown(app, instance)
    return found


@workers.command("mark-dead")
@click.argument("instance")
@reason_option
@by_option
@prints(sentence=lambda done: f"instance {done['instance']}: marked as dead; leases revoked: {done['revoked']}")
async def mark_dead(app: App, instance: str, reason: str | None, by: str) -> dict[str, object]:
    """Mark a worker process as dead, so that other workers take over its executions immediately.

    If the process is still alive, it loses its leases and its running executions are cancelled there. Refused if no
    worker is registered as INSTANCE: it has stopped, or was marked as dead before.

    \b
    Example:
      ff workers mark-dead worker:4711:9f2c --reason "the machine is gone"
    """
    marked = await app.workers.mark_dead(instance, by=by, reason=reason)
    if marked.outcome == "not_registered":
        raise await _unknown(app, instance)
    return {"instance": instance, "outcome": marked.outcome, "revoked": marked.revoked}


async def _unknown(app: App, instance: str) -> CommandError:
    there = [worker.instance for worker in (await app.workers.list(expired=True, limit=20)).items]
    return CommandError(
        "no_such_worker",
        f"instance {shown(instance)} is not registered; registered instances: {', '.join(there) or 'none'}",
    )
