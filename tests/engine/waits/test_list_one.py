"""The waits of one execution, each with its request."""

import hashlib

import pytest

from flowfabric.engine import waits
from flowfabric.errors import ExecutionNotFound
from flowfabric.ids import mint_execution_id
from tests.engine.waits.scene import approvals, waiting
from tests.given import Given


async def test_a_request_is_listed_with_its_digest(given: Given) -> None:
    about = b'"a draft"'
    asking = await waiting(given, approvals(), about=about, bind=True, reason_code="waiting_for_approval")
    await waiting(given, about=b'"another"')

    [asked] = await waits.list_waits(given.conn, asking.execution_id)

    assert (asked.execution_id, asked.suspension_id) == (asking.execution_id, asking.answer.suspension_id)
    assert (asked.about, asked.about_digest) == (about, hashlib.sha256(about).hexdigest())
    assert (asked.waitpoint_keys, asked.reason_code) == (["w"], "waiting_for_approval")
    assert asked in (await waits.list_suspended(given.conn)).items


async def test_an_execution_that_does_not_wait_has_no_waits(given: Given) -> None:
    asking = await waiting(given)
    await waits.resume(given.conn, asking.execution_id, by="ops")

    assert await waits.list_waits(given.conn, asking.execution_id) == []
    assert await waits.list_waits(given.conn, await given.submitted(lane="other")) == []


async def test_an_unknown_execution_is_refused(given: Given) -> None:
    with pytest.raises(ExecutionNotFound):
        await waits.list_waits(given.conn, mint_execution_id())
