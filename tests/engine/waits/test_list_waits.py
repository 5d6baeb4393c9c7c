"""Listing waits: exactly the suspended executions, oldest first, in pages, and never a token."""

from datetime import timedelta
from hashlib import sha256

import msgspec
import pytest

from flowfabric.engine import executions, waits
from flowfabric.engine.waits.list import REASON_CODES
from flowfabric.errors import ExecutionNotFound, InvalidBody, InvalidCursor, InvalidLimit
from flowfabric.ids import ExecutionId, mint_execution_id
from flowfabric.model import Waitpoint
from flowfabric.postgres.driver import Connection
from tests.engine.waits.scene import ANY, APPROVE, OPERATOR_ONLY, to, waiting, wish
from tests.given import Given

HOUR = timedelta(hours=1)


async def listed(conn: Connection, limit: int = 1, **filters: str) -> list[ExecutionId]:
    """All entries of a list, page by page."""
    found: list[ExecutionId] = []
    cursor: str | None = None
    while True:
        page = await waits.list_suspended(conn, cursor=cursor, limit=limit, **filters)
        found += [item.execution_id for item in page.items]
        if (cursor := page.next_cursor) is None:
            return found


async def test_exactly_the_suspended_executions_are_listed_oldest_first(conn: Connection, given: Given) -> None:
    await given.submitted(lane="elsewhere")
    asked = []
    for _ in range(6):
        asked.append((await waiting(given)).execution_id)
        await given.time_passes(seconds=1)
    await waits.resume(conn, asked[1], by="ops")
    await executions.cancel(conn, asked[3], reason="not wanted", by="ops")

    for limit in (1, 2, 3, 4, 100):
        assert await listed(conn, limit) == [asked[0], asked[2], asked[4], asked[5]]


async def test_executions_suspended_at_the_same_moment_are_listed_once_each(conn: Connection, given: Given) -> None:
    asked = [(await waiting(given)).execution_id for _ in range(5)]
    await given.rows("update flowfabric.tickets set suspended_at = '2026-01-01 00:00Z'")

    assert await listed(conn) == await listed(conn, 2) == sorted(asked)


async def test_a_reason_code_that_does_not_exist_is_refused_and_those_that_exist_are_the_ones_of_sql(
    conn: Connection,
) -> None:
    for code in REASON_CODES:
        assert await conn.fetchval("select flowfabric._suspension_reason($1)", code) is not None
        assert await listed(conn, reason_code=code) == []
    with pytest.raises(InvalidBody, match="reason code 'approval' is invalid; use one of waiting_for_signal, "):
        await listed(conn, reason_code="approval")


async def test_a_list_can_be_filtered(conn: Connection, given: Given) -> None:
    a = await waiting(given, submitted={"lane": "one", "namespace": "acme"})
    b = await waiting(given, submitted={"lane": "two", "namespace": "acme"}, reason_code="waiting_for_approval")
    c = await waiting(given, submitted={"lane": "one", "namespace": "other"}, reason_code="waiting_for_approval")

    assert await listed(conn, lane="one") == [a.execution_id, c.execution_id]
    assert await listed(conn, namespace="acme") == [a.execution_id, b.execution_id]
    assert await listed(conn, reason_code="waiting_for_approval") == [b.execution_id, c.execution_id]
    assert await listed(conn, reason_code="waiting_for_approval", lane="one", namespace="acme") == []


async def test_an_entry_shows_the_request_and_the_timeout(conn: Connection, given: Given) -> None:
    members = [{**ANY, "waitpoint": key} for key in ("b", "a")]
    asked = await waiting(
        given, {"kind": "all_of", "members": members}, ["b", "a"], about=b"\0?", timeout=HOUR, timeout_behavior="cancel"
    )

    [line] = (await waits.list_suspended(conn)).items

    assert (line.execution_id, line.suspension_id) == (asked.execution_id, asked.answer.suspension_id)
    assert (line.waitpoint_keys, line.reason_code) == (["a", "b"], "waiting_for_signal")
    assert (line.about, line.about_digest) == (b"\0?", sha256(b"\0?").hexdigest())
    assert line.timeout_at == line.suspended_at + HOUR
    assert line.timeout_behavior == "cancel"


