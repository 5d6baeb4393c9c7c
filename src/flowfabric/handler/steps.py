"""Steps: what a run does once and saves; what it appended before is committed first."""

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from flowfabric import payloads
from flowfabric.handler.failures import Failures
from flowfabric.handler.frames import Output
from flowfabric.handler.journal import Place, step_running
from flowfabric.handler.retries import with_retries
from flowfabric.handler.runtime import Runtime
from flowfabric.handler.waits import Leaving
from flowfabric.ids import ExecutionId, read_execution_id, shown
from flowfabric.model import Claim
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app.tasks import ChildCall


class Steps(NamedTuple):
    """Runs the steps of one run, unless an earlier run has saved them."""

    runtime: Runtime
    claim: Claim
    leaving: Leaving
    output: Output
    failures: Failures

    async def call(self, place: Place, call: Callable[[], Any], retries: int, pause: timedelta, returns: Any) -> Any:
        """Call the function of a step with its retries; in a thread if it is not async, because it may block."""

        async def called() -> Any:
            if inspect.iscoroutinefunction(call):
                return await call()
            answer = await self.runtime.call_in_thread(self.claim, place.name, call)
            return await answer if inspect.isawaitable(answer) else answer

        return await self.run(place, lambda: with_retries(called, retries, pause), returns)

    async def run(self, place: Place, run: Callable[[], Awaitable[Any]], returns: Any) -> Any:
        """Run and save a step, and return its result as later runs will get it."""
        if place.entry is not None:
            self.output.pass_entry(place)
            return self._read(place, place.entry.result, returns)
        with self.leaving.busy(), self.runtime.run_step(self.claim, place) as step:
            within = step_running.set(place.name)
            try:
                encoded, result = place.keep(await run(), returns)
            except BaseException as error:
                self.failures.add(place.name, place.occurrence, error)
                raise
            finally:
                step_running.reset(within)
            await self.failures.save()
            await self.output.flush()
            saved = await self.runtime.save_step(self.claim, step, encoded)
        self.output.saved()
        return result if saved == encoded else self._read(place, saved, returns)

    async def run_transaction(
        self,
        place: Place,
        write: Callable[[Connection], Awaitable[Any]],
        retries: int,
        pause: timedelta,
        returns: Any,
    ) -> Any:
        """Run a step in a transaction that also saves its result."""
        if place.entry is not None:
            self.output.pass_entry(place)
            return self._read(place, place.entry.result, returns)

        async def written(conn: Connection) -> bytes:
            encoded, _ = place.keep(await write(conn), returns)
            await self.output.flush()
            return encoded

        with self.leaving.busy(), self.runtime.run_step(self.claim, place) as step:
            await self.failures.save()
            within = step_running.set(place.name)
            run = partial(self.runtime.run_transaction, self.claim, step, written)
            try:
                encoded = await with_retries(run, retries, pause)
            except BaseException as error:
                self.failures.add(place.name, place.occurrence, error)
                raise
            finally:
                step_running.reset(within)
        self.output.saved()
        return place.read(encoded, returns)

    async def submit(self, place: Place, call: "ChildCall") -> ExecutionId:
        """Submit a child, and return its id."""
        if place.entry is not None:
            self.output.pass_entry(place)
            return read_execution_id(self._read(place, place.entry.result, str))
        with self.leaving.busy():
            await self.failures.save()
            await self.output.flush()
            child = await self.runtime.submit_child(self.claim, place.name, place.occurrence, call)
        self.output.saved()
        return child

    def _read(self, place: Place, saved: bytes | None, returns: Any) -> Any:
        with self.leaving.noting_changes():
            return place.read(saved, returns)


def returned(name: str, function: Callable[..., object], returns: Any) -> Any:
    """Return the type of a step's result. Raises `InvalidBody`, before the step runs, if it could not be saved."""
    kind = payloads.returned(function) if returns is None else returns
    return payloads.check_kind(kind, f"the result of step {shown(name)}")
