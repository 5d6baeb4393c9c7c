"""Executions in every state, with ids that are the same in every run."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from flowfabric.engine import attempts, children, claims, flows, lanes, steps, streams, waits, workers
from flowfabric.ids import ExecutionId, FlowId, stamped
from flowfabric.model import (
    Begin,
    ChildToSubmit,
    Claim,
    Delay,
    FrameToAppend,
    Options,
    RegisteredTask,
    ReportedStep,
    Step,
    Submission,
)
from tests.engine.waits.scene import approvals, wish
from tests.given import Given

RETRY: Mapping[str, object] = {"retry": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 60_000}}}


def numbered(number: int) -> ExecutionId:
    """An id that is the same in every run."""
    return ExecutionId.of(UUID(int=number))


PAUSED, UNSERVED, RETRIED, ASKING, LOST, DONE, FAILED, CANCELLED, HELD, WAITING, SIGNALLED = map(numbered, range(1, 12))
STUCK, NAPPING, BROKEN, BUSY, OLD, TALKING = map(numbered, range(12, 18))
PARENT, *CHILDREN = map(numbered, range(50, 76))

SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {"topic": {"type": "string"}, "pages": {"type": "integer"}},
    "required": ["topic"],
}
TASKS = [
    RegisteredTask(name="greet"),
    RegisteredTask(name="report", schema=SCHEMA),
    RegisteredTask(name="embed\x1b[31m", version=2, lane="models"),
]

NO_PAUSE = {"type": "fixed", "delay_ms": 0}
TRACEBACK = """Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/flowfabric/worker/run.py", line 62, in run
    result = await _call(task, claim, arguments, context, threads)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3/site-packages/flowfabric/worker/run.py", line 92, in _call
    return await task.handler(**arguments)
  File "/srv/shop.py", line 7, in ship
    raise LookupError(f"no {tide}")
