"""Every error: seven families of refused calls, and the errors of executions that did not complete.

    FlowFabricError
    ├── Invalid          422  the call is invalid
    ├── Forbidden        403  the caller may not do this
    ├── NotFound         404  the thing does not exist
    ├── Conflict         409  the thing's state does not allow this
    ├── Fenced           412  the lease was lost: another worker may own the execution
    ├── Limited          429  a limit is reached
    ├── Unavailable      503  not available now; the same call may work later
    ├── ExecutionFailed       the execution whose result was awaited did not complete
    └── PermanentError        raised by a handler that must not be retried

The class name is the code in every layer: `LaneNotFound` here, `lane_not_found` in SQL, HTTP and the command line. The
family gives the HTTP status and the end of the SQLSTATE (`FF404`). A batch call returns errors as values, one per item.
"""

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from flowfabric.ids import ExecutionId
    from flowfabric.model import Failure


class FlowFabricError(Exception):
    """The base of all errors: the call was refused and nothing was changed."""

    status: ClassVar[int] = 500
    code: str

    def __init_subclass__(cls, status: int | None = None) -> None:
        cls.status = cls.status if status is None else status
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message, self.fields = message, fields

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __eq__(self, other: object) -> bool:
        mine = (self.code, self.fields, *self.args)
        return isinstance(other, FlowFabricError) and mine == (other.code, other.fields, *other.args)

    def __hash__(self) -> int:
        return hash((self.code, self.args))


class Invalid(FlowFabricError, status=422):
    """The call is invalid: correct it."""


class Forbidden(FlowFabricError, status=403):
    """The caller may not do this."""


class NotFound(FlowFabricError, status=404):
    """The thing does not exist, or retention has removed it."""


class Conflict(FlowFabricError, status=409):
    """The state of the thing does not allow this."""


class Fenced(FlowFabricError, status=412):
    """The caller no longer owns the execution: stop working on it and report nothing."""


class Limited(FlowFabricError, status=429):
    """A limit is reached."""


class Unavailable(FlowFabricError, status=503):
    """Not available now; the call itself is valid."""


class BadSetting(Invalid):
    """A setting has an invalid value; the message names its variable and what is allowed."""


class InvalidId(Invalid):
    """An id is not a UUID, or a partition key does not have the form `{fp:N}`; `cause` says what is wrong."""


class WrongPartition(Invalid):
    """The id names another partition than its UUID or its flow, or belongs to the database of another cell."""


class InvalidName(Invalid):
    """A name is empty, too long, or contains invalid characters."""


class InvalidText(Invalid):
    """A text contains U+0000 or a lone surrogate, which Postgres cannot store."""


class UnknownTask(Invalid):
    """The app, or for `ff submit` every running worker, has no task of this name; the message has similar ones."""


class InvalidBody(Invalid):
    """A field of the call is unknown, of the wrong type or out of range; `field` names it."""


class InvalidLane(Invalid):
    """A lane name must be 1 to 64 printable ASCII characters, and an option of a lane within its bounds."""


class InvalidNamespace(Invalid):
    """A namespace must be 1 to 64 printable ASCII characters."""


class InvalidCapabilities(Invalid):
    """The set of capabilities is invalid; `cause` says why."""


class InvalidTasks(Invalid):
    """The tasks that a worker registers are too many or too large, or one of them is invalid."""


class InvalidPolicy(Invalid):
    """A policy field is unknown, of the wrong type, out of range, or would have no effect; `field` names it."""


class InvalidTagKey(Invalid):
    """A tag's name must be 1 to 128 bytes."""


class InvalidTag(Invalid):
    """A tag value is too long, or there are too many tags."""


class InvalidTime(Invalid):
    """A time is in the past or more than ten years ahead, or a duration is negative or too long."""


class InvalidLimit(Invalid):
    """A limit is negative, or a batch has too many items."""


class InvalidCursor(Invalid):
    """The cursor was not returned by this call; `cause` says what is wrong with it."""


