"""Policy: every field has an effect within its bounds or is refused by name; none is ignored."""

from collections.abc import Mapping

import pytest

from flowfabric.engine import executions
from flowfabric.errors import FlowFabricError, InvalidPolicy
from flowfabric.postgres.driver import Connection
from tests.engine.executions.stored import stored
from tests.given import Given, submission

Policy = Mapping[str, object]

TEN_YEARS_MS = 315_360_000_000
MONTH_MS = 2_592_000_000

WHOLE_NUMBERS = {
    "attempt_timeout_ms": (1, TEN_YEARS_MS),
    "max_reclaim_count": (0, 10_000),
    "max_replay_count": (0, 10_000),
    "dedup_window_ms": (0, MONTH_MS),
    "retention_ms": (0, TEN_YEARS_MS),
    "retry.max_retries": (0, 1_000),
    "retry.backoff.delay_ms": (0, MONTH_MS),
    "retry.backoff.initial_delay_ms": (0, MONTH_MS),
    "retry.backoff.max_delay_ms": (0, MONTH_MS),
}


def policy_of(path: str, value: object) -> dict[str, object]:
    """A policy with one field, and the backoff type that has this field."""
    names = path.split(".")
    backoff = {"type": "fixed" if names[-1] == "delay_ms" else "exponential"} if "backoff" in names else {}
    policy: dict[str, object] = {**backoff, names[-1]: value}
    for name in reversed(names[:-1]):
        policy = {name: policy}
    return policy


async def accepted(conn: Connection, policies: list[Policy]) -> list[Policy]:
    """The policies as they are stored, in order."""
    answers = await executions.submit_many(conn, [submission(policy=policy) for policy in policies])
    refused = [answer for answer in answers if isinstance(answer, FlowFabricError)]
    assert refused == []
    return [
        (await executions.describe(conn, a.execution_id)).policy for a in answers if not isinstance(a, FlowFabricError)
    ]


async def refused(conn: Connection, given: Given, policies: list[Policy]) -> list[InvalidPolicy]:
    """Return the errors of these policies, in order, and check that nothing was written."""
    before = await stored(given)
    answers = await executions.submit_many(conn, [submission(lane="new", policy=policy) for policy in policies])
    wrong = [(p, a) for p, a in zip(policies, answers, strict=True) if not isinstance(a, InvalidPolicy)]
    assert wrong == []
    assert await stored(given) == before
    return [answer for answer in answers if isinstance(answer, InvalidPolicy)]


async def test_every_number_is_accepted_at_both_bounds_and_kept(conn: Connection) -> None:
    policies: list[Policy] = [policy_of(path, bound) for path, bounds in WHOLE_NUMBERS.items() for bound in bounds]

    assert await accepted(conn, policies) == policies


async def test_every_number_is_refused_outside_its_bounds_with_the_value_and_the_bounds(
    conn: Connection, given: Given
) -> None:
    """A policy field has an effect or is refused, never ignored."""
    outside = [(path, n) for path, (low, high) in WHOLE_NUMBERS.items() for n in (low - 1, high + 1, 10**30)]

    refusals = await refused(conn, given, [policy_of(path, number) for path, number in outside])

    for refusal, (path, number) in zip(refusals, outside, strict=True):
        low, high = WHOLE_NUMBERS[path]
        assert refusal.fields == {"field": path}
        assert refusal.message == f"policy.{path} '{number}' is invalid; use a whole number from {low} to {high:,}"


@pytest.mark.parametrize("value", ["5", 1.5, 1.0, True, [], [5], {}, {"ms": 5}, "", "5 minutes"])
async def test_a_number_of_another_type_is_refused(conn: Connection, given: Given, value: object) -> None:
    refusals = await refused(conn, given, [policy_of(path, value) for path in WHOLE_NUMBERS])

    assert [refusal.fields["field"] for refusal in refusals] == list(WHOLE_NUMBERS)


FIXED: Policy = {"type": "fixed", "delay_ms": 5, "jitter": True}
EXPONENTIAL: Policy = {
    "type": "exponential",
    "initial_delay_ms": 10,
    "max_delay_ms": 1_000,
    "multiplier": 1.5,
    "jitter": False,
}


async def test_a_policy_may_have_all_or_any_of_its_fields(conn: Connection) -> None:
    whole = {path: high for path, (_, high) in WHOLE_NUMBERS.items() if "." not in path}
    policies: list[Policy] = [
        {},
        {"retry": {}},
        {"retry": {"retryable": []}},
        {"retry": {"retryable": ["transient", "x" * 64, *[str(n) for n in range(62)]]}},
        {"retry": {"backoff": {"type": "fixed"}}},
        {"retry": {"backoff": {"type": "exponential"}}},
        {"retry": {"backoff": {"type": "exponential", "multiplier": 1}}},
        {"retry": {"backoff": {"type": "exponential", "multiplier": 10}}},
        {**whole, "retry": {"max_retries": 5, "backoff": FIXED, "retryable": ["timeout"]}},
        {**whole, "retry": {"max_retries": 5, "backoff": EXPONENTIAL, "retryable": ["timeout"]}},
    ]

    assert await accepted(conn, policies) == policies


