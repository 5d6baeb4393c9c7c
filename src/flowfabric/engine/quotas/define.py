"""Defining quotas: making, changing and reading them."""

from uuid import UUID

import msgspec

from flowfabric import ids
from flowfabric.errors import InvalidQuota
from flowfabric.ids import check_filter, check_text, shown
from flowfabric.model import ChangedQuota, CreatedQuota, Page, Quota
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection

MOST = 9_007_199_254_740_991


async def create_quota(
    conn: Connection,
    name: str,
    *,
    max_requests_per_window: int | None = None,
    window_seconds: int = 60,
    max_concurrent: int | None = None,
    namespace: str = "default",
    by: str | None = None,
    partitions: int = 32,
) -> CreatedQuota:
    """Make a quota; one limit at least, and safe to repeat with the same ones.

    Raises `InvalidName`, `InvalidNamespace`, `InvalidQuota`, `InvalidBody`, and `QuotaAlreadyExists` when there is one
    of that name with other limits.
    """
    quota_id = ids.quota_id(namespace, name)
    outcome = await call.value(
        conn,
        "create_quota",
        partition=ids.partition_of(quota_id, partitions),
        id=quota_id,
        namespace=namespace,
        name=name,
        window_seconds=_amount(window_seconds, "window_seconds", 2**31 - 1),
        max_requests_per_window=_amount(max_requests_per_window, "max_requests_per_window"),
        max_concurrent=_amount(max_concurrent, "max_concurrent"),
        by=by and check_text(by, "by"),
    )
    return CreatedQuota(outcome=outcome, quota_id=quota_id)


async def change_quota(
    conn: Connection,
    quota: str | UUID,
    *,
    by: str,
    max_requests_per_window: int | None = None,
    window_seconds: int | None = None,
    max_concurrent: int | None = None,
    namespace: str = "default",
) -> ChangedQuota:
    """Change the limits of a quota, by its name or id; what is left out stays. Safe to repeat.

    The next claim goes by them. What runs goes on, also above a lower cap. Raises `QuotaNotFound`, `InvalidQuota`,
    `InvalidBody`.
    """
    changed = await call.row(
        conn,
        "change_quota",
        **_named(quota, namespace),
        by=check_text(by, "by"),
        window_seconds=_amount(window_seconds, "window_seconds", 2**31 - 1),
        max_requests_per_window=_amount(max_requests_per_window, "max_requests_per_window"),
        max_concurrent=_amount(max_concurrent, "max_concurrent"),
    )
    return ChangedQuota(lanes=changed["lanes"] or ())


async def describe_quota(conn: Connection, quota: str | UUID, *, namespace: str = "default") -> Quota:
    """Show a quota, by its name or id: its limits, what of it is used, and how much room that leaves.

    Raises `QuotaNotFound`.
    """
    return msgspec.json.decode(await call.value(conn, "describe_quota", **_named(quota, namespace)), type=Quota)


async def list_quotas(
    conn: Connection, *, namespace: str = "default", cursor: str | None = None, limit: int = 50
) -> Page[Quota]:
    """The quotas of a namespace, by name. Raises `InvalidLimit`."""
    found = await call.rows(
        conn,
        "list_quotas",
        namespace=check_filter(namespace, "namespace"),
        after=check_text(cursor or "", "cursor"),
        take=call.take(limit),
    )
    return call.page([msgspec.json.decode(row["quota"], type=Quota) for row in found], limit, lambda quota: quota.name)


def _named(quota: str | UUID, namespace: str) -> dict[str, object]:
    return {"namespace": check_text(namespace, "namespace"), "quota": check_text(str(quota), "quota")}


def _amount(given: int | None, field: str, most: int = MOST) -> int | None:
    """A whole number that Postgres can hold; SQL says whether it will do."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidQuota(f"{field} {shown(str(given))} is no whole number; give one from 1", field=field)
    return max(min(given, most + 1 if most == MOST else most), -1)
