"""What an application holds."""

from flowfabric.app.app import App

__all__ = ["App"]
