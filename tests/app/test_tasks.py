"""Tasks: what may be one, what it is called, and what its options do."""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from flowfabric import App, Blocking, Context
from flowfabric.engine import executions
from flowfabric.errors import BudgetNotFound, ExecutionNotFound, InvalidBody, InvalidPolicy, PayloadTooLarge
from tests.app.scene import TIMEOUT, working
from tests.given import Given


async def test_a_decorated_function_stays_the_function_it_was(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        """Twice as much."""
        return n * 2

    @app.task(lane="other")
    def triple(n: int) -> int:
        return n * 3

    assert (await double(2), triple(n=2)) == (4, 6)
    assert (double.__name__, double.__doc__, repr(double)) == ("double", "Twice as much.", "<task double>")


def test_a_name_is_the_functions_unless_one_is_given(app: App) -> None:
    @app.task
    def one() -> None: ...

    @app.task(name="reports.weekly")
    def two() -> None: ...

    assert [one.name, two.name, *app.tasks] == ["one", "reports.weekly", "one", "reports.weekly"]


def test_two_tasks_of_one_name_are_refused(app: App) -> None:
    @app.task
    def report() -> None: ...

    with pytest.raises(ValueError, match=r"'report' already exists: .*report; give one of them another name"):
        app.task(name="report")(lambda: None)
    assert app.tasks == {"report": report}


def test_what_is_no_function_a_worker_could_call_is_refused(app: App) -> None:
    class Reports:
        def weekly(self, topic: str) -> None: ...

    def numbers() -> Iterator[int]:
        yield 1

    async def letters() -> AsyncIterator[str]:
        yield "a"

    def plain(n: int) -> None: ...

    for handler, why in [
        (Reports.weekly, "weekly is a method, .*; make it a function"),
        (Reports().weekly, "define one with def"),
        (Reports, "define one with def"),
        (partial(plain, 1), "define one with def"),
        (numbers, "is a generator"),
        (letters, "is a generator"),
    ]:
        with pytest.raises(TypeError, match=why):
            app.task(name="it")(handler)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="<lambda> is not a usable task name; give one"):
        app.task(lambda: None)
    assert app.tasks == {}


def test_arguments_without_a_name_are_refused_when_the_task_is_made(app: App) -> None:
    def many(*topics: str) -> None: ...
    def named(**topics: str) -> None: ...
    def placed(topic: str, /) -> None: ...
    def twice(a: Context, b: Context) -> None: ...

    for handler, why in [
        (many, r"many takes \*topics: take a list of that name instead; a payload gives every argument by its name"),
        (named, r"named takes \*\*topics: take a dict"),
        (placed, "placed takes topic by position only: remove the /"),
        (twice, "takes the context twice, as a and b"),
    ]:
        with pytest.raises(TypeError, match=why):
            app.task(handler)  # type: ignore[call-overload]


def test_the_context_is_found_by_its_annotation(app: App) -> None:
    @app.task
    async def first(ctx: Context, topic: str) -> None: ...

    @app.task
    def quoted(context: "Context") -> None: ...

    @app.task
    def waiting(ctx: Blocking[Context], n: int) -> None: ...

    @app.task
    def none(ctx: int) -> None: ...

    assert [task.injected for task in app.tasks.values()] == ["ctx", "context", "ctx", None]
    assert first.submission("tides").payload == b'{"topic":"tides"}'


async def test_every_option_of_a_task_is_stored(app: App) -> None:
    @app.task(
        name="r", lane="research", namespace="team", needs={"llm"}, priority=7, retries=3,
        backoff={"type": "fixed", "delay_ms": 5}, timeout="10m", policy={"max_reclaim_count": 2},
    )  # fmt: skip
    def report(topic: str) -> None: ...

    async with app:
        found = await (await report.submit("tides")).describe()

    assert (found.task, found.lane, found.namespace, found.needs, found.priority) == (
        "r", "research", "team", ["llm"], 7,
    )  # fmt: skip
    assert found.policy == {
        "retry": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 5}},
        "attempt_timeout_ms": 600_000,
        "max_reclaim_count": 2,
    }