LookupError: no \x1b[31mtide
"""


FLOW, NO_FLOW = FlowId.of(UUID(int=20)), FlowId.of(UUID(int=21))


async def flow(given: Given) -> None:
    """A flow of three members: one has completed, and the last one depends on both others."""
    await flows.create_flow(given.conn, "report", flow_id=FLOW, tags={"billing.customer": "4711"})
    first, second, last = (ExecutionId.of(stamped(number, FLOW.partition)) for number in (30, 31, 32))
    for each, kind in ((first, "search"), (second, "check"), (last, "write")):
        await given.submitted(execution_id=each, flow=FLOW, task=kind, lane=kind)
    await flows.add_edge(given.conn, FLOW, first, last, edge_id=UUID(int=40), pass_as="notes")
    await flows.add_edge(given.conn, FLOW, second, last, edge_id=UUID(int=41))
    [claim] = await given.claim(lanes=["search"])
    await attempts.complete(given.conn, claim.fence, b'"found"')


async def blocked(given: Given) -> None:
    """Executions blocked by a paused lane, a missing capability, a retry, an approval and a dead worker."""
    await lost(given)
    await given.submitted(execution_id=PAUSED, lane="mail")
    await lanes.pause_lane(given.conn, "mail", by="ada", reason="the printer is down")
    await given.submitted(execution_id=UNSERVED, lane="models", needs=["gpu", "llm"])
    await workers.register_worker(
        given.conn, "pool", instance="pool-1", lanes=["default", "models"], capabilities=["llm"], tasks=TASKS
    )
    claim = await given.claimed(execution_id=RETRIED, lane="retried", policy=RETRY)
    await attempts.fail(given.conn, claim.fence, "connection refused", traceback="Traceback: …")
    await asking(given)


async def versioned(given: Given) -> None:
    """An execution that has started under a version that no worker has, one that has not started, and a worker."""
    claim = await given.claimed(execution_id=OLD)
    await claims.mark_begun_many(given.conn, [Begin(fence=claim.fence, version=1)])
    await attempts.delay(given.conn, claim.fence)
    await given.submitted(execution_id=WAITING)
    tasks = [RegisteredTask(name="report", version=2), RegisteredTask(name="mail\x1b[31m", lane="mail")]
    await workers.register_worker(given.conn, "pool", instance="pool-1", lanes=["default", "mail"], tasks=tasks)


async def lost(given: Given) -> None:
    """An execution whose worker disappeared a minute ago."""
    await given.claimed(execution_id=LOST, lane="lost")
    await given.time_passes(minutes=1)


async def asking(given: Given, approvers: int = 1) -> None:
    """An execution that waits for approval of a draft; approvals count only with the digest of the draft."""
    claim = await given.claimed(execution_id=ASKING, lane="research", task="publish")
    draft = b'{"title": "Tides", "text": "The sea comes and goes."}'
    asked = wish(
        approvals(approvers, "publish"), ["publish"], about=draft, bind=True, timeout=timedelta(days=2),
        timeout_behavior="auto_resume", reason_code="waiting_for_approval",
        name="publish", occurrence=1,
    )  # fmt: skip
    await waits.suspend(given.conn, claim.fence, asked)


async def signalled(given: Given) -> str:
    """An execution that waits for a payment; returns the token of its waitpoint."""
    claim = await given.claimed(execution_id=SIGNALLED, lane="shop")
    asked = wish({"kind": "single", "waitpoint": "paid", "name": "received"}, ["paid"])
    [point] = (await waits.suspend(given.conn, claim.fence, asked)).waitpoints
    assert point.token is not None
    return point.token


async def saved(given: Given) -> None:
    """An execution that has saved two steps and sleeps; the name of one step has control characters."""
    claim = await given.claimed(execution_id=NAPPING, lane="naps")
    for name, result in (("search", b'["tides"]'), ("a\x1b[31m\n\u202eb", None)):
        took = timedelta(seconds=1.5) if result else None
        await steps.save_step(given.conn, Step(fence=claim.fence, name=name, occurrence=1, result=result, lasted=took))
    nap = Delay(fence=claim.fence, until=timedelta(hours=1), name="sleep", occurrence=1)
    await attempts.delay_many(given.conn, [nap])


async def family(given: Given) -> Claim:
    """An execution with 25 children: one has failed, one runs, two have completed and the others wait.

    Returns the claim of the one that runs.
    """
    parent = await given.claimed(execution_id=PARENT)
    policy = {"retry": {"max_retries": 0}}
    options = Options(task="page\x1b[31m", lane="pages", policy=policy)
    asked = [
        ChildToSubmit(fence=parent.fence, name="submit:page", occurrence=number, execution_id=each,
                      submission=Submission(options=options))
        for number, each in enumerate(CHILDREN, 1)
    ]  # fmt: skip
    for each in asked:
        await children.submit_children(given.conn, [each])
    first, failed, last, runs = await given.claim(lanes=["pages"], take=4)
    await attempts.fail(given.conn, failed.fence, "no \x1b[31mtide")
    for claim in (first, last):
        await attempts.complete(given.conn, claim.fence, b"1")
    await attempts.complete(given.conn, parent.fence, b'{"pages": 3}')
    return runs


async def running(given: Given) -> None:
    """An execution that has run three steps at once for an hour and a half."""
    claim = await given.claimed(execution_id=BUSY, lane="busy")
    named = {"search": 90, "a\x1b[31m\n\u202eb": 90, "write": 80}
    reports = [
        ReportedStep(name=name, occurrence=1, number=number, elapsed=timedelta(minutes=minutes, seconds=10))
        for number, (name, minutes) in enumerate(named.items(), 1)
    ]
    await claims.renew_many(given.conn, [claim.fence], running={claim.fence.lease_id: reports})


async def raised(given: Given) -> None:
    """An execution whose handler raised twice, with frames of flowfabric and a colour in its traceback."""
    await given.submitted(execution_id=BROKEN, lane="shop", policy={"retry": {"max_retries": 1, "backoff": NO_PAUSE}})
    for _ in range(2):
        [claim] = await given.claim(lanes=["shop"])
        await attempts.fail(given.conn, claim.fence, "LookupError: no \x1b[31mtide", traceback=TRACEBACK)


async def streamed(given: Given) -> None:
    """An execution of two attempts that has put out text, an event, data, progress, and text that was replaced."""
    retried = {"retry": {"max_retries": 1, "backoff": NO_PAUSE}}
    claim = await given.claimed(execution_id=TALKING, lane="talks", policy=retried)
    await _put(given, claim, b'"Once upon "', b'"a "', kind="stdout", type="answer")
    await steps.save_step(given.conn, Step(fence=claim.fence, name="begin", occurrence=1))
    await _put(given, claim, b'"tide"', kind="stdout", type="answer")
    await attempts.fail(given.conn, claim.fence, "connection refused")
    [claim] = await given.claim(lanes=["talks"])
    await _put(given, claim, b'{"tool": "search\\u001b[31m", "n": 3}', type="tool_call", correlation_id="call-1")
    await _put(given, claim, b'{"progress": 40, "message": "indexing"}', type="progress", mode="summary")
    await _put(given, claim, b'"time\\n"', b'"\\u001b[31mred"', kind="stdout", type="answer")
    await _put(given, claim, b'"a warning\\n"', kind="stderr", type="log")
    await _put(given, claim, b"\0\xff", kind="blob", type="image", encoding="png")
    await attempts.complete(given.conn, claim.fence)


async def _put(given: Given, claim: Claim, *payloads: bytes, **more: Any) -> None:
    frames = [FrameToAppend(fence=claim.fence, payload=payload, **more) for payload in payloads]
    await streams.append_frames(given.conn, frames)


async def ended(given: Given) -> None:
    """Executions that have completed, failed and been cancelled, and one that is held."""
    await given.completed(
        b'{"pages": 3}', execution_id=DONE, payload=b'{"topic": "tides"}', tags={"billing.customer": "4711"}
    )
    await given.failed(execution_id=FAILED)
    await given.cancelled(execution_id=CANCELLED)
    await given.held(execution_id=HELD)
