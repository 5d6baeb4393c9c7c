"""Private: the worker, which claims executions, runs their handlers and reports the outcomes."""

from flowfabric.worker.worker import Worker

__all__ = ["Worker"]
