"""The log of `ff worker` and `ff dev`: what a handler logs names its execution."""

import logging

from flowfabric.cli import tracebacks
from flowfabric.handler.logs import log_execution

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
IN_HANDLER = "%(asctime)s %(levelname)s %(name)s: [%(task)s %(execution_id)s attempt %(attempt)s] %(message)s"


class ExecutionFormatter(logging.Formatter):
    """Adds the task, the execution and the attempt to the lines of handlers; folds our own frames in tracebacks."""

    def __init__(self) -> None:
        super().__init__(FORMAT)
        self._in_handler = logging.Formatter(IN_HANDLER)

    def format(self, record: logging.LogRecord) -> str:
        outside = record.__dict__.get("execution_id", "-") == "-"
        line = super().format(record) if outside else self._in_handler.format(record)
        return tracebacks.folded(line) if "Traceback (most recent call last)" in line else line


def configure_logging() -> None:
    """Log to standard error, unless the program has configured logging itself."""
    handler = logging.StreamHandler()
    handler.addFilter(log_execution)
    handler.setFormatter(ExecutionFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