class PayloadTooLarge(Invalid):
    """A payload or result exceeds its size limit; store large data elsewhere and pass a reference."""


class InvalidWorker(Invalid):
    """The name of a worker or an instance must be 1 to 256 bytes without whitespace, control characters or `|`."""


class InvalidLease(Invalid):
    """The requested lease is too short or too long."""


class InvalidGrantLifetime(Invalid):
    """The requested lifetime of a grant is too short or too long."""


class InvalidSuspension(Invalid):
    """The condition, the waitpoints or the timeout of a wait are invalid; `cause` says why."""


class InvalidSignal(Invalid):
    """A field of a signal is missing, too long, or reserved; `field` names it."""


class InvalidFrame(Invalid):
    """A field of a frame is missing, too long, or unknown; `field` names it."""


class InvalidPatch(Invalid):
    """A summary's patch cannot be applied: not JSON, not an object, too deep, or the summary would be too large."""


class InvalidSchedule(Invalid):
    """A schedule's cron expression, time zone, interval or submission is invalid; `field` names it."""


class InvalidQuota(Invalid):
    """A quota's limits are invalid or missing; `field` names the invalid one."""


class InvalidBudget(Invalid):
    """The definition of a budget is invalid; `field` names what is wrong."""


class InvalidUsage(Invalid):
    """An amount is not an integer from 0 to 2^53 - 1, or a sum would exceed that; `dimension` names it."""


class InvalidKid(Invalid):
    """The name of a signing key must be 1 to 64 letters, digits, dots, underscores or hyphens."""


class InvalidSecret(Invalid):
    """A secret must be exactly 64 hexadecimal digits."""


class InvalidGrace(Invalid):
    """The grace period of a signing key rotation must not be negative."""


class InvalidDependency(Invalid):
    """An edge is invalid; `cause` says why: it connects a non-member, or its name is already used by another edge."""


class InvalidEdgeGroup(Invalid):
    """The policy of an edge group is invalid; `cause` says why."""


class FenceRequired(Invalid):
    """The execution is leased: this source of cancellation must pass the fence."""


class PartialFence(Invalid):
    """The fence is incomplete: it needs lease id, epoch and attempt."""


class MethodNotAllowed(Invalid, status=405):
    """The HTTP API does not have this method at this path (status 405); `allowed` names those that it has."""


class BodyTimedOut(Invalid, status=408):
    """The body of a request did not arrive in time (status 408)."""


class BodyTooLarge(Invalid, status=413):
    """The body of a request is larger than `limit` bytes (status 413); send many submissions in several requests."""


class UnsupportedMediaType(Invalid, status=415):
    """The body of a request is not JSON by its content type (status 415)."""


class HostNotAllowed(Forbidden):
    """The request names a host that this server does not answer for, as a page does that attacks by DNS rebinding."""


class OriginNotAllowed(Forbidden):
    """The request comes from a page of another site."""


class MissingToken(Forbidden):
    """The signal has no token; it needs the token of its waitpoint."""


class InvalidToken(Forbidden):
    """The token is not valid for this waitpoint; no further details are returned without a valid token."""


class TokenExpired(Forbidden):
    """The signing key of the token has been retired; request a new token."""


class InvalidGrant(Forbidden):
    """The grant is invalid or was issued to another worker; `cause` says why."""


class WrongLane(Forbidden):
    """The execution is not in the lane that the approval names."""


class RouteNotFound(NotFound):
    """The HTTP API has nothing at this path."""


class ExecutionNotFound(NotFound):
    """The execution does not exist, or retention has removed it."""


class FlowNotFound(NotFound):
    """The flow does not exist."""


class LaneNotFound(NotFound):
    """The lane does not exist; the first submission or `configure_lane` creates it."""


class BudgetNotFound(NotFound):
    """The budget does not exist; a submission that names it is refused rather than run without it."""


