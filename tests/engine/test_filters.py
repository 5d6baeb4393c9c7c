"""Filters of lists and events: an empty name is refused, because it would match nothing or everything."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.engine import budgets, claims, events, executions, flows, quotas, schedules, waits, workers
from flowfabric.errors import InvalidLimit, InvalidName, InvalidText
from flowfabric.model import EventFilter, EventPage
from flowfabric.postgres.driver import Connection
from tests.given import Given

Listing = Callable[..., Awaitable[Any]]


async def read_events(conn: Connection, *, limit: int = 256, **wanted: Any) -> EventPage:
    return await events.read_events(conn, events.OLDEST, EventFilter(**wanted), limit=limit)


LISTS: dict[Listing, tuple[str, ...]] = {
    executions.list_executions: ("namespace", "lane", "task"),
    workers.list_workers: ("namespace", "lane"),
    waits.list_suspended: ("namespace", "lane", "reason_code"),
    flows.list_flows: ("namespace",),
    schedules.list_schedules: ("namespace",),
    budgets.list_budgets: ("namespace",),
    quotas.list_quotas: ("namespace",),
    read_events: ("namespace", "lane", "by"),
}
FILTERS = [(listing, name) for listing, names in LISTS.items() for name in names]


async def test_an_empty_or_unstorable_filter_is_refused(conn: Connection, given: Given) -> None:
    await given.held()

    for listing, name in FILTERS:
        with pytest.raises(
            InvalidName, match=f"^invalid_name: {name} '' is invalid; use a name, or remove the filter$"
        ):
            await listing(conn, **{name: ""})
        for unstorable in ("\0", "\udcff"):
            with pytest.raises(InvalidText):
                await listing(conn, **{name: unstorable})


@pytest.mark.parametrize("listing", [executions.list_executions, read_events])
async def test_a_tag_filter_needs_a_name(conn: Connection, listing: Listing) -> None:
    with pytest.raises(InvalidName, match=r"^invalid_name: tag name '' is invalid"):
        await listing(conn, tag=("", "acme"))


async def test_an_empty_namespace_of_a_worker_is_refused(conn: Connection, given: Given) -> None:
    await given.submitted()

    async with given.nothing_changes():
        with pytest.raises(InvalidName):
            await given.claim(namespace="")
        with pytest.raises(InvalidName):
            await claims.issue_grant(conn, "pool", instance="pool-1", lanes=["default"], namespace="")
        with pytest.raises(InvalidName):
            await workers.register_worker(conn, "pool", instance="pool-1", lanes=["default"], namespace="")


@pytest.mark.parametrize("listing", LISTS)
async def test_any_large_limit_is_accepted_and_a_negative_one_is_refused(conn: Connection, listing: Listing) -> None:
    await listing(conn, limit=10**30)
    for limit in (-1, -(10**30)):
        with pytest.raises(InvalidLimit):
            await listing(conn, limit=limit)
