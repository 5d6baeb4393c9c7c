"""Define quotas: create, change and read them."""

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
    """Create a quota with at least one limit; safe to repeat with the same limits.

    Raises `InvalidName`, `InvalidNamespace`, `InvalidQuota`, `InvalidBody`, and `QuotaAlreadyExists` if a quota with
    this name has other limits.
    """
    quota_id = ids.quota_id(namespace, name)
    outcome = await call.value(
        conn,
        "create_quota",
        partition=ids.named_partition(quota_id, partitions),
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
    """Change the limits of a quota, by name or id; omitted limits keep their values. Safe to repeat.

    The next claim uses the new limits; running executions continue, even above a lowered limit. Raises `QuotaNotFound`,
    `InvalidQuota`, `InvalidBody`.
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
    """Describe a quota, by name or id: its limits, its usage and the remaining room.

    Raises `QuotaNotFound`.
    """
    return msgspec.json.decode(await call.value(conn, "describe_quota", **_named(quota, namespace)), type=Quota)


async def list_quotas(
    conn: Connection, *, namespace: str = "default", cursor: str | None = None, limit: int = 50
) -> Page[Quota]:
    """List the quotas of a namespace by name. Raises `InvalidLimit`."""
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
    """Check for a whole number and clamp it to what Postgres can store; SQL checks the range."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidQuota(f"{field} {shown(str(given))} is invalid; use a whole number from 1", field=field)
    return max(min(given, most + 1 if most == MOST else most), -1)
