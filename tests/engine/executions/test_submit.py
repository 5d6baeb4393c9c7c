"""Submitting one execution: what is written, and what is refused, at each limit."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from uuid import UUID, uuid4

import pytest

from flowfabric import errors, ids, testing
from flowfabric.engine import executions, lanes
from flowfabric.errors import FlowFabricError, InvalidBody
from flowfabric.ids import mint_execution_ids
from flowfabric.model import PublicState, Submission, SubmitOutcome
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection
from tests.engine.executions.stored import stored
from tests.given import Given, submission

DAYS_3650 = timedelta(days=3650)
MS = timedelta(milliseconds=1)

Option = Mapping[str, object]


async def refused(conn: Connection, given: Given, *submissions: Submission) -> list[FlowFabricError]:
    """Return the errors of submissions, and check that nothing was written."""
    before = await stored(given)
    answers = await executions.submit_many(conn, submissions)
    accepted = [
        asked for asked, answer in zip(submissions, answers, strict=True) if not isinstance(answer, FlowFabricError)
    ]
    assert accepted == []
    assert await stored(given) == before
    return [answer for answer in answers if isinstance(answer, FlowFabricError)]


async def test_a_submission_is_a_record_a_ticket_and_an_event(conn: Connection, given: Given) -> None:
    submitted = await executions.submit(
        conn,
        submission(lane="reports", payload=b'{"n": 1}', creator="ada", tags={"shop.order": "7"}, policy={"retry": {}}),
    )

    assert submitted.outcome is SubmitOutcome.CREATED
    assert submitted.public_state is PublicState.WAITING
    found = await executions.describe(conn, submitted.execution_id, payload=True)
    assert (found.lane, found.namespace, found.task, found.creator) == ("reports", "default", "report", "ada")
    assert (found.payload, found.encoding, found.tags, found.policy) == (
        b'{"n": 1}',
        "json",
        {"shop.order": "7"},
        {"retry": {}},
    )
    assert await given.events() == ["lane_registered", "execution_submitted"]
    assert await given.count("tickets") == 1


async def test_an_id_in_use_returns_duplicate_and_writes_nothing(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(lane="first")
    before = await stored(given)

    again = await executions.submit(
        conn, submission(lane="second", needs=["gpu"], execution_id=execution_id, key="k", tags={"a.b": "c"})
    )

    assert (again.outcome, again.execution_id, again.public_state) == (SubmitOutcome.DUPLICATE, execution_id, None)
    assert await stored(given) == before


async def test_an_id_in_use_returns_duplicate_also_after_its_end(conn: Connection, given: Given) -> None:
    execution_id = await given.cancelled()
    before = await stored(given)

    again = await executions.submit(conn, submission(execution_id=str(execution_id).upper().replace("FP", "fp")))

    assert (again.outcome, again.execution_id) == (SubmitOutcome.DUPLICATE, execution_id)
    assert await stored(given) == before


async def test_an_id_with_a_foreign_uuid_may_have_any_partition_of_the_cell(conn: Connection) -> None:
    mine = ids.ExecutionId(199, uuid4())

    first = await executions.submit(conn, submission(execution_id=mine))
    assert first.execution_id == mine
    for again in (mine, str(mine), mine.wire):
        repeated = await executions.submit(conn, submission(execution_id=again))
        assert (repeated.outcome, repeated.execution_id) == (SubmitOutcome.DUPLICATE, mine)


async def test_the_bare_uuid_is_the_whole_id(conn: Connection) -> None:
    for mine in (ids.mint_execution_id(), ids.ExecutionId.of(uuid4())):
        first = await executions.submit(conn, submission(execution_id=str(mine.uuid)))
        again = await executions.submit(conn, submission(execution_id=mine.wire.upper().replace("FP", "fp")))

        assert (first.execution_id, again.execution_id) == (mine, mine)
        assert again.outcome is SubmitOutcome.DUPLICATE
        assert str(again.execution_id) == str(mine.uuid)


@pytest.mark.parametrize(("delay", "due_in"), [(timedelta(hours=1), 3600), ("moment", 3600)])
async def test_a_delayed_execution_becomes_claimable_when_it_is_due(
    conn: Connection, given: Given, delay: Any, due_in: int
) -> None:
    """No sweep is needed: what submit writes, a claim picks up."""
    if delay == "moment":
        delay = await testing.now(conn) + timedelta(seconds=due_in)
    submitted = await executions.submit(conn, submission(delay=delay))
    assert submitted.public_state is PublicState.DELAYED

    state = (await executions.describe(conn, submitted.execution_id)).state
    assert (state.public_state, state.eligibility_state, state.blocking_reason) == (
        PublicState.DELAYED,
        "not_eligible_until_time",
        "waiting_for_delay",
    )
    await given.time_passes(seconds=due_in - 60)
    assert (await executions.describe(conn, submitted.execution_id)).state.public_state is PublicState.DELAYED
    await given.time_passes(seconds=60)
    assert (await executions.describe(conn, submitted.execution_id)).state.eligibility_state == "eligible_now"


@pytest.mark.parametrize("delay", [timedelta(0), datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=999)])
async def test_a_delay_in_the_past_is_ignored(conn: Connection, delay: timedelta | datetime) -> None:
    submitted = await executions.submit(conn, submission(delay=delay))

    assert submitted.public_state is PublicState.WAITING
    assert (await executions.describe(conn, submitted.execution_id)).due_at is None


async def test_delay_and_deadline_are_two_fields(conn: Connection, given: Given) -> None:
    before = await testing.now(conn)
    execution_id = await given.submitted(delay=timedelta(hours=1), deadline=timedelta(hours=2))
    after = await testing.now(conn)

    found = await executions.describe(conn, execution_id)
    assert found.due_at is not None
    assert found.deadline_at is not None
    assert before + timedelta(hours=1) <= found.due_at <= after + timedelta(hours=1)
    assert found.deadline_at - found.due_at == timedelta(hours=1)


async def test_a_priority_is_0_to_9000(conn: Connection, given: Given) -> None:
    for priority in (0, 1, 9_000):
        execution_id = await given.submitted(priority=priority)
        assert (await executions.describe(conn, execution_id)).priority == priority

    for priority in (-(2**70), -1, 9_001, 2**70):
        with pytest.raises(InvalidBody, match=f"priority {priority} is invalid; use 0 to 9000"):
            await given.submitted(priority=priority)
    assert await given.count("executions") == 3


@pytest.mark.parametrize("priority", [-(2**70), -1, 9_001, 2**70])
async def test_a_priority_cannot_be_changed_to_another(conn: Connection, given: Given, priority: int) -> None:
    execution_id = await given.submitted(priority=4)

    with pytest.raises(InvalidBody, match="priority"):
        await executions.change_priority(conn, execution_id, priority, by="ops")
    assert (await executions.describe(conn, execution_id)).priority == 4


@pytest.mark.parametrize("priorities", [[-1, None, 3], [9_001, None, 3]])
async def test_sql_refuses_an_invalid_priority_and_submits_the_others(
    conn: Connection, given: Given, priorities: list[int | None]
) -> None:
    ids = mint_execution_ids(3)
    answers = await call.rows(
        conn,
        "submit",
        options=['{"task": "t"}'],
        options_of=[1, 1, 1],
        partitions=[each.partition for each in ids],
        ids=[each.uuid for each in ids],
        priorities=priorities,
    )

    assert [answer["refusal"] for answer in sorted(answers, key=lambda row: int(row["item"]))] == [
        "invalid_body",
        None,
        None,
    ]
    assert [(await executions.describe(conn, each)).priority for each in ids[1:]] == [0, 3]


@pytest.mark.parametrize("encoding", ["json", "application/x-protobuf", "größe"])
async def test_a_payload_reads_back_byte_for_byte(conn: Connection, given: Given, encoding: str) -> None:
    for payload in [None, b"", b"\x00\xff\xfe not UTF-8", b"x" * 1_048_576]:
        execution_id = await given.submitted(payload=payload, encoding=encoding)

        found = await executions.describe(conn, execution_id, payload=True)
        assert (found.payload, found.encoding) == (payload, encoding)


ACCEPTED: list[Option] = [
    {"task": "k" * 256},
    {"task": "ü" * 128},
    {"lane": "l" * 64, "namespace": "n" * 64},
    {"lane": " ~", "namespace": "~ "},
    {"key": "k" * 256},
    {"creator": "c" * 256},
    {"creator": ""},
    {"encoding": "e" * 64},
    {"delay": DAYS_3650},
    {"deadline": DAYS_3650},
    {"deadline": MS},
    {"tags": {f"a.t{n}": "" for n in range(64)}},
    {"tags": {"a." + "b" * 126: "v" * 256}},
    {"needs": [f"c{n:03}" for n in range(256)]},
]


async def test_a_value_exactly_at_its_limit_is_accepted(conn: Connection, given: Given) -> None:
    answers = await executions.submit_many(conn, [submission(**options) for options in ACCEPTED])

    outcomes = [(answer, options) for answer, options in zip(answers, ACCEPTED, strict=True)]
    assert [pair for pair in outcomes if isinstance(pair[0], FlowFabricError)] == []
    assert await given.count("tickets") == await given.count("executions") == len(ACCEPTED)


# The options, the error, and what its message must contain: the value (or its size), and the remedy.
REFUSED: list[tuple[Option, type[FlowFabricError], str, str]] = [
    ({"execution_id": "{fp:32768}:550e8400-e29b-41d4-a716-446655440000"}, errors.InvalidId, "{fp:32768}", "use 0 to"),
    ({"execution_id": "{fp:256}:550e8400-e29b-41d4-a716-446655440000"}, errors.WrongPartition, "{fp:256}", "use"),
    (
        {"execution_id": "{fp:25}:019df237-3e80-8a31-800c-3f9b71e5d004"},
        errors.WrongPartition,
        "{fp:25}",
        "use 019df237",
    ),
    ({"execution_id": ids.ExecutionId(999, UUID(int=1))}, errors.WrongPartition, "{fp:999}", "cell 3"),
    ({"execution_id": "{fp:1}:nonsense"}, errors.InvalidId, "nonsense", "use"),
    ({"execution_id": ""}, errors.InvalidId, "''", "use"),
    ({"task": ""}, errors.InvalidName, "''", "1 to 256 bytes"),
    ({"task": "k" * 257}, errors.InvalidName, "kkk", "1 to 256 bytes"),
    ({"task": "ü" * 128 + "x"}, errors.InvalidName, "üü", "1 to 256 bytes"),
    ({"lane": ""}, errors.InvalidLane, "''", "1 to 64 printable"),
    ({"lane": "l" * 65}, errors.InvalidLane, "lll", "1 to 64 printable"),
    ({"lane": "größe"}, errors.InvalidLane, "größe", "1 to 64 printable"),
    ({"lane": "tab\t"}, errors.InvalidLane, "tab", "1 to 64 printable"),
    ({"lane": "line\n"}, errors.InvalidLane, "line", "1 to 64 printable"),
    ({"namespace": ""}, errors.InvalidNamespace, "''", "1 to 64 printable"),
    ({"namespace": "n" * 65}, errors.InvalidNamespace, "nnn", "1 to 64 printable"),
    ({"namespace": "größe"}, errors.InvalidNamespace, "größe", "1 to 64 printable"),
    ({"namespace": "größe", "key": "k"}, errors.InvalidNamespace, "größe", "1 to 64 printable"),
    ({"namespace": "line\n"}, errors.InvalidNamespace, "line", "1 to 64 printable"),
    ({"needs": ["a b"]}, errors.InvalidCapabilities, "a b", "without commas"),
    ({"budgets": ["team-a"]}, errors.BudgetNotFound, "team-a", "use create_budget to create it"),
    ({"quotas": ["vendor"]}, errors.QuotaNotFound, "vendor", "create_quota"),
    ({"budgets": "team-a"}, errors.InvalidBody, "team-a", "use a list"),
    ({"quotas": {"vendor": 1}}, errors.InvalidBody, "vendor", "use a list"),
    ({"policy": {"colour": "red"}}, errors.InvalidPolicy, "colour", "remove it"),
    ({"creator": "c" * 257}, errors.InvalidBody, "ccc", "at most 256 bytes"),
    ({"encoding": ""}, errors.InvalidBody, "''", "1 to 64 bytes"),
    ({"encoding": "e" * 65}, errors.InvalidBody, "eee", "1 to 64 bytes"),
    ({"key": "k" * 257}, errors.InvalidBody, "kkk", "1 to 256 bytes"),
    ({"key": ""}, errors.InvalidBody, "''", "1 to 256 bytes"),
    ({"priority": -1}, errors.InvalidBody, "-1", "use 0 to 9000"),
    ({"priority": 2**70}, errors.InvalidBody, "1180591620717411303424", "use 0 to 9000"),
    ({"payload": b"x" * 1_048_577}, errors.PayloadTooLarge, "1,048,577", "pass a reference"),
    ({"payload": b"x" * (8 * 2**20 + 1)}, errors.PayloadTooLarge, "8,388,609", "pass a reference"),
    ({"delay": -MS}, errors.InvalidTime, "-1 ms", "use a duration"),
    ({"delay": timedelta(microseconds=-1)}, errors.InvalidTime, "-1 ms", "use a duration"),
    ({"delay": DAYS_3650 + MS}, errors.InvalidTime, "315360000001 ms", "at most ten years"),
    ({"delay": timedelta.max}, errors.InvalidTime, "86399999999999999 ms", "at most ten years"),
    ({"delay": timedelta.min}, errors.InvalidTime, "-86399999913600000 ms", "use a duration"),
    ({"delay": datetime.max.replace(tzinfo=UTC)}, errors.InvalidTime, "infinity", "at most ten years"),
    (
        {"delay": datetime.max.replace(tzinfo=timezone(-MS * 1000))},
        errors.InvalidTime,
        "9999-12-31",
        "at most ten years",
    ),
    ({"delay": datetime(2030, 1, 1)}, errors.InvalidTime, "2030-01-01", "time zone"),  # noqa: DTZ001
    ({"deadline": timedelta(0)}, errors.InvalidTime, "0 ms", "after now"),
    ({"deadline": -MS}, errors.InvalidTime, "-1 ms", "after now"),
    ({"deadline": DAYS_3650 + MS}, errors.InvalidTime, "315360000001 ms", "at most ten years"),
    ({"deadline": datetime(2020, 1, 1, tzinfo=UTC)}, errors.InvalidTime, "2020-01-01", "after now"),
    (
        {"deadline": datetime.min.replace(tzinfo=timezone(MS * 1000))},
        errors.InvalidTime,
        "0001-01-01",
        "at most ten years",
    ),
    ({"deadline": datetime(2030, 1, 1)}, errors.InvalidTime, "2030-01-01", "time zone"),  # noqa: DTZ001
    ({"tags": {"": "v"}}, errors.InvalidTagKey, "''", "1 to 128"),
    ({"tags": {"b" * 129: "v"}}, errors.InvalidTagKey, "bbb", "1 to 128"),
    ({"tags": {"a.b": "v" * 257}}, errors.InvalidTag, "vvv", "at most 256 bytes"),
    ({"tags": {f"a.t{n}": "" for n in range(65)}}, errors.InvalidTag, "65", "at most 64"),
]


async def test_an_invalid_submission_is_refused_with_the_value_and_a_remedy_and_nothing_is_written(
    conn: Connection, given: Given
) -> None:
    asked = [submission(**{"lane": "new", **options}) for options, *_ in REFUSED]

    refusals = await refused(conn, given, *asked)

    for refusal, (options, kind, value, remedy) in zip(refusals, REFUSED, strict=True):
        assert type(refusal) is kind, options
        assert value in refusal.message
        assert remedy in refusal.message
        [alone] = await refused(conn, given, submission(**{"lane": "new", **options}))
        assert type(alone) is kind


# Values that a type checker rejects; for most of them the driver would fail the whole batch.
MISTYPED: list[tuple[Option, type[FlowFabricError], str]] = [
    ({"task": None}, errors.InvalidName, "NULL"),
    ({"task": 3}, errors.InvalidBody, "task '3'"),
    ({"lane": 3}, errors.InvalidBody, "lane '3'"),
    ({"namespace": ["a"]}, errors.InvalidBody, "namespace"),
    ({"namespace": 3, "key": "k"}, errors.InvalidBody, "namespace '3'"),
    ({"encoding": 3}, errors.InvalidBody, "encoding '3'"),
    ({"creator": {"name": "ada"}}, errors.InvalidBody, "creator"),
    ({"needs": object()}, errors.InvalidBody, "options"),
    ({"policy": {"retry": object()}}, errors.InvalidBody, "options"),
    ({"policy": {"attempt_timeout_ms": float("nan")}}, errors.InvalidBody, "nan"),
    ({"policy": {"attempt_timeout_ms": float("inf")}}, errors.InvalidBody, "inf"),
    ({"policy": {None: 1}}, errors.InvalidBody, "options"),
    ({"payload": "text"}, errors.InvalidBody, "payload 'text'"),
    ({"key": 3}, errors.InvalidBody, "key '3'"),
    ({"priority": "high"}, errors.InvalidBody, "priority 'high'"),
    ({"priority": 1.5}, errors.InvalidBody, "priority '1.5'"),
    ({"delay": 5}, errors.InvalidTime, "delay '5'"),
    ({"deadline": "tomorrow"}, errors.InvalidTime, "deadline 'tomorrow'"),
    ({"tags": {"a.b": 3}}, errors.InvalidTag, "'3' of tag 'a.b'"),
    ({"tags": {"a.b": None}}, errors.InvalidTag, "'null' of tag 'a.b'"),
    ({"tags": ["a.b"]}, errors.InvalidTag, "a.b"),
    ({"tags": {"a.b": object()}}, errors.InvalidBody, "tags"),
]


async def test_a_value_of_the_wrong_type_is_refused_for_its_item_alone(conn: Connection, given: Given) -> None:
    """An invalid item does not fail its batch."""
    refusals = await refused(conn, given, *[submission(**{"lane": "new", **options}) for options, *_ in MISTYPED])

    for refusal, (options, kind, value) in zip(refusals, MISTYPED, strict=True):
        assert type(refusal) is kind, options
        assert value in refusal.message


class NoOffset(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


async def test_a_time_zone_without_an_offset_is_refused(conn: Connection, given: Given) -> None:
    [refusal] = await refused(conn, given, submission(deadline=datetime(2030, 1, 1, tzinfo=NoOffset())))

    assert isinstance(refusal, errors.InvalidTime)


async def test_a_policy_nested_without_end_is_refused(conn: Connection, given: Given) -> None:
    policy: dict[str, object] = {}
    for _ in range(100_000):
        policy = {"retry": policy}

    [refusal] = await refused(conn, given, submission(policy=policy))

    assert isinstance(refusal, errors.InvalidBody)


NUL, SURROGATE = "a\0b", "a\ud800b"


@pytest.mark.parametrize("bad", [NUL, SURROGATE])
async def test_text_that_postgres_cannot_store_is_refused(conn: Connection, given: Given, bad: str) -> None:
    places: list[Option] = [
        *[{field: bad} for field in ("task", "lane", "namespace", "creator", "encoding", "key")],
        *[{field: ["good", bad]} for field in ("needs", "budgets", "quotas")],
        {"namespace": bad, "key": "k"},
        {"policy": {bad: 1}},
        {"policy": {"retry": {"retryable": ["good", bad]}}},
        {"tags": {bad: "v"}},
        {"tags": {"a.b": bad}},
    ]

    for refusal in await refused(conn, given, *[submission(**place) for place in places]):
        assert isinstance(refusal, errors.InvalidText)
        assert repr(bad) in refusal.message
        assert "remove it" in refusal.message


@pytest.mark.parametrize("bad", [NUL, SURROGATE])
async def test_an_id_that_postgres_cannot_store_is_refused(conn: Connection, given: Given, bad: str) -> None:
    [refusal] = await refused(conn, given, submission(execution_id=bad))

    assert (type(refusal), refusal.fields) == (errors.InvalidId, {"cause": "invalid_uuid"})


@pytest.mark.parametrize("what", ["delay", "deadline"])
async def test_a_time_is_at_most_ten_years_ahead(conn: Connection, given: Given, what: str) -> None:
    now = await testing.now(conn)
    ten_years = now.replace(year=now.year + 10, day=min(now.day, 28))

    await given.submitted(**{what: ten_years - timedelta(days=1)})
    [refusal] = await refused(conn, given, submission(**{what: ten_years + timedelta(days=4)}))

    assert isinstance(refusal, errors.InvalidTime)


async def test_the_payload_limit_is_a_setting(conn: Connection, given: Given) -> None:
    await executions.submit(conn, submission(payload=b"12345678"), payload_limit=8)

    with pytest.raises(errors.PayloadTooLarge) as refusal:
        await executions.submit(conn, submission(payload=b"123456789"), payload_limit=8)
    assert refusal.value.fields == {"limit": 8}
    assert await given.count("executions") == 1


async def test_a_draining_lane_refuses_and_a_paused_one_does_not(conn: Connection, given: Given) -> None:
    await given.submitted(lane="reports")
    await lanes.drain_lane(conn, "reports", by="ops")

    [refusal] = await refused(conn, given, submission(lane="reports", namespace="elsewhere"))
    assert isinstance(refusal, errors.LaneDraining)
    assert "reports" in refusal.message
    assert "resume_lane" in refusal.message

    await lanes.pause_lane(conn, "reports", by="ops")
    assert (await executions.submit(conn, submission(lane="reports"))).outcome is SubmitOutcome.CREATED


async def test_null_means_the_default(conn: Connection) -> None:
    left_out = {"namespace": None, "lane": None, "needs": None, "budgets": None, "quotas": None, "policy": None}
    submitted = await executions.submit(
        conn, submission(**left_out, encoding=None, creator=None, key=None, priority=None, tags=None)
    )

    found = await executions.describe(conn, submitted.execution_id)
    assert (found.namespace, found.lane, found.needs, found.policy) == ("default", "default", [], {})
    assert (found.encoding, found.creator, found.priority, found.tags) == ("json", None, 0, {})


async def test_an_unknown_field_of_the_options_is_refused(conn: Connection, given: Given) -> None:
    [row] = await conn.fetch(
        "select refusal, detail from flowfabric.submit($1, '{1}', '{0}', $2)",
        ['{"task": "k", "colour": "red"}'],
        [uuid4()],
    )

    assert row["refusal"] == errors.InvalidBody.code
    assert '"field": "colour"' in row["detail"]
    assert await given.count("executions") == 0


async def test_the_stored_states_are_enums(conn: Connection, given: Given) -> None:
    """An enum column cannot store an unknown state."""
    await given.submitted()
    columns = await given.rows(
        "select attname from pg_attribute a join pg_type t on t.oid = a.atttypid"
        " where attrelid = 'flowfabric.tickets'::regclass and typtype = 'e'"
    )

    assert {row["attname"] for row in columns} >= {"phase", "eligibility", "reason", "attempt_state"}
    [ticket] = await given.rows("select phase, eligibility, reason, attempt_state from flowfabric.tickets")
    assert tuple(ticket) == ("runnable", "eligible_now", "waiting_for_worker", "pending_first_attempt")
