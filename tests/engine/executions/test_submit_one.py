"""`flowfabric.submit_one`: a submission as one plain function call, from any language."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.types.json import Jsonb

from flowfabric import App
from flowfabric.engine import budgets, executions, lanes
from flowfabric.ids import idempotency_partition, parse_execution_id
from flowfabric.model import Options, Submission
from tests.app.scene import TIMEOUT, working
from tests.given import Given


async def submit(given: Given, arguments: str) -> str:
    """Submit with these arguments, written in SQL."""
    [row] = await given.rows(f"select flowfabric.submit_one({arguments}) as id")
    return str(row["id"])


async def test_plain_sql_submits_what_a_worker_runs(app: App, given: Given) -> None:
    @app.task(lane="shipping")
    async def ship(order: int, note: str = "") -> str:
        return f"order {order}{note}"

    async with working(app):
        one = await submit(given, """task => 'ship', payload => '{"order": 17}', lane => 'shipping'""")
        two = await submit(given, """'ship', jsonb_build_object('order', 18, 'note', ' "ü"'), 'shipping'""")
        assert await app.execution(one).result(TIMEOUT) == "order 17"
        assert await app.execution(two).result(TIMEOUT) == 'order 18 "ü"'


async def test_every_option_is_as_in_python(given: Given) -> None:
    await budgets.create_budget(given.conn, "team-a", namespace="acme", hard_limits={"tokens": 5})
    deadline = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    execution_id = await submit(
        given,
        f"""task => 'ship', payload => '{{"b": 1, "a": 2}}', lane => 'shipping', priority => 7, key => 'order-17',
            delay => '90 minutes', deadline => '{deadline.isoformat()}', tags => '{{"shop.customer": "ada"}}',
            namespace => 'acme', needs => '{{gpu}}', budgets => '{{team-a}}', creator => 'billing',
            policy => '{{"retry": {{"max_retries": 3}}}}'""",
    )

    found = await executions.describe(given.conn, parse_execution_id(execution_id), payload=True)
    assert (found.lane, found.namespace, found.priority, found.creator) == ("shipping", "acme", 7, "billing")
    assert (found.deadline_at, found.tags, [*found.needs]) == (deadline, {"shop.customer": "ada"}, ["gpu"])
    assert (found.state.public_state, found.policy["retry"]) == ("delayed", {"max_retries": 3})
    assert found.due_at is not None
    assert abs(found.due_at - found.created_at - timedelta(minutes=90)) < timedelta(milliseconds=1)
    assert len(found.budgets) == 1


async def test_a_key_is_the_same_key_from_sql_and_from_python(given: Given) -> None:
    submission = Submission(options=Options(task="ship", namespace="acme"), payload=b'{"n":1}', key="ö-17")
    first = await executions.submit(given.conn, submission)
    again = await submit(given, """'ship', payload => '{"n": 1}', key => 'ö-17', namespace => 'acme'""")
    other = await submit(given, """'ship', payload => '{"n": 1}', key => 'ö-17'""")
    fourth = await executions.submit(
        given.conn, Submission(options=Options(task="ship"), payload=b'{"n": 1}', key="ö-17")
    )

    assert again == str(first.execution_id)
    assert (fourth.outcome, str(fourth.execution_id)) == ("duplicate", other)
    assert await given.count("executions") == 2


async def test_sql_and_python_agree_on_the_partition_of_a_key(given: Given) -> None:
    for namespace, key in [("default", "a"), ("acme", "ö-17"), ("x y", "k" * 256)]:
        text = f"convert_to('{namespace}', 'UTF8') || '\\x00' || convert_to('{key}', 'UTF8')"
        [row] = await given.rows(f"select flowfabric._crc16({text}) % 256 as partition")
        assert row["partition"] == idempotency_partition(namespace, key)


async def test_ids_carry_their_partition_and_are_all_different(given: Given) -> None:
    rows = await given.rows(
        "select p as partition, flowfabric._mint_id(p) as id from generate_series(0, 32767) as p order by random()"
    )

    assert len({row["id"] for row in rows}) == 32_768
    for row in rows:
        number = row["id"].int
        assert (number >> 76 & 15, number >> 62 & 3, number >> 47 & 32_767) == (8, 2, row["partition"])
        assert abs((number >> 80) / 1_000 - datetime.now(UTC).timestamp()) < 600


@pytest.mark.parametrize(
    ("arguments", "state", "said"),
    [
        ("'ship', payload => '[1]'", "FF422", "payload '[1]' is invalid; use a JSON object"),
        ("'ship', payload => null", "FF422", "payload NULL is invalid; use a JSON object"),
        ("''", "FF422", "task name '' is invalid; use 1 to 256 bytes"),
        ("null", "FF422", "task name NULL is invalid"),
        ("'ship', priority => -1", "FF422", "priority -1 is invalid; use 0 to 9000"),
        ("'ship', priority => 9001", "FF422", "priority 9001 is invalid"),
        ("'ship', key => ''", "FF422", "idempotency key '' is invalid"),
        ("'ship', key => repeat('k', 257)", "FF422", "use 1 to 256 bytes"),
        ("'ship', delay => '-1 s'", "FF422", "delay of -1000 ms is invalid"),
        ("'ship', delay => '20 years'", "FF422", "at most ten years"),
        ("'ship', delay => '100000 years'", "FF422", "delay 100000 years is invalid"),
        ("'ship', run_at => 'infinity'", "FF422", "delay infinity is invalid"),
        ("'ship', delay => '1 h', run_at => now()", "FF422", "delay and run_at are both given; use one of them"),
        ("'ship', deadline => now() - interval '1 h'", "FF422", "is invalid; use a time after now"),
        ("""'ship', tags => '{"a.b": 3}'""", "FF422", "tag"),
        ("'ship', lane => E'a\\nb'", "FF422", "lane"),
        ("'ship', budgets => '{nowhere}'", "FF404", "nowhere"),
        ("'ship', quotas => '{nowhere}'", "FF404", "nowhere"),
        ("""'ship', policy => '{"retry": 3}'""", "FF422", "retry"),
        ("'ship', payload => jsonb_build_object('x', repeat('x', 1048577))", "FF422", "payload has 1,048,58"),
    ],
)
async def test_a_refusal_is_an_error_with_its_code_and_changes_nothing(
    given: Given, arguments: str, state: str, said: str
) -> None:
    async with given.nothing_changes():
        with pytest.raises(asyncpg.PostgresError) as raised:
            await submit(given, arguments)

    detail: Any = raised.value
    assert detail.sqlstate in (state, "FF413")
    assert said in detail.detail


async def test_a_draining_lane_is_refused_with_its_code(given: Given) -> None:
    await lanes.configure_lane(given.conn, "shipping")
    await lanes.drain_lane(given.conn, "shipping", by="ops")

    with pytest.raises(asyncpg.PostgresError, match="lane_draining"):
        await submit(given, "'ship', lane => 'shipping'")


async def test_a_key_with_another_payload_is_refused_with_the_first_id(given: Given) -> None:
    first = await submit(given, """'ship', payload => '{"order": 17}', key => 'order-17'""")
    assert await submit(given, """'ship', payload => '{"order":   17}', key => 'order-17'""") == first

    with pytest.raises(asyncpg.PostgresError, match="key_conflict") as raised:
        await submit(given, """'ship', payload => '{"order": 18}', key => 'order-17'""")
    assert first in str(raised.value.hint)


async def test_psycopg_submits_with_its_own_rows_or_not_at_all(given: Given, database_url: str) -> None:
    await given.conn.execute("create table orders (customer text)")
    statement = "select flowfabric.submit_one(task => %s, payload => %s, key => %s)"

    def program() -> str:
        with psycopg.connect(database_url) as conn:
            conn.execute("insert into orders values ('ada')")
            conn.execute(statement, ["ship", '{"order": 17}', "order-17"])
            conn.rollback()
            conn.execute("insert into orders values ('grace')")
            row = conn.execute(statement, ["ship", Jsonb({"order": 18}), "order-18"]).fetchone()
            assert row is not None
            return str(row[0])

    execution_id = await asyncio.to_thread(program)
    assert [row["customer"] for row in await given.rows("select customer from orders")] == ["grace"]
    [claim] = await given.claim(take=5)
    assert str(claim.execution_id) == execution_id
    assert claim.payload == b'{"order": 18}'


async def test_a_trigger_of_the_callers_table_may_submit(given: Given) -> None:
    await given.conn.execute("""
        create table orders (id int primary key);
        create function shipped() returns trigger language plpgsql as $$
        begin
            perform flowfabric.submit_one('ship', jsonb_build_object('order', new.id), key => 'order-' || new.id);
            return new;
        end $$;
        create trigger shipped after insert on orders for each row execute function shipped();
        insert into orders select generate_series(1, 100);""")

    assert await given.count("executions") == 100
