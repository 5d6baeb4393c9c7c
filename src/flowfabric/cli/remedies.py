"""What would release an execution or a group of stuck ones, as the command to type."""

import shlex
from datetime import datetime

import msgspec

from flowfabric.cli.texts import moment
from flowfabric.doctor.work import route_remedy
from flowfabric.model import Description, Overview, PublicState, Stuck


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why an execution is where it is, and what would change that."""

    execution_id: str
    state: PublicState
    sentence: str
    waits_for: str
    remedy: str
    since: datetime | None = None
    releases_at: datetime | None = None
    released_by: str | None = None


def reason(found: Description, *, served: bool) -> Reason:
    """Why an execution is where it is; `served` when some live worker takes work of its lane."""
    said = found.explanation
    return Reason(
        execution_id=found.execution_id,
        state=found.state.public_state,
        sentence=said.sentence,
        waits_for=said.waits_for,
        remedy=remedy(found, served=served),
        since=said.since,
        releases_at=said.releases_at,
        released_by=said.released_by,
    )


def says(why: Reason) -> str:
    """Why, and below it what to do."""
    head = "" if why.sentence.startswith(why.state) else f"{why.state}: "
    return f"{head}{why.sentence}\n  {why.remedy}"


def remedy(found: Description, *, served: bool) -> str:
    """What to do about it, or that there is nothing to do."""
    said, execution, lane = found.explanation, found.execution_id, shlex.quote(found.lane)
    match said.released_by:
        case "resume_lane":
            return f"ff lanes resume {lane}"
        case "unhold":
            return f"ff executions unhold {execution}"
        case "register_worker":
            return f"ff worker FILE.py:app --lanes {lane} --capabilities {shlex.quote(','.join(found.needs))}"
        case "claim" if not served:
            return f"no live worker serves lane {found.lane}: ff worker FILE.py:app --lanes {lane}"
        case "claim" | "claim_granted":
            return "nothing to do: a worker takes it when it has room"
        case "time":
            return _later(found)
        case "complete" if said.waits_for == "quota":
            return "nothing to do: it goes on when one ends; `ff quotas list` shows it, `ff quotas change` raises it"
        case "complete" if said.waits_for == "upstreams":
            return f"nothing to do: it goes on when they have ended; all of them: ff flows show {found.flow_id}"
        case "complete":
            instance = found.lease.instance if found.lease else ""
            return f"nothing to do while it runs; if that process is gone: ff workers mark-dead {shlex.quote(instance)}"
        case "expire_leases":
            return "a sweep gives it to another worker; if none does: ff sweep --once"
        case "deliver_signal":
            return _answer(found)
        case "change_budget":
            return "`ff budgets list` shows it; `ff budgets change` raises it, `ff budgets reset` begins anew"
        case "resume":
            return f"ff executions resume {execution}"
        case "replay" if said.waits_for == "upstreams":
            return "run again what it waits for: ff executions replay UPSTREAM"
        case "replay":
            return f"to run it again: ff executions replay {execution}"
        case None:
            return "nothing to do: it has ended"
        case other:
            return f"{other} releases it"


def _later(found: Description) -> str:
    at = f" at {moment(found.explanation.releases_at)}" if found.explanation.releases_at else ""
    if found.state.attempt_state == "attempt_interrupted" and found.suspension is None:
        # It sleeps, or it was handed back by a worker that does not know its task; the two look alike.
        why = f"no worker has a task {found.task}: is the name right?"
        return f"nothing to do: it goes on{at}; if it is put off again and again, {why}"
    return f"nothing to do: it goes on{at}"


def _answer(found: Description) -> str:
    waits = found.suspension
    keys = waits.waitpoint_keys if waits else ()
    key = shlex.quote(keys[0]) if len(keys) == 1 else "WAITPOINT"
    if waits is not None and waits.reason_code == "waiting_for_approval":
        return f"ff waitpoints approve {found.execution_id} {key}"
    return f"ff waitpoints signal {found.execution_id} {key} NAME"


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
        case "lease_lapsed":
            return "a sweep releases its executions within seconds; if they stay: ff sweep --once"
        case "waiting_for_budget":
            return "raise the budget, reset it, or wait for its next reset: ff budgets list"
        case "no_worker" | "blocked_by_route" | "blocked_by_lane_state" | "blocked_by_budget" | "blocked_by_quota":
            return route_remedy(stuck)
        case _:
            return f"send the signal it waits for: ff waitpoints describe {subject}"
