"""Private: the app with its tasks, and the handles of executions, flows, schedules and subscriptions."""

from flowfabric.app.app import App

__all__ = ["App"]
