"""The inbox: every approval that people are asked for now, the oldest first."""

from typing import Any

import pytest

from flowfabric import App, Context
from flowfabric.engine import waits
from flowfabric.errors import InvalidCursor, InvalidLimit
from flowfabric.model import Approval, Suspension
from tests.app.scene import TIMEOUT, happens, working
from tests.given import Given
from tests.sql.reading import reading


async def inbox(app: App, **filters: Any) -> list[Approval]:
    return list((await app.approvals.list(**filters)).items)


async def test_an_open_approval_says_what_is_asked_by_whom_and_until_when(app: App) -> None:
    @app.task(lane="desk")
    async def publish(ctx: Context) -> bool:
        verdict = await ctx.approval("publish", subject={"page": 3}, approvers=2, timeout="2d")
        return verdict.approved

    async with working(app):
        execution = await publish.with_options(tags={"team": "news"}).submit()
        await happens(execution, "execution_suspended")
        [asked] = await inbox(app)
        assert (asked.execution_id, asked.title, asked.task, asked.lane) == (
            execution.execution_id,
            "publish",
            "publish",
            "desk",
        )
        assert (asked.about, asked.approvers, asked.approved_by, asked.by_token) == (b'{"page":3}', 2, [], False)
        assert asked.timeout_at is not None
        assert (asked.timeout_at - asked.asked_at).days == 2
        assert asked.about_digest is not None

        await execution.approve("publish", by="ann", subject={"page": 3})
        [asked] = await inbox(app, lane="desk", namespace="default", tag=("team", "news"))
        assert asked.approved_by == ["ann"]
        for others in ({"lane": "default"}, {"namespace": "other"}, {"tag": ("team", "sport")}):
            assert await inbox(app, **others) == []
        await execution.approve("publish", by="ben", subject={"page": 3})
        assert await execution.result(TIMEOUT) is True
        assert await inbox(app) == []


async def test_each_approval_of_an_execution_is_listed_beside_its_other_waits(app: App) -> None:
    @app.task
    async def publish(ctx: Context) -> None:
        await ctx.all_of(ctx.approval("text"), ctx.approval("image", timeout="1h"), ctx.wait_for_signal("go"))

    async with working(app):
        execution = await publish.submit()
        await happens(execution, "execution_suspended")
        assert sorted(asked.title for asked in await inbox(app)) == ["image", "text"]
        assert {asked.by_token for asked in await inbox(app)} == {True}
        await execution.cancel()
        assert await inbox(app) == []


async def test_pages_are_in_the_order_of_asking_and_without_gaps(app: App) -> None:
    @app.task
    async def publish(ctx: Context, number: int) -> None:
        await ctx.approval(f"page {number}")

    async with working(app):
        for number in range(5):
            await happens(await publish.submit(number), "execution_suspended")
        titles, cursor = list[str](), None
        while True:
            page = await app.approvals.list(limit=2, cursor=cursor)
            titles += [asked.title for asked in page.items]
            if (cursor := page.next_cursor) is None:
                break
        assert titles == [f"page {number}" for number in range(5)]


async def test_a_wrong_page_is_refused(given: Given) -> None:
    with pytest.raises(InvalidCursor):
        await waits.list_approvals(given.conn, cursor="x")
    with pytest.raises(InvalidLimit):
        await waits.list_approvals(given.conn, limit=-1)


async def test_a_page_reads_no_more_however_many_approvals_are_open(given: Given) -> None:
    wish = Suspension(
        condition={"kind": "single", "waitpoint": "w", "name": "approve"},
        waitpoints=["w"],
        reason_code="waiting_for_approval",
        timeout=None,
        timeout_behavior="auto_resume",
    )
    for _ in range(150):
        claim = await given.claimed()
        await waits.suspend(given.conn, claim.fence, wish)
    async with given.conn.transaction():
        page, read = await reading(
            given.conn, waits.list_approvals(given.conn, limit=10), ["waits", "executions", "waitpoints", "signals"]
        )
    assert len(page.items) == 10
    assert (read.rows <= 150, read.whole) == (True, 0), read
