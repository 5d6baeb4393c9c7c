"""Metering: calls whose responses say what they cost, charged to a budget."""

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from flowfabric.blocking import Blocking
from flowfabric.errors import InvalidUsage
from flowfabric.handler.context import Context

log = logging.getLogger("flowfabric.handler")

P = ParamSpec("P")
R = TypeVar("R")

NAMES = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
}

Read = Callable[[Any], Mapping[str, int]]


def token_counts(response: object) -> Mapping[str, int]:
    """What a response says of itself in `usage`, by attribute or by key: input and output tokens, and one request.

    Both `input_tokens` and `output_tokens` and `prompt_tokens` and `completion_tokens` are understood. Raises
    `InvalidUsage` when there is neither: what was spent cannot be told.
    """
    usage = _part(response, "usage")
    found = {dimension: _first(usage, names) for dimension, names in NAMES.items()}
    counts = {dimension: count for dimension, count in found.items() if count is not None}
    if not counts:
        kind = type(response).__name__
        raise InvalidUsage(f"the response, a {kind}, has no token counts in `usage`; say by read= how to read it")
    return {**counts, "requests": 1}


@overload
def metered(
    ctx: Context, budget: str, call: Callable[P, Awaitable[R]], /, *, read: Read = ..., **estimate: int
) -> Callable[P, Awaitable[R]]: ...
@overload
def metered(
    ctx: Context, budget: str, call: Callable[P, R], /, *, read: Read = ..., **estimate: int
) -> Callable[P, Awaitable[R]]: ...
@overload
def metered(
    ctx: Blocking[Context], budget: str, call: Callable[P, R], /, *, read: Read = ..., **estimate: int
) -> Callable[P, R]: ...
def metered(
    ctx: Context | Blocking[Context],
    budget: str,
    call: Callable[..., Any],
    /,
    *,
    read: Read = token_counts,
    **estimate: int,
) -> Callable[..., Any]:
    """The same call, charged to a budget: `ctx.step("ask", metered(ctx, "team-a", client.messages.create), ...)`.

    What it cost is read from its response, which is returned. With an estimate, such as `tokens=4_000`, that is set
    aside first: a call that might not fit is not made, and one whose response has no counts costs the estimate. Without
    one, what was spent is reported afterwards, and past the hard limit the response is lost. `read` says what a
    response cost, if it has no `usage` with token counts.
    """
    set_aside: dict[str, Any] = dict(estimate)
    if isinstance(ctx, Blocking):
        return _blocking(ctx, budget, call, read, set_aside)

    @functools.wraps(call)
    async def asked(*args: Any, **kwargs: Any) -> Any:
        if not set_aside:
            response = await _awaited(call(*args, **kwargs))
            await ctx.report_usage(budget, **read(response))
            return response
        async with ctx.reserve(budget, **set_aside) as held:
            response = await _awaited(call(*args, **kwargs))
            await held.settle(**_read_or_nothing(read, response))
        return response

    return asked


def _blocking(
    ctx: Blocking[Context], budget: str, call: Callable[..., Any], read: Read, set_aside: Mapping[str, Any]
) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(call):
        raise TypeError(f"{call!r} is to be awaited, which this handler does not; give the blocking call")

    @functools.wraps(call)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if not set_aside:
            response = call(*args, **kwargs)
            ctx.report_usage(budget, **read(response))
            return response
        with ctx.reserve(budget, **set_aside) as held:
            response = call(*args, **kwargs)
            held.settle(**_read_or_nothing(read, response))
        return response

    return asked


def _read_or_nothing(read: Read, response: object) -> Mapping[str, int]:
    """What a response cost; nothing when it does not say, which settles for the estimate."""
    try:
        return read(response)
    except InvalidUsage as unread:
        log.warning("the estimate counts as spent: %s", unread.message)
        return {}


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def _part(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _first(usage: Any, names: Sequence[str]) -> Any:
    return next((count for name in names if (count := _part(usage, name)) is not None), None)
