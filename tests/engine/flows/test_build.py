"""Build flows: create flows and add members."""

from uuid import uuid4

import pytest

from flowfabric import errors
from flowfabric.engine import executions, flows
from flowfabric.ids import FlowId, mint_execution_id, mint_flow_id
from flowfabric.postgres.driver import Connection
from tests.engine.flows.scene import graph
from tests.given import Given, submission


async def counts(given: Given) -> tuple[int, int, int]:
    [row] = await given.rows("select revision, node_count, edge_count from flowfabric.flows")
    return row["revision"], row["node_count"], row["edge_count"]


async def test_a_flow_is_created_once_per_id_and_per_key(conn: Connection, given: Given) -> None:
    first = await flows.create_flow(conn, "report", key="tides", namespace="acme", tags={"billing.customer": "acme"})
    assert first.outcome == "created"

    async with given.nothing_changes():
        for again in [{"flow_id": first.flow_id}, {"key": "tides"}]:
            made = await flows.create_flow(conn, "report", namespace="acme", **again)  # type: ignore[arg-type]
            assert (made.outcome, made.flow_id) == ("duplicate", first.flow_id)
    assert (await flows.create_flow(conn, "report", key="tides")).outcome == "created"
    assert await given.events() == ["flow_created", "flow_created"]


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"namespace": "a\nb"}, errors.InvalidNamespace),
        ({"kind": ""}, errors.InvalidName),
        ({"kind": "a\0"}, errors.InvalidText),
        ({"flow_id": "nonsense"}, errors.InvalidId),
        ({"flow_id": FlowId(0, FlowId.of(uuid4()).uuid)}, errors.WrongPartition),
        ({"key": "k" * 257}, errors.InvalidBody),
        ({"tags": {"": "x"}}, errors.InvalidTagKey),
    ],
)
async def test_an_invalid_flow_is_refused(
    conn: Connection, given: Given, wrong: dict[str, object], refusal: type[errors.FlowFabricError]
) -> None:
    async with given.nothing_changes():
        with pytest.raises(refusal):
            await flows.create_flow(conn, **{"kind": "report", **wrong})  # type: ignore[arg-type]


async def test_an_execution_becomes_a_member_once(conn: Connection, given: Given) -> None:
    flow = await graph(conn)
    execution_id = mint_execution_id(beside=flow.flow_id)
    await given.submitted(execution_id=execution_id)

    added = await flows.add_execution(conn, flow.flow_id, execution_id)
    assert (added.outcome, added.node_count, added.revision) == ("added", 1, 1)
    async with given.nothing_changes():
        again = await flows.add_execution(conn, flow.flow_id, execution_id)
        assert (again.outcome, again.node_count, again.revision) == ("already_member", 1, 1)
    assert (await given.events(execution_id))[-1] == "flow_member_added"
    assert (await executions.describe(conn, execution_id)).flow_id == flow.flow_id


async def test_a_submission_with_a_flow_becomes_a_member(conn: Connection, given: Given) -> None:
    flow = await graph(conn)
    asked = submission(key="tides", payload=b"1")

    added = await flows.add_execution(conn, flow.flow_id, asked)
    again = await flows.add_execution(conn, flow.flow_id, asked)
    assert (added.outcome, again.outcome) == ("added", "already_member")
    assert (again.execution_id, again.node_count, again.revision) == (added.execution_id, 1, 1)
    async with given.nothing_changes():
        with pytest.raises(errors.BudgetNotFound):
            await flows.add_execution(conn, flow.flow_id, submission(budgets=["none"]))
        with pytest.raises(errors.FlowNotFound):
            await flows.add_execution(conn, mint_flow_id(), submission())


async def test_an_execution_that_cannot_join_the_flow_is_refused(conn: Connection, given: Given) -> None:
    flow, other = await graph(conn), await graph(conn, "a")
    elsewhere = await given.submitted(execution_id=f"{{fp:{(flow.flow_id.partition + 1) % 256}}}:{uuid4()}")
    add = flows.add_execution

    async with given.nothing_changes():
        with pytest.raises(errors.WrongPartition):
            await add(conn, flow.flow_id, elsewhere)
        with pytest.raises(errors.ExecutionNotFound):
            await add(conn, flow.flow_id, mint_execution_id(beside=flow.flow_id))
        with pytest.raises(errors.FlowNotFound):
            await add(conn, mint_flow_id(), elsewhere)
        with pytest.raises(
            (errors.WrongPartition, errors.ExecutionAlreadyInFlow)
        ):  # one flow in 256 is in the same one
            await add(conn, flow.flow_id, other["a"])


async def test_a_member_of_one_flow_cannot_join_another(conn: Connection, given: Given) -> None:
    flow = await graph(conn)
    execution_id = await flow.add("a")
    await given.rows("update flowfabric.executions set flow = $1", uuid4())

    with pytest.raises(errors.ExecutionAlreadyInFlow):
        await flows.add_execution(conn, flow.flow_id, execution_id)


async def test_a_submission_that_cannot_join_its_flow_does_not_affect_the_rest_of_the_batch(
    conn: Connection, given: Given
) -> None:
    flow = await graph(conn)
    wrong = f"{{fp:{(flow.flow_id.partition + 1) % 256}}}:{uuid4()}"
    batch = [
        submission(flow=flow.flow_id),
        submission(flow=mint_flow_id()),
        submission(flow=flow.flow_id, execution_id=wrong),
        submission(),
    ]

    first, missing, elsewhere, solo = await executions.submit_many(conn, batch)
    assert isinstance(missing, errors.FlowNotFound)
    assert isinstance(elsewhere, errors.WrongPartition)
    assert not isinstance(first, errors.FlowFabricError)
    assert not isinstance(solo, errors.FlowFabricError)
    assert first.execution_id.partition == flow.flow_id.partition
    assert await counts(given) == (1, 1, 0)
    assert await given.count("executions") == 2


async def test_a_member_is_not_submitted_twice(conn: Connection, given: Given) -> None:
    flow = await graph(conn)
    await flow.add("a", key="tides")

    async with given.nothing_changes():
        again = await executions.submit(conn, submission(task="a", flow=flow.flow_id, key="tides"))
        assert again.execution_id == flow["a"]


async def test_a_flow_takes_ten_thousand_members(conn: Connection, given: Given) -> None:
    flow = await graph(conn)
    await given.rows("update flowfabric.flows set node_count = 9999")
    first, second = await executions.submit_many(conn, [submission(flow=flow.flow_id), submission(flow=flow.flow_id)])

    assert not isinstance(first, errors.FlowFabricError)
    assert isinstance(second, errors.FlowTooLarge)
    assert second.fields == {"limit": 10_000}
    execution_id = mint_execution_id(beside=flow.flow_id)
    await given.submitted(execution_id=execution_id)
    with pytest.raises(errors.FlowTooLarge):
        await flows.add_execution(conn, flow.flow_id, execution_id)