class ReservationNotFound(NotFound):
    """The reservation does not exist or has ended; use `report_usage` to report what was spent."""


class QuotaNotFound(NotFound):
    """The quota does not exist; a submission that names it is refused rather than run without it."""


class ScheduleNotFound(NotFound):
    """The schedule does not exist in this namespace."""


class StepNotFound(NotFound):
    """The execution has saved no step, sleep or wait of this name and occurrence; `names` are those that it has."""


class WaitpointNotFound(NotFound):
    """The execution does not have this waitpoint."""


class ExecutionEnded(Conflict):
    """The execution has ended; `outcome` says how."""


class ExecutionNotRunnable(Conflict):
    """The execution is active or suspended, so it cannot be held; `phase` says which."""


class ExecutionNotTerminal(Conflict):
    """The execution has not ended, so it cannot be replayed."""


class MaxReplaysExhausted(Conflict):
    """The execution has been replayed as often as its policy allows."""


class KeyConflict(Conflict):
    """The idempotency key belongs to another execution or flow, which `execution_id` or `flow_id` names."""


class LaneDraining(Conflict):
    """The lane is draining and accepts no new work; `resume_lane` opens it again."""


class ScheduleAlreadyExists(Conflict):
    """A different schedule with this name exists; `change_schedule` changes it."""


class BudgetAlreadyExists(Conflict):
    """A budget with this name and a different definition exists; `change_budget` changes it."""


class QuotaAlreadyExists(Conflict):
    """A quota with this name and different limits exists; `change_quota` changes them."""


class InstanceReassigned(Conflict):
    """The instance is registered for another worker; an instance name identifies one process and is never reused."""


class ExecutionNotSuspended(Conflict):
    """The execution is not suspended, so it cannot be resumed."""


class TargetNotSignalable(Conflict):
    """The execution has ended and accepts no more signals; `outcome` says how it ended."""


class WaitpointClosed(Conflict):
    """The waitpoint is closed and accepts no more signals."""


class ApprovalDigestMismatch(Conflict):
    """The decision was made about a different subject: read the request again."""


class WaitpointNotPending(Conflict):
    """The waitpoint is in use or closed; create another one to wait on."""


class PendingWaitpointExpired(Conflict):
    """The waitpoint was created in advance and not used in time; create another one."""


class WaitpointOfOtherExecution(Conflict):
    """The waitpoint belongs to another execution."""


class AnotherKeyActive(Conflict):
    """There already is an active signing key; `rotate_key` replaces it."""


class RotationConflict(Conflict):
    """The kid already exists, retired or with another secret; choose a new one."""


class ShapeChanged(Conflict):
    """The handler's steps differ from those that an earlier run saved; `name` is the first. The execution is held."""


class CursorExpired(Conflict):
    """Retention has removed events after this cursor, so they would be skipped; `oldest` is the oldest id kept."""


class SelfReferencingEdge(Conflict):
    """An execution cannot depend on itself."""


class CycleDetected(Conflict):
    """The edge would create a cycle of executions that wait for each other."""


class DependencyAlreadyExists(Conflict):
    """The edge `edge_id` exists between these executions with other attributes, or between two other executions."""


class StaleGraphRevision(Conflict):
    """The flow was changed in the meantime: it is at `revision` now."""


class ExecutionAlreadyInFlow(Conflict):
    """The execution is already a member of another flow, `flow_id`."""


class ExecutionAlreadyStarted(Conflict):
    """The execution has started or ended, so it can no longer depend on another."""


class EdgeGroupAlreadyFixed(Conflict):
    """The edge group has the policy `policy`, which is fixed when its first edge is added."""


class EdgeGroupSettled(Conflict):
    """The edge group is already satisfied or impossible, so no edge can be added."""


class FlowAlreadyTerminal(Conflict):
    """The flow was cancelled; it accepts no more members, edges, groups or replays."""


class LeaseLost(Fenced):
    """The lease in the fence is not, or no longer, the current lease; `cause` says why."""


