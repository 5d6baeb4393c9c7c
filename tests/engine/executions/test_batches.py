"""Batches: one result per item, in order, as if the items had been submitted one after the other."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, example, settings
from hypothesis import given as for_any
from hypothesis import strategies as st

from flowfabric import errors, ids, testing
from flowfabric.engine import executions
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId
from flowfabric.model import Options, Submission, SubmitOutcome, Submitted
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK, Server
from tests.given import Given, submission

CREATED, DUPLICATE = SubmitOutcome.CREATED, SubmitOutcome.DUPLICATE


def said(answer: Submitted | FlowFabricError) -> object:
    """An answer without its message, whose time may differ between two calls."""
    return (answer.code, answer.fields) if isinstance(answer, FlowFabricError) else answer


async def test_good_items_are_created_and_bad_ones_refused_in_their_places(conn: Connection, given: Given) -> None:
    """An invalid item does not fail its batch."""
    bad = {
        3: (submission(execution_id="{fp:1}:nonsense"), errors.InvalidId),
        50: (submission(payload=b"x" * 1_048_577), errors.PayloadTooLarge),
        51: (submission(budgets=["team-a"]), errors.BudgetNotFound),
        103: (submission(tags={"a.b": "\0"}), errors.InvalidText),
    }
    wanted = [ids.mint_execution_id() for _ in range(104)]
    batch = [bad[at][0] if at in bad else submission(execution_id=wanted[at]) for at in range(104)]

    answers = await executions.submit_many(conn, batch)

    for at, answer in enumerate(answers):
        if isinstance(answer, FlowFabricError):
            assert type(answer) is bad[at][1]
        else:
            assert (answer.outcome, answer.execution_id) == (CREATED, wanted[at])
    assert await given.count("executions") == await given.count("tickets") == 100
    assert (await given.events()).count("execution_submitted") == 100


async def test_one_key_twice_in_a_batch_is_one_execution(conn: Connection, given: Given) -> None:
    first, second = await executions.submit_many(conn, [submission(key="k"), submission(key="k")])

    assert isinstance(first, Submitted)
    assert isinstance(second, Submitted)
    assert (first.outcome, second.outcome) == (CREATED, DUPLICATE)
    assert first.execution_id == second.execution_id
    assert await given.count("tickets") == 1


async def test_one_id_twice_in_a_batch_is_one_execution(conn: Connection, given: Given) -> None:
    mine = ids.mint_execution_id()
    batch = [submission(execution_id=mine, payload=payload) for payload in (b"1", b"2", b"3")]

    answers = await executions.submit_many(conn, batch)

    assert [said(answer) for answer in answers[1:]] == [Submitted(DUPLICATE, mine)] * 2
    assert (await executions.describe(conn, mine, payload=True)).payload == b"1"
    assert (await given.events()).count("execution_submitted") == 1


async def test_a_call_repeated_with_the_same_minted_ids_creates_nothing_new(conn: Connection, given: Given) -> None:
    own = ids.mint_execution_id()
    batch = [submission(), submission(tags={"a.b": "\0"}), submission(execution_id=own), submission(payload=b"1")]
    minted = ids.mint_execution_ids(3)

    made = await executions.submit_many(conn, batch, minted=minted)
    again = await executions.submit_many(conn, batch, minted=minted)

    assert [getattr(answer, "outcome", None) for answer in made] == [CREATED, None, CREATED, CREATED]
    assert [getattr(answer, "outcome", None) for answer in again] == [DUPLICATE, None, DUPLICATE, DUPLICATE]
    asked = [minted[0], None, own, minted[2]]  # minted[1] was used for the refused item
    assert [getattr(answer, "execution_id", None) for answer in made] == asked
    assert [getattr(answer, "execution_id", None) for answer in again] == asked
    assert await given.count("executions") == await given.count("tickets") == 3


async def test_tags_and_events_are_written_only_for_created_items(conn: Connection, given: Given) -> None:
    known = await given.submitted()
    batch = [
        submission(tags={"a.b": "first"}),
        submission(execution_id=known, tags={"a.b": "known"}),
        submission(payload=b"x" * 1_048_577, tags={"a.b": "large"}),
        submission(task="other", delay=timedelta(hours=1)),
    ]

    first, duplicate, refused, delayed = await executions.submit_many(conn, batch)

    assert [str(getattr(answer, "public_state", answer)) for answer in (first, delayed)] == ["waiting", "delayed"]
    assert duplicate == Submitted(DUPLICATE, known)
    assert isinstance(refused, errors.PayloadTooLarge)
    assert [row["value"] for row in await given.rows("select value from flowfabric.tags")] == ["first"]
    logged = await given.rows(
        "select detail ->> 'task' as task from flowfabric.events where execution is not null order by id"
    )
    assert [row["task"] for row in logged] == ["report", "report", "other"]
    assert await given.count("executions") == await given.count("tickets") == 3


async def test_an_id_is_still_free_after_an_item_with_it_was_a_duplicate_by_key(conn: Connection, given: Given) -> None:
    owner, other = await given.submitted(key="k"), ids.mint_execution_id()

    answers = await executions.submit_many(
        conn, [submission(execution_id=other, key="k"), submission(execution_id=other)]
    )

    assert answers[0] == Submitted(DUPLICATE, owner)
    assert isinstance(answers[1], Submitted)
    assert (answers[1].outcome, answers[1].execution_id) == (CREATED, other)
    assert await given.count("tickets") == 2


async def test_the_key_of_a_repeated_id_is_passed_to_the_next_item(conn: Connection, given: Given) -> None:
    one, two = ids.mint_execution_id(), ids.mint_execution_id()
    again = submission(execution_id=one, key="k")

    answers = await executions.submit_many(
        conn, [submission(execution_id=one), again, submission(execution_id=two, key="k"), submission(key="k")]
    )

    assert [(a.outcome, a.execution_id) for a in answers if isinstance(a, Submitted)] == [
        (CREATED, one),
        (DUPLICATE, one),
        (CREATED, two),
        (DUPLICATE, two),
    ]
    [kept] = await given.rows("select execution from flowfabric.idempotency_keys")
    assert kept["execution"] == two.uuid


async def test_items_of_one_call_are_ordered_by_creation_in_any_partition(conn: Connection, given: Given) -> None:
    wanted = [ExecutionId(200 - number, uuid4()) for number in range(200)]
    await executions.submit_many(conn, [submission(execution_id=execution_id) for execution_id in wanted])
    last = await given.submitted()

    by_age = await given.rows("select partition, id from flowfabric.tickets order by created_at")
    assert [ExecutionId(row["partition"], row["id"]) for row in by_age] == [*wanted, last]
    assert len(await given.rows("select distinct created_at from flowfabric.tickets")) == 201
    records = await given.rows("select e.id from flowfabric.executions e order by created_at")
    assert [row["id"] for row in records] == [row["id"] for row in by_age]
    events = await given.rows("select execution from flowfabric.events where execution is not null order by id")
    assert [row["execution"] for row in events] == [row["id"] for row in by_age]


async def test_ten_thousand_submissions_are_ten_statements_and_keep_their_order(conn: Any, given: Given) -> None:
    options = Options(task="report")
    statements: list[str] = []
    batch = [Submission(options=options, payload=b"%d" % number) for number in range(10_000)]

    with conn.query_logger(lambda record: statements.append(record.query)):
        answers = await executions.submit_many(conn, batch)

    assert [answer for answer in answers if isinstance(answer, FlowFabricError)] == []
    payloads = await given.rows("select payload from flowfabric.executions order by created_at")
    assert len([text for text in statements if "flowfabric.submit(" in text]) == 10
    assert len(statements) < 15  # including what the driver looks up once per connection
    assert [int(row["payload"]) for row in payloads] == list(range(10_000))


async def test_a_statement_carries_at_most_8_mib(conn: Any, given: Given) -> None:
    statements: list[str] = []
    with conn.query_logger(lambda record: statements.append(record.query)):
        answers = await executions.submit_many(conn, [submission(payload=b"x" * 2**20) for _ in range(17)])

    assert await given.count("tickets") == 17
    assert len([text for text in statements if "flowfabric.submit(" in text]) == 3
    assert [getattr(answer, "outcome", None) for answer in answers] == [CREATED] * 17


async def test_an_empty_batch_and_a_batch_of_invalid_items_send_no_statement(conn: Any, given: Given) -> None:
    statements: list[str] = []
    with conn.query_logger(lambda record: statements.append(record.query)):
        assert await executions.submit_many(conn, []) == []
        answers = await executions.submit_many(conn, [submission(execution_id="x")] * 2_001)

    assert await given.count("lanes") == 0
    assert {type(answer) for answer in answers} == {errors.InvalidId}
    assert (len(answers), statements) == (2_001, [])


@pytest.mark.parametrize("count", [1_000, 1_001])
async def test_sql_takes_a_thousand_items_in_one_call(conn: Connection, given: Given, count: int) -> None:
    call = 'select * from flowfabric.submit(array[\'{"task": "k"}\'], $1, $2, $3)'
    items = ([1] * count, [0] * count, [uuid4() for _ in range(count)])

    if count == 1_000:
        assert {row["outcome"] for row in await conn.fetch(call, *items)} == {"created"}
    else:
        with pytest.raises(asyncpg.PostgresError, match=errors.InvalidLimit.code) as refusal:
            await conn.fetch(call, *items)
        assert (refusal.value.sqlstate, "1,001 items" in refusal.value.detail) == ("FF422", True)
        assert await given.count("executions") == await given.count("lanes") == 0


@pytest.fixture
async def twins(server: Server, template: str) -> AsyncIterator[tuple[asyncpg.Connection, asyncpg.Connection]]:
    """Two separate databases."""
    names = [f"test_{uuid.uuid4().hex}" for _ in range(2)]
    for name in names:
        await server.execute(f"create database {name} template {template}")
    one, two = [await asyncpg.connect(server.url(name)) for name in names]
    yield one, two
    await asyncio.gather(one.close(), two.close())
    for name in names:
        await server.execute(f"drop database {name}")


IDS = [ExecutionId(number % 2, uuid.UUID(int=number)) for number in range(1, 6)]

items = st.fixed_dictionaries(
    {"execution_id": st.sampled_from(IDS)},
    optional={
        "key": st.sampled_from(["", "a", "b", "c", "k" * 257]),
        "namespace": st.sampled_from(["default", "other", "größe"]),
        "lane": st.sampled_from(["default", "second", ""]),
        "needs": st.sampled_from([["gpu"], ["gpu", "llm"], ["llm", "gpu"], ["a b"]]),
        "policy": st.sampled_from([{}, {"dedup_window_ms": 0}, {"retry": {}}, {"colour": "red"}]),
        "budgets": st.sampled_from([[], ["team-a"]]),
        "delay": st.sampled_from([timedelta(hours=1), -timedelta(1)]),
        "tags": st.sampled_from([{"a.b": "c"}, {"": "v"}, {"a.b": "\0"}]),
        "payload": st.sampled_from([b"", b"{}"]),
    },
)

STORED = [
    "select partition, id, lane, eligibility, priority from flowfabric.tickets order by created_at",
    """select e.id, e.payload, e.tags, e.policy, r.lane, r.namespace, r.needs
       from flowfabric.executions e join flowfabric.routes r on r.id = e.route order by e.created_at""",
    # An expired key has no effect, whether or not it was deleted.
    """select k.namespace, k.key, k.execution, k.expires_at > flowfabric.clock() + interval '12 hours'
       from flowfabric.idempotency_keys k left join flowfabric.tickets t on t.id = k.execution
       where k.expires_at > flowfabric.clock() or t.id is not null order by 1, 2""",
    "select name from flowfabric.lanes order by 1",
    "select lane, namespace, needs from flowfabric.routes order by 1, 2, 3",
    "select execution, key, value from flowfabric.tags order by 1, 2",
    "select kind, execution, count(*) from flowfabric.events group by 1, 2 order by 1, 2",
]


async def one_by_one(conn: Connection, batch: list[Submission]) -> list[Submitted | FlowFabricError]:
    return [answer for item in batch for answer in await executions.submit_many(conn, [item])]


async def prepare(conn: Connection, earlier: list[Submission], ended: set[ExecutionId]) -> None:
    """Create executions, some of them ended, and idempotency keys, some of them expired."""
    for answer in await one_by_one(conn, earlier):
        if isinstance(answer, Submitted) and answer.outcome is CREATED and answer.execution_id in ended:
            await executions.cancel(conn, answer.execution_id, reason="not wanted", by="ops")


A, B, C = ({"execution_id": execution_id} for execution_id in IDS[:3])


@settings(
    max_examples=2_000 if SOAK else 150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@for_any(
    earlier=st.lists(items, max_size=3),
    ended=st.sets(st.sampled_from(IDS)),
    days=st.sampled_from([0, 1]),
    batch=st.lists(items, min_size=1, max_size=12),
)
@example(earlier=[A | {"key": "a"}], ended=set(), days=1, batch=[B | {"key": "a"}, B, C | {"key": "a"}])
@example(
    earlier=[], ended=set(), days=0, batch=[A, A | {"key": "a"}, B | {"key": "a"}, B | {"key": "b"}, C | {"key": "b"}]
)
@example(
    earlier=[A | {"key": "a"}], ended={IDS[0]}, days=1, batch=[B | {"key": "a"}, B | {"key": "b"}, C | {"key": "b"}]
)
@example(earlier=[A | {"key": "a"}], ended={IDS[0]}, days=1, batch=[B, B | {"key": "a"}])
async def test_a_batch_answers_and_writes_like_its_items_one_after_the_other(
    twins: tuple[asyncpg.Connection, asyncpg.Connection], earlier: Any, ended: set[ExecutionId], days: int, batch: Any
) -> None:
    ways: list[Callable[[Connection, list[Submission]], Awaitable[list[Submitted | FlowFabricError]]]]
    ways, seen = [executions.submit_many, one_by_one], []
    for conn, submit in zip(twins, ways, strict=True):
        undone = conn.transaction()
        await undone.start()
        try:
            await prepare(conn, [submission(**options) for options in earlier], ended)
            await testing.move_clock(conn, timedelta(days=days))
            answers = await submit(conn, [submission(**options) for options in batch])
            rows = [[tuple(row) for row in await conn.fetch(query)] for query in STORED]
            seen.append(([said(answer) for answer in answers], rows))
        finally:
            await undone.rollback()

    assert seen[0] == seen[1]