async def test_a_span_as_backoff_grows_from_there(app: App) -> None:
    @app.task(retries=2, backoff="10s")
    def report() -> None: ...

    async with app:
        policy: Any = (await (await report.submit()).describe()).policy

    assert policy["retry"]["backoff"] == {
        "type": "exponential", "initial_delay_ms": 10_000, "multiplier": 2, "max_delay_ms": 3_600_000, "jitter": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"retries": -1}, "retries is -1; give a whole number of 0 or more"),
        ({"retries": "3"}, "retries is '3'; give a whole number of 0 or more"),
        ({"backoff": "1s"}, "backoff has no effect without retries; give retries=1 or more"),
        ({"retries": 1, "backoff": "soon"}, "'soon' is no span of time; write one like"),
        ({"timeout": 10}, "10 is no span of time; write one like"),
        ({"timeout": "0s"}, "timeout is '0s'; give a millisecond or more"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bad_options_are_refused_when_the_task_is_made(app: App, options: dict[str, Any], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        app.task(name="it", **options)(lambda: None)

    assert app.tasks == {}


async def test_a_policy_that_cannot_be_is_refused_at_submit(app: App, given: Given) -> None:
    @app.task(policy={"colour": "red"})
    def report() -> None: ...

    async with app:
        with pytest.raises(InvalidPolicy, match="colour"):
            await report.submit()
    assert await given.count("executions") == 0


async def test_every_option_of_a_submission_has_its_effect(app: App) -> None:
    @app.task(lane="research", priority=1)
    def report(topic: str) -> None: ...

    using = report.with_options(lane="urgent", namespace="team", priority=50, delay="1h", deadline=timedelta(days=1))
    execution_id = "{fp:7}:018f0000-0000-7000-8000-000000000001"
    async with app:
        execution = await using.with_options(tags={"billing.customer": "ada"}, execution_id=execution_id).submit(
            "tides"
        )
        found = await execution.describe()

    assert (str(execution.execution_id), found.lane, found.namespace) == (execution_id, "urgent", "team")
    assert (found.priority, found.tags) == (50, {"billing.customer": "ada"})
    assert found.due_at is not None
    assert found.deadline_at is not None
    # Among what is submitted in one moment, the order is kept in microseconds of created_at.
    assert abs(found.due_at - found.created_at - timedelta(hours=1)) < timedelta(milliseconds=1)
    assert abs(found.deadline_at - found.created_at - timedelta(days=1)) < timedelta(milliseconds=1)
    assert report.submission("tides").priority == 1, "the task itself is as it was"


async def test_a_key_makes_two_submissions_one(app: App, given: Given) -> None:
    @app.task
    def report(topic: str) -> None: ...

    async with app:
        first = await report.with_options(key="tides-2026").submit("tides")
        again = await report.with_options(key="tides-2026").submit("tides")

    assert first.execution_id == again.execution_id
    assert await given.count("executions") == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"prio": 5}, "'prio'; options are lane, namespace, priority"),
        ({"delay": "soon"}, "'soon' is no span of time"),
        ({"deadline": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
    ],
)
def test_bad_options_of_a_submission_are_refused_at_once(app: App, options: dict[str, Any], why: str) -> None:
    report = app.task(name="report")(lambda: None)

    with pytest.raises((TypeError, ValueError), match=why):
        report.with_options(**options)


async def test_many_are_submitted_by_position_or_by_name(app: App, given: Given) -> None:
    @app.task
    def report(topic: str, pages: int = 1) -> None: ...

    async with app:
        made = await report.submit_many([("a",), ("b", 2), {"topic": "c", "pages": 3}])
        found = [await executions.describe(given.conn, each.execution_id, payload=True) for each in made]
        assert await report.submit_many([]) == []

    assert [each.payload for each in found] == [
        b'{"topic":"a"}',
        b'{"topic":"b","pages":2}',
        b'{"topic":"c","pages":3}',
    ]


async def test_of_many_those_that_are_refused_harm_no_other(app: App, given: Given) -> None:
    @app.task
    def report(topic: str) -> None: ...

    async with app:
        with pytest.raises(ExceptionGroup, match="1 of 3 submissions were refused") as group:
            await report.submit_many([("a",), ("b" * 1_048_577,), ("c",)])

    assert [type(each) for each in group.value.exceptions] == [PayloadTooLarge]
    assert await given.count("executions") == 2


async def test_a_huge_payload_is_refused_at_submit(app: App, given: Given) -> None:
    @app.task
    def report(topic: str) -> None: ...

    async with app:
        with pytest.raises(PayloadTooLarge):
            await report.submit("x" * 1_048_577)
        with pytest.raises(InvalidBody, match="cannot be written as JSON"):
            await report.submit(object())  # type: ignore[arg-type]
    assert (await given.count("executions"), await given.events()) == (0, ["lane_registered"])


async def test_a_submission_joins_a_transaction_of_the_callers(app: App, given: Given) -> None:
    @app.task(lane="shipping")
    def ship(order: int) -> None: ...

    async with app:
        async with given.conn.transaction():
            made = await executions.submit(given.conn, ship.with_options(priority=3).submission(order=1))
        await app.wake("shipping")
        assert (await app.execution(made.execution_id).describe()).priority == 3


