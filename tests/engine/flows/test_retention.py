"""Retention: flows are removed whole or not at all."""

from flowfabric.engine import executions, flows
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.flows.scene import graph
from tests.given import Given

TABLES = ("executions", "flows", "flow_edges", "edge_groups", "flow_keys", "removals", "attempts")


async def sizes(given: Given) -> list[int]:
    return [await given.count(table) for table in TABLES]


async def test_an_upstream_is_kept_while_a_member_of_its_flow_is_unfinished(conn: Connection, given: Given) -> None:
    """An edge never refers to a removed execution."""
    flow = await graph(conn, c="a b")
    await flow.complete("a")
    await given.time_passes(days=30)
    await executions.remove_ended(conn)

    assert await flow.states() == {"a": "completed", "b": "waiting", "c": "waiting_dependencies"}


async def test_a_flow_is_removed_with_all_its_members_when_the_last_retention_is_over(
    conn: Connection, given: Given
) -> None:
    flow = await graph(conn, b="a")
    await flow.complete("a")
    await given.time_passes(days=5)
    await flow.complete("b")
    await given.time_passes(days=6)
    await executions.remove_ended(conn)
    assert await given.count("executions") == 2
    await given.time_passes(days=2)
    await executions.remove_ended(conn)

    assert await sizes(given) == [0] * len(TABLES)


async def test_the_longest_retention_among_the_members_counts(conn: Connection, given: Given) -> None:
    flow = await graph(conn, "a")
    await flow.add("b", policy={"retention_ms": 30 * 86_400_000})
    for name in "ab":
        await flow.complete(name)
    await given.time_passes(days=29)
    await executions.remove_ended(conn)
    assert await given.count("executions") == 2
    await given.time_passes(days=2)
    await executions.remove_ended(conn)

    assert await sizes(given) == [0] * len(TABLES)


async def test_retention_of_an_empty_flow_counts_from_its_creation_and_frees_its_key(
    conn: Connection, given: Given
) -> None:
    await flows.create_flow(conn, "report", key="tides")
    await given.time_passes(days=8)
    await executions.remove_ended(conn)

    assert await sizes(given) == [0] * len(TABLES)
    assert (await flows.create_flow(conn, "report", key="tides")).outcome == "created"


async def test_a_locked_flow_is_skipped_until_the_next_pass(conn: Connection, given: Given, connect: Connect) -> None:
    flow = await graph(conn, "a")
    await flow.complete("a")
    await given.time_passes(days=8)
    other = await connect()
    async with other.transaction():
        await executions.replay(other, flow["a"], by="ops")
        await executions.remove_ended(conn)
    await executions.cancel(conn, flow["a"])
    assert await given.count("executions") == 1

    await given.time_passes(days=8)
    await executions.remove_ended(conn)
    assert await sizes(given) == [0] * len(TABLES)
