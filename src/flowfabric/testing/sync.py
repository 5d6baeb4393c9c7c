"""The engine for sync tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowfabric import blocking
from flowfabric.app import App
from flowfabric.blocking import Blocking
from flowfabric.testing.clock import Clock
from flowfabric.testing.engine import Engine


class BlockingEngine(Blocking[Engine]):
    """The engine on an event loop in its own thread; its methods wait for their result."""

    @property
    def clock(self) -> Blocking[Clock]:
        """The clock, wrapped in the same way."""
        return self(self._thing.clock)

    def open(self, app: App) -> Blocking[App]:
        """Open an app on the database of this test, and return it with sync methods."""
        self._call(self._thing.open, app)
        return self(app)

    def work(self, app: App, **options: Any) -> Blocking[App]:
        """Open an app, start a worker for its tasks in this process, and return the app with sync methods."""
        self._call(self._thing.work, app, **options)
        return self(app)


@contextmanager
def opened(engine: Engine) -> Iterator[BlockingEngine]:
    """Open the engine for sync tests, for as long as the block lasts."""
    with blocking.opened(engine) as wrapped:
        yield BlockingEngine(engine, wrapped._loop)
