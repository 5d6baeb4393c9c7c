"""What the codec of an app has encoded: decoded with `--app`, and otherwise only named, with its size."""

import msgspec
from msgspec.structs import replace

from flowfabric.app import App
from flowfabric.app.encoding import owners
from flowfabric.errors import PayloadUnreadable
from flowfabric.ids import ExecutionId
from flowfabric.model import Description, Schedule, StepSummary
from flowfabric.payloads.codecs import PLAIN, of_result, of_schedule, of_step


def execution(app: App, found: Description) -> Description:
    """Decode the arguments and the result of an execution."""
    of_payload = owners(found.execution_id, found.namespace, found.task)
    return replace(
        found,
        payload=_readable(app, found.payload, found.encoding, *of_payload),
        result=_readable(app, found.result, found.result_encoding, of_result(found.execution_id)),
    )


def step(app: App, execution_id: ExecutionId, found: StepSummary) -> StepSummary:
    """Decode the result of a step."""
    owner = of_step(execution_id, found.name, found.occurrence)
    return replace(found, result=_readable(app, found.result, found.encoding, owner))


def schedule(app: App, found: Schedule) -> Schedule:
    """Decode the arguments with which a schedule submits its task."""
    owner = of_schedule(found.namespace, found.options.task)
    return replace(found, payload=_readable(app, found.payload, found.options.encoding, owner))


def _readable(app: App, stored: bytes | None, label: str, *owners: str) -> bytes | None:
    if stored is None or label == PLAIN:
        return stored
    try:
        return app.codecs.decode(stored, label, *owners)
    except PayloadUnreadable as unreadable:
        why = "" if label not in app.codecs.names else f"; {unreadable.message}"
        return msgspec.json.encode(f"({len(stored):,} bytes, encoded by {label}{why})")
