"""Listing executions: filters, two sort orders, keyset pagination."""

import asyncio
import random
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import asyncpg
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from flowfabric.engine import claims, executions, waits
from flowfabric.errors import InvalidBody, InvalidCursor, InvalidLimit, InvalidText
from flowfabric.ids import ExecutionId, FlowId
from flowfabric.model import Description, Page, PublicState, Summary, Suspension
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK, Server
from tests.engine.standins import claimed, ended, stored
from tests.filled import copied
from tests.given import Given

Order = Literal["newest", "id"]

NAMESPACES = ["default", "team", "tenant 7"]
LANES = ["default", "reports", "wide"]
KINDS = ["report", "send"]
TAGS = [("app.tier", "gold"), ("app.tier", "lead"), ("app.owner", "gold")]
PARENTS = [ExecutionId(1, uuid.UUID(int=5)), ExecutionId(2, uuid.UUID(int=6))]
FLOWS = [FlowId(partition, uuid.UUID(int=partition)) for partition in (1, 2)]
MOMENTS = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in range(8)]

STATES = {
    "waiting": "priority = 0",
    "held": 'eligibility = \'blocked_by_operator\', hold = \'{"by": "ops", "since": "2026-01-01"}\'',
    "granted": "eligibility = 'granted'",
    "due": "eligibility = 'not_eligible_until_time', due_at = '2026-01-01'",
    "delayed": "eligibility = 'not_eligible_until_time', due_at = '2036-01-01'",
    "waiting_dependencies": "eligibility = 'blocked_by_dependencies'",
}
WAIT = Suspension(condition={"kind": "single", "waitpoint": "answer"}, waitpoints=["answer"])
OUTCOMES = ["success", "failed", "cancelled", "expired", "skipped"]


class Population(NamedTuple):
    url: str
    described: Sequence[Description]


@pytest.fixture(scope="module")
def population(server: Server, template: str) -> Iterator[Population]:
    """Executions in every state, several with the same creation time, with their descriptions."""
    with copied(server, template) as url:
        yield Population(url, asyncio.run(populate(url)))


async def populate(url: str, count: int = 90) -> Sequence[Description]:
    conn = await asyncpg.connect(url)
    given, draw = Given(conn), random.Random(7)
    # More routes than a list scans one by one.
    await given.rows(
        """
        select flowfabric.register_route(
            'wide', case when n % 2 = 0 then 'team' else 'tenant 7' end, '["c' || n || '"]')
        from generate_series(1, 120) n
        """
    )
    made = [await populate_one(given, draw) for _ in range(count)]
    described = [await executions.describe(conn, execution_id) for execution_id in made]
    await conn.close()
    return described


async def populate_one(given: Given, draw: random.Random) -> ExecutionId:
    execution_id = await given.submitted(
        execution_id=ExecutionId(draw.randrange(5), uuid.UUID(int=draw.getrandbits(128), version=4)),
        namespace=draw.choice(NAMESPACES),
        lane=draw.choice(LANES),
        task=draw.choice(KINDS),
        needs=draw.choice([[], [], ["c1"], ["c2"]]),
        tags=dict(draw.sample(TAGS, draw.randrange(3))),
    )
    place, moment = (execution_id.partition, execution_id.uuid), draw.choice(MOMENTS)
    for table, id_column in [("executions", "id"), ("tickets", "id"), ("tags", "execution")]:
        statement = f"update flowfabric.{table} set created_at = $3 where partition = $1 and {id_column} = $2"
        await given.rows(statement, *place, moment)
    parent = draw.choice([None, *PARENTS])
    if parent is not None:
        await given.rows(
            "update flowfabric.executions set parent_partition = $3, parent = $4 where partition = $1 and id = $2",
            *(*place, parent.partition, parent.uuid),
        )
    flow = draw.choice([None, *FLOWS])
    if flow is not None and flow.partition == execution_id.partition:
        await given.rows(
            "update flowfabric.executions set flow = $3 where partition = $1 and id = $2", *place, flow.uuid
        )
    state = draw.choice([*STATES, "suspended", "active", *OUTCOMES])
    if state in OUTCOMES:
        await ended(given, execution_id, state)
    elif state == "active":
        await claimed(given, execution_id)
    elif state == "suspended":
        await waits.suspend(given.conn, await claimed(given, execution_id), WAIT)
    else:
        await stored(given, execution_id, STATES[state])
    return execution_id


