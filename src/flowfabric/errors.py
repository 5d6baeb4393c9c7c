"""Every error: seven families of refused calls, and what handlers and callers of `result()` meet.

    FlowFabricError
    ├── Invalid      422  what was asked cannot be
    ├── Forbidden    403  whoever asks may not
    ├── NotFound     404  there is no such thing
    ├── Conflict     409  it is in a state that rules this out
    ├── Fenced       412  it belongs to someone else now
    ├── Limited      429  there is a limit, and it is reached
    ├── Unavailable  503  not now; the same call may work later
    ├── ExecutionFailed   the execution whose result was awaited did not complete
    │   └── ChildFailed   the same for a child, inside its parent's handler
    └── PermanentError    raised by a handler that must not be retried

The class name is the code in every layer: `LaneNotFound` here, `lane_not_found` in SQL, HTTP and the command. The
family gives the HTTP status and the tail of the SQLSTATE (`FF404`). Refusals are raised for a single call and returned
as values, one per item, by the set-based ones.
"""

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from flowfabric.ids import ExecutionId
    from flowfabric.model import Failure


class FlowFabricError(Exception):
    """A call was refused and nothing was changed."""

    status: ClassVar[int] = 500
    code: str

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlowFabricError) and (self.code, self.fields, *self.args) == (
            other.code, other.fields, *other.args
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.code, self.args))


class Invalid(FlowFabricError):
    """What was asked for cannot be: mend the call."""

    status = 422


class Forbidden(FlowFabricError):
    """Whoever asks may not do this."""

    status = 403


class NotFound(FlowFabricError):
    """There is no such thing, or it has been removed by retention."""

    status = 404


class Conflict(FlowFabricError):
    """The thing is in a state that rules this out."""

    status = 409


class Fenced(FlowFabricError):
    """The work belongs to someone else now, or to nobody: stop, and report nothing."""

    status = 412


class Limited(FlowFabricError):
    """A limit is reached."""

    status = 429


class Unavailable(FlowFabricError):
    """Not now; nothing is wrong with the call itself."""

    status = 503


class BadSetting(Invalid):
    """A setting has an invalid value; the message names its variable and what is allowed."""


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


class InvalidWorker(Invalid):
    """A worker's or an instance's name is 1 to 256 bytes without space, control character or `|`."""


class InvalidLease(Invalid):
    """A lease is asked for that is shorter or longer than a lease may be."""


class InvalidGrantLifetime(Invalid):
    """A grant is asked for that would live shorter or longer than a grant may."""


class InvalidSuspension(Invalid):
    """The wait cannot be: its condition, its waitpoints or its timeout; `cause` says why."""


class InvalidSignal(Invalid):
    """A field of a signal is missing, too long, or not the sender's to use; `field` names it."""


class InvalidSchedule(Invalid):
    """A schedule cannot be: its cron, zone, span or what it submits; `field` names it."""


class InvalidQuota(Invalid):
    """A quota cannot have such limits, or has none; `field` names the one that is wrong."""


class InvalidBudget(Invalid):
    """A budget cannot be defined like this; `field` names what is wrong."""


class InvalidUsage(Invalid):
    """An amount is no whole number from 0 to 2^53 - 1, or a sum would pass that; `dimension` names it."""


class InvalidKid(Invalid):
    """The name of a key is 1 to 64 letters, digits, dots, underscores or hyphens."""


class InvalidSecret(Invalid):
    """A secret is exactly 64 hexadecimal digits."""


class InvalidGrace(Invalid):
    """The grace of a rotation is 0 or more, in milliseconds."""


class InvalidDependency(Invalid):
    """An edge that cannot be; `cause` says why: an end that is no member, or a name that another edge passes."""


class InvalidEdgeGroup(Invalid):
    """A rule that no group of edges can have; `cause` says what is wrong with it."""


class FenceRequired(Invalid):
    """The execution is leased: this source of cancellation must show the lease it holds."""


class PartialFence(Invalid):
    """A fence is lease id, epoch and attempt together; a part of one proves nothing."""


class MissingToken(Forbidden):
    """A signal needs the token of its waitpoint."""


