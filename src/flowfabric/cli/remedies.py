"""The command to type next: for an error, for an execution that waits, and for stuck executions in `ff top`."""

import shlex
from collections.abc import Mapping
from datetime import datetime

import msgspec

from flowfabric.cli.formatting import timestamp
from flowfabric.doctor.work import changed_remedy, route_remedy
from flowfabric.ids import ExecutionId
from flowfabric.model import Description, Overview, PublicState, Stuck

FOR_ERRORS = {
    "another_key_active": "to replace the active key: ff signing-keys rotate KID",
    "approval_digest_mismatch": "to see what is to be approved now: ff waitpoints describe EXECUTION",
    "budget_already_exists": "to change it: ff budgets change BUDGET",
    "budget_exhausted": "to raise its limit: ff budgets change BUDGET; to reset its usage: ff budgets reset BUDGET",
    "budget_not_found": "to see all budgets: ff budgets list; to create one: ff budgets create BUDGET",
    "cursor_expired": "to start with the oldest event that is still stored: --cursor oldest",
    "execution_cancelled": "to run it again: ff executions replay EXECUTION",
    "execution_ended": "to run it again: ff executions replay EXECUTION",
    "execution_expired": "to run it again: ff executions replay EXECUTION",
    "execution_failed": (
        "to see every attempt: ff executions attempts EXECUTION; to run it again: ff executions replay EXECUTION"
    ),
    "execution_not_found": "to find an execution: ff executions list",
    "execution_not_runnable": "to end it: ff executions cancel EXECUTION",
    "execution_not_suspended": "to see its state: ff executions explain EXECUTION",
    "execution_not_terminal": "to end it: ff executions cancel EXECUTION",
    "flow_not_found": "to find a flow: ff flows list",
    "invalid_token": "send the whole token that the execution received for this waitpoint",
    "lane_draining": "to open the lane again: ff lanes resume LANE",
    "lane_not_found": "to see all lanes: ff lanes list; to create one: ff lanes configure LANE",
    "no_active_key": "to install one: ff signing-keys rotate KID",
    "quota_already_exists": "to change it: ff quotas change QUOTA",
    "quota_not_found": "to see all quotas: ff quotas list; to create one: ff quotas create QUOTA",
    "schedule_already_exists": "to change it: ff schedules change SCHEDULE",
    "schedule_not_found": "to see all schedules: ff schedules list",
    "step_not_found": "to see what it has saved: ff executions steps EXECUTION",
    "target_not_signalable": "to see how it ended: ff executions describe EXECUTION",
    "waitpoint_closed": "to see the open waitpoints: ff waitpoints describe EXECUTION",
    "waitpoint_not_found": "to see its waitpoints: ff waitpoints describe EXECUTION",
}


