"""Define quotas: create, change, describe and list them."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from flowfabric import errors, ids
from flowfabric.engine import quotas
from flowfabric.postgres.driver import Connection
from tests.conftest import Connect
from tests.given import Given

MOST = 9_007_199_254_740_991


async def test_a_quota_is_created_once_and_its_id_is_derived_from_its_name(conn: Connection, given: Given) -> None:
    made = await quotas.create_quota(conn, "model", max_requests_per_window=100, max_concurrent=10, by="ops")
    again = await quotas.create_quota(conn, "model", max_requests_per_window=100, max_concurrent=10)

    assert (made.outcome, again.outcome) == ("created", "exists")
    assert made.quota_id == again.quota_id == ids.quota_id("default", "model")
    [stored] = await given.rows("select partition from flowfabric.quotas")
    assert stored["partition"] == ids.named_partition(made.quota_id, 32)
    assert await given.events() == ["quota_created"]
    assert await given.event("quota_created") == {
        "quota_id": str(made.quota_id),
        "namespace": "default",
        "window_seconds": 60,
        "max_requests_per_window": 100,
        "max_concurrent": 10,
    }


async def test_another_quota_with_the_same_name_is_refused(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=10)

    async with given.nothing_changes():
        with pytest.raises(errors.QuotaAlreadyExists, match=r"\"max_concurrent\": 10.*change_quota"):
            await quotas.create_quota(conn, "model", max_concurrent=11)
        with pytest.raises(errors.QuotaAlreadyExists):
            await quotas.create_quota(conn, "model", max_concurrent=10, max_requests_per_window=1)


async def test_the_same_name_in_another_namespace_is_another_quota(conn: Connection) -> None:
    one = await quotas.create_quota(conn, "model", max_concurrent=1, namespace="a")
    other = await quotas.create_quota(conn, "model", max_concurrent=2, namespace="b")

    assert one.quota_id != other.quota_id
    assert (await quotas.describe_quota(conn, "model", namespace="a")).max_concurrent == 1
    assert (await quotas.describe_quota(conn, str(other.quota_id), namespace="b")).max_concurrent == 2


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("max_requests_per_window", {}),
    ("max_requests_per_window", {"max_requests_per_window": 0}),
    ("max_requests_per_window", {"max_requests_per_window": -(10**30)}),
    ("max_requests_per_window", {"max_requests_per_window": MOST + 1}),
    ("max_requests_per_window", {"max_requests_per_window": 1.5}),
    ("max_concurrent", {"max_concurrent": 0}),
    ("max_concurrent", {"max_concurrent": 10**30}),
    ("max_concurrent", {"max_concurrent": True}),
    ("max_concurrent", {"max_concurrent": "10"}),
    ("window_seconds", {"max_concurrent": 1, "window_seconds": 0}),
    ("window_seconds", {"max_concurrent": 1, "window_seconds": 86_401}),
    ("window_seconds", {"max_concurrent": 1, "window_seconds": 10**12}),
]


async def test_invalid_limits_are_refused(conn: Connection, given: Given) -> None:
    async with given.nothing_changes():
        for field, limits in REFUSED:
            with pytest.raises(errors.InvalidQuota) as refused:
                await quotas.create_quota(conn, "model", **limits)
            assert refused.value.fields["field"] == field, limits


async def test_the_smallest_and_largest_limits_are_accepted(conn: Connection) -> None:
    await quotas.create_quota(conn, "often", max_requests_per_window=MOST, window_seconds=86_400)
    await quotas.create_quota(conn, "rarely", max_requests_per_window=1, window_seconds=1, max_concurrent=MOST)

    often, rarely = (await quotas.list_quotas(conn)).items
    assert (often.max_requests_per_window, often.window_seconds, often.room) == (MOST, 86_400, MOST)
    assert (rarely.max_concurrent, rarely.window_seconds, rarely.room) == (MOST, 1, 1)


async def test_an_invalid_name_is_refused(conn: Connection, given: Given) -> None:
    async with given.nothing_changes():
        for name in ("", " model", "model ", "m" * 129, "mödel", "a\0b", str(uuid4()), "\ud800"):
            with pytest.raises(errors.InvalidName):
                await quotas.create_quota(conn, name, max_concurrent=1)


async def test_concurrent_calls_create_the_same_quota_once(connect: Connect, given: Given) -> None:
    conns = [await connect() for _ in range(4)]

    made = await asyncio.gather(*(quotas.create_quota(conn, "model", max_concurrent=1) for conn in conns))

    assert sorted(each.outcome for each in made) == ["created", "exists", "exists", "exists"]
    assert await given.events() == ["quota_created"]


async def test_a_change_keeps_omitted_limits(conn: Connection, given: Given) -> None:
    made = await quotas.create_quota(conn, "model", max_requests_per_window=100, max_concurrent=10)
    await given.submitted(quotas=["model"], lane="reports")

    changed = await quotas.change_quota(conn, "model", by="ops", max_concurrent=5)
    assert (changed.outcome, changed.lanes) == ("changed", ["reports"])
    await quotas.change_quota(conn, made.quota_id, by="ops", window_seconds=1)

    shown = await quotas.describe_quota(conn, "model")
    assert (shown.max_requests_per_window, shown.window_seconds, shown.max_concurrent) == (100, 1, 5)
    assert (await given.event("quota_changed"))["max_concurrent"] == 5


async def test_an_invalid_change_is_refused(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_concurrent=10)

    async with given.nothing_changes():
        with pytest.raises(errors.InvalidQuota):
            await quotas.change_quota(conn, "model", by="ops", max_concurrent=0)
        with pytest.raises(errors.InvalidQuota):
            await quotas.change_quota(conn, "model", by="ops", window_seconds=-1)
        with pytest.raises(errors.InvalidBody):
            await quotas.change_quota(conn, "model", by="o" * 257, max_concurrent=1)


CALLS: dict[str, Callable[[Connection, str], Any]] = {
    "change_quota": lambda conn, quota: quotas.change_quota(conn, quota, by="ops", max_concurrent=1),
    "describe_quota": lambda conn, quota: quotas.describe_quota(conn, quota),
}


@pytest.mark.parametrize("call", CALLS)
async def test_an_unknown_quota_is_not_found(conn: Connection, given: Given, call: str) -> None:
    async with given.nothing_changes():
        for quota in ("", "nobody", "NOBODY'; --", "x" * 10_000, str(UUID(int=7))):
            with pytest.raises(errors.QuotaNotFound, match="create_quota"):
                await CALLS[call](conn, quota)
        with pytest.raises(errors.InvalidText):
            await CALLS[call](conn, "a\0b")


async def test_a_new_quota_is_empty(conn: Connection, given: Given) -> None:
    await quotas.create_quota(conn, "model", max_requests_per_window=100, max_concurrent=10)

    shown = await quotas.describe_quota(conn, "model")
    assert (shown.in_window, shown.held_count, shown.room, shown.next_room_at) == (0, 0, 10, None)
    [now] = await given.rows("select flowfabric.clock() as now")
    assert now["now"] - shown.created_at < timedelta(minutes=1)


async def test_quotas_of_a_namespace_are_listed_by_name_page_by_page(conn: Connection) -> None:
    for name in ("x", "z", "y", "w"):
        await quotas.create_quota(conn, name, max_concurrent=1)
    await quotas.create_quota(conn, "v", max_concurrent=1, namespace="other")

    first = await quotas.list_quotas(conn, limit=3)
    rest = await quotas.list_quotas(conn, limit=3, cursor=first.next_cursor)

    assert [quota.name for quota in [*first.items, *rest.items]] == ["w", "x", "y", "z"]
    assert rest.next_cursor is None
    assert [quota.name for quota in (await quotas.list_quotas(conn, namespace="other")).items] == ["v"]
    with pytest.raises(errors.InvalidLimit):
        await quotas.list_quotas(conn, limit=-1)
