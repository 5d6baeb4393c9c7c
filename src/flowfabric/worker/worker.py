"""The loop of a worker: claims executions while it has room, runs and reports them, and drains when stopped."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from flowfabric import durations
from flowfabric.app import App
from flowfabric.app.tasks import Task
from flowfabric.engine import claims
from flowfabric.errors import DatabaseUnavailable, Fenced, FlowFabricError, InvalidLease, RowLocked, Unavailable
from flowfabric.handler.context import Context
from flowfabric.model import Claim, Fence, Swept
from flowfabric.postgres.backoff import Backoff
from flowfabric.postgres.notify import Notification
from flowfabric.sweeps import run_sweeps, sweeps
from flowfabric.worker.claiming import Pauses, Position, Prefetched
from flowfabric.worker.decoding import if_readable
from flowfabric.worker.heartbeat import Heartbeat, Registration
from flowfabric.worker.isolation import Isolation
from flowfabric.worker.leased import LeasedCalls
from flowfabric.worker.lending import Lending
from flowfabric.worker.limits import Limits, time_left, within
from flowfabric.worker.observer import Nobody, Observer
from flowfabric.worker.registered import registered_tasks
from flowfabric.worker.reports import Reports
from flowfabric.worker.run import Lost, Outcome, Postponed, run, started_without_version
from flowfabric.worker.running import Running
from flowfabric.worker.sharing import Shared
from flowfabric.worker.threads import Threads

log = logging.getLogger("flowfabric.worker")

UNKNOWN_TASK_DELAY = timedelta(seconds=5)
FULL_TASK_DELAY = timedelta(seconds=1)
SHORTEST_LEASE, LONGEST_LEASE = timedelta(seconds=1), timedelta(hours=1)
CANCEL_TIMEOUT = 5.0  # seconds for a cancelled handler to end
MOST_REPORTING = 2_000
DECLARE_PAUSES = 0.1, 5.0


class Worker:
    """Runs the tasks of an app until it is stopped.

    By default it serves the lanes of its tasks and has the capabilities they need. It runs `concurrency` executions at
    once. It claims up to `prefetch` more ahead, as many as start within a second at the current pace.
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
            given = f"concurrency {concurrency} or prefetch {prefetch}"
            raise ValueError(f"{given} is invalid; use a concurrency of 1 or more and a prefetch of 0 or more")
        needed = {need for task in app.every_task for need in task.options.needs}
        self._app = app
        self.name = name
        self.instance = f"{name}@{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self.concurrency = concurrency
        self.lanes = sorted(lanes or {task.options.lane for task in app.every_task} or {"default"})
        self.capabilities = sorted(needed if capabilities is None else capabilities)
        self.namespace = namespace
        self.lease = durations.read_duration(lease)
        self._drain_time = durations.read_duration(drain).total_seconds()
        self.sweeps = sweeps
        self._observer: Observer = Nobody()
        self._prefetched = Prefetched(4 * concurrency if prefetch is None else prefetch)
        self._running: dict[UUID, tuple[Claim, asyncio.Task[None]]] = {}
        self._names: set[str] = set()
        self._starting: set[asyncio.Task[None]] = set()  # tasks that have not taken a claim yet
        self._reporting: set[UUID] = set()
        self._returning: set[asyncio.Task[list[Claim]]] = set()
        self._any_ended = asyncio.Event()
        self._context = copy_context()
        self._threads = Threads()
        self._steps = Running()
        self._limits = Limits(app.every_task)
        self._isolation = Isolation()
        self._position = Position()
        self._pauses = Pauses()
        self._full = False
        self._claiming = 0  # how many the claim in flight asks for
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()

    def stop(self) -> None:
        """Stop claiming, let running handlers finish within the drain time, then cancel and requeue the rest."""
        self._stopping.set()
        self._pauses.wake()

    def _observed_by(self, observer: Observer) -> None:
        """Tell this observer about every run; called before `run`, by `ff dev`."""
        self._observer = observer

    @property
    def busy(self) -> bool:
        """Whether the worker has executions to run or report, or parents to notify; only valid after `run` began."""
        return bool(self._running or self._reporting or self._prefetched or self._reports.notifying)

    async def run(self) -> None:
        """Run until `stop`. If the database is unavailable, the worker retries and does not exit.

        Raises `InvalidWorker`, `InvalidLane`, `InvalidCapabilities`, `InvalidTasks`, `InvalidLease` or `InvalidName` if
        an option of the worker is invalid.
        """
        if not SHORTEST_LEASE <= self.lease <= LONGEST_LEASE:  # checked here, because the heartbeat depends on it
            asked = f"lease of {self.lease // timedelta(milliseconds=1)} ms"
            raise InvalidLease(f"{asked} is invalid; use 1,000 to 3,600,000 ms (one hour)")
        about = Registration(
            worker=self.name,
            instance=self.instance,
            lanes=self.lanes,
            capabilities=self.capabilities,
            namespace=self.namespace,
            tasks=registered_tasks(self._app.every_task),
            lease=self.lease,
        )
        self._heartbeat = Heartbeat(self._app.database, about, self._steps, self._lose)
        lease = self.lease.total_seconds()
        self._lending = Lending(about, self._app.tasks, self._limits, self._position, self._lendable, self._borrowed)
        self._leased = LeasedCalls(self._app, self._heartbeat, lease=lease, lose=self._lose)
        self._reports = Reports(
            self._app,
            self._leased,
            threads=self._threads,
            running=self._steps,
            observer=self._observer,
            due=self._pauses.due,
        )
        stop_listening = self._app.notifier.listen(self._notified)
        stop_lending = self._app.client.lenders.add(self._lending)
        self._warn_of_lanes_without_tasks()
        sweeping = asyncio.create_task(self._sweep(), name="sweeps")
        self._heartbeat.start()
        try:
            await self._declare_schedules()
            await self._until_registered()
            await self._work()
            await self._drain()
        finally:
            stop_listening()
            stop_lending()
            sweeping.cancel()
            await self._leave()

    def _warn_of_lanes_without_tasks(self) -> None:
        used = {task.options.lane for task in self._app.every_task}
        if idle := [lane for lane in self.lanes if used and lane not in used]:
            log.warning(
                "no task of this app is in lane %s; the worker runs there only what is submitted with that lane as an "
                "option; lanes of its tasks: %s",
                *(", ".join(idle), ", ".join(sorted(used))),
            )

    async def _declare_schedules(self) -> None:
        """Create or change the schedules that the app declares; retry while the database is unavailable."""
        backoff = Backoff(*DECLARE_PAUSES)
        while not self._stopping.is_set():
            try:
                await self._app.declare_schedules()
                return
            except (DatabaseUnavailable, RowLocked) as error:
                log.warning("could not declare schedules, retrying in %g s: %s", backoff.current, error.message)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff.next())

    async def _until_registered(self) -> None:
        """Wait until this instance is registered, so that if the process dies its claims are noticed immediately."""
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
            await run_sweeps(self._app.database, listed, woken=self._notify_swept)

    def _notify_swept(self, swept: Swept) -> None:
        self._app.notify(lanes=swept.lanes, ended=swept.ended)

    async def _work(self) -> None:
        """Claim until stopped. A claim in flight then has a few seconds, because its reply may never arrive."""
        claiming = asyncio.create_task(self._claim_until_stopped(), name="claim")
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((claiming, stopping), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([claiming], timeout=CANCEL_TIMEOUT)
        finally:
            stopping.cancel()
            if not claiming.cancel():
                claiming.result()

    async def _claim_until_stopped(self) -> None:
        while not self._stopping.is_set():
            self._pauses.begin()
            self._prefetched.add(await self._requeue(self._prefetched.stale()))
            if self._isolation.is_held:
                self._fill()  # it does not wait for ever
            room = self._room()
            self._claiming = room
            taken = await self._claim(room) if room else 0
            self._claiming = 0
            self._full = taken == room
            if taken:
                self._pauses.found()
            if (taken < room or not room) and not self._stopping.is_set():
                await self._pauses.wait()

    def _room(self) -> int:
        """How many to claim now. While prefetched claims are left, a few free places are not worth a call."""
        idle = self._idle()
        ahead = self._prefetched.room()
        if self._is_closed or (idle <= 0 and idle + ahead < max(ahead // 2, 1)):
            return 0
        return min(idle + ahead, 1_000)

    @property
    def _is_closed(self) -> bool:
        return self._isolation.is_closed or len(self._reporting) > MOST_REPORTING

    def _idle(self) -> int:
        return self.concurrency - len(self._running) - len(self._prefetched) - self._lending.lent

    def _lendable(self) -> int:
        """How many slots could start an execution now, unless a claim in flight fills them."""
        may_claim = self.ready.is_set() and not self._stopping.is_set() and not self._is_closed
        return self._idle() - self._claiming if may_claim else 0

    def _borrowed(self, claims: Sequence[Claim], asked_at: float) -> None:
        """A call has returned the slots that it was lent, and what it has claimed for them."""
        self._position.moved(claims, 0.0, from_front=False)
        if claims and self._isolation.is_closed:  # nothing else may run now, so others get them
            self._heartbeat.add((claim.fence for claim in claims), asked_at)
            self._returning.add(returning := asyncio.create_task(self._requeue(claims)))
            returning.add_done_callback(self._returning.discard)
        else:
            self._received(claims, asked_at)
        if self._full or not claims:
            self._pauses.wake()

    async def _claim(self, room: int) -> int:
        """Claim up to `room` executions; none if the database is unavailable.

        A claim that failed may have taken executions, so the next one repeats its request and gets them.
        """
        asked_at = time.monotonic()
        last = self._position.last()
        unanswered = self._lending.unanswered
        repeated, request = bool(unanswered), next(iter(unanswered), None) or uuid4()
        unanswered[request] = None
        claim = partial(
            claims.claim,
            worker=self.name,
            instance=self.instance,
            lanes=self.lanes,
            capabilities=self.capabilities,
            take=room,
            lease=self.lease,
            after_route=self._position.route,
            namespace=self.namespace,
            last=last,
            request=request,
            repeated=repeated,
            slots=max(self._idle(), 0),
        )
        try:
            try:
                taken = await self._app.database.run(claim, wait=False)
            except RowLocked:  # a quota, by another transaction: claim what does not need it
                taken = await self._app.database.run(partial(claim, wait=False), wait=False)
        except Unavailable as error:
            log.warning("could not claim for %s; retrying: %s", self.instance, error)
            return 0
        except FlowFabricError:
            raise  # the claim itself is invalid, so a retry would not help
        except Exception:
            log.exception("could not claim for %s; retrying", self.instance)
            return 0
        del unanswered[request]
        self._position.moved(taken, time.monotonic() - asked_at, from_front=last is None)
        self._received(taken, asked_at)
        return len(taken)

    def _received(self, taken: Sequence[Claim], asked_at: float) -> None:
        """Keep and start what a call has claimed that was sent at that time."""
        if taken:
            self._heartbeat.add((claim.fence for claim in taken), asked_at)
            self._prefetched.add(taken)
            if taken[-1].alone:
                self._isolation.wait(taken[-1])
            self._fill()

    def _fill(self, most: int = 1) -> None:
        """Start prefetched claims while there are free slots, in up to `most` tasks.

        One task is enough as long as handlers do not await: it runs all claims, one after the other.
        """
        startable = min(self.concurrency - len(self._running), len(self._prefetched), most)
        for _ in range(startable - len(self._starting) if self._may_start() else 0):
            # Not in the context of the caller, which may be that of another run.
            starting = asyncio.create_task(self._run_prefetched(), context=self._context.copy())
            self._starting.add(starting)
            starting.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("could not run %s; it runs again when its lease has expired", task.get_name(), exc_info=error)
        self._fill()

    async def _run_prefetched(self) -> None:
        """Run claims one after the other until a handler awaits: this task then belongs to that run alone."""
        running = asyncio.current_task()
        assert running is not None
        self._starting.discard(running)
        shared = Shared(running, awaits=partial(self._fill, self.concurrency))
        for _ in range(self.concurrency):  # then other tasks have their turn
            claim = self._prefetched.take() if self._may_start() else None
            if claim is None:
                break
            await self._run_and_report(claim, running)
            if not shared.is_unchanged:
                break
        shared.close()
        self._fill()

    def _may_start(self) -> bool:
        claim = self._prefetched.next()
        is_free = len(self._running) < self.concurrency and not self._stopping.is_set()
        others = len(self._running) + len(self._reporting)
        return claim is not None and is_free and self._isolation.may_start(claim, others)

    async def _run_and_report(self, claim: Claim, running: asyncio.Task[None]) -> None:
        """Run an execution and report its outcome. The slot is free as soon as the handler has ended."""
        name = str(claim.execution_id)
        running.set_name(f"{claim.task} {name}")
        self._running[claim.fence.lease_id] = claim, running
        self._names.add(name)
        self._isolation.start(claim)
        self._observer.started(claim)
        outcome: Outcome = Lost()
        try:
            with suppress(Fenced, asyncio.CancelledError):  # before the handler was called
                outcome = await self._run(claim)
        finally:
            del self._running[claim.fence.lease_id]
            self._names.discard(name)
            self._prefetched.ended()
            self._observer.ended(claim, outcome)
            self._report(claim, outcome)

    def _report(self, claim: Claim, outcome: Outcome) -> None:
        self._reporting.add(claim.fence.lease_id)
        if isinstance(outcome, Lost) or not self._leased.holds(claim.fence):
            self._ended(claim)
        else:
            self._reports.send(claim, outcome, self._ended)

    def _ended(self, claim: Claim) -> None:
        """The run has ended, and its outcome is reported."""
        self._heartbeat.release(claim.fence)
        self._reporting.discard(claim.fence.lease_id)
        self._isolation.end(claim.fence)
        self._any_ended.set()
        if self._full:
            self._pauses.wake()
        if self._isolation.is_held:
            self._fill()

    async def _run(self, claim: Claim) -> Outcome:
        task = self._app.find_task(claim.task, claim.version)
        if task is None:
            what = f"task {claim.task}" if claim.version is None else f"version {claim.version} of task {claim.task}"
            log.warning(
                "this worker has no %s; execution %s is postponed, so that another worker can run it",
                *(what, claim.execution_id),
            )
            return Postponed(UNKNOWN_TASK_DELAY, f"worker {self.name} has no {what}; start one that has")
        if self._limits.is_full(task):
            return Postponed(FULL_TASK_DELAY, f"worker {self.name} runs as many {task.name} as its limit allows")
        left = time_left(claim, self.lease)
        running = self._run_now(task, claim) if task.limit is None else self._run_in_turn(task, claim)
        return await if_readable(claim, self.name, running if left is None else within(left, claim, running))

    async def _run_in_turn(self, task: Task[..., Any], claim: Claim) -> Outcome:
        async with self._limits.turn(task):
            return await self._run_now(task, claim)

    async def _run_now(self, task: Task[..., Any], claim: Claim) -> Outcome:
        if self._heartbeat.left(claim.fence) < self.lease.total_seconds() / 2:
            await self._renew(claim)
        journal = await self._reports.read_journal(claim)
        if started_without_version(task, claim, journal):
            first = self._app.find_task(task.name, 1)
            if first is None or first.limit is not None:  # to be claimed again as version 1, whose limit then counts
                await self._reports.mark_begun(claim, 1)
                missing = f", which worker {self.name} has not" if first is None else ""
                return Postponed(timedelta(), f"it has started under version 1 of task {claim.task}{missing}")
            task = first
        complete = await self._reports.read_inputs(claim, task.arguments.names)
        begins = task.version if task.is_versioned and claim.version is None else None
        if claim.must_mark or begins is not None:
            await self._reports.mark_begun(claim, begins)
        return await run(task, complete, Context(self._reports, claim, journal), self._threads)

    async def _renew(self, claim: Claim) -> None:
        """Renew a lease before its run starts, because its claim took so long to arrive."""
        asked_at = time.monotonic()
        await self._reports.renew(claim, self.lease)
        self._heartbeat.add([claim.fence], asked_at)

    def _lose(self, fence: Fence) -> None:
        """Cancel a run whose lease is lost. If it has already ended, the engine refuses its report."""
        self._prefetched.drop(fence)
        self._isolation.end(fence)
        claim, running = self._running.get(fence.lease_id, (None, None))
        if claim is not None and running is not None:
            log.warning("lost the lease of %s %s; its run is cancelled", claim.task, claim.execution_id)
            running.cancel()

    def _notified(self, notification: Notification) -> None:
        if not set(self.lanes).isdisjoint(notification.lanes) or not (notification.lanes or notification.ended):
            self._pauses.shorten()
        if not self._names.isdisjoint(notification.ended):
            self._heartbeat.renew_now()

    async def _drain(self) -> None:
        """Requeue the claims that have not started, and let running handlers finish within the drain time."""
        await self._lending.wait(CANCEL_TIMEOUT)
        releasing = asyncio.create_task(self._requeue(self._prefetched.empty()))
        if left := len(self._running) + len(self._reporting):
            log.info("%s is stopping; waiting up to %g s for %d runs", self.instance, self._drain_time, left)
            await self._wait_for_runs(self._drain_time)
        await asyncio.wait([releasing], timeout=CANCEL_TIMEOUT)

    async def _wait_for_runs(self, seconds: float) -> None:
        """Wait until all runs have ended and their outcomes are reported, but no longer than that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._running or self._reporting:
                    self._any_ended.clear()
                    await self._any_ended.wait()

    async def _leave(self) -> None:
        """Cancel the runs that are left, requeue them, and unregister: all of it within a limit, without a database."""
        self._stopping.set()
        left = dict(self._running)
        for _, running in left.values():
            running.cancel()
        await self._wait_for_runs(CANCEL_TIMEOUT)
        try:
            # Long enough to notice that a connection is silent and to use another one.
            async with asyncio.timeout(self._app.config.call_timeout.total_seconds() + CANCEL_TIMEOUT):
                await self._requeue([*(claim for claim, _ in left.values()), *self._prefetched.empty()])
                await asyncio.to_thread(self._heartbeat.stop)
                await self._reports.close()
        except TimeoutError:
            log.warning(
                "%s stops without the database; what it held runs elsewhere when the leases have expired", self.instance
            )
        self._threads.close()

    async def _requeue(self, unfinished: Sequence[Claim]) -> list[Claim]:
        """Release claims so that other workers can take them; return the claims that could not be released."""
        answers = await asyncio.gather(*map(self._reports.requeue, unfinished), return_exceptions=True)
        kept = []
        for claim, answer in zip(unfinished, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, Fenced):
                log.warning(
                    "could not requeue %s %s; it runs here, or elsewhere when its lease has expired: %s",
                    *(claim.task, claim.execution_id, answer),
                )
                kept.append(claim)
            else:
                self._heartbeat.release(claim.fence)
        return kept
