"""`ff flows`: executions that wait for each other."""

from collections import defaultdict
from typing import Any

import click

from flowfabric import ids
from flowfabric.app import App
from flowfabric.cli import tables
from flowfabric.cli.answers import answering
from flowfabric.cli.options import acting, paged
from flowfabric.engine import flows as engine
from flowfabric.ids import FlowId
from flowfabric.model import CancelledFlow, CancelPolicy, FlowDescription, FlowState, FlowSummary, Page

CARD = ("flow=flow_id", "kind", "state", "counts", "namespace", "tags", "members=node_count", "edges=edge_count",
        "revision", "created=created_at", "changed=changed_at", "cancelled=cancelled_at", "cancelled by=cancel.by",
        "policy=cancel.policy", "because=cancel.reason")  # fmt: skip
OF_MEMBERS = ("execution", "kind", "state", "rule", "upstreams")

one_flow = click.argument("flow")


def _shown(flow: FlowDescription) -> str:
    upstreams = defaultdict(list)
    for edge in flow.edges:
        upstreams[edge.downstream].append(edge.upstream)
    rules = {group.downstream: group for group in flow.groups}
    lines = [
        {
            "execution": member.execution_id,
            "kind": member.kind,
            "state": member.public_state,
            "upstreams": ", ".join(upstreams[member.execution_id]),
            "rule": _rule(rules.get(member.execution_id)),
        }
        for member in flow.members
    ]
    card = tables.card(CARD, flow)
    table = tables.table(OF_MEMBERS, lines) if lines else ""
    follows = f"more: --cursor {flow.next_cursor}" if flow.next_cursor else ""
    return "\n\n".join(filter(None, [card, table])) + (f"\n{follows}" if follows else "")


def _rule(group: Any) -> str:
    if group is None:
        return ""
    wanted = {"all_of": "all", "any_of": "any", "quorum": f"{group.policy.k}"}[group.policy.kind]
    return f"{wanted} of {group.n}: {group.state}"


def _done(done: CancelledFlow) -> str:
    return f"{done.outcome}, {done.policy}: {done.count} members cancelled"


@click.group()
def flows() -> None:
    """Executions that wait for each other."""


@flows.command("list")
@click.option("--namespace", help="Only of this namespace.")
@click.option("--state", type=click.Choice([state.value for state in FlowState]), help="Only in this state.")
@paged
@answering("flow=flow_id", "state", "kind", "members=node_count", "edges=edge_count", "namespace", "created=created_at",
           none="no flows match")  # fmt: skip
async def list_flows(app: App, **wanted: Any) -> Page[FlowSummary]:
    """List flows, and where each stands.

    \b
    Example:
      ff flows list --state failed
    """
    async with app.database.connection() as conn:
        return await engine.list_flows(conn, **wanted)


@flows.command("show")
@one_flow
@paged
@answering(shows=_shown)
async def show_flow(app: App, flow: str, limit: int, cursor: str | None) -> FlowDescription:
    """Show where a flow stands, how many of its members are in which state, and what each waits for.

    \b
    Example:
      ff flows show {fp:24}:550e8400-e29b-41d4-a716-446655440000
    """
    async with app.database.connection() as conn:
        return await engine.describe_flow(conn, _id(app, flow), limit=limit, cursor=cursor)


@flows.command("cancel")
@one_flow
@click.option(
    "--policy",
    type=click.Choice([policy.value for policy in CancelPolicy]),
    default=CancelPolicy.CANCEL_ALL.value,
    show_default=True,
    help="Which members go with it: all, those that do not run, or none.",
)
@click.option("--reason", help="Why; the log and the members keep it.")
@acting
@answering(says=_done)
async def cancel_flow(app: App, flow: str, policy: str, reason: str | None, by: str) -> CancelledFlow:
    """Cancel a flow, with its members that have not ended; it takes nothing more. Safe to repeat.

    \b
    Example:
      ff flows cancel {fp:24}:550e8400-e29b-41d4-a716-446655440000 --reason "wrong input" --policy cancel_pending
    """
    async with app.database.connection() as conn:
        done = await engine.cancel_flow(conn, _id(app, flow), reason=reason, by=by, policy=policy)
    app.notify_ended(done.members, follow=False)
    return done


def _id(app: App, flow: str) -> FlowId:
    return ids.parse_flow_id(flow, app.config.execution_partitions)