async def test_a_submission_in_the_callers_transaction_runs_after_the_commit(app: App, given: Given) -> None:
    @app.task(lane="shipping")
    async def ship(order: int) -> str:
        return f"order {order}"

    async with working(app):
        async with given.conn.transaction():
            execution = await ship.with_options(priority=3).submit_in(given.conn, order=1)
            with pytest.raises(ExecutionNotFound):
                await execution.describe()  # on another connection
        await app.wake("shipping")
        assert await execution.result(TIMEOUT) == "order 1"
        assert (await execution.describe()).priority == 3


async def test_a_submission_in_a_transaction_that_is_rolled_back_never_existed(app: App, given: Given) -> None:
    @app.task
    async def ship(order: int) -> None: ...

    async with app, given.nothing_changes():
        with suppress(ZeroDivisionError):
            async with given.conn.transaction():
                execution = await ship.submit_in(given.conn, 1)
                raise ZeroDivisionError
        with pytest.raises(ExecutionNotFound):
            await execution.describe()


async def test_an_app_that_is_not_open_submits_in_the_callers_transaction(app: App, given: Given) -> None:
    @app.task
    async def ship(order: int) -> str:
        return f"order {order}"

    async with given.conn.transaction():
        one = await ship.submit_in(given.conn, 1)
        [two] = await ship.submit_many_in(given.conn, [(2,)])

    async with working(app):
        assert [await one.result(TIMEOUT), await two.result(TIMEOUT)] == ["order 1", "order 2"]


async def test_a_key_submitted_again_in_a_transaction_is_answered_with_the_first_id(app: App, given: Given) -> None:
    @app.task
    async def ship(order: int) -> None: ...

    keyed = ship.with_options(key="order-1")
    async with app:
        before = await keyed.submit(1)
        async with given.conn.transaction():
            again = await keyed.submit_in(given.conn, 1)
            first = await ship.with_options(key="order-2").submit_in(given.conn, 2)
            second = await ship.with_options(key="order-2").submit_in(given.conn, 2)

    assert (again.execution_id, second.execution_id) == (before.execution_id, first.execution_id)
    assert await given.count("executions") == 2


async def test_a_refused_submission_leaves_the_callers_transaction_usable(app: App, given: Given) -> None:
    @app.task
    async def ship(order: str) -> None: ...

    await given.conn.execute("create table orders (name text)")
    async with given.conn.transaction():
        await given.conn.execute("insert into orders values ('ada')")
        with pytest.raises(BudgetNotFound):
            await ship.with_options(budgets=["nowhere"]).submit_in(given.conn, "ada")
        with pytest.raises(PayloadTooLarge):
            await ship.submit_in(given.conn, "x" * 1_048_577)
        with pytest.raises(TypeError, match="order"):
            await ship.submit_in(given.conn)  # type: ignore[call-arg]
        await ship.submit_in(given.conn, "ada")

    assert [row["name"] for row in await given.rows("select name from orders")] == ["ada"]
    assert await given.count("executions") == 1


async def test_many_join_the_callers_transaction_in_the_order_of_the_call(app: App, given: Given) -> None:
    @app.task
    async def ship(order: int, express: bool = False) -> None: ...

    calls: list[Any] = [(number,) for number in range(1_200)]  # more than one statement takes
    async with app:
        with suppress(ZeroDivisionError):
            async with given.conn.transaction():
                await ship.submit_many_in(given.conn, calls)
                raise ZeroDivisionError
        assert await given.count("executions") == 0

        async with given.conn.transaction():
            made = await ship.submit_many_in(given.conn, [*calls, {"order": 7, "express": True}])
            assert await ship.submit_many_in(given.conn, []) == []
        last = await executions.describe(given.conn, made[-1].execution_id, payload=True)
        first = (await given.claim())[0]

    assert (len(made), await given.count("executions")) == (1_201, 1_201)
    assert last.payload == b'{"order":7,"express":true}'
    assert first.execution_id == made[0].execution_id


async def test_of_many_in_a_transaction_those_that_are_not_refused_are_part_of_it(app: App, given: Given) -> None:
    @app.task
    async def ship(order: str) -> None: ...

    async with app:
        async with given.conn.transaction():
            with pytest.raises(ExceptionGroup, match="1 of 3 submissions were refused") as group:
                await ship.submit_many_in(given.conn, [("a",), ("b" * 1_048_577,), ("c",)])
            await ship.submit_in(given.conn, "d")
        stored = [
            await executions.describe(given.conn, each.execution_id, payload=True) for each in await given.claim(take=4)
        ]

    assert [type(each) for each in group.value.exceptions] == [PayloadTooLarge]
    assert [each.payload for each in stored] == [b'{"order":"a"}', b'{"order":"c"}', b'{"order":"d"}']


async def test_moments_are_options_too(app: App) -> None:
    @app.task
    def report() -> None: ...

    moment = datetime.now(UTC) + timedelta(days=3)
    async with app:
        found = await (await report.with_options(delay=moment).submit()).describe()

    assert found.due_at == moment
