"""Join the transaction of a caller: what is submitted there is committed with the caller's rows, or not at all."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from flowfabric.postgres import callers
from flowfabric.postgres.driver import Connection

if TYPE_CHECKING:
    from flowfabric.app import App

T = TypeVar("T")


def join(
    app: "App",
    conn: object,
    submit: Callable[[Connection], Awaitable[tuple[T, Iterable[str]]]],
    read: Callable[[T], Any],
    in_sync: Callable[[Any], Any],
) -> Any:
    """Submit on a caller's connection, and notify the workers of these lanes after its commit if the driver has a hook.

    On an async connection, returns a coroutine with what `read` makes of the answer; on a sync one, its sync version.
    Raises `TypeError` for what is no connection, and `RuntimeError` if no transaction is open.
    """
    caller = callers.caller(conn)

    async def joined() -> Any:
        answer, lanes = await submit(caller.joined())
        for lane in lanes:
            caller.after_commit((app.wake_from_anywhere, lane))
        return read(answer)

    return joined() if caller.is_async else in_sync(callers.finish(joined()))
