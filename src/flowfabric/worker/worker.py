"""The loop of a worker: claim as much as there is room for, run it, report it, and stop when asked to."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from flowfabric import durations
from flowfabric.app import App
from flowfabric.app.tasks import Task
from flowfabric.engine import claims
from flowfabric.errors import Fenced, FlowFabricError, InvalidLease, Unavailable
from flowfabric.handler.context import Context
from flowfabric.model import Claim, Fence, Swept
from flowfabric.postgres.notify import Notification
from flowfabric.sweeps import run_sweeps, sweeps
from flowfabric.worker.claiming import Pauses, Position, Prefetched
from flowfabric.worker.heartbeat import Heartbeat, Registration
from flowfabric.worker.limits import Limits, time_left, within
from flowfabric.worker.reports import Reports
from flowfabric.worker.run import Lost, Outcome, PutOff, run
from flowfabric.worker.threads import Threads

log = logging.getLogger("flowfabric.worker")

UNKNOWN_TASK_DELAY = timedelta(seconds=5)
FULL_TASK_DELAY = timedelta(seconds=1)
SHORTEST_LEASE, LONGEST_LEASE = timedelta(seconds=1), timedelta(hours=1)
UNWINDING = 5.0  # seconds for a cancelled handler to leave
MOST_REPORTING = 2_000


class Worker:
    """Runs the tasks of an app until it is told to stop.

    It serves the lanes of its tasks and has the capabilities they need, unless told otherwise. `concurrency` runs go
    on at once. Up to `prefetch` more are claimed ahead, as many as begin within a second at the pace of the moment.
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
        sweeps: bool = True,
    ) -> None:
        if concurrency < 1 or (prefetch or 0) < 0:
            given = f"concurrency is {concurrency} and prefetch {prefetch}"
            raise ValueError(f"{given}; a worker runs one at a time or more")
        needed = {need for task in app.tasks.values() for need in task.options.needs}
        self._app = app
        self.name = name
        self.instance = f"{name}@{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self.concurrency = concurrency
        self.lanes = sorted(lanes or {task.options.lane for task in app.tasks.values()} or {"default"})
        self.capabilities = sorted(needed if capabilities is None else capabilities)
        self.namespace = namespace
        self.lease = durations.read_duration(lease)
        self._drain_time = durations.read_duration(drain).total_seconds()
        self.sweeps = sweeps
        self._prefetched = Prefetched(4 * concurrency if prefetch is None else prefetch)
        self._running: dict[UUID, tuple[Claim, asyncio.Task[None]]] = {}
        self._names: set[str] = set()
        self._reporting: set[asyncio.Task[None]] = set()
        self._threads = Threads()
        self._limits = Limits(app.tasks.values())
        self._position = Position()
        self._pauses = Pauses()
        self._full = False
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()

    def stop(self) -> None:
        """Claim no more, let what runs finish for a while, hand the rest back."""
        self._stopping.set()
        self._pauses.wake()

    @property
    def busy(self) -> bool:
        """Whether it holds anything: running, being reported or told to a parent, or claimed ahead. Once it runs."""
        return bool(self._running or self._reporting or self._prefetched or self._reports.notifying)

    async def run(self) -> None:
        """Work until `stop`; the database being away is waited out, never a reason to end.

        Raises what the engine says of a worker that cannot be: `InvalidWorker`, `InvalidLane`, `InvalidCapabilities`,
        `InvalidLease`, `InvalidName`.
        """
        if not SHORTEST_LEASE <= self.lease <= LONGEST_LEASE:
            asked = f"lease of {self.lease // timedelta(milliseconds=1)} ms"
            raise InvalidLease(f"{asked}: a lease is 1 000 to 3 600 000 ms")  # here, as the heartbeat lives by it
        about = Registration(
            worker=self.name,
            instance=self.instance,
            lanes=self.lanes,
            capabilities=self.capabilities,
            namespace=self.namespace,
            lease=self.lease,
        )
        self._heartbeat = Heartbeat(self._app.database, about, self._lose)
        self._reports = Reports(self._app, holds=self._heartbeat.holds, due=self._pauses.due)
        forget = self._app.notifier.listen(self._notified)
        sweeping = asyncio.create_task(self._sweep(), name="sweeps")
        self._heartbeat.start()
        try:
            await self._app.declare_schedules()
            await self._until_registered()
            await self._claim_until_stopped()
            await self._drain()
        finally:
            forget()
            sweeping.cancel()
            await self._leave()

    async def _until_registered(self) -> None:
        """Be known before the first claim: should this process die, its work is missed at once."""
        registered = asyncio.wrap_future(self._heartbeat.registered)
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((registered, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if registered.done():
            registered.result()
            self.ready.set()

    async def _sweep(self) -> None:
        if self.sweeps:
            listed = sweeps(self._app.config)
            await run_sweeps(self._app.database, listed, woken=self._woken)

    def _woken(self, swept: Swept) -> None:
        self._app.notifier.send(lanes=swept.lanes)
        self._app.notify_ended(swept.ended)

    async def _claim_until_stopped(self) -> None:
        while not self._stopping.is_set():
            self._pauses.begin()
            self._prefetched.add(await self._hand_back(self._prefetched.stale()))
            room = self._room()
            taken = await self._claim(room) if room else 0
            self._full = taken == room
            if taken:
                self._pauses.found()
            if (taken < room or not room) and not self._stopping.is_set():
                await self._pauses.wait()

    def _room(self) -> int:
        """How many to claim now; while there is work claimed ahead, not for the sake of a few."""
        idle = self.concurrency - len(self._running) - len(self._prefetched)
        ahead = self._prefetched.room()
        if len(self._reporting) > MOST_REPORTING or (idle <= 0 and idle + ahead < max(ahead // 2, 1)):
            return 0
        return min(idle + ahead, 1_000)

    async def _claim(self, room: int) -> int:
        """Take what there is room for; nothing when the database is away."""
        asked_at = time.monotonic()
        last = self._position.last()
        try:
            taken = await self._app.database.run(
                lambda conn: claims.claim(
                    conn,
                    self.name,
                    instance=self.instance,
                    lanes=self.lanes,
                    capabilities=self.capabilities,
                    take=room,
                    lease=self.lease,
                    after_route=self._position.route,
                    namespace=self.namespace,
                    last=last,
                )
            )
        except Unavailable as error:
            log.warning("%s cannot claim, trying again: %s", self.instance, error)
            return 0
        except FlowFabricError:
            raise  # the claim itself cannot be: no timeout mends that
        except Exception:
            log.exception("%s cannot claim, trying again", self.instance)
            return 0
        self._position.moved(taken, time.monotonic() - asked_at, from_front=last is None)
        if taken:
            self._heartbeat.hold((claim.fence for claim in taken), asked_at)
            self._prefetched.add(taken)
            self._fill()
        return len(taken)

    def _fill(self) -> None:
        """Begin as much of what is claimed as there are slots for."""
        while len(self._running) < self.concurrency and not self._stopping.is_set():
            claim = self._prefetched.take()
            if claim is None:
                return
            name = str(claim.execution_id)
            going = asyncio.create_task(self._go(claim, name), name=f"{claim.task} {name}")
            self._running[claim.fence.lease_id] = claim, going
            self._names.add(name)
            going.add_done_callback(partial(self._ended, claim, name))

    async def _go(self, claim: Claim, name: str) -> None:
        """Run one and report it. The slot is free as soon as the handler has ended."""
        try:
            outcome = await self._run(claim)
        except (Fenced, asyncio.CancelledError):
            outcome = Lost()  # before the handler had begun
        _, going = self._running.pop(claim.fence.lease_id)
        self._names.discard(name)
        self._reporting.add(going)
        self._prefetched.ended()
        self._fill()
        if self._heartbeat.holds(claim.fence):
            await self._reports.report(claim, outcome)

    def _ended(self, claim: Claim, name: str, going: asyncio.Task[None]) -> None:
        self._heartbeat.release(claim.fence)
        if self._running.pop(claim.fence.lease_id, None):  # cancelled before it had begun
            self._names.discard(name)
        self._reporting.discard(going)
        self._fill()
        if self._full:
            self._pauses.wake()
        if not going.cancelled() and (error := going.exception()) is not None:
            log.error("%s is left to its lease", going.get_name(), exc_info=error)

    async def _run(self, claim: Claim) -> Outcome:
        task = self._app.tasks.get(claim.task)
        if task is None:
            log.warning("no task %s here; %s goes to another worker", claim.task, claim.execution_id)
            return PutOff(UNKNOWN_TASK_DELAY, f"worker {self.name} has no task {claim.task}; start one that has")
        if self._limits.is_full(task.name):
            return PutOff(FULL_TASK_DELAY, f"worker {self.name} runs as many {task.name} as their limit allows")
        span = time_left(claim, self.lease)
        running = self._run_now(task, claim) if task.limit is None else self._run_in_turn(task, claim)
        return await (running if span is None else within(span, running))

    async def _run_in_turn(self, task: Task[..., Any], claim: Claim) -> Outcome:
        async with self._limits.turn(task.name):
            return await self._run_now(task, claim)

    async def _run_now(self, task: Task[..., Any], claim: Claim) -> Outcome:
        journal = await self._reports.read_journal(claim)
        whole = await self._reports.read_inputs(claim, task.arguments.names)
        return await run(task, whole, Context(self._reports, claim, journal), self._threads)

    def _lose(self, fence: Fence) -> None:
        """Stop a run whose lease is gone. One that has ended hears it from the engine when it reports."""
        self._prefetched.drop(fence)
        claim, going = self._running.get(fence.lease_id, (None, None))
        if claim is not None and going is not None:
            log.warning("lost the lease of %s %s; its run is cancelled", claim.task, claim.execution_id)
            going.cancel()

    def _notified(self, notification: Notification) -> None:
        if not set(self.lanes).isdisjoint(notification.lanes) or not (notification.lanes or notification.ended):
            self._pauses.shorten()
        if not self._names.isdisjoint(notification.ended):
            self._heartbeat.look()

    async def _drain(self) -> None:
        """Hand back what has not begun, and let what runs finish for a while."""
        await self._hand_back(self._prefetched.empty())
        left = {going for _, going in self._running.values()} | self._reporting
        if left:
            log.info("%s claims no more and lets %d finish", self.instance, len(left))
            await asyncio.wait(left, timeout=self._drain_time)

    async def _leave(self) -> None:
        """Stop what still runs, hand it back, unregister."""
        self._stopping.set()
        left = dict(self._running)
        for _, going in left.values():
            going.cancel()
        if ending := {going for _, going in left.values()} | self._reporting:
            await asyncio.wait(ending, timeout=UNWINDING)
        await self._hand_back([*(claim for claim, _ in left.values()), *self._prefetched.empty()])
        await asyncio.to_thread(self._heartbeat.stop)
        await self._reports.close()
        self._threads.close()

    async def _hand_back(self, handed: Sequence[Claim]) -> list[Claim]:
        """Give these to others; returns those that could not be, since the database is away."""
        answers = await asyncio.gather(*map(self._reports.hand_back, handed), return_exceptions=True)
        kept = []
        for claim, answer in zip(handed, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, Fenced):
                log.warning("%s of %s could not be handed back: %s", claim.task, claim.execution_id, answer)
                kept.append(claim)
            else:
                self._heartbeat.release(claim.fence)
        return kept