def expected(described: Sequence[Description], order: Order, filters: dict[str, Any]) -> list[ExecutionId]:
    """The expected list, computed by filtering all executions."""

    def matches(one: Description) -> bool:
        shown = {
            "namespace": one.namespace,
            "lane": one.lane,
            "task": one.task,
            "flow": one.flow_id,
            "parent": one.parent_id,
        }
        plain = all(filters[name] == shown[name] for name in shown if name in filters)
        return (
            plain
            and ("states" not in filters or one.state.public_state in filters["states"])
            and ("tag" not in filters or filters["tag"] in one.tags.items())
            and ("created_after" not in filters or one.created_at > filters["created_after"])
            and ("created_before" not in filters or one.created_at < filters["created_before"])
        )

    found = [(one.created_at, one.execution_id) for one in described if matches(one)]
    if order == "newest":
        return [execution_id for _, execution_id in sorted(found, reverse=True)]
    return [execution_id for _, execution_id in sorted(found, key=lambda one: one[1])]


async def pages(conn: Connection, **options: Any) -> list[Page[Summary]]:
    found = [await executions.list_executions(conn, **options)]
    while (cursor := found[-1].next_cursor) is not None:
        found.append(await executions.list_executions(conn, cursor=cursor, **options))
    return found


FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "namespace": st.sampled_from([*NAMESPACES, "none"]),
        "lane": st.sampled_from([*LANES, "none"]),
        "task": st.sampled_from([*KINDS, "none"]),
        "states": st.lists(st.sampled_from(PublicState), max_size=4),
        "flow": st.sampled_from([*FLOWS, FlowId(1, uuid.UUID(int=3))]),
        "parent": st.sampled_from([*PARENTS, ExecutionId(1, uuid.UUID(int=3))]),
        "tag": st.sampled_from([*TAGS, ("app.owner", "lead")]),
        "created_after": st.sampled_from([MOMENTS[0] - timedelta(days=1), *MOMENTS]),
        "created_before": st.sampled_from([*MOMENTS, MOMENTS[-1] + timedelta(days=1)]),
    },
)


@settings(max_examples=2_000 if SOAK else 150, deadline=None, database=None)
@for_all(filters=FILTERS, order=st.sampled_from(["newest", "id"]), limit=st.sampled_from([1, 2, 3, 7, 20, 1_000]))
def test_any_filter_in_any_order_returns_exactly_the_matches_page_by_page(
    population: Population, filters: dict[str, Any], order: Order, limit: int
) -> None:

    async def listed() -> list[Page[Summary]]:
        conn = await asyncpg.connect(population.url)
        found = await pages(conn, order=order, limit=limit, **filters)
        await conn.close()
        return found

    found = asyncio.run(listed())
    assert [one.execution_id for page in found for one in page.items] == expected(population.described, order, filters)
    assert all(len(page.items) == limit for page in found[:-1])


async def test_a_state_filter_returns_exactly_the_executions_that_describe_shows_in_it(population: Population) -> None:
    conn = await asyncpg.connect(population.url)
    for state in PublicState:
        for order in ("newest", "id"):
            found = await pages(conn, states=[state], order=order, limit=1)
            assert [one.execution_id for page in found for one in page.items] == expected(
                population.described, order, {"states": [state]}
            )
    await conn.close()
    assert {one.state.public_state for one in population.described} == set(PublicState) - {PublicState.RATE_LIMITED}


