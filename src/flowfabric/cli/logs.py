"""The log of `ff worker` and `ff dev`: what a handler logs names its execution."""

import logging

from flowfabric.handler.logs import log_execution

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
IN_HANDLER = "%(asctime)s %(levelname)s %(name)s: [%(task)s %(execution_id)s attempt %(attempt)s] %(message)s"


class ExecutionFormatter(logging.Formatter):
    """Adds the task, the execution and the attempt to the lines of handlers, and nothing to others."""

    def __init__(self) -> None:
        super().__init__(FORMAT)
        self._in_handler = logging.Formatter(IN_HANDLER)

    def format(self, record: logging.LogRecord) -> str:
        if record.__dict__.get("execution_id", "-") == "-":
            return super().format(record)
        return self._in_handler.format(record)


def configure_logging() -> None:
    """Log to standard error, unless the program has configured logging itself."""
    handler = logging.StreamHandler()
    handler.addFilter(log_execution)
    handler.setFormatter(ExecutionFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
