"""Approvals: asking people, and what they said."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from flowfabric import payloads
from flowfabric.model import Signal, Suspension


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided on an approval, and by whom."""

    approved: bool
    timed_out: bool = False
    by: Sequence[str] = ()
    note: str | None = None


def approval(
    title: str, *, subject: object, approvers: int, timeout: timedelta | datetime | None, bind: bool
) -> Suspension:
    """The wait for so many different people to say yes, or one to say no. Raises `ValueError`, `InvalidBody`.

    With more than one, only those the deployment has authenticated count: whoever holds a token could be two people.
    """
    if approvers < 1:
        raise ValueError(f"approvers is {approvers}; somebody has to approve, so give 1 or more")
    source = {"source_type": "operator"} if approvers > 1 else {}
    yes = {"kind": "count", "n": approvers, "of": "distinct_sources", "name": "approve", "waitpoints": [title]}
    no = {"kind": "single", "waitpoint": title, "name": "reject"}
    return Suspension(
        condition={"kind": "any_of", "members": [yes | source, no | source]},
        waitpoints=[title],
        reason_code="waiting_for_approval",
        timeout=timeout,
        timeout_behavior="auto_resume",
        about=None if subject is None else payloads.encode(subject),
        bind=bind and subject is not None,
    )


def read_verdict(signals: Sequence[Signal]) -> Verdict:
    """What the signals that ended an approval amount to; where a yes and a no came together, the no counts."""
    said = [signal for signal in signals if signal.source_type != "system"]
    return Verdict(
        approved=bool(said) and all(signal.name == "approve" for signal in said),
        timed_out=any(signal.name == "timeout" for signal in signals if signal.source_type == "system"),
        by=[signal.source_identity for signal in said],
        note=next((note for signal in reversed(said) if (note := _note(signal)) is not None), None),
    )


def _note(signal: Signal) -> str | None:
    """What whoever decided had to say: the text that came with the decision."""
    try:
        return None if signal.payload is None else msgspec.json.decode(signal.payload, type=str)
    except msgspec.MsgspecError:
        return None
