"""Grants: a signed claim on one execution for one worker, for workers without a database connection."""

from collections.abc import Collection
from datetime import timedelta

from flowfabric import calls
from flowfabric.engine.claims.claim import read_claim
from flowfabric.ids import ExecutionId, check_filter, check_text
from flowfabric.model import Claim, Grant, Swept, VerifiedGrant
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def issue_grant(
    conn: Connection,
    worker: str,
    *,
    instance: str,
    lanes: Collection[str],
    capabilities: Collection[str] = (),
    take: int = 1,
    ttl: timedelta = timedelta(seconds=10),
    after_route: int = 0,
    namespace: str | None = None,
    partitions: Collection[int] | None = None,
) -> list[Grant]:
    """Reserve up to `take` executions for a worker, by the same rules as `claim`; unused grants expire.

    Raises `InvalidGrantLifetime`, `NoActiveKey`, and what `claim` raises for invalid arguments.
    """
    granted = await call.rows(
        conn,
        "issue_grant",
        worker=check_text(worker, "worker"),
        instance=check_text(instance, "instance"),
        lanes=[check_text(lane, "lane") for lane in lanes],
        capabilities=calls.words(capabilities, "capability"),
        take=take,
        ttl_ms=calls.span(ttl, "ttl"),
        after_route=after_route,
        namespace=check_filter(namespace, "namespace"),
        partitions=None if partitions is None else list(partitions),
    )
    return [
        Grant(
            execution_id=ExecutionId(row["partition"], row["id"]),
            partition_key=f"{{fp:{row['partition']}}}",
            grant_key=row["grant_key"],
            expires_at=row["expires_at"],
            route=row["route"],
        )
        for row in granted
    ]


async def verify_grant(conn: Connection, grant_key: str) -> VerifiedGrant:
    """Check a grant and read what it says; changes nothing. Raises `InvalidGrant`, `GrantExpired`."""
    row = await call.row(conn, "verify_grant", grant_key=_sent(grant_key))
    return VerifiedGrant(
        execution_id=ExecutionId(row["partition"], row["id"]),
        worker=row["worker"],
        instance=row["instance"],
        expires_at=row["expires_at"],
    )


async def claim_granted(
    conn: Connection, grant_key: str, worker: str, *, instance: str, lease: timedelta = timedelta(seconds=30)
) -> Claim:
    """Turn a grant into a lease, once, for the worker it was issued to.

    Raises `InvalidGrant`, `GrantExpired`, `InvalidLease`.
    """
    row = await call.row(
        conn,
        "claim_granted",
        grant_key=_sent(grant_key),
        worker=check_text(worker, "worker"),
        instance=check_text(instance, "instance"),
        lease_ms=calls.span(lease, "lease"),
    )
    return read_claim(row)


async def expire_grants(conn: Connection, *, limit: int = 500, passing: int = 0) -> Swept:
    """Release the executions of grants that expired unused; a claim also does this for its lanes."""
    return await calls.sweep(conn, "expire_grants", limit, passing)


def _sent(grant_key: object) -> str:
    """The grant key to send. Other values are sent as an empty text, so that no error message contains them."""
    return grant_key if isinstance(grant_key, str) and grant_key.isascii() and "\0" not in grant_key else ""
