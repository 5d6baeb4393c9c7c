"""What an app sends, as its codecs encode it; and whether two submissions with one idempotency key are the same."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from flowfabric.engine import executions, schedules
from flowfabric.errors import ExecutionNotFound, FlowFabricError, KeyConflict, PayloadUnreadable, ScheduleNotFound
from flowfabric.ids import ExecutionId, parse_execution_id, read_execution_id
from flowfabric.model import Moved, Options, Submission, SubmitOutcome, Submitted
from flowfabric.payloads.codecs import PLAIN, Codecs, of_arguments, of_result, of_schedule
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app import App


MOST_LABELLED = 1_000


class Labels:
    """Options with the label of the codecs. Each set of options is labelled once, because a batch sends it once."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        self._made: dict[int, tuple[Options, Options]] = {}

    def of(self, options: Options) -> Options:
        """Return the options of a submission whose payload is encoded."""
        if len(self._made) > MOST_LABELLED:
            self._made.clear()
        return self._made.setdefault(id(options), (options, replace(options, encoding=self._codecs.label)))[1]

    def encode(self, submission: Submission, execution_id: ExecutionId) -> Submission:
        """Return a submission with this id, or with its own, and its payload encoded for that id."""
        if self._codecs.label == PLAIN or submission.payload is None or submission.options.encoding != PLAIN:
            return submission
        own = submission.execution_id
        if own is not None:
            execution_id = own if isinstance(own, ExecutionId) else parse_execution_id(own)
        return replace(
            submission,
            execution_id=execution_id,
            options=self.of(submission.options),
            payload=self._codecs.encode(submission.payload, of_arguments, execution_id),
        )


async def settle(
    conn: Connection, codecs: Codecs, submission: Submission, answer: Submitted | FlowFabricError
) -> Submitted | FlowFabricError:
    """Return `DUPLICATE` for a key conflict that is none: the engine compares what is stored, and cannot decode it."""
    if not isinstance(answer, KeyConflict):
        return answer
    first = read_execution_id(str(answer.fields["execution_id"]))
    try:
        found = await executions.describe(conn, first, payload=True)
        stored = codecs.decode(found.payload or b"null", found.encoding, *owners(first, found.namespace, found.task))
    except (ExecutionNotFound, PayloadUnreadable):
        return answer
    if found.task != submission.options.task or not is_same(stored, submission.payload or b"null"):
        return answer
    return Submitted(SubmitOutcome.DUPLICATE, first)


async def override(
    conn: Connection,
    app: "App",
    execution_id: ExecutionId,
    outcome: Literal["success", "failed"],
    *,
    reason: str,
    by: str,
    result: bytes | None,
) -> Moved:
    """Override an execution; a result that is stored already is sent as it is stored, because a repeat is safe."""
    codecs, label = app.codecs, PLAIN
    if result is not None and codecs.label != PLAIN:
        there = await executions.get_result(conn, execution_id)
        owner, label = of_result(execution_id), codecs.label
        is_stored = there.result is not None and there.encoding == label
        if is_stored and is_same(codecs.decode(there.result or b"", label, owner), result):
            result = there.result
        else:
            result = codecs.encode(result, of_result, execution_id)
    return await executions.override(
        conn,
        execution_id,
        outcome,
        reason=reason,
        by=by,
        result=result,
        encoding=label,
        result_limit=app.config.payload_limit,
    )


async def encode_scheduled(conn: Connection, app: "App", name: str, submission: Submission) -> Submission:
    """Encode what a schedule submits; as it is stored, if it is the same, so that it does not count as a change."""
    options, payload = submission.options, submission.payload
    if app.codecs.label == PLAIN or payload is None or options.encoding != PLAIN:
        return submission
    stored = await _stored_in_schedule(conn, app.codecs, name, options, payload)
    return replace(
        submission,
        options=replace(options, encoding=app.codecs.label),
        payload=app.codecs.encode(payload, of_schedule, options.namespace, options.task) if stored is None else stored,
    )


async def _stored_in_schedule(
    conn: Connection, codecs: Codecs, name: str, options: Options, payload: bytes
) -> bytes | None:
    try:
        found = await schedules.describe_schedule(conn, name, namespace=options.namespace)
    except ScheduleNotFound:
        return None
    if found.payload is None or found.options.encoding != codecs.label:
        return None
    try:
        plain = codecs.decode(found.payload, codecs.label, of_schedule(options.namespace, found.options.task))
    except PayloadUnreadable:
        return None
    return found.payload if is_same(plain, payload) else None


def owners(execution_id: ExecutionId, namespace: str, task: str) -> list[str]:
    """Name those for whom the arguments of an execution may have been encoded."""
    return [of_arguments(execution_id), of_schedule(namespace, task)]


def is_same(first: bytes, second: bytes) -> bool:
    """Whether two payloads are the same JSON value, as `flowfabric._same_payload` in SQL compares them."""
    if first == second:
        return True
    try:
        return _is_same(msgspec.json.decode(first), msgspec.json.decode(second))
    except (msgspec.MsgspecError, RecursionError):
        return False


def _is_same(first: object, second: object) -> bool:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_is_same(first[name], second[name]) for name in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_is_same, first, second))
    return isinstance(first, bool) is isinstance(second, bool) and first == second
