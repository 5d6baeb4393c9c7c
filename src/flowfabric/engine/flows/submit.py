"""Submit a whole flow: members, edges and groups in one call, all or nothing."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from flowfabric import calls, ids
from flowfabric.calls import submissions
from flowfabric.calls.submissions import PAYLOAD_LIMIT, Item
from flowfabric.errors import (
    FlowFabricError,
    FlowTooLarge,
    InvalidBody,
    InvalidDependency,
    PayloadTooLarge,
    WrongPartition,
)
from flowfabric.ids import ExecutionId, FlowId, check_text, shown
from flowfabric.model import EdgePolicy, Link, Member, SubmittedFlow
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

MOST_MEMBERS = 10_000
MOST_BYTES = 64 * 1_048_576


async def submit_flow(
    conn: Connection,
    kind: str,
    members: Sequence[Member],
    edges: Sequence[Link] = (),
    groups: Mapping[str, EdgePolicy] | None = None,
    *,
    namespace: str = "default",
    flow_id: FlowId | str | None = None,
    key: str | None = None,
    tags: Mapping[str, str] | None = None,
    payload_limit: int = PAYLOAD_LIMIT,
) -> SubmittedFlow:
    """Submit a whole flow in one transaction: all of it, or nothing.

    Member names are local to the call; `groups` maps a member's name to the policy of its edge group. An error has the
    field `element`, such as `members[3].lane`. Safe to repeat with a `flow_id` or a `key`: returns `duplicate` with the
    executions of the first call. A key with other tasks or arguments is refused with `KeyConflict`. Raises what
    `create_flow`, `submit`, `add_edge` and `set_edge_group` raise.
    """
    asked = ids.mint_flow_id() if flow_id is None else ids.parse_flow_id(str(flow_id))
    numbers = _numbers(members)
    items = _items(members, asked, payload_limit)
    rules = groups or {}
    answer = await call.row(
        conn,
        "submit_flow",
        partition=asked.partition,
        id=asked.uuid,
        namespace=ids.check_namespace(namespace),
        kind=check_text(kind, "kind"),
        names=list(numbers),
        key=key,
        key_partition=None if key is None else ids.idempotency_partition(namespace, key),
        tags=calls.json_text(tags, "tags") if tags else None,
        payload_limit=payload_limit,
        upstreams=[_number(numbers, edge.upstream, f"edges[{at}].upstream") for at, edge in enumerate(edges)],
        downstreams=[_number(numbers, edge.downstream, f"edges[{at}].downstream") for at, edge in enumerate(edges)],
        passed_as=[edge.pass_as and check_text(edge.pass_as, f"edges[{at}].pass_as") for at, edge in enumerate(edges)],
        grouped=[_number(numbers, name, f"groups[{at}]") for at, name in enumerate(rules)],
        policies=calls.json_text(list(rules.values()), "groups"),
        **_member_arguments(items),
    )
    found = msgspec.json.decode(answer["executions"], type=dict[str, str])
    return SubmittedFlow(
        outcome=answer["outcome"],
        flow_id=ids.read_flow_id(answer["flow_id"]),
        executions={name: ids.read_execution_id(text) for name, text in found.items()},
    )


def _numbers(members: Sequence[Member]) -> dict[str, int]:
    """Map each member's name to its number, from 1."""
    if len(members) > MOST_MEMBERS:
        raise FlowTooLarge(
            f"the flow would exceed its limit of {MOST_MEMBERS:,} members; split it into several flows",
            limit=MOST_MEMBERS,
        )
    numbers: dict[str, int] = {}
    for at, member in enumerate(members):
        element = f"members[{at}].name"
        name = check_text(calls.expect(str, member.name, element), element)
        if not name or name in numbers:
            raise InvalidBody(
                f"{element} {shown(name)} is invalid; use a different name for each member", element=element
            )
        numbers[name] = at + 1
    return numbers


def _number(numbers: Mapping[str, int], name: str, element: str) -> int:
    if name not in numbers:
        raise InvalidDependency(
            f"{element}: member {shown(str(name))} does not exist in this call; existing members: {_few(numbers)}",
            cause="not_a_member",
            element=element,
        )
    return numbers[name]


def _few(names: Iterable[str]) -> str:
    """The first five names, for an error message."""
    first = list(islice(names, 6))
    return ", ".join(shown(name) for name in first[:5]) + ", …" * (len(first) > 5)


def _items(members: Sequence[Member], flow_id: FlowId, payload_limit: int) -> list[Item]:
    texts: dict[int, str] = {}
    items = []
    for at, member in enumerate(members):
        wanted = msgspec.structs.replace(member.submission, flow=flow_id)
        try:
            item = submissions.prepare(wanted, texts, iter(()), payload_limit)
            _check_home(item.execution_id, flow_id)
        except FlowFabricError as refused:
            raise type(refused)(
                f"members[{at}]: {refused.message}", **refused.fields, element=f"members[{at}]"
            ) from None
        items.append(item)
    size = sum(item.weight for item in items)
    if size > MOST_BYTES:
        raise PayloadTooLarge(
            f"the payloads of the members have {size:,} bytes, more than the limit of {MOST_BYTES:,}; "
            "store them elsewhere and pass references",
            limit=MOST_BYTES,
        )
    return items


def _check_home(execution_id: ExecutionId, flow_id: FlowId) -> None:
    if execution_id.partition != flow_id.partition:
        raise WrongPartition(f"execution id {execution_id} is not in the partition of flow {flow_id}; remove the id")


def _member_arguments(items: Sequence[Item]) -> dict[str, Any]:
    given = submissions.arguments(items)
    renamed = {"keys": "member_keys", "key_partitions": "member_key_partitions", "tags": "member_tags"}
    return {renamed.get(name, name): given[name] for name in given if name not in ("partitions", "flows")}