class InvalidToken(Forbidden):
    """The token is not good for this waitpoint; nothing else is told without a good one."""


class TokenExpired(Forbidden):
    """The key that signed the token has been retired; ask for a new token."""


class InvalidGrant(Forbidden):
    """The grant is not good, or not this worker's; `cause` says why."""


class WrongLane(Forbidden):
    """The execution is in another lane than the one this decision was made for."""


class ExecutionNotFound(NotFound):
    """There is no such execution, or retention has removed it."""


class FlowNotFound(NotFound):
    """There is no such flow."""


class LaneNotFound(NotFound):
    """There is no lane of that name; lanes appear with their first submission or with `configure_lane`."""


class BudgetNotFound(NotFound):
    """There is no such budget; an execution that names one is refused rather than run without it."""


class ReservationNotFound(NotFound):
    """The reservation is not there, or has ended; `report_usage` says what was spent without it."""


class QuotaNotFound(NotFound):
    """There is no such quota; an execution that names one is refused rather than run without it."""


class ScheduleNotFound(NotFound):
    """There is no schedule of that name in that namespace."""


class WaitpointNotFound(NotFound):
    """There is no such waitpoint of this execution."""


class ExecutionEnded(Conflict):
    """The execution has ended; `outcome` says how."""


class ExecutionNotRunnable(Conflict):
    """The execution is active or suspended, so there is nothing to hold back; `phase` says which."""


class ExecutionNotTerminal(Conflict):
    """The execution has not ended, so there is nothing to replay."""


class MaxReplaysExhausted(Conflict):
    """The execution has been replayed as often as its policy allows."""


class LaneDraining(Conflict):
    """The lane finishes what it has and takes no new work; `resume_lane` opens it again."""


class ScheduleAlreadyExists(Conflict):
    """There is another schedule of that name; `change_schedule` changes it."""


class BudgetAlreadyExists(Conflict):
    """There is a budget of that name with another definition; `change_budget` changes it."""


class QuotaAlreadyExists(Conflict):
    """There is a quota of that name with other limits; `change_quota` changes them."""


class InstanceReassigned(Conflict):
    """The instance is registered for another worker; an instance names one process start and is never reused."""


class ExecutionNotSuspended(Conflict):
    """The execution does not wait, so there is nothing to resume."""


class TargetNotSignalable(Conflict):
    """The execution has ended and takes no more signals; `outcome` says how."""


class WaitpointClosed(Conflict):
    """The waitpoint takes no more signals."""


class ApprovalDigestMismatch(Conflict):
    """The decision was made on something else than what is asked: read the request again."""


class WaitpointNotPending(Conflict):
    """The waitpoint is in use or closed, and cannot be waited on anew."""


class PendingWaitpointExpired(Conflict):
    """The waitpoint was made ahead and not used in time; create another."""


class WaitpointOfOtherExecution(Conflict):
    """The waitpoint belongs to another execution."""


class AnotherKeyActive(Conflict):
    """There is an active key already; `rotate_key` replaces it."""


class RotationConflict(Conflict):
    """The kid is known already, with another secret or retired; choose a new one."""


class ShapeChanged(Conflict):
    """The handler no longer asks for what an earlier run of it saved; `name` is the first difference."""


class CursorExpired(Conflict):
    """Retention has removed events behind this cursor: going on would skip them; `oldest` is the oldest id kept."""


class SelfReferencingEdge(Conflict):
    """An execution cannot wait for itself."""


class CycleDetected(Conflict):
    """The edge would close a circle, in which each waits for the other."""


class DependencyAlreadyExists(Conflict):
    """These two have an edge, `edge_id`, with other attributes; or that edge id is another pair's."""


class StaleGraphRevision(Conflict):
    """The flow was changed since: it is at `revision` now."""


class ExecutionAlreadyInFlow(Conflict):
    """The execution is a member of another flow, `flow_id`, and stays there."""


class ExecutionAlreadyStarted(Conflict):
    """The execution has started or ended, so it cannot be made to wait for another."""