class ExecutionNotActive(Fenced):
    """The execution is not active; `outcome` or `phase` says what it is instead."""


class GrantExpired(Fenced):
    """The grant has expired; request another."""


class TooManySteps(Limited):
    """The execution has the maximum number of steps; split it into children."""


class FlowTooLarge(Limited):
    """The flow would exceed a size limit, `limit`; split it into several flows."""


class BudgetExhausted(Limited):
    """The budget does not have enough left; the fields name the dimension and the amounts."""


class SignalLimitExceeded(Limited):
    """The execution has received the maximum number of signals."""


class NoActiveKey(Unavailable):
    """There is no active signing key; `seed_key` or `rotate_key` installs one."""


class RowLocked(Unavailable):
    """Another transaction has locked a row that the call needs, and the call did not wait longer; call again."""


class PartitionCountMismatch(Unavailable):
    """A partition count in this process's configuration differs from the database's."""


class SchemaBehind(Unavailable):
    """The database schema is older than this version of FlowFabric; run `ff migrate`."""


class SchemaAhead(Unavailable):
    """The database schema is newer than this version of FlowFabric; upgrade the package."""


class MigrationBlocked(Unavailable):
    """Open transactions, or another migration, held locks that a migration needs for too long; `holders` names them."""


class StreamDisconnected(Unavailable):
    """The database was unavailable for too long; subscribe again with `cursor`: no event is skipped."""


class DatabaseUnavailable(Unavailable):
    """Postgres could not be reached, or closed the connection, and retrying did not help."""


class PayloadUnreadable(Unavailable):
    """A payload or a result is encoded by a codec that this program does not have, or cannot be decoded by it."""


class DatabaseMissing(Unavailable):
    """There is no database yet: no URL is set, and the data directory has no embedded database."""


class PrivilegeMissing(Unavailable):
    """The Postgres role in the URL lacks a privilege; the message names it."""


class EmbeddedUnavailable(Unavailable):
    """The embedded Postgres cannot run here; set `FLOWFABRIC_URL` to use your own Postgres."""


class ShuttingDown(Unavailable):
    """This process is shutting down and accepts no more calls."""


class ExecutionFailed(FlowFabricError):
    """The execution failed; a note has the traceback of the last attempt."""

    def __init__(self, message: str, execution_id: "ExecutionId", failure: "Failure | None" = None) -> None:
        super().__init__(message, execution_id=execution_id, failure=failure)
        self.args = (message, execution_id, failure)
        self.execution_id, self.failure = execution_id, failure


class ExecutionCancelled(ExecutionFailed):
    """The execution was cancelled."""


class ExecutionExpired(ExecutionFailed):
    """The execution reached its deadline."""


class ExecutionSkipped(ExecutionFailed):
    """The execution never ran, because an execution it depends on did not succeed."""


class ChildFailed(ExecutionFailed):
    """A child did not complete; retrying the parent would find the same."""

    def __init__(self, message: str, execution_id: "ExecutionId", state: str, failure: "Failure | None" = None) -> None:
        super().__init__(message, execution_id, failure)
        self.args, self.state = (message, execution_id, state, failure), state


class PermanentError(FlowFabricError):
    """Raise it in a handler to fail for good, without retries."""


FAMILIES = (Invalid, Forbidden, NotFound, Conflict, Fenced, Limited, Unavailable)


@functools.cache
def by_code() -> Mapping[str, type[FlowFabricError]]:
    """Every error that a call can be refused with, by its code."""
    return {leaf.code: leaf for family in FAMILIES for leaf in family.__subclasses__()}


def from_code(code: str, message: str, fields: Mapping[str, object], *, family: int = 422) -> FlowFabricError:
    """Build the error for a code returned by SQL or HTTP; a code without a class here gets the class of its family."""
    kind = by_code().get(code) or next((kind for kind in FAMILIES if kind.status == family), Invalid)
    error = kind(message, **fields)
    error.code = code
    return error
