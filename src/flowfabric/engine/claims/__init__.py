"""Claims: take executions under a lease, renew and lose leases; and grants, which can be turned into a lease."""

from flowfabric.engine.claims.claim import claim
from flowfabric.engine.claims.combined import signal_and_claim, submit_and_claim
from flowfabric.engine.claims.grants import claim_granted, expire_grants, issue_grant, verify_grant
from flowfabric.engine.claims.leases import expire_leases, mark_begun_many, renew, renew_many, revoke

__all__ = [
    "claim",
    "claim_granted",
    "expire_grants",
    "expire_leases",
    "issue_grant",
    "mark_begun_many",
    "renew",
    "renew_many",
    "revoke",
    "signal_and_claim",
    "submit_and_claim",
    "verify_grant",
]
