"""Threads for sync handlers and steps. A thread cannot be stopped: an abandoned one runs on; its result is dropped."""

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
    """Runs each call in its own thread, without a limit; idle threads are reused.

    They are daemon threads, unlike those of an executor: a handler that never ends does not keep the process alive.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Job | None]] = []

    async def call(self, name: str, function: Callable[[], Any]) -> Any:
        """Call a function in a thread of that name and return its result; if cancelled, abandon the thread."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        jobs = self._idle.pop() if self._idle else self._begin()
        context = contextvars.copy_context()
        jobs.put((name, lambda: context.run(function), answer))
        try:
            return await answer
        except asyncio.CancelledError:
            log.warning("the thread of %s was cancelled but cannot be stopped; its result will be dropped", name)
            raise

    def close(self) -> None:
        """End the idle threads; busy ones end after their call, or with the process."""
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
            with suppress(RuntimeError):  # the event loop has ended, so nobody waits for the result
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
            # A future does not accept StopIteration, which may have escaped from a generator in the handler.
            answer.set_exception(RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else raised)
