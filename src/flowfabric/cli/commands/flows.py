"""`ff flows`: executions with dependencies between them (DAGs)."""

from collections import defaultdict
from typing import Any

import click

from flowfabric.app import App
from flowfabric.cli import resolve, tables
from flowfabric.cli.command_group import CommandGroup
from flowfabric.cli.options import by_option, namespace_filter, paged, reason_option
from flowfabric.cli.output import next_page, prints
from flowfabric.model import CancelledFlow, CancelPolicy, FlowDescription, FlowState, FlowSummary, Page

CARD = ("flow=flow_id", "kind", "state", "counts", "namespace", "tags", "members=node_count", "edges=edge_count",
        "revision", "created=created_at", "changed=changed_at", "cancelled=cancelled_at", "cancelled by=cancel.by",
        "cancel policy=cancel.policy", "reason=cancel.reason")  # fmt: skip
MEMBERS = ("execution", "task", "state", "dependencies", "upstreams")

flow_argument = click.argument("flow")


def _layout(flow: FlowDescription) -> str:
    upstreams = defaultdict(list)
    for edge in flow.edges:
        upstreams[edge.downstream].append(edge.upstream)
    rules = {group.downstream: group for group in flow.groups}
    lines = [
        {
            "execution": member.execution_id,
            "task": member.task,
            "state": member.public_state,
            "upstreams": upstreams[member.execution_id],
            "dependencies": _rule(rules.get(member.execution_id)),
        }
        for member in flow.members
    ]
    card = tables.card(CARD, flow)
    table = tables.table(MEMBERS, lines) if lines else ""
    return "\n".join(filter(None, ["\n\n".join(filter(None, [card, table])), next_page(flow.next_cursor)]))


def _rule(group: Any) -> str:
    if group is None:
        return ""
    wanted = {"all_of": "all", "any_of": "any", "quorum": f"{group.policy.k}"}[group.policy.kind]
    return f"{wanted} of {group.n}: {group.state}"


def _cancelled(done: CancelledFlow) -> str:
    return f"flow {done.outcome} ({done.policy}): {done.count:,} members cancelled"


@click.group(cls=CommandGroup)
def flows() -> None:
    """List, describe and cancel flows: executions with dependencies between them (DAGs)."""


@flows.command("list")
@namespace_filter("flows")
@click.option("--state", type=click.Choice([state.value for state in FlowState]), help="Only flows in this state.")
@paged
@prints("flow=flow_id", "state", "kind", "members=node_count", "edges=edge_count", "namespace", "created=created_at",
        empty="no flows match")  # fmt: skip
async def list_flows(app: App, **wanted: Any) -> Page[FlowSummary]:
    """List flows and their states.

    \b
    Example:
      ff flows list --state failed
    """
    return await app.flows.list(**wanted)


@flows.command("describe")
@flow_argument
@paged
@prints(layout=_layout)
async def describe_flow(app: App, flow: str, limit: int, cursor: str | None) -> FlowDescription:
    """Describe a flow: its state, how many members are in each state, and what each member depends on.

    \b
    Example:
      ff flows describe 019df237-3e80-8a31-800c-3f9b71e5d004
    """
    flow_id = await resolve.flow_id(app, flow)
    return await app.flows.describe(flow_id, limit=limit, cursor=cursor)


@flows.command("cancel")
@flow_argument
@click.option(
    "--policy",
    type=click.Choice([policy.value for policy in CancelPolicy]),
    default=CancelPolicy.CANCEL_ALL.value,
    show_default=True,
    help="Which members to cancel: all, only those that are not running, or none.",
)
@reason_option
@by_option
@prints(sentence=_cancelled)
async def cancel_flow(app: App, flow: str, policy: str, reason: str | None, by: str) -> CancelledFlow:
    """Cancel a flow and its members that have not ended. It accepts no new members. Safe to repeat.

    \b
    Example:
      ff flows cancel 019df237-3e80-8a31-800c-3f9b71e5d004 --reason "wrong input" --policy cancel_pending
    """
    flow_id = await resolve.flow_id(app, flow)
    return await app.flows.cancel(flow_id, reason=reason, by=by, policy=policy)
