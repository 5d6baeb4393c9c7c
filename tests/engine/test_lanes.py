"""Lanes: the queues that workers claim from."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from flowfabric import testing
from flowfabric.engine import claims, executions, lanes, routes
from flowfabric.errors import InvalidBody, InvalidLane, InvalidLimit, InvalidText, LaneDraining, LaneNotFound
from flowfabric.model import Drained, Lane, LaneChange, Options, Page
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.engine.executions.stored import blocked
from tests.engine.standins import claimed, stored
from tests.given import Given, submission

BACKLOG = """
insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, due_at, eligibility, reason, phase)
select i % 256, gen_random_uuid(), i % 50, $1, i % 7, timestamptz '2026-01-01' - i * interval '1 s', $3,
       $4::text::flowfabric.eligibility, 'none', $5::text::flowfabric.phase
from generate_series(1, $2::int) i
"""

ACTS = [lanes.pause_lane, lanes.drain_lane, lanes.resume_lane]


async def lane(conn: Connection, name: str) -> Lane:
    [found] = [one for one in (await lanes.list_lanes(conn)).items if one.name == name]
    return found


async def kinds_and_details(given: Given) -> list[tuple[str, str | None, object]]:
    events = await given.rows("select kind, by, detail from flowfabric.events where subject is not null order by id")
    return [(e["kind"], e["by"], e["detail"] and msgspec.json.decode(e["detail"])) for e in events]


async def test_the_first_submission_creates_its_lane(conn: Connection, given: Given) -> None:
    assert (await lanes.list_lanes(conn)).items == []
    await given.submitted(lane="reports")
    await given.submitted(lane="reports")

    found = await lane(conn, "reports")
    assert (found.state, found.by, found.reason, found.keep_renewals) == ("active", None, None, False)
    assert (await given.events()).count("lane_registered") == 1


async def test_a_lane_can_be_created_and_configured(conn: Connection, given: Given) -> None:
    assert await lanes.configure_lane(conn, "reports") is LaneChange.REGISTERED
    assert await lanes.configure_lane(conn, "reports") is LaneChange.NOOP
    assert await lanes.configure_lane(conn, "reports", keep_renewals=True) is LaneChange.CHANGED
    assert await lanes.configure_lane(conn, "reports", keep_renewals=True) is LaneChange.NOOP
    assert await lanes.configure_lane(conn, "reports") is LaneChange.NOOP
    assert (await lane(conn, "reports")).keep_renewals is True
    assert await lanes.configure_lane(conn, "reports", keep_renewals=False) is LaneChange.CHANGED

    assert await lanes.configure_lane(conn, "new", keep_renewals=True) is LaneChange.REGISTERED
    assert (await lane(conn, "new")).keep_renewals is True
    assert await given.events() == ["lane_registered"] * 2


async def test_a_lane_has_a_retention_for_streams_which_can_be_removed_again(conn: Connection) -> None:
    day = timedelta(days=1)
    steps = [
        ({"stream_retention_maxlen": 50}, LaneChange.REGISTERED, (50, None)),
        ({"stream_retention": day}, LaneChange.CHANGED, (50, day)),
        ({"stream_retention": day, "stream_retention_maxlen": 50}, LaneChange.NOOP, (50, day)),
        ({"keep_renewals": True}, LaneChange.CHANGED, (50, day)),
        ({"stream_retention": timedelta(0)}, LaneChange.CHANGED, (50, None)),
    ]
    for options, change, kept in steps:
        assert await lanes.configure_lane(conn, "agents", **options) is change  # type: ignore[arg-type]
        found = await lanes.describe_lane(conn, "agents")
        assert (found.stream_retention_maxlen, found.stream_retention) == kept
        assert await lane(conn, "agents") == found


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream_retention_maxlen", 0),
        ("stream_retention_maxlen", 100_001),
        ("stream_retention_maxlen", 1 << 70),
        ("stream_retention_maxlen", "50"),
        ("stream_retention", timedelta(seconds=-1)),
        ("stream_retention", timedelta(days=3_651)),
    ],
)
async def test_an_impossible_retention_for_streams_is_refused(given: Given, field: str, value: object) -> None:
    async with given.nothing_changes():
        with pytest.raises(InvalidLane) as refused:
            await lanes.configure_lane(given.conn, "agents", **{field: value})  # type: ignore[arg-type]
    assert refused.value.fields["field"] == field


async def test_configuring_does_not_change_the_state(conn: Connection) -> None:
    await lanes.configure_lane(conn, "reports")
    await lanes.pause_lane(conn, "reports", by="ada", reason="broken")
    before = await lane(conn, "reports")

    await lanes.configure_lane(conn, "reports", keep_renewals=True)
    assert await lane(conn, "reports") == msgspec.structs.replace(before, keep_renewals=True)


@pytest.mark.parametrize("name", ["", "x" * 65, "é", "a\n", "a\tb", "\x7f"])
async def test_a_lane_has_a_name_of_printable_ascii(conn: Connection, given: Given, name: str) -> None:
    with pytest.raises(InvalidLane):
        await lanes.configure_lane(conn, name)
    assert (await given.count("lanes"), await given.events()) == (0, [])


@pytest.mark.parametrize("name", [" ", "x" * 64, "a b|c:~", "{fp:1}", "%s %"])
async def test_any_printable_ascii_is_accepted(conn: Connection, name: str) -> None:
    await lanes.configure_lane(conn, name)

    assert await lanes.pause_lane(conn, name, by="ada") is LaneChange.PAUSED
    assert [found.name for found in (await lanes.list_lanes(conn)).items] == [name]


@pytest.mark.parametrize("act", ACTS)
async def test_a_lane_that_does_not_exist_cannot_be_changed(conn: Connection, given: Given, act: object) -> None:
    assert callable(act)
    await lanes.configure_lane(conn, "reports")

    for name in ["report", "reports ", "", "é"]:
        with pytest.raises(LaneNotFound) as refused:
            await act(conn, name, by="ada")
        assert name in refused.value.message
    with pytest.raises(InvalidText):
        await act(conn, "\0", by="ada")
    assert (await given.count("lanes"), await given.events()) == (1, ["lane_registered"])


async def test_an_unknown_lane_is_refused_with_the_existing_lanes(conn: Connection, given: Given) -> None:
    for name in ("reports", "default"):
        await given.submitted(lane=name)

    with pytest.raises(LaneNotFound, match=r"'reprots' does not exist; existing lanes: default, reports$"):
        await lanes.pause_lane(conn, "reprots", by="ops")


@pytest.mark.parametrize("act", ACTS)
async def test_the_name_of_the_operator_has_at_most_256_bytes(conn: Connection, given: Given, act: object) -> None:
    assert callable(act)
    await lanes.configure_lane(conn, "reports")
    before = await lane(conn, "reports"), await given.events()

    with pytest.raises(InvalidBody) as refused:
        await act(conn, "reports", by="é" * 129)
    assert refused.value.fields == {"field": "by"}
    assert (await lane(conn, "reports"), await given.events()) == before


async def test_a_lane_is_paused_and_resumed_and_shows_the_operator(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "reports")
    await given.time_passes(hours=1)

    assert await lanes.pause_lane(conn, "reports", by="ada", reason="broken") is LaneChange.PAUSED
    paused = await lane(conn, "reports")
    assert (paused.state, paused.by, paused.reason) == ("paused", "ada", "broken")
    assert abs(paused.since - await testing.now(conn)) < timedelta(minutes=1)
    assert await lanes.pause_lane(conn, "reports", by="bob") is LaneChange.NOOP
    assert await lane(conn, "reports") == paused

    assert await lanes.resume_lane(conn, "reports", by="bob") is LaneChange.ACTIVE
    resumed = await lane(conn, "reports")
    assert (resumed.state, resumed.by, resumed.reason) == ("active", "bob", None)
    assert await lanes.resume_lane(conn, "reports", by="ada", reason="again") is LaneChange.NOOP
    assert await lane(conn, "reports") == resumed
    assert await kinds_and_details(given) == [
        ("lane_registered", None, None),
        ("lane_paused", "ada", {"reason": "broken"}),
        ("lane_resumed", "bob", {}),
    ]


async def test_a_paused_lane_accepts_submissions(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "reports")
    await lanes.pause_lane(conn, "reports", by="ada")

    execution_id = await given.submitted(lane="reports")
    state = (await executions.describe(conn, execution_id)).state
    assert (state.public_state, state.eligibility_state) == ("waiting", "blocked_by_lane_state")

    await lanes.resume_lane(conn, "reports", by="ada")
    assert (await executions.describe(conn, execution_id)).state.eligibility_state == "eligible_now"


async def test_a_draining_lane_refuses_new_work_until_it_is_resumed(conn: Connection, given: Given) -> None:
    await given.submitted(lane="reports")
    before = await given.count("executions"), await given.count("routes"), await given.count("tickets")

    drained = await lanes.drain_lane(conn, "reports", by="ada", reason="moving out")
    assert drained == Drained(outcome=LaneChange.DRAINING, left_count=1)
    for options in [Options(task="report", lane="reports"), Options(task="report", lane="reports", namespace="new")]:
        with pytest.raises(LaneDraining):
            await executions.submit(conn, submission(lane="reports", namespace=options.namespace))
        with pytest.raises(LaneDraining):
            await routes.register_route(conn, options)
    assert (await given.count("executions"), await given.count("routes"), await given.count("tickets")) == before

    assert await lanes.resume_lane(conn, "reports", by="ada") is LaneChange.ACTIVE
    await given.submitted(lane="reports")


async def test_a_lane_can_change_from_any_state_to_any_other(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "a")
    await lanes.drain_lane(conn, "a", by="ada")
    assert await lanes.pause_lane(conn, "a", by="ada") is LaneChange.PAUSED
    assert (await lanes.drain_lane(conn, "a", by="ada")).outcome is LaneChange.DRAINING
    assert await lanes.resume_lane(conn, "a", by="ada") is LaneChange.ACTIVE

    assert await given.events() == [
        "lane_registered",
        "lane_drain_started",
        "lane_paused",
        "lane_drain_started",
        "lane_resumed",
    ]


async def test_draining_counts_the_executions_left(conn: Connection, given: Given) -> None:
    await given.submitted(lane="a")
    await given.submitted(lane="a", delay=timedelta(hours=1))
    await given.held(lane="a")
    await given.cancelled(lane="a")
    await given.submitted(lane="b")
    runs, waits = await given.submitted(lane="a"), await given.submitted(lane="a")
    await claimed(given, runs)
    await stored(given, waits, "phase = 'suspended', reason = 'waiting_for_signal'")

    assert (await lanes.drain_lane(conn, "a", by="ada")).left_count == 5
    await executions.cancel(conn, runs)
    assert await lanes.drain_lane(conn, "a", by="bob") == Drained(outcome=LaneChange.NOOP, left_count=4)
    assert (await given.events()).count("lane_drain_started") == 1


async def test_a_lane_shows_its_counts(conn: Connection, given: Given) -> None:
    oldest = await given.submitted(lane="a", priority=1)
    await given.submitted(lane="a", priority=9, namespace="team")
    await given.submitted(lane="a", delay=timedelta(hours=1))
    await given.held(lane="a")
    runs, waits = await given.submitted(lane="a"), await given.submitted(lane="a")
    await claimed(given, runs)
    await stored(given, waits, "phase = 'suspended', reason = 'waiting_for_signal'")
    await lanes.configure_lane(conn, "empty")

    found, empty = await lane(conn, "a"), await lane(conn, "empty")
    assert (found.waiting_count, found.delayed_count, found.active_count, found.suspended_count) == (2, 1, 1, 1)
    assert found.oldest_at == (await executions.describe(conn, oldest)).created_at
    assert (empty.waiting_count, empty.delayed_count, empty.active_count, empty.suspended_count) == (0, 0, 0, 0)
    assert empty.oldest_at is None


async def test_a_due_execution_counts_as_waiting_before_any_sweep(conn: Connection, given: Given) -> None:
    execution_id = await given.submitted(lane="a", delay=timedelta(hours=1))
    await given.time_passes(hours=1)
    await given.submitted(lane="a")

    found = await lane(conn, "a")
    assert (found.waiting_count, found.delayed_count) == (2, 0)
    assert found.oldest_at == (await executions.describe(conn, execution_id)).created_at


async def test_the_oldest_is_found_among_many_routes_and_priorities(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "a")
    await given.rows(BACKLOG, "a", 2_000, None, "eligible_now", "runnable")
    await given.rows(BACKLOG, "b", 3_000, None, "eligible_now", "runnable")

    [oldest] = await given.rows("select min(created_at) as at from flowfabric.tickets where lane = 'a'")
    assert (await lane(conn, "a")).oldest_at == oldest["at"]


@pytest.mark.parametrize(
    ("eligibility", "phase", "count"),
    [
        ("eligible_now", "runnable", "waiting_count"),
        ("not_eligible_until_time", "runnable", "delayed_count"),
        ("eligible_now", "active", "active_count"),
        ("eligible_now", "suspended", "suspended_count"),
    ],
)
async def test_counts_stop_just_past_ten_thousand(
    conn: Connection, given: Given, eligibility: str, phase: str, count: str
) -> None:
    await lanes.configure_lane(conn, "a")
    due = await testing.now(conn) + timedelta(days=1)
    await given.rows(BACKLOG, "a", 10_000, due, eligibility, phase)
    assert getattr(await lane(conn, "a"), count) == 10_000
    await given.rows(BACKLOG, "a", 500, due, eligibility, phase)

    assert getattr(await lane(conn, "a"), count) == 10_001
    assert (await lanes.drain_lane(conn, "a", by="ada")).left_count == 10_001


async def test_pausing_writes_one_row_whatever_the_backlog(conn: Connection, given: Given) -> None:
    await lanes.configure_lane(conn, "a")
    await given.rows(BACKLOG, "a", 5_000, None, "eligible_now", "runnable")
    written = "select sum(n_tup_ins + n_tup_upd + n_tup_del)::int as rows from pg_stat_xact_user_tables"

    async with conn.transaction():
        [before] = await given.rows(written)
        await lanes.pause_lane(conn, "a", by="ada")
        [after] = await given.rows(written)
    assert after["rows"] - before["rows"] == 2  # the lane and its event


async def test_lanes_are_listed_by_name_page_by_page(conn: Connection) -> None:
    names = ["B", "a", "a b", "a~", "c", "c1"]
    for name in reversed(names):
        await lanes.configure_lane(conn, name)

    async def paged(limit: int) -> list[str]:
        pages: list[Page[Lane]] = [await lanes.list_lanes(conn, limit=limit)]
        while (cursor := pages[-1].next_cursor) is not None:
            pages.append(await lanes.list_lanes(conn, cursor=cursor, limit=limit))
        assert all(len(page.items) == limit for page in pages[:-1])
        return [found.name for page in pages for found in page.items]

    assert [await paged(limit) for limit in range(1, 8)] == [names] * 7


@pytest.mark.parametrize(("limit", "shown", "more"), [(0, 0, False), (1, 1, True), (3, 3, False), (10**12, 3, False)])
async def test_a_page_has_as_many_lanes_as_requested(conn: Connection, limit: int, shown: int, more: bool) -> None:
    for name in "abc":
        await lanes.configure_lane(conn, name)

    page = await lanes.list_lanes(conn, limit=limit)
    assert (len(page.items), page.next_cursor is not None) == (shown, more)


async def test_a_page_has_a_cursor_only_if_another_page_follows(conn: Connection) -> None:
    for name in "ab":
        await lanes.configure_lane(conn, name)

    assert (await lanes.list_lanes(conn, limit=1)).next_cursor == "a"
    assert (await lanes.list_lanes(conn, cursor="a", limit=1)).next_cursor is None
    assert await lanes.list_lanes(conn, cursor="z") == Page([])


@pytest.mark.parametrize("limit", [-1, -(10**12)])
async def test_a_limit_below_zero_is_refused(conn: Connection, limit: int) -> None:
    with pytest.raises(InvalidLimit):
        await lanes.list_lanes(conn, limit=limit)


async def test_a_page_has_at_most_a_thousand_lanes(conn: Connection, given: Given) -> None:
    await given.rows(
        "insert into flowfabric.lanes (name, since) select 'l' || i, now() from generate_series(1, 1001) i"
    )

    page = await lanes.list_lanes(conn, limit=5_000)
    assert (len(page.items), page.next_cursor) == (1_000, page.items[-1].name)


async def test_a_concurrent_pause_and_resume_happen_one_after_the_other(given: Given, connect: Connect) -> None:
    one, other = await connect(), await connect()
    await lanes.configure_lane(one, "a")

    async with one.transaction():
        await lanes.pause_lane(one, "a", by="ada")
        resume = asyncio.create_task(lanes.resume_lane(other, "a", by="bob"))
        await blocked(given, other, resume)
    assert await resume is LaneChange.ACTIVE

    assert (await lane(one, "a")).state == "active"
    assert await given.events() == ["lane_registered", "lane_paused", "lane_resumed"]


async def test_many_pauses_and_resumes_leave_as_many_events_as_changes(given: Given, connect: Connect) -> None:
    opened = [await connect() for _ in range(4)]
    await lanes.configure_lane(opened[0], "a")

    async def switch(conn: Connection, by: str) -> Sequence[LaneChange]:
        pairs = [
            (await lanes.pause_lane(conn, "a", by=by), await lanes.resume_lane(conn, "a", by=by)) for _ in range(20)
        ]
        return [change for pair in pairs for change in pair]

    changes = [c for one in await asyncio.gather(*(switch(c, f"{n}") for n, c in enumerate(opened))) for c in one]
    events = (await given.events())[1:]
    assert changes.count(LaneChange.PAUSED) == events.count("lane_paused")
    assert changes.count(LaneChange.ACTIVE) == events.count("lane_resumed")
    assert events == ["lane_paused", "lane_resumed"] * (len(events) // 2)
    assert (await lane(opened[0], "a")).state == "active"


async def test_a_submit_that_waited_for_a_new_lane_sees_that_it_is_draining(given: Given, connect: Connect) -> None:
    one, other = await connect(), await connect()

    async with one.transaction():
        await lanes.configure_lane(one, "a")
        await lanes.drain_lane(one, "a", by="ada")
        made = asyncio.create_task(lanes.configure_lane(other, "a"))
        await blocked(given, other, made)
    assert await made is LaneChange.NOOP

    assert [found.state for found in (await lanes.list_lanes(other)).items] == ["draining"]
    assert (await given.events()).count("lane_registered") == 1


async def test_a_granted_execution_counts_as_waiting_and_as_left(conn: Connection, given: Given) -> None:
    await given.submitted(lane="reports")
    await given.submitted(lane="reports")
    assert len(await claims.issue_grant(conn, "w", instance="w-1", lanes=["reports"])) == 1

    assert (await lane(conn, "reports")).waiting_count == 2
    assert (await lanes.drain_lane(conn, "reports", by="ops")).left_count == 2
