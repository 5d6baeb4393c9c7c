"""`ff workers`: who is there to work."""

import click

from flowfabric.app import App
from flowfabric.cli.answers import answering
from flowfabric.cli.options import acting, paged, within
from flowfabric.engine import workers as engine
from flowfabric.model import Page, Worker


@click.group()
def workers() -> None:
    """Who is there to work."""


@workers.command("list")
@within
@click.option("--lapsed", is_flag=True, help="Also those that have not been heard of for too long.")
@paged
@answering("worker", "instance", "lanes", "capabilities", "namespace", "running=active_count", "seen=beat_at",
           none="no live workers; `ff worker FILE.py:app` starts one")  # fmt: skip
async def list_workers(
    app: App, lane: str | None, namespace: str | None, lapsed: bool, limit: int, cursor: str | None
) -> Page[Worker]:
    """List the live instances: which lanes they serve, what they can do, how much they run.

    \b
    Example:
      ff workers list --lane reports
    """
    async with app.database.connection() as conn:
        return await engine.list_workers(
            conn, lane=lane, namespace=namespace, lapsed=lapsed, limit=limit, cursor=cursor
        )


@workers.command("mark-dead")
@click.argument("instance")
@click.option("--reason", help="Why; the log keeps it.")
@acting
@answering(says=lambda done: f"instance {done['instance']}: {done['outcome']}, {done['revoked']} leases revoked")
async def mark_dead(app: App, instance: str, reason: str | None, by: str) -> dict[str, object]:
    """Declare an instance dead: what it ran is given to others at once. One that lives loses its work.

    \b
    Example:
      ff workers mark-dead worker:4711:9f2c --reason "the machine burned"
    """
    async with app.database.connection() as conn:
        marked = await engine.mark_dead(conn, instance, by=by, reason=reason)
        return {"instance": instance, "outcome": marked.outcome, "revoked": marked.revoked}
