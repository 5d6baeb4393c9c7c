"""Children: a worker submits them for its handlers, and notifies the parents of ended children."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from flowfabric import payloads
from flowfabric.app import App
from flowfabric.app.encoding import Labels
from flowfabric.app.tasks import ChildCall, SubmitOptions, Task, child_call, named, read_returns
from flowfabric.engine import children
from flowfabric.errors import FlowFabricError
from flowfabric.handler.children import child_id
from flowfabric.ids import ExecutionId, read_execution_id
from flowfabric.model import ChildToSubmit, Claim, FoundChild, Options
from flowfabric.postgres.batching import Batch
from flowfabric.worker.leased import LeasedCalls

log = logging.getLogger("flowfabric.worker")


class Children:
    """Submits children, many in one call, and notifies parent executions of ended children."""

    def __init__(self, app: App, leased: LeasedCalls) -> None:
        self._app = app
        self._leased = leased
        self._labels = Labels(app.codecs)
        # One batch at a time: it locks the parents, so that a second one of the same parent would only wait for it.
        self._submit = Batch(self._submit_many, size=lambda child: len(child.submission.payload or b""))
        self._notifying: asyncio.Task[None] | None = None
        self._pending = False

    async def close(self) -> None:
        """Return when every child has been submitted and every parent notified."""
        await self._submit.close()
        if self._notifying is not None:
            await asyncio.wait([self._notifying])

    def read_call(self, task: Task[..., Any] | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ChildCall:
        """Build the child that a handler submits; by name, with the options of the task if this app has it.

        Raises `UnknownTask`.
        """
        if isinstance(task, Task):
            return task.child_call(*args, **kwargs)
        options: SubmitOptions = args[0] if args and args[0] is not None else SubmitOptions()
        known = named(self._app.tasks, task, options)
        returns, arguments = read_returns(known, kwargs)
        if known is not None:
            return replace(known.with_options(**options).child_call(**arguments), returns=returns)
        return child_call(Options(task=task), payloads.encode(arguments), options, returns)

    async def submit(self, claim: Claim, name: str, occurrence: int, asked: ChildCall) -> ExecutionId:
        """Submit a child, or find the one saved at this place of the journal. If an id is taken, try the next one."""
        for generation in count():
            execution_id = child_id(claim.execution_id, name, occurrence, generation, claim.flow_id)
            encoded = self._labels.encode(asked.submission, execution_id)
            child = ChildToSubmit(
                fence=claim.fence,
                name=name,
                occurrence=occurrence,
                execution_id=execution_id,
                submission=replace(encoded, flow=claim.flow_id, execution_id=None),
                on_parent_end=asked.on_parent_end,
                map=asked.map,
            )
            found = await self._leased.persist(claim, lambda child=child: self._submit(child))  # type: ignore[misc]
            if found.outcome == "new":
                return child.execution_id
            if found.outcome == "saved":
                return read_execution_id(payloads.decode(found.result, str))
        raise AssertionError("generations never end")

    @property
    def notifying(self) -> bool:
        """Whether parent executions are being notified."""
        return self._notifying is not None and not self._notifying.done()

    def notify_parent(self, execution_id: ExecutionId) -> None:
        """Notify the parent of an ended execution, if it has one, in the background; the sweep retries."""
        if not execution_id.is_derived:
            return
        self._pending = True
        if not self.notifying:
            self._notifying = asyncio.create_task(self._notify_parents(), name="children: notify parents")

    async def _notify_parents(self) -> None:
        while self._pending:
            self._pending = False
            try:
                swept = await self._app.database.run(children.deliver_child_ends, wait=False)
            except Exception as error:
                log.warning("could not notify parent executions of ended children; the sweep will retry: %s", error)
                return
            self._app.notify(lanes=swept.lanes, ended=swept.ended)

    async def _submit_many(self, asked: Sequence[ChildToSubmit]) -> list[FoundChild | FlowFabricError]:
        config = self._app.config
        found = await self._app.database.run(
            lambda conn: children.submit_children(
                conn,
                asked,
                payload_limit=config.payload_limit,
                wait=False,
            ),
            repeat=True,
            wait=False,
        )
        lanes = (
            child.submission.options.lane
            for child, answer in zip(asked, found, strict=True)
            if isinstance(answer, FoundChild)
        )
        self._app.notifier.send(lanes=lanes)
        return found