async def test_an_item_is_the_description_without_its_large_parts(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(payload=b"in", tags={"a.b": "c"}, policy={"max_reclaim_count": 1}, needs=["x"])
    await claimed(given, execution_id)
    described = await executions.describe(conn, execution_id)

    [item] = (await executions.list_executions(conn)).items
    assert type(item) is Summary
    assert all(getattr(item, name) == getattr(described, name) for name in Summary.__struct_fields__)


async def test_a_limit_of_zero_is_an_empty_page(conn: Connection, given: Given) -> None:
    await given.submitted()

    assert await executions.list_executions(conn, limit=0) == Page([])


@pytest.mark.parametrize("limit", [-1, -50, -(10**12)])
async def test_a_limit_below_zero_is_refused(conn: Connection, limit: int) -> None:
    with pytest.raises(InvalidLimit):
        await executions.list_executions(conn, limit=limit)


async def test_a_page_has_fifty_items_by_default_and_a_thousand_at_most(conn: Connection, given: Given) -> None:
    await given.submitted()
    await given.rows(
        """
        insert into flowfabric.executions (partition, id, route, task, created_at, outcome, ended_at, priority, attempt)
        select 0, gen_random_uuid(), e.route, e.task, e.created_at - i * interval '1 s', 'success', e.created_at, 0, 0
        from flowfabric.executions e cross join generate_series(1, 1000) i
        """
    )

    assert len((await executions.list_executions(conn)).items) == 50
    for limit in (1_000, 5_000, 10**12):
        page = await executions.list_executions(conn, limit=limit)
        assert (len(page.items), page.next_cursor is not None) == (1_000, True)
    last = await executions.list_executions(conn, limit=1_000, cursor=page.next_cursor)
    assert (len(last.items), last.next_cursor) == (1, None)


@pytest.mark.parametrize("order", ["newest", "id"])
async def test_a_page_has_a_cursor_only_if_another_page_follows(conn: Connection, given: Given, order: Order) -> None:
    for _ in range(4):
        await given.submitted()

    first = await executions.list_executions(conn, order=order, limit=2)
    second = await executions.list_executions(conn, order=order, limit=2, cursor=first.next_cursor)
    assert first.next_cursor is not None
    assert second.next_cursor is None
    assert (await executions.list_executions(conn, order=order, limit=4)).next_cursor is None


async def test_the_default_order_is_newest_first(conn: Connection, given: Given) -> None:
    submitted = [await given.submitted() for _ in range(5)]

    newest = (await executions.list_executions(conn)).items
    assert [one.execution_id for one in newest] == [*reversed(submitted)]
    by_id = (await executions.list_executions(conn, order="id")).items
    assert [one.execution_id for one in by_id] == sorted(submitted)


@pytest.mark.parametrize("order", ["newest", "id"])
async def test_pages_stay_correct_while_executions_are_submitted_and_end(
    conn: Connection, given: Given, order: Order
) -> None:
    """Order, filter and cursor agree, so no page skips or repeats an execution."""
    first = [await given.submitted() for _ in range(12)]
    seen: list[ExecutionId] = []
    cursor: str | None = None

    while True:
        page = await executions.list_executions(conn, order=order, limit=3, cursor=cursor)
        seen += [one.execution_id for one in page.items]
        if (cursor := page.next_cursor) is None:
            break
        await given.submitted()
        await executions.cancel(conn, page.items[-1].execution_id)
        assert len(seen) < 100

    assert len(seen) == len(set(seen))
    assert {*first} <= set(seen)
    if order == "newest":
        assert {*first} == set(seen)


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        ",",
        "0",
        "1,",
        "1.5,019df237-3e80-8a31-800c-3f9b71e5d004",
        "1,{fp:99999}:550e8400-e29b-41d4-a716-446655440000",
        "1,x",
        "9" * 30,
        "\0",
        "é",
    ],
)
async def test_an_invalid_cursor_is_refused(conn: Connection, cursor: str) -> None:
    for order in ("newest", "id"):
        with pytest.raises(InvalidCursor):
            await executions.list_executions(conn, order=order, cursor=cursor)


async def test_a_cursor_of_the_other_order_is_refused(conn: Connection, given: Given) -> None:
    for _ in range(2):
        await given.submitted()
    newest = (await executions.list_executions(conn, order="newest", limit=1)).next_cursor
    by_id = (await executions.list_executions(conn, order="id", limit=1)).next_cursor

    with pytest.raises(InvalidCursor):
        await executions.list_executions(conn, order="id", cursor=newest)
    with pytest.raises(InvalidCursor):
        await executions.list_executions(conn, order="newest", cursor=by_id)


async def test_an_empty_cursor_is_the_beginning(conn: Connection, given: Given) -> None:
    await given.submitted()

    assert len((await executions.list_executions(conn, cursor="")).items) == 1


async def test_a_cursor_may_point_to_a_removed_execution(conn: Connection, given: Given) -> None:
    """Retention may have removed the execution: any position is valid, also before the first and after the last."""
    execution_id = await given.submitted()

    ends: list[tuple[Order, str, str]] = [
        ("newest", f"99999999999999999,{execution_id}", f"-62135596800000000,{execution_id}"),
        ("id", f"{{fp:0}}:{uuid.UUID(int=0)}", f"{{fp:255}}:{uuid.UUID(int=2**128 - 1)}"),
    ]
    for order, before, behind in ends:
        assert len((await executions.list_executions(conn, order=order, cursor=before)).items) == 1
        assert (await executions.list_executions(conn, order=order, cursor=behind)).items == []


