"""`ff workers`: worker processes that are registered."""

import click

from flowfabric.app import App
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.errors import CommandError
from flowfabric.cli.options import by_option, paged, reason_option
from flowfabric.cli.output import prints
from flowfabric.engine import workers as engine
from flowfabric.ids import shown
from flowfabric.model import Page, Worker


@click.group(cls=CommandGroup)
def workers() -> None:
    """List worker processes, and mark one as dead."""


@workers.command("list")
@click.option("--lane", help="Only workers that serve this lane (queue).")
@click.option("--namespace", help="Only workers that serve this namespace (tenant).")
@click.option("--expired", is_flag=True, help="Also workers whose last heartbeat is too old.")
@paged
@prints("worker", "instance", "lanes", "capabilities", "namespace", "running=active_count", "last heartbeat=beat_at",
        empty="no live workers found; to start one: ff worker FILE.py:app")  # fmt: skip
async def list_workers(
    app: App, lane: str | None, namespace: str | None, expired: bool, limit: int, cursor: str | None
) -> Page[Worker]:
    """List live workers: the lanes they serve, their capabilities, and how many executions they run.

    \b
    Example:
      ff workers list --lane reports
    """
    async with app.database.connection() as conn:
        return await engine.list_workers(
            conn, lane=lane, namespace=namespace, expired=expired, limit=limit, cursor=cursor
        )


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
    async with app.database.connection() as conn:
        marked = await engine.mark_dead(conn, instance, by=by, reason=reason)
        if marked.outcome == "not_registered":
            there = [worker.instance for worker in (await engine.list_workers(conn, expired=True, limit=20)).items]
            raise CommandError(
                "no_such_worker",
                f"instance {shown(instance)} is not registered; registered instances: {', '.join(there) or 'none'}",
            )
        return {"instance": instance, "outcome": marked.outcome, "revoked": marked.revoked}
