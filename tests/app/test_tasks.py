"""Tasks: which functions can be tasks, their names, and the effect of their options."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from flowfabric import App, Context, ExecutionFailed, SyncContext
from flowfabric.engine import executions
from flowfabric.errors import InvalidBody, InvalidPolicy, PayloadTooLarge
from tests.app.scene import TIMEOUT, working
from tests.given import Given


async def test_a_decorated_function_can_still_be_called(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        """Twice as much."""
        return n * 2

    @app.task(lane="other")
    def triple(n: int) -> int:
        return n * 3

    assert (await double(2), triple(n=2)) == (4, 6)
    assert (double.__name__, double.__doc__, repr(double)) == ("double", "Twice as much.", "<task double>")


def test_a_task_has_the_name_of_its_function_unless_one_is_given(app: App) -> None:
    @app.task
    def one() -> None: ...

    @app.task(name="reports.weekly")
    def two() -> None: ...

    assert [one.name, two.name, *app.tasks] == ["one", "reports.weekly", "one", "reports.weekly"]


def test_two_tasks_with_one_name_are_refused(app: App) -> None:
    @app.task
    def report() -> None: ...

    with pytest.raises(ValueError, match=r"'report'"):
        app.task(name="report")(lambda: None)
    assert app.tasks == {"report": report}


def test_only_plain_functions_can_be_tasks(app: App) -> None:
    class Reports:
        def weekly(self, topic: str) -> None: ...

    def numbers() -> Iterator[int]:
        yield 1

    async def letters() -> AsyncIterator[str]:
        yield "a"

    def plain(n: int) -> None: ...

    for handler, why in [
        (Reports.weekly, "method"),
        (Reports().weekly, "plain function"),
        (Reports, "plain function"),
        (partial(plain, 1), "plain function"),
        (numbers, "generator"),
        (letters, "generator"),
    ]:
        with pytest.raises(TypeError, match=why):
            app.task(name="it")(handler)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="<lambda>"):
        app.task(lambda: None)
    assert app.tasks == {}


def test_arguments_without_a_name_are_refused_when_the_task_is_declared(app: App) -> None:
    def many(*topics: str) -> None: ...
    def named(**topics: str) -> None: ...
    def placed(topic: str, /) -> None: ...
    def twice(a: Context, b: Context) -> None: ...

    for handler, why in [
        (many, r"many.* \*topics"),
        (named, r"named.* \*\*topics"),
        (placed, "placed.* topic.* /"),
        (twice, "twice.* a and b"),
    ]:
        with pytest.raises(TypeError, match=why):
            app.task(handler)  # type: ignore[call-overload]


def test_the_context_is_found_by_its_annotation(app: App) -> None:
    @app.task
    async def first(ctx: Context, topic: str) -> None: ...

    @app.task
    def quoted(context: "Context") -> None: ...

    @app.task
    def waiting(ctx: SyncContext, n: int) -> None: ...

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


async def test_a_duration_as_backoff_grows_exponentially(app: App) -> None:
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
        ({"retries": -1}, "retries.*-1"),
        ({"retries": "3"}, "retries.*'3'"),
        ({"backoff": "1s"}, "backoff.*retries"),
        ({"retries": 1, "backoff": "soon"}, "'soon'"),
        ({"timeout": 10}, "10"),
        ({"timeout": "0s"}, "timeout.*0s"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bad_options_are_refused_when_the_task_is_declared(app: App, options: dict[str, Any], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        app.task(name="it", **options)(lambda: None)

    assert app.tasks == {}


async def test_an_invalid_policy_is_refused_at_submit(app: App, given: Given) -> None:
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
    # The order of executions submitted at one moment is kept in the microseconds of created_at.
    assert abs(found.due_at - found.created_at - timedelta(hours=1)) < timedelta(milliseconds=1)
    assert abs(found.deadline_at - found.created_at - timedelta(days=1)) < timedelta(milliseconds=1)
    assert report.submission("tides").priority == 1, "the task itself is unchanged"


async def test_two_submissions_with_one_key_are_one_execution(app: App, given: Given) -> None:
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
        ({"prio": 5}, "'prio'.*lane, namespace, priority"),
        ({"delay": "soon"}, "'soon'"),
        ({"deadline": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001
    ],
)
def test_bad_options_of_a_submission_are_refused_immediately(app: App, options: dict[str, Any], why: str) -> None:
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


async def test_of_many_submissions_the_refused_ones_fail_alone(app: App, given: Given) -> None:
    @app.task
    def report(topic: str) -> None: ...

    async with app:
        with pytest.raises(ExceptionGroup, match="1 of 3") as group:
            await report.submit_many([("a",), ("b" * 1_048_577,), ("c",)])

    assert [type(each) for each in group.value.exceptions] == [PayloadTooLarge]
    assert await given.count("executions") == 2


async def test_a_huge_payload_is_refused_at_submit(app: App, given: Given) -> None:
    @app.task
    def report(topic: str) -> None: ...

    async with app:
        with pytest.raises(PayloadTooLarge):
            await report.submit("x" * 1_048_577)
        with pytest.raises(InvalidBody, match="JSON"):
            await report.submit(object())  # type: ignore[arg-type]
    assert (await given.count("executions"), await given.events()) == (0, ["lane_registered"])


async def test_a_submission_can_join_the_callers_transaction(app: App, given: Given) -> None:
    @app.task(lane="shipping")
    def ship(order: int) -> None: ...

    async with app:
        async with given.conn.transaction():
            made = await executions.submit(given.conn, ship.with_options(priority=3).submission(order=1))
        await app.wake("shipping")
        assert (await app.execution(made.execution_id).describe()).priority == 3


async def test_a_delay_can_be_a_moment(app: App) -> None:
    @app.task
    def report() -> None: ...

    moment = datetime.now(UTC) + timedelta(days=3)
    async with app:
        found = await (await report.with_options(delay=moment).submit()).describe()

    assert found.due_at == moment


def typed(app: App) -> Any:
    @app.task
    async def typed_report(topic: str, pages: int = 1) -> str:
        return topic * pages

    return typed_report


MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"topic": 7}, r"Expected `str`, got `int` - at `\$\.topic`"),
    ({"topic": "tides", "pages": "two"}, r"Expected `int`, got `str` - at `\$\.pages`"),
    ({"topic": None}, r"Expected `str`, got `null`"),
]


@pytest.mark.parametrize(("arguments", "why"), MISFITS)
async def test_arguments_of_the_wrong_type_are_refused_at_submit(
    app: App, given: Given, arguments: dict[str, Any], why: str
) -> None:
    report = typed(app)
    async with app, given.nothing_changes():
        for submit in (
            lambda: report.submit(**arguments),
            lambda: report.submit_many([{"topic": "tides"}, arguments]),
            lambda: report.submit_in(given.conn, **arguments),
            lambda: app.schedules.create("daily", report, arguments, every="1h"),
        ):
            async with given.conn.transaction():
                with pytest.raises(InvalidBody, match=f"the arguments do not fit .*typed_report: {why}") as refused:
                    await submit()
                assert refused.value.fields == {"field": "payload"}


async def test_arguments_of_a_child_are_checked_when_it_is_submitted(app: App, given: Given) -> None:
    report = typed(app)

    @app.task(retries=3)
    async def parent(ctx: Context) -> str:
        await ctx.submit(report, 7)
        return "never"

    async with working(app):
        with pytest.raises(ExecutionFailed, match="the arguments do not fit"):
            await (await parent.submit()).result(TIMEOUT)
    assert await given.count("executions") == 1


@pytest.mark.parametrize("options", [{"priority": -1}, {"priority": 9_001}, {"key": ""}])
async def test_options_that_are_out_of_range_are_refused_at_once(app: App, options: Any) -> None:
    @app.task
    def ship(order: int) -> None: ...

    elsewhere: Any = {"lane": "far", **options}
    with pytest.raises(InvalidBody, match="is invalid; use"):
        ship.with_options(**options)
    with pytest.raises(InvalidBody, match="is invalid; use"):
        await app.submit("ship", options, order=1)
    with pytest.raises(InvalidBody, match="is invalid; use"):
        await app.submit("unknown_here", elsewhere, order=1)


def test_a_task_with_a_priority_out_of_range_is_refused(app: App) -> None:
    with pytest.raises(InvalidBody, match="priority -1 is invalid; use 0 to 9000"):

        @app.task(priority=-1)
        def ship() -> None: ...

    assert app.tasks == {}


async def test_a_flow_with_an_empty_key_is_refused(app: App) -> None:
    @app.task
    def ship() -> None: ...

    flow = app.flow("orders", key="")
    flow.add(ship)
    async with app:
        with pytest.raises(InvalidBody, match="key '' is invalid; use 1 to 256 bytes"):
            await flow.submit()
