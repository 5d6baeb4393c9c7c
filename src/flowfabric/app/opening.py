"""Opening an app for sync code: on an event loop in its own thread, or on the loop where it is open already."""

import atexit
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from flowfabric.blocking import Sync, opened

if TYPE_CHECKING:
    from flowfabric.app.app import App


class Opening(Sync):
    """Opens the app at its first use; threads that come at the same time wait and share it."""

    __slots__ = ("_closing",)

    _thing: "App"

    def __init__(self, app: "App") -> None:
        super().__init__(app, lambda: app.loop)
        self._closing = ExitStack()

    def open(self) -> Self:
        """Open the app unless it is open, and keep it open until `close` or the end of the process.

        Safe to repeat, from any thread. Call it when you first need the app, because a web server may fork its
        processes before that.
        """
        with self._thing.opening:
            if not self._thing.is_open:
                self._thing.kept_open = self._opened()
                atexit.register(self._thing.kept_open.close)
        return self

    def close(self) -> None:
        """Close the app, if `open` has opened it. The end of the process does the same."""
        kept, self._thing.kept_open = self._thing.kept_open, None
        if kept is not None:
            atexit.unregister(kept.close)
            kept.close()

    def __enter__(self) -> Self:
        with self._thing.opening:
            if not self._thing.is_open:
                self._closing = self._opened()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.close()

    def _opened(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(opened(self._thing))
        return stack
