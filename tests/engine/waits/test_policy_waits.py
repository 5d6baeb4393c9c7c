"""The fields of a policy that concern waits."""

from typing import Any

import pytest

from flowfabric.engine import executions
from flowfabric.errors import InvalidPolicy
from flowfabric.postgres.driver import Connection
from tests.given import Given, submission


@pytest.mark.parametrize(
    "policy",
    [
        {"max_signals": 1},
        {"max_signals": 10_000},
        {"suspension": {}},
        {"suspension": {"default_timeout_ms": 1}},
        {"suspension": {"default_timeout_ms": 315_360_000_000, "timeout_behavior": "auto_resume_with_timeout_signal"}},
        *(
            {"suspension": {"timeout_behavior": word}}
            for word in ("fail", "cancel", "expire", "auto_resume", "escalate")
        ),
    ],
)
async def test_a_policy_may_limit_signals_and_set_default_timeouts(conn: Connection, policy: dict[str, Any]) -> None:
    submitted = await executions.submit(conn, submission(policy=policy))

    assert (await executions.describe(conn, submitted.execution_id)).policy == policy


@pytest.mark.parametrize(
    ("field", "policy"),
    [
        ("max_signals", {"max_signals": 0}),
        ("max_signals", {"max_signals": 10_001}),
        ("max_signals", {"max_signals": 1.5}),
        ("max_signals", {"max_signals": "many"}),
        ("suspension", {"suspension": 5}),
        ("suspension", {"suspension": []}),
        ("suspension.default_timeout_ms", {"suspension": {"default_timeout_ms": 0}}),
        ("suspension.default_timeout_ms", {"suspension": {"default_timeout_ms": 315_360_000_001}}),
        ("suspension.default_timeout_ms", {"suspension": {"default_timeout_ms": "1h"}}),
        ("suspension.timeout_behavior", {"suspension": {"timeout_behavior": "shrug"}}),
        ("suspension.timeout_behavior", {"suspension": {"timeout_behavior": 5}}),
        ("suspension.timeout", {"suspension": {"timeout": 5}}),
    ],
)
async def test_an_invalid_policy_is_refused_with_its_field(
    conn: Connection, given: Given, field: str, policy: dict[str, Any]
) -> None:
    async with given.nothing_changes():
        with pytest.raises(InvalidPolicy) as refused:
            await executions.submit(conn, submission(policy=policy))

    assert refused.value.fields == {"field": field}
