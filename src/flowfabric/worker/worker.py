"""The loop of a worker: claim as much as there is room for, run it, report it, and stop when asked to."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import assert_never
from uuid import uuid4

from flowfabric import spans
from flowfabric.app import App
from flowfabric.context import Context
from flowfabric.engine import claims, steps
from flowfabric.errors import Refusal, Unavailable
from flowfabric.hints import Hint
from flowfabric.model import Claim, Fence
from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.reports import Reports
from flowfabric.worker.run import Completed, Failed, Lost, Outcome, Waiting, run

log = logging.getLogger("flowfabric.worker")

SHORTEST_PAUSE = 0.005
LONGEST_PAUSE = 1.0
UNKNOWN_TASK_DELAY = timedelta(seconds=5)


class Worker:
    """Runs the tasks of an app until it is told to stop.

    It serves the lanes of its tasks and has the capabilities they need, unless told otherwise. `concurrency` runs go
    on at once, and `prefetch` more are claimed ahead, so that a slot is never idle for want of a round trip.
    """

    def __init__(
        self,
        app: App,
        *,
        name: str = "worker",
        concurrency: int = 100,
        prefetch: int | None = None,
        lanes: Collection[str] | None = None,
        capabilities: Collection[str] | None = None,
        namespace: str | None = None,
        lease: str | timedelta = "30s",
        drain: str | timedelta = "30s",
    ) -> None:
        self._app = app
        self._name = name
        self.instance = f"{name}@{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._room = concurrency + (concurrency if prefetch is None else prefetch)
        self._slots = asyncio.Semaphore(concurrency)
        self._lanes = sorted(lanes or {task.terms.lane for task in app.tasks.values()} or {"default"})
        needed = {need for task in app.tasks.values() for need in task.terms.needs}
        self._capabilities = sorted(needed if capabilities is None else capabilities)
        self._namespace = namespace
        self._lease = spans.read_span(lease)
        self._drain = spans.read_span(drain)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="handler")
        self._runs: dict[Fence, asyncio.Task[None]] = {}
        self._unstarted: dict[Fence, Claim] = {}
        self._route = 0
        self._stir = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Claim no more, let what runs finish for a while, hand the rest back."""
        self._stopping.set()
        self._stir.set()

    async def run(self) -> None:
        """Work until `stop`; the database being away is waited out, never a reason to end."""
        self._reports = Reports(self._app)
        self._heartbeat = Heartbeat(
            self._app.database,
            worker=self._name,
            instance=self.instance,
            lanes=self._lanes,
            capabilities=self._capabilities,
            namespace=self._namespace,
            lease=self._lease,
            lost=partial(_on_loop, asyncio.get_running_loop(), self._lose),
        )
        forget = self._app.hints.listen(self._hinted)
        self._heartbeat.start()
        try:
            await self._claim_until_stopped()
            await self._finish()
        finally:
            forget()
            await asyncio.to_thread(self._heartbeat.stop)
            await self._reports.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _claim_until_stopped(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._stopping.is_set():
            self._stir.clear()
            taken = await self._claim()
            if taken:
                pause = SHORTEST_PAUSE
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stir.wait()
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _claim(self) -> int:
        """Take what there is room for; nothing when there is none, or the database is away."""
        room = self._room - len(self._runs)
        if room <= 0:
            return 0
        try:
            taken = await self._app.database.run(
                lambda conn: claims.claim(
                    conn,
                    self._name,
                    instance=self.instance,
                    lanes=self._lanes,
                    capabilities=self._capabilities,
                    take=min(room, 1_000),
                    lease=self._lease,
                    after_route=self._route,
                    namespace=self._namespace,
                )
            )
        except Unavailable as error:
            log.warning("cannot claim, trying again: %s", error.message)
            return 0
        for claim in taken:
            self._start(claim)
        return len(taken)

    def _start(self, claim: Claim) -> None:
        self._route = claim.route
        self._heartbeat.hold(claim.fence)
        self._unstarted[claim.fence] = claim
        self._runs[claim.fence] = asyncio.create_task(self._go(claim), name=f"{claim.kind} {claim.execution_id}")

    async def _go(self, claim: Claim) -> None:
        try:
            async with self._slots:
                self._unstarted.pop(claim.fence, None)
                outcome = await self._run(claim)
            await self._report(claim, outcome)
        except Refusal as refused:
            log.warning("%s of %s was not reported: %s", claim.kind, claim.execution_id, refused)
        finally:
            self._unstarted.pop(claim.fence, None)
            self._heartbeat.release(claim.fence)
            self._runs.pop(claim.fence, None)
            self._stir.set()

    async def _run(self, claim: Claim) -> Outcome:
        task = self._app.tasks.get(claim.kind)
        if task is None:
            log.warning("no task %s here; %s goes to another worker", claim.kind, claim.execution_id)
            await self._reports.delay(claim, UNKNOWN_TASK_DELAY)
            return Lost()
        journal = []
        if claim.resumed or claim.attempt.number > 1:
            journal = await self._app.database.run(
                lambda conn: steps.read_journal(conn, claim.execution_id), repeat=True
            )
        return await run(task, claim, Context(self._reports, claim, journal), self._threads)

    async def _report(self, claim: Claim, outcome: Outcome) -> None:
        """Tell the engine how the run ended."""
        match outcome:
            case Completed(result):
                await self._reports.complete(claim, result)
            case Failed(class_, reason, traceback):
                await self._reports.fail(claim, class_, reason, traceback)
            case Waiting(wishes):
                await self._reports.wait(claim, wishes)
            case Lost():
                pass  # it belongs to someone else now: anything we said would be false
            case _:
                assert_never(outcome)

    def _lose(self, fence: Fence) -> None:
        """Stop a run whose lease is gone. A thread cannot be stopped: what it says is refused and dropped."""
        running = self._runs.get(fence)
        if running is not None:
            log.warning("lost the lease of %s; its run is cancelled", running.get_name())
            running.cancel()

    def _hinted(self, hint: Hint) -> None:
        if not hint.lanes or not set(self._lanes).isdisjoint(hint.lanes):
            self._stir.set()

    async def _finish(self) -> None:
        """Hand back what has not started, let what runs finish for a while, and hand back the rest."""
        for claim in list(self._unstarted.values()):
            await self._hand_back(claim.fence)
        if self._runs:
            await asyncio.wait(self._runs.values(), timeout=self._drain.total_seconds())
        for fence in list(self._runs):
            await self._hand_back(fence)

    async def _hand_back(self, fence: Fence) -> None:
        running = self._runs.get(fence)
        if running is None:
            return
        running.cancel()
        with suppress(Refusal):
            await self._reports.hand_back(fence)


def _on_loop(loop: asyncio.AbstractEventLoop, lose: Callable[[Fence], None], fence: Fence) -> None:
    """Hand a lost lease from the heartbeat's thread to the loop that runs handlers."""
    loop.call_soon_threadsafe(lose, fence)
