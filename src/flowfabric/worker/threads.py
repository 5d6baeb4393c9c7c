"""Threads for handlers that do not await. A thread cannot be stopped: one that is given up runs on and is not heard."""

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

log = logging.getLogger("flowfabric.worker")

Job = tuple[str, Callable[[], Any], asyncio.Future[Any]]


class Threads:
    """Runs calls in threads, as many as there are calls at a time; an idle one is used again.

    They are daemons, unlike those of an executor: a handler that never ends does not keep its process from ending.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Job | None]] = []

    async def call(self, name: str, function: Callable[[], Any]) -> Any:
        """What the function returns or raises, called in a thread of that name. Cancelled, the thread is given up."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        jobs = self._idle.pop() if self._idle else self._begin()
        context = contextvars.copy_context()
        jobs.put((name, lambda: context.run(function), answer))
        try:
            return await answer
        except asyncio.CancelledError:
            log.warning("thread %r cannot be stopped; what comes of it is dropped", name)
            raise

    def close(self) -> None:
        """Let the idle threads end; the others end with their process, or after what they do."""
        while self._idle:
            self._idle.pop().put(None)

    def _begin(self) -> "queue.SimpleQueue[Job | None]":
        jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._work, args=(jobs, loop), daemon=True).start()
        return jobs

    def _work(self, jobs: "queue.SimpleQueue[Job | None]", loop: asyncio.AbstractEventLoop) -> None:
        while (job := jobs.get()) is not None:
            name, function, answer = job
            threading.current_thread().name = name
            result, raised = None, None
            try:
                result = function()
            except BaseException as error:
                raised = error
            with suppress(RuntimeError):  # the loop has ended meanwhile, and nobody listens
                loop.call_soon_threadsafe(self._answer, jobs, answer, result, raised)
            threading.current_thread().name = "handler: idle"
            del job, function, answer, result, raised

    def _answer(
        self,
        jobs: "queue.SimpleQueue[Job | None]",
        answer: asyncio.Future[Any],
        result: object,
        raised: BaseException | None,
    ) -> None:
        self._idle.append(jobs)
        if answer.cancelled():
            return
        if raised is None:
            answer.set_result(result)
        else:
            # A future refuses StopIteration, which a generator of the handler's may have let go.
            answer.set_exception(RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else raised)