async def test_null_in_a_policy_means_the_default(conn: Connection) -> None:
    nulls: Policy = {
        "attempt_timeout_ms": None,
        "retry": {"max_retries": None, "backoff": {"type": "fixed", "delay_ms": None}, "retryable": None},
    }

    assert await accepted(conn, [nulls, {"retry": None}, {"retention_ms": None}]) == [
        {"retry": {"backoff": {"type": "fixed"}}},
        {},
        {},
    ]


async def test_an_empty_policy_is_stored_as_null(conn: Connection, given: Given) -> None:
    assert await accepted(conn, [{}]) == [{}]
    assert [row["policy"] for row in await given.rows("select policy from flowfabric.executions")] == [None]


UNKNOWN: list[tuple[Policy, str]] = [
    ({"colour": "red"}, "colour"),
    ({"": 1}, ""),
    ({"Retry": {}}, "Retry"),
    ({"retry": {"colour": "red"}}, "retry.colour"),
    ({"retry": {"max_retries": 1, "delay_ms": 5}}, "retry.delay_ms"),
    ({"retry": {"backoff": {"type": "fixed", "colour": "red"}}}, "retry.backoff.colour"),
    ({"retry": {"backoff": {"type": "exponential", "colour": "red"}}}, "retry.backoff.colour"),
    ({"retry": {"backoff": {"type": "fixed", "initial_delay_ms": 5}}}, "retry.backoff.initial_delay_ms"),
    ({"retry": {"backoff": {"type": "fixed", "max_delay_ms": 5}}}, "retry.backoff.max_delay_ms"),
    ({"retry": {"backoff": {"type": "fixed", "multiplier": 2}}}, "retry.backoff.multiplier"),
    ({"retry": {"backoff": {"type": "exponential", "delay_ms": 5}}}, "retry.backoff.delay_ms"),
]


async def test_a_field_that_is_unknown_or_has_no_effect_is_refused_by_its_path(conn: Connection, given: Given) -> None:
    """A policy field has an effect or is refused, never ignored."""
    refusals = await refused(conn, given, [policy for policy, _ in UNKNOWN])

    for refusal, (_, path) in zip(refusals, UNKNOWN, strict=True):
        assert refusal.fields == {"field": path}
        assert refusal.message.startswith(f"policy.{path}")
        assert "is unknown; remove it" in refusal.message


NO_MULTIPLIERS: list[object] = [0.999, 0, -1, 10.001, 11, 10**30, "2", True, [2], {}]
NO_BOOLEANS: list[object] = ["true", 1, 0, [], {}]
NO_WORD_LISTS: list[object] = [
    "timeout",
    3,
    {},
    [3],
    [None],
    [""],
    ["x" * 65],
    ["ü" * 33],
    [str(n) for n in range(65)],
    [["a"]],
]

WRONG: list[tuple[Policy, str, str]] = [
    ({"retry": 3}, "retry", "use an object"),
    ({"retry": []}, "retry", "use an object"),
    ({"retry": "never"}, "retry", "use an object"),
    ({"retry": {"backoff": "fixed"}}, "retry.backoff", "use an object"),
    ({"retry": {"backoff": [FIXED]}}, "retry.backoff", "use an object"),
    ({"retry": {"backoff": {}}}, "retry.backoff.type", "use fixed or exponential"),
    ({"retry": {"backoff": {"delay_ms": 5}}}, "retry.backoff.type", "use fixed or exponential"),
    ({"retry": {"backoff": {"type": "linear"}}}, "retry.backoff.type", "use fixed or exponential"),
    ({"retry": {"backoff": {"type": None}}}, "retry.backoff.type", "use fixed or exponential"),
    ({"retry": {"backoff": {"type": 3}}}, "retry.backoff.type", "use fixed or exponential"),
    ({"retry": {"backoff": {"type": ["fixed"]}}}, "retry.backoff.type", "use fixed or exponential"),
    *[
        ({"retry": {"backoff": {"type": "exponential", "multiplier": value}}}, "retry.backoff.multiplier", "1 to 10")
        for value in NO_MULTIPLIERS
    ],
    *[
        ({"retry": {"backoff": {"type": backoff, "jitter": value}}}, "retry.backoff.jitter", "true or false")
        for backoff in ("fixed", "exponential")
        for value in NO_BOOLEANS
    ],
    *[({"retry": {"retryable": value}}, "retry.retryable", "use a list of up to 64") for value in NO_WORD_LISTS],
]


async def test_a_field_of_the_wrong_type_or_out_of_range_is_refused_by_its_path(conn: Connection, given: Given) -> None:
    refusals = await refused(conn, given, [policy for policy, *_ in WRONG])

    for refusal, (policy, path, remedy) in zip(refusals, WRONG, strict=True):
        assert refusal.fields == {"field": path}, policy
        assert remedy in refusal.message


@pytest.mark.parametrize("policy", [[], "retry", 3, True, [{"retry": {}}]])
async def test_a_policy_is_an_object(conn: Connection, given: Given, policy: Policy) -> None:
    [refusal] = await refused(conn, given, [policy])

    assert refusal.fields == {"field": "policy"}
    assert "use an object" in refusal.message


async def test_the_message_shows_a_shortened_value(conn: Connection, given: Given) -> None:
    [refusal] = await refused(conn, given, [{"retry": "x" * 100_000}])

    assert "xxx" in refusal.message
    assert len(refusal.message) < 200
