"""The worker: runs people's code."""

from flowfabric.worker.worker import Worker

__all__ = ["Worker"]
