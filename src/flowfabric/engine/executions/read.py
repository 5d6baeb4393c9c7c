"""Reading executions: describe, list, explain and results."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from flowfabric import calls, cursors, ids
from flowfabric.errors import FlowFabricError, InvalidBody
from flowfabric.ids import ExecutionId, FlowId, check_filter, check_text, expect_id
from flowfabric.model import Description, Explanation, Failure, Outcome, Page, PublicState, Result, Summary
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection, Row

ORDERS = ("newest", "id")


async def describe(
    conn: Connection,
    execution_id: ExecutionId,
    *,
    payload: bool = False,
    result: bool = False,
    last_failure: bool = False,
) -> Description:
    """Return everything known about an execution, from one snapshot. Raises `ExecutionNotFound`.

    With `last_failure`, also the failure of the last attempt that failed, with its traceback.
    """
    found = await call.row(
        conn,
        "describe",
        **calls.about(execution_id),
        with_payload=payload,
        with_result=result,
        with_last_failure=last_failure,
    )
    described = call.read(Description, found["description"])
    return msgspec.structs.replace(
        described,
        tags=dict(sorted(described.tags.items())),
        payload=found["payload"],
        encoding=found["encoding"],
        result=found["result"],
        result_encoding=found["result_encoding"],
    )


async def explain(conn: Connection, execution_id: ExecutionId) -> Explanation:
    """Explain in one sentence what an execution waits for and what releases it. Raises `ExecutionNotFound`."""
    text = await call.value(conn, "explain", **calls.about(execution_id))
    return call.read(Explanation, text)


async def get_result(conn: Connection, execution_id: ExecutionId) -> Result:
    """Return an execution's outcome and result; the outcome is `None` until it ends. Raises `ExecutionNotFound`."""
    return calls.only(await get_result_many(conn, [execution_id]))


async def get_result_many(conn: Connection, execution_ids: Sequence[ExecutionId]) -> list[Result | FlowFabricError]:
    """Return the outcomes and results of many executions, in order; `ExecutionNotFound` for one that does not exist."""

    async def read(asked: Sequence[ExecutionId]) -> list[Result | FlowFabricError]:
        answers: list[Result | FlowFabricError] = []
        while rest := asked[len(answers) :]:  # a call returns as many results as fit into its answer
            found = await call.rows(
                conn, "get_result", partitions=[each.partition for each in rest], ids=[each.uuid for each in rest]
            )
            answers += map(_result, sorted(found, key=lambda row: int(row["item"])))
        return answers

    asked = [expect_id(ExecutionId, each, "execution id") for each in execution_ids]
    return await calls.each(asked, lambda each: each, read)


async def list_ended(conn: Connection, execution_ids: Sequence[ExecutionId]) -> list[ExecutionId]:
    """Return the executions that have ended or do not exist, among those given."""
    asked = [expect_id(ExecutionId, each, "execution id") for each in execution_ids]
    found = await call.rows(
        conn, "list_ended", partitions=[each.partition for each in asked], ids=[each.uuid for each in asked]
    )
    return [execution_ids[row["item"] - 1] for row in found]


async def list_executions(
    conn: Connection,
    *,
    namespace: str | None = None,
    lane: str | None = None,
    task: str | None = None,
    states: Collection[PublicState | str] | None = None,
    flow: FlowId | None = None,
    parent: ExecutionId | None = None,
    key: str | None = None,
    tag: tuple[str, str] | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    lease_expired: bool = False,
    order: Literal["newest", "id"] = "newest",
    cursor: str | None = None,
    limit: int = 50,
) -> Page[Summary]:
    """List the executions that match all filters, page by page.

    `states` matches the public state that `describe` returns. `tag` is a name and a value. `created_after` and
    `created_before` are exclusive. With `lease_expired`, only active executions whose lease has expired: no worker has
    reclaimed them yet. `key` is an idempotency key of `namespace`, or of the namespace `default`. Raises
    `InvalidLimit`, `InvalidCursor`, `InvalidBody`.
    """
    if key is not None:
        namespace = "default" if namespace is None else namespace
        check_filter(key, "key")
    if order not in ORDERS:
        raise InvalidBody(f"order {ids.shown(order)} is invalid; use newest or id", field="order")
    found = await call.rows(
        conn,
        "list_executions",
        namespace=check_filter(namespace, "namespace"),
        lane=check_filter(lane, "lane"),
        task=check_filter(task, "task"),
        states=None if states is None else [check_text(state, "state") for state in states],
        flow=None if flow is None else expect_id(FlowId, flow, "flow id").uuid,
        flow_partition=flow and flow.partition,
        parent=None if parent is None else expect_id(ExecutionId, parent, "execution id").uuid,
        parent_partition=parent and parent.partition,
        key=key,
        key_partition=None if key is None or namespace is None else ids.idempotency_partition(namespace, key),
        tag_key=tag and check_filter(tag[0], "tag name"),
        tag_value=tag and check_text(tag[1], "tag value"),
        created_after=created_after,
        created_before=created_before,
        lease_expired=lease_expired,
        take=call.take(limit),
        newest_first=order == "newest",
        **_position(order, cursor),
    )
    items = [call.read(Summary, row["summary"]) for row in found]
    return call.page(items, limit, lambda last: _cursor(order, last))


def _position(order: str, cursor: str | None) -> dict[str, object]:
    if not cursor:
        return {}
    if order == "newest":
        created_at, last = cursors.parse_newest_cursor(cursor)
        return {"after_created": created_at, "after_partition": last.partition, "after_id": last.uuid}
    last = cursors.parse_id_cursor(cursor)
    return {"after_partition": last.partition, "after_id": last.uuid}


def _cursor(order: str, last: Summary) -> str:
    if order == "newest":
        return cursors.newest_cursor(last.created_at, last.execution_id)
    return str(last.execution_id)


def _result(found: Row) -> Result | FlowFabricError:
    if found["refusal"] is not None:
        return call.refusal(found["refusal"], found["detail"])
    return Result(
        outcome=found["outcome"] and Outcome(found["outcome"]),
        result=found["result"],
        encoding=found["encoding"],
        failure=found["failure"] and call.read(Failure, found["failure"]),
    )
