"""Every refusal, in seven families.

    Refusal
    ├── Invalid      422  what was asked cannot be
    ├── Forbidden    403  whoever asks may not
    ├── NotFound     404  there is no such thing
    ├── Conflict     409  it is in a state that rules this out
    ├── Fenced       412  it belongs to someone else now
    ├── Limited      429  there is a limit, and it is reached
    └── Unavailable  503  not now; the same call may work later

The class name is the code in every layer: `LaneNotFound` here, `lane_not_found` in SQL, HTTP and the command. The
family gives the HTTP status and the tail of the SQLSTATE (`FF404`). Refusals are raised for a single call and returned
as values, one per item, by the set-based ones.
"""

import functools
import re
from collections.abc import Mapping
from typing import ClassVar


class Refusal(Exception):
    """A call was refused and nothing was changed."""

    status: ClassVar[int]
    code: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Refusal) and (type(self), self.args, self.fields) == (
            type(other),
            other.args,
            other.fields,
        )

    def __hash__(self) -> int:
        return hash((type(self), self.args))


class Invalid(Refusal):
    """What was asked for cannot be: mend the call."""

    status = 422


class Forbidden(Refusal):
    """Whoever asks may not do this."""

    status = 403


class NotFound(Refusal):
    """There is no such thing, or it has been removed by retention."""

    status = 404


class Conflict(Refusal):
    """The thing is in a state that rules this out."""

    status = 409


class Fenced(Refusal):
    """The work belongs to someone else now, or to nobody: stop, and report nothing."""

    status = 412


class Limited(Refusal):
    """A limit is reached."""

    status = 429


class Unavailable(Refusal):
    """Not now; nothing is wrong with the call itself."""

    status = 503


class InvalidId(Invalid):
    """An id or partition key is not of the shape `{fp:N}:<uuid>`; `cause` says which part."""


class WrongPartition(Invalid):
    """The id carries another partition than the flow it belongs to."""


class InvalidName(Invalid):
    """A name is empty, too long, or has characters a name may not have."""


class InvalidText(Invalid):
    """A text holds U+0000 or a lone surrogate, which Postgres cannot store."""


class InvalidBody(Invalid):
    """A field of the call is unknown, of the wrong type or out of its range; `field` names it."""


class InvalidLane(Invalid):
    """A lane name is 1 to 64 printable ASCII characters."""


class InvalidNamespace(Invalid):
    """A namespace is 1 to 64 printable ASCII characters."""


class InvalidCapabilities(Invalid):
    """The capability set cannot be accepted; `cause` says why."""


class InvalidPolicy(Invalid):
    """A policy field is unknown, of the wrong type, out of range, or would have no effect; `field` names it."""


class InvalidTagKey(Invalid):
    """A tag key is lower case with at least one dot, such as `billing.customer`."""


class InvalidTag(Invalid):
    """A tag value is too long, or there are too many tags."""


class InvalidTime(Invalid):
    """A moment lies in the past or more than ten years ahead, or a span is negative."""


class InvalidLimit(Invalid):
    """A limit is below zero, or a batch holds more than it may."""


class InvalidCursor(Invalid):
    """A cursor is not one this call gave out; `cause` says why."""


class PayloadTooLarge(Invalid):
    """A payload or result is over its limit; keep large data elsewhere and pass a reference."""


class FenceRequired(Invalid):
    """The execution is leased: this source of cancellation must show the lease it holds."""


class PartialFence(Invalid):
    """A fence is lease id, epoch and attempt together; a part of one proves nothing."""


class ExecutionNotFound(NotFound):
    """There is no such execution, or retention has removed it."""


class FlowNotFound(NotFound):
    """There is no such flow."""


class LaneNotFound(NotFound):
    """There is no lane of that name; lanes appear with their first submission or with `configure_lane`."""


class BudgetNotFound(NotFound):
    """The execution names a budget that does not exist; it is refused rather than run without it."""


class QuotaNotFound(NotFound):
    """The execution names a quota that does not exist; it is refused rather than run without it."""


class ExecutionEnded(Conflict):
    """The execution has ended; `outcome` says how."""


class ExecutionNotRunnable(Conflict):
    """The execution is active or suspended, so there is nothing to hold back; `phase` says which."""


class LaneDraining(Conflict):
    """The lane finishes what it has and takes no new work; `resume_lane` opens it again."""


class LeaseLost(Fenced):
    """The lease named by the fence is not, or no longer, the one that counts; `cause` says why."""


class PartitionCountMismatch(Unavailable):
    """This process is configured for other partition counts than the database was made with."""


class SchemaBehind(Unavailable):
    """The database is older than this version of FlowFabric; `ff migrate` brings it up to date."""


class SchemaAhead(Unavailable):
    """The database is newer than this version of FlowFabric; upgrade the package in this process."""


class DatabaseUnavailable(Unavailable):
    """Postgres could not be reached, or ended the connection, and repeating did not help."""


class ShuttingDown(Unavailable):
    """This process is closing and takes no more calls."""


@functools.cache
def by_code() -> Mapping[str, type[Refusal]]:
    """Every refusal there is, by its code."""
    return {leaf.code: leaf for family in Refusal.__subclasses__() for leaf in family.__subclasses__()}


def refusal(code: str, message: str, fields: Mapping[str, object]) -> Refusal:
    """The refusal of that code, as SQL or HTTP gave it."""
    return by_code()[code](message, **fields)