class EdgeGroupAlreadyFixed(Conflict):
    """The rule over the upstreams of a member is `policy`, fixed with the first edge at the latest."""


class EdgeGroupSettled(Conflict):
    """The group has been decided, so another edge would change nothing."""


class FlowAlreadyTerminal(Conflict):
    """The flow was cancelled; it takes no member, edge, group or replay any more."""


class LeaseLost(Fenced):
    """The lease named by the fence is not, or no longer, the one that counts; `cause` says why."""


class ExecutionNotActive(Fenced):
    """The execution is not running, whoever holds this fence; `outcome` and `phase` say what it is instead."""


class GrantExpired(Fenced):
    """The grant was not used in time; ask for another."""


class TooManySteps(Limited):
    """The execution has as many steps as it may have; split it into children."""


class FlowTooLarge(Limited):
    """A flow may have `limit` of these and no more: split it into several."""


class BudgetExhausted(Limited):
    """What was to be spent is more than the budget has left; its fields say of what, and the figures."""


class SignalLimitExceeded(Limited):
    """The execution has had as many signals as it may have."""


class NoActiveKey(Unavailable):
    """There is no key to sign with; `seed_key` or `rotate_key` installs one."""


class PartitionCountMismatch(Unavailable):
    """This process is configured for other partition counts than the database was made with."""


class SchemaBehind(Unavailable):
    """The database is older than this version of FlowFabric; `ff migrate` brings it up to date."""


class SchemaAhead(Unavailable):
    """The database is newer than this version of FlowFabric; upgrade the package in this process."""


class StreamDisconnected(Unavailable):
    """The database was away for longer than a subscription waits; subscribe again with `cursor`: nothing is missed."""


class DatabaseUnavailable(Unavailable):
    """Postgres could not be reached, or ended the connection, and repeating did not help."""


class DatabaseMissing(Unavailable):
    """There is no database yet: no URL is given, and no embedded one has been made in the data directory."""


class PrivilegeMissing(Unavailable):
    """The role in the URL may not do this in Postgres; the message says what it lacks."""


class EmbeddedUnavailable(Unavailable):
    """The embedded Postgres cannot run here; `FLOWFABRIC_URL` names a Postgres of your own instead."""


class ShuttingDown(Unavailable):
    """This process is closing and takes no more calls."""


class ExecutionFailed(FlowFabricError):
    """The execution failed; a note has the traceback of the last attempt."""

    def __init__(self, message: str, execution_id: "ExecutionId", failure: "Failure | None" = None) -> None:
        super().__init__(message, execution_id=execution_id, failure=failure)
        self.execution_id = execution_id
        self.failure = failure


class ExecutionCancelled(ExecutionFailed):
    """The execution was cancelled."""


class ExecutionExpired(ExecutionFailed):
    """The execution reached its deadline or used up its last attempt's time."""


class ExecutionSkipped(ExecutionFailed):
    """The execution never ran, because an execution it depends on did not succeed."""


class ChildFailed(ExecutionFailed):
    """A child did not complete; retrying the parent would find the same."""

    def __init__(self, message: str, execution_id: "ExecutionId", state: str, failure: "Failure | None" = None) -> None:
        super().__init__(message, execution_id, failure)
        self.state = state


class PermanentError(FlowFabricError):
    """Raise it in a handler to fail for good, without retries."""


FAMILIES = (Invalid, Forbidden, NotFound, Conflict, Fenced, Limited, Unavailable)


@functools.cache
def by_code() -> Mapping[str, type[FlowFabricError]]:
    """Every error that a call can be refused with, by its code."""
    return {leaf.code: leaf for family in FAMILIES for leaf in family.__subclasses__()}


def from_code(code: str, message: str, fields: Mapping[str, object], *, family: int = 422) -> FlowFabricError:
    """The refusal of that code, as SQL or HTTP gave it.

    A newer release may refuse with a code that this one has no class for: then it is one of its family, with that code.
    """
    if (known := by_code().get(code)) is not None:
        return known(message, **fields)
    unknown = next((kind for kind in FAMILIES if kind.status == family), Invalid)(message, **fields)
    unknown.code = code
    return unknown
