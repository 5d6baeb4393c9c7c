"""The repr of model objects: it never contains a token or a grant key."""

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from rich.pretty import pretty_repr

from flowfabric import model
from flowfabric.ids import ExecutionId

ID = UUID("550e8400-e29b-41d4-a716-446655440000")
EXECUTION = ExecutionId(24, ID)
NOW = datetime(2026, 11, 16, tzinfo=UTC)
TOKEN = "k1:0575ecf3b508b4e85cfeb6778c22cbce9843a5acffe2229e4494a730a736327f"


@pytest.mark.parametrize(
    "noun",
    [
        model.BoundWaitpoint(id=ID, key="go", token=TOKEN),
        model.CreatedWaitpoint(outcome="created", waitpoint_id=ID, key="go", token=TOKEN, expires_at=NOW),
        model.SignalToSend(execution_id=EXECUTION, waitpoint_id=ID, token=TOKEN, name="yes"),
        model.Grant(
            execution_id=EXECUTION,
            partition_key="{fp:24}",
            grant_key=f"pg:{EXECUTION}:1:{TOKEN}",
            expires_at=NOW,
            route=1,
        ),
    ],
    ids=lambda noun: type(noun).__name__,
)
def test_a_signature_is_in_no_repr(noun: msgspec.Struct) -> None:
    digest = TOKEN.partition(":")[2]

    assert digest not in repr(noun)
    assert digest not in str(noun)
    assert digest not in pretty_repr(noun)
    assert digest not in pretty_repr([noun])
