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
        """Open the app unless it is open, and keep it open until the process ends. Safe to repeat, from any thread.

        Call it when you first need the app, because a web server may fork its processes before that.
        """
        self._open(closes=False)
        return self

    def __enter__(self) -> Self:
        self._open(closes=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.close()

    def _open(self, *, closes: bool) -> None:
        with self._thing.opening:
            if self._thing.is_open:
                return
            stack = ExitStack()
            stack.enter_context(opened(self._thing))
            if closes:
                self._closing = stack
            else:
                atexit.register(stack.close)
