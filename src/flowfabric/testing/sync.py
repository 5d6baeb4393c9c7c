"""The engine for tests that do not await."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowfabric import blocking
from flowfabric.app import App
from flowfabric.blocking import Blocking
from flowfabric.testing.clock import Clock
from flowfabric.testing.engine import Engine


class BlockingEngine(Blocking[Engine]):
    """The same engine, on a loop in a thread of its own; what would be awaited is waited for."""

    @property
    def clock(self) -> Blocking[Clock]:
        """The clock, in the same way."""
        return self(self._thing.clock)

    def open(self, app: App) -> Blocking[App]:
        """Open an app on the database of this test, and return its blocking face."""
        self._call(self._thing.open, app)
        return self(app)

    def work(self, app: App, **options: Any) -> Blocking[App]:
        """Open an app, have a worker in this process run its tasks, and return its blocking face."""
        self._call(self._thing.work, app, **options)
        return self(app)


@contextmanager
def opened(engine: Engine) -> Iterator[BlockingEngine]:
    """The engine, for as long as the block lasts."""
    with blocking.opened(engine) as held:
        yield BlockingEngine(engine, held._loop)