async def test_limits_and_cursors_are_checked(conn: Connection, given: Given) -> None:
    asked = await waiting(given)

    assert (await waits.list_suspended(conn, limit=0)).items == []
    assert (await waits.list_waitpoints(conn, asked.execution_id, limit=0)).items == []
    with pytest.raises(InvalidLimit):
        await waits.list_suspended(conn, limit=-1)
    with pytest.raises(InvalidLimit):
        await waits.list_waitpoints(conn, asked.execution_id, limit=-1)
    for cursor in ("x", "1,2", f"5,{str(asked.execution_id)[1:]}"):
        with pytest.raises(InvalidCursor):
            await waits.list_suspended(conn, cursor=cursor)
    with pytest.raises(InvalidCursor):
        await waits.list_waitpoints(conn, asked.execution_id, cursor=f"5,{asked.execution_id.wire}")
    with pytest.raises(ExecutionNotFound):
        await waits.list_waitpoints(conn, mint_execution_id())


async def test_the_waitpoints_of_an_execution_are_listed_oldest_first(conn: Connection, given: Given) -> None:
    claim = await given.claimed(lease=HOUR)
    for key in ("c", "a", "w"):
        await waits.create_waitpoint(conn, claim.fence, key)
        await given.time_passes(seconds=1)
    answer = await waits.suspend(conn, claim.fence, wish(about=b"?"))
    [point] = answer.waitpoints
    await waits.deliver_signal(conn, to(claim.execution_id, point.id, point.token or "", "x"))

    pages: list[Waitpoint] = []
    cursor: str | None = None
    while True:
        page = await waits.list_waitpoints(conn, claim.execution_id, cursor=cursor, limit=1)
        pages += page.items
        if (cursor := page.next_cursor) is None:
            break

    assert [(point.key, point.state, point.signal_count) for point in pages] == [
        ("c", "pending", 0),
        ("a", "pending", 0),
        ("w", "active", 1),
    ]
    assert [point.about_digest for point in pages] == [None, None, sha256(b"?").hexdigest()]
    assert [(point.activated_at is None, point.expires_at is None) for point in pages] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    active = (await waits.list_waitpoints(conn, claim.execution_id, state="active")).items
    assert [point.key for point in active] == ["w"]


async def test_a_waitpoint_shows_the_names_of_the_signals_it_accepts(conn: Connection, given: Given) -> None:
    yes_or_no = {"kind": "any_of", "members": [{**ANY, "name": "no"}, APPROVE]}
    mixed = {"kind": "any_of", "members": [ANY, APPROVE]}
    timed = {"kind": "timeout_only"}
    shown = []
    for condition in (APPROVE, ANY, {**ANY, "name": None}, yes_or_no, mixed, OPERATOR_ONLY, timed):
        asked = await waiting(given, condition, timeout=HOUR)
        [point] = (await waits.list_waitpoints(conn, asked.execution_id)).items
        shown.append(list(point.required_signal_names))

    assert shown == [["approve"], [], [], ["approve", "no"], [], ["__operator_only__"], ["__timeout_only__"]]


async def test_no_token_is_shown_anywhere(conn: Connection, given: Given) -> None:
    claim = await given.claimed()
    made = await waits.create_waitpoint(conn, claim.fence, "v")
    asked = await waits.suspend(conn, claim.fence, wish())
    [point] = asked.waitpoints
    sent = to(claim.execution_id, point.id, point.token or "")
    shown: list[object] = [repr(made), repr(asked), repr(point), repr(sent)]
    shown += [(await waits.list_suspended(conn)), (await waits.list_waitpoints(conn, claim.execution_id))]
    shown += [await executions.describe(conn, claim.execution_id)]
    shown += [await given.rows("select e::text from flowfabric.events e")]
    await waits.deliver_signal(conn, sent)
    shown += [await given.rows("select s::text from flowfabric.signals s"), await given.claim()]

    digests = [token.partition(":")[2] for token in (made.token, point.token or "")]
    assert [digest for digest in digests if digest in str(shown)] == []
    assert "kid='k1'" in repr(point)
    assert msgspec.json.encode(asked).decode().count(digests[1]) == 1


@pytest.mark.parametrize("state", ["", "activ", "\0"])
async def test_an_unknown_state_of_waitpoints_is_refused(conn: Connection, given: Given, state: str) -> None:
    asked = await waiting(given)
    [row] = await given.rows("select enum_range(null::flowfabric.waitpoint_state)::text[] as states")
    remedy = "use pending, active or closed"

    with pytest.raises(InvalidBody, match=remedy) as refused:
        await waits.list_waitpoints(conn, asked.execution_id, state=state)
    assert refused.value.fields == {"field": "state"}
    assert row["states"] == remedy.removeprefix("use ").replace(" or", ",").split(", ")