def remedy_for(code: str, fields: Mapping[str, object]) -> str | None:
    """What to type after an error, with the id of its execution if the error names one."""
    remedy, execution = FOR_ERRORS.get(code), fields.get("execution_id")
    return remedy if remedy is None or execution is None else remedy.replace("EXECUTION", str(execution))


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an execution is in its state, and what would change that."""

    execution_id: ExecutionId
    state: PublicState
    sentence: str
    waits_for: str
    remedy: str
    since: datetime | None = None
    releases_at: datetime | None = None
    released_by: str | None = None


def explain(found: Description, *, served: bool) -> Explanation:
    """Explain the state of an execution; `served` means that a live worker serves its lane."""
    why = found.explanation
    return Explanation(
        execution_id=found.execution_id,
        state=found.state.public_state,
        sentence=why.sentence,
        waits_for=why.waits_for,
        remedy=remedy(found, served=served),
        since=why.since,
        releases_at=why.releases_at,
        released_by=why.released_by,
    )


def as_text(explained: Explanation) -> str:
    """The reason, and below it what to do."""
    head = "" if explained.sentence.startswith(explained.state) else f"{explained.state}: "
    return f"{head}{explained.sentence}\n  {explained.remedy}"


def remedy(found: Description, *, served: bool) -> str:
    """The command that releases an execution, or why there is nothing to do."""
    why, execution, lane = found.explanation, found.execution_id, shlex.quote(found.lane)
    match why.released_by:
        case "resume_lane":
            return f"ff lanes resume {lane}"
        case "unhold" if found.state.blocking_reason == "code_changed":
            return changed_remedy(str(execution))
        case "unhold":
            return f"ff executions unhold {execution}"
        case "register_worker" if why.waits_for == "worker_with_task":
            return (
                f"start a worker whose app has it: ff worker FILE.py:app --lanes {lane}; "
                f"if the name is misspelt: ff executions cancel {execution}"
            )
        case "register_worker" if why.waits_for == "worker_with_version":
            return (
                f"start a worker whose app has version {found.version}: ff worker FILE.py:app --lanes {lane}; or start "
                f"it again under another version: ff executions replay {execution} --from-scratch"
            )
        case "register_worker":
            return f"ff worker FILE.py:app --lanes {lane} --capabilities {shlex.quote(','.join(found.needs))}"
        case "claim" if not served:
            return f"no live worker serves lane {found.lane}: ff worker FILE.py:app --lanes {lane}"
        case "claim" | "claim_granted":
            return "nothing to do: a worker will run it as soon as it has a free slot"
        case "time":
            return _after_delay(found)
        case "complete" if why.waits_for == "quota":
            return (
                "nothing to do: it starts when another execution of the quota ends; "
                "to see the quota: ff quotas list; to raise it: ff quotas change QUOTA"
            )
        case "complete" if why.waits_for == "upstreams":
            return f"nothing to do: it starts after its upstreams; to see them: ff flows describe {found.flow_id}"
        case "complete":
            instance = found.lease.instance if found.lease else ""
            return f"nothing to do while it runs; if that process is gone: ff workers mark-dead {shlex.quote(instance)}"
        case "expire_leases":
            return "nothing to do: a sweep will pass it to another worker; if no sweeps are running: ff sweep --once"
        case "deliver_signal":
            return _answer(found)
        case "change_budget":
            return (
                "to see the budget: ff budgets list; to raise its limit: ff budgets change BUDGET; "
                "to reset its usage: ff budgets reset BUDGET"
            )
        case "resume":
            return f"ff executions resume {execution}"
        case "replay" if why.waits_for == "upstreams":
            return "to run the upstream that failed again: ff executions replay UPSTREAM"
        case "replay":
            return f"to run it again: ff executions replay {execution}"
        case None:
            return "nothing to do: it has ended"
        case other:
            return f"{other} releases it"


def _after_delay(found: Description) -> str:
    at = f" at {timestamp(found.explanation.releases_at)}" if found.explanation.releases_at else ""
    if found.state.attempt_state == "attempt_interrupted" and found.suspension is None:
        # Either it sleeps, or a worker without its task released it; the two look alike.
        return (
            f"nothing to do: it continues{at}; if it is delayed again and again, "
            f"no worker has a task named {found.task}: check the name"
        )
    return f"nothing to do: it continues{at}"


def _answer(found: Description) -> str:
    waits = found.suspension
    keys = waits.waitpoint_keys if waits else ()
    key = shlex.quote(keys[0]) if len(keys) == 1 else "WAITPOINT"
    if waits is not None and waits.reason_code == "waiting_for_approval":
        return f"ff waitpoints approve {found.execution_id} {key}"
    return f"ff waitpoints signal {found.execution_id} {key}"


class Remedied(Stuck, frozen=True, kw_only=True):
    """Stuck executions with their remedy, as `ff top --json` prints them."""

    remedy: str


def with_remedies(seen: Overview) -> Overview:
    """Add the remedy to every stuck entry of an overview."""
    stuck = [Remedied(**msgspec.structs.asdict(each), remedy=stuck_remedy(each)) for each in seen.stuck]
    return msgspec.structs.replace(seen, stuck=stuck)


def stuck_remedy(stuck: Stuck) -> str:
    """What to do about stuck executions, with the command to type."""
    subject = shlex.quote(stuck.subject or "")
    match stuck.reason:
        case "blocked_by_operator":
            return f"after checking it: ff executions unhold {subject}"
        case "due":
            return "the next claim or sweep takes it; if it stays: ff sweep --once"
        case "waiting_for_retry_backoff":
            return f"nothing to do until the retry; what went wrong: ff executions attempts {subject}"
        case "waiting_for_delay" | "waiting_for_resume_delay":
            return "nothing to do: it continues when its time comes"
        case "waiting_for_approval":
            return f"approve or reject it: ff waitpoints approve {subject}"
        case "waiting_for_children":
            return f"it continues when its children have ended: ff executions explain {subject}"
        case "paused_by_operator":
            return f"after checking it: ff executions resume {subject}"
        case "worker_lost":
            return f"a sweep releases its executions when the leases expire; at once: ff workers mark-dead {subject}"
        case "lease_expired":
            return (
                "a sweep releases its executions within seconds; if they stay: ff sweep --once; "
                "to list them: ff executions list --lease-expired"
            )
        case "waiting_for_budget":
            return "raise the budget, reset it, or wait for its next reset: ff budgets list"
        case "code_changed":
            return changed_remedy(subject)
        case (
            "no_worker"
            | "no_task"
            | "no_version"
            | "blocked_by_route"
            | "blocked_by_lane_state"
            | "blocked_by_budget"
            | "blocked_by_quota"
        ):
            return route_remedy(stuck)
        case _:
            return f"send the signal it waits for: ff waitpoints describe {subject}"