@pytest.mark.parametrize("order", ["newest", "id"])
async def test_partitions_beyond_the_usual_count_are_listed_too(conn: Connection, given: Given, order: Order) -> None:
    for _ in range(3):
        await given.submitted()
    for table in ("executions", "tickets"):
        await given.rows(f"update flowfabric.{table} set partition = partition + 1000")

    found = await pages(conn, order=order, limit=1)
    assert len({one.execution_id for page in found for one in page.items}) == 3


@pytest.mark.parametrize("state", ["", "Waiting", "terminal", "success", "eligible_now", "'; drop table x --"])
async def test_an_unknown_public_state_is_refused(conn: Connection, state: str) -> None:
    for states in ([state], [PublicState.ACTIVE, state]):
        with pytest.raises(InvalidBody) as refused:
            await executions.list_executions(conn, states=states)
        assert refused.value.fields == {"field": "state"}


async def test_an_unknown_order_is_refused(conn: Connection) -> None:
    with pytest.raises(InvalidBody) as refused:
        await executions.list_executions(conn, order="oldest")  # type: ignore[arg-type]
    assert refused.value.fields == {"field": "order"}


@pytest.mark.parametrize("name", ["namespace", "lane", "task"])
async def test_a_filter_that_cannot_be_stored_is_refused(conn: Connection, name: str) -> None:
    with pytest.raises(InvalidText):
        await executions.list_executions(conn, **{name: "\0"})  # type: ignore[arg-type]


async def test_a_filter_without_matches_returns_an_empty_page(conn: Connection, given: Given) -> None:
    await given.submitted(tags={"a.b": "c"})

    for filters in [{"namespace": "?"}, {"lane": "'"}, {"task": "$1"}, {"tag": ("a.b", "%")}, {"tag": ("no key", "c")}]:
        assert await executions.list_executions(conn, **filters) == Page([])  # type: ignore[arg-type]


async def test_a_tag_is_found_until_it_is_changed(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(tags={"a.b": "old"})
    await executions.set_tag(conn, execution_id, "a.b", "new")

    async def found(value: str) -> int:
        return len((await executions.list_executions(conn, tag=("a.b", value))).items)

    assert [await found("old"), await found("new")] == [0, 1]
    await executions.set_tag(conn, execution_id, "a.b", None)
    assert await found("new") == 0


async def test_a_delayed_execution_is_listed_as_waiting_once_it_is_due(conn: Connection, given: Given) -> None:
    await given.submitted(delay=timedelta(hours=1))

    async def counts() -> list[int]:
        states = [PublicState.DELAYED, PublicState.WAITING]
        return [len((await executions.list_executions(conn, states=[state])).items) for state in states]

    assert await counts() == [1, 0]
    await given.time_passes(hours=1)
    assert await counts() == [0, 1]


async def test_leases_past_their_expiry_can_be_listed(conn: Connection, given: Given) -> None:
    late, held = await given.claimed(namespace="acme"), await given.claimed(lease=timedelta(hours=1))
    await given.submitted()
    await given.time_passes(minutes=5)

    page = await executions.list_executions(conn, lease_expired=True)
    assert [(one.execution_id, one.lease and one.lease.instance) for one in page.items] == [
        (late.execution_id, given.instance)
    ]
    assert (await executions.list_executions(conn, lease_expired=True, namespace="default")).items == []
    await claims.expire_leases(conn)
    assert (await executions.list_executions(conn, lease_expired=True)).items == []
    assert await given.state(held.execution_id) is PublicState.ACTIVE


async def test_only_active_executions_have_leases_that_expire(conn: Connection, given: Given) -> None:
    await given.claimed()
    await given.time_passes(minutes=5)

    for states, count in (([PublicState.ACTIVE, PublicState.COMPLETED], 1), ([PublicState.WAITING], 0), ([], 0)):
        page = await executions.list_executions(conn, lease_expired=True, states=states)
        assert len(page.items) == count
    with pytest.raises(InvalidBody):
        await executions.list_executions(conn, lease_expired=True, states=["bogus"])
