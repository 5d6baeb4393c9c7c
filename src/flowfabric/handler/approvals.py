"""Approvals: the wait for people to decide, and their verdict."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from flowfabric import payloads
from flowfabric.model import Signal, Suspension


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on an approval, and the people who made it."""

    approved: bool
    timed_out: bool = False
    by: Sequence[str] = ()
    note: str | None = None


def approval(
    title: str, *, subject: object, approvers: int, timeout: timedelta | datetime | None, bind: bool
) -> Suspension:
    """Build the wait for `approvers` different people to approve, or one to reject. Raises `ValueError`, `InvalidBody`.

    With more than one approver, only people whom the deployment has authenticated count: one holder of the token could
    pretend to be two people.
    """
    if approvers < 1:
        raise ValueError(f"approvers {approvers} is invalid; use 1 or more")
    source = {"source_type": "operator"} if approvers > 1 else {}
    approved = {"kind": "count", "n": approvers, "of": "distinct_sources", "name": "approve", "waitpoints": [title]}
    rejected = {"kind": "single", "waitpoint": title, "name": "reject"}
    return Suspension(
        condition={"kind": "any_of", "members": [approved | source, rejected | source]},
        waitpoints=[title],
        reason_code="waiting_for_approval",
        timeout=timeout,
        timeout_behavior="auto_resume",
        about=None if subject is None else payloads.encode(subject),
        bind=bind and subject is not None,
    )


def read_verdict(signals: Sequence[Signal]) -> Verdict:
    """Read the verdict from the signals that ended an approval; a rejection wins over approvals that came with it."""
    decisions = [signal for signal in signals if signal.source_type != "system"]
    return Verdict(
        approved=bool(decisions) and all(signal.name == "approve" for signal in decisions),
        timed_out=any(signal.name == "timeout" for signal in signals if signal.source_type == "system"),
        by=[signal.source_identity for signal in decisions],
        note=next((note for signal in reversed(decisions) if (note := _note(signal)) is not None), None),
    )


def _note(signal: Signal) -> str | None:
    """Read the note that was sent with a decision, if any."""
    try:
        return None if signal.payload is None else msgspec.json.decode(signal.payload, type=str)
    except msgspec.MsgspecError:
        return None


def first_signal(signals: Sequence[Signal]) -> Signal | None:
    """Return the first signal that somebody has sent; a timeout is not one."""
    return next((signal for signal in signals if signal.source_type != "system"), None)
