"""Captured logs: what the handler of a run logs, as frames of its stream."""

import asyncio
import logging
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context

from flowfabric.handler.frames import MOST_BYTES, Output, Pending
from flowfabric.handler.streams import pieces

OUR_OWN = "flowfabric"  # what these loggers log is about the worker


def read_level(capture_logs: bool | int | str) -> int | None:
    """Read the option of a task: the lowest level to capture, or `None` for nothing. Raises `ValueError`."""
    if isinstance(capture_logs, bool):
        return logging.NOTSET if capture_logs else None
    known = logging.getLevelNamesMapping()
    level = known.get(capture_logs.upper()) if isinstance(capture_logs, str) else capture_logs
    if not isinstance(level, int) or level < 0:
        raise ValueError(
            f'capture_logs {capture_logs!r} is invalid; use True, or the lowest level to show, such as "WARNING"'
        )
    return level


class CapturedLogs:
    """What one run logs, from any thread. It never waits: records for which there is no room are counted instead."""

    def __init__(self, output: Output, level: int) -> None:
        self.level = level
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._guard = threading.RLock()  # a record may be logged by a finalizer, while this is held
        self._of_threads: list[tuple[Context, str]] = []  # what the event loop has not seen yet
        self._characters = 0
        self._dropped = 0

    def add(self, record: logging.LogRecord) -> None:
        """Show a record, after those that the same thread has logged before."""
        text = _text(record)
        if _running_loop() is self._loop:
            self._put_of_threads()
            self._put(text)
        elif self._keep(text):
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._put_of_threads)

    def close(self) -> None:
        """Show what threads have logged, and say how many records were dropped."""
        self._put_of_threads()
        if self._dropped:
            self._output.put(self._note())

    def _keep(self, text: str) -> bool:
        """Keep a record of a thread for the event loop, and return whether it must be called for it."""
        with self._guard:
            if self._characters and self._characters + len(text) > MOST_BYTES:
                self._dropped += 1
                return False
            self._of_threads.append((copy_context(), text))
            self._characters += len(text)
            return len(self._of_threads) == 1

    def _put_of_threads(self) -> None:
        if not self._of_threads:
            return
        with self._guard:
            kept, self._of_threads, self._characters = self._of_threads, [], 0
        for context, text in kept:
            context.run(self._put, text)  # which knows the step that has logged it

    def _put(self, text: str) -> None:
        if self._output.drops():
            return
        lines = [self._note()] if self._dropped and self._output.has_room else []
        lines += map(self._frame, pieces(text))
        for line in lines:
            if not self._output.has_room:
                with self._guard:
                    self._dropped += 1
                return
            self._output.put(line)

    def _note(self) -> Pending:
        with self._guard:
            dropped, self._dropped = self._dropped, 0
        return self._frame(f"WARNING flowfabric: {dropped:,} log records are missing here: they came too fast\n")

    def _frame(self, text: str | bytes) -> Pending:
        return Pending("log", text, kind="stderr", source=self)


class LogHandler(logging.Handler):
    """A handler of the root logger, for as long as there are runs whose logs are captured."""

    def __init__(self) -> None:
        super().__init__()
        self._runs = 0

    def enter(self) -> None:
        """Count another run, and become a handler of the root logger unless that is so."""
        self.acquire()
        try:
            self._runs += 1
            logging.root.addHandler(self)  # also if the program has replaced the handlers meanwhile
        finally:
            self.release()

    def leave(self) -> None:
        """Count one run less; after the last one, the root logger has its own handlers only."""
        self.acquire()
        try:
            self._runs -= 1
            if not self._runs:
                logging.root.removeHandler(self)
        finally:
            self.release()

    def handle(self, record: logging.LogRecord) -> bool:
        """Show a record in the stream of the run that logs it. Takes no lock, because no thread may wait here."""
        try:
            captured = _captured.get(None)
            is_ours = record.name.partition(".")[0] == OUR_OWN
            if captured is not None and record.levelno >= captured.level and not is_ours:
                captured.add(record)
        except Exception:
            self.handleError(record)
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record):
            last.handle(record)
        return True

    def _is_alone(self, record: logging.LogRecord) -> bool:
        """Whether the program has configured no handler, so that Python would print the record."""
        logger: logging.Logger | None = logging.getLogger(record.name) if logging.root.handlers == [self] else None
        while logger is not None and logger is not logging.root:
            if logger.handlers:
                return False
            logger = logger.parent
        return logger is logging.root


_captured: ContextVar[CapturedLogs] = ContextVar("captured")
_handler = LogHandler()  # one, because the process has one root logger


@contextmanager
def capturing(output: Output, level: int) -> Iterator[None]:
    """Show what this asyncio task logs in the stream of its run, and the tasks and threads that inherit its context."""
    captured = CapturedLogs(output, level)
    before = _captured.set(captured)
    _handler.enter()
    try:
        yield
    finally:
        _handler.leave()
        _captured.reset(before)
        captured.close()


def _text(record: logging.LogRecord) -> str:
    """Format a record without changing it, unlike a formatter of `logging`, because other handlers get it too."""
    lines = [f"{record.levelname} {record.name}: {record.getMessage()}"]
    if record.exc_info and record.exc_info[0] is not None:
        lines.append("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
    if record.stack_info:
        lines.append(record.stack_info)
    # A lone surrogate is no text that could be stored.
    return "\n".join([*lines, ""]).encode(errors="backslashreplace").decode()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
