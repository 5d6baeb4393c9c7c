"""Metering: charges a budget with the token counts in the responses of calls."""

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from flowfabric.errors import InvalidUsage
from flowfabric.handler.context import Context
from flowfabric.handler.sync import SyncContext

log = logging.getLogger("flowfabric.handler")

P = ParamSpec("P")
R = TypeVar("R")

NAMES = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
}

Read = Callable[[Any], Mapping[str, int]]


def token_counts(response: object) -> Mapping[str, int]:
    """Read input tokens, output tokens and one request from the `usage` of a response, an attribute or a key.

    Reads `input_tokens` and `output_tokens`, or `prompt_tokens` and `completion_tokens`. Raises `InvalidUsage` if the
    response has neither, because its cost is unknown then.
    """
    usage = _part(response, "usage")
    found = {dimension: _first(usage, names) for dimension, names in NAMES.items()}
    counts = {dimension: count for dimension, count in found.items() if count is not None}
    if not counts:
        kind = type(response).__name__
        raise InvalidUsage(f"the response, a {kind}, has no token counts in `usage`; pass read= to read its cost")
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
    ctx: SyncContext, budget: str, call: Callable[P, R], /, *, read: Read = ..., **estimate: int
) -> Callable[P, R]: ...
def metered(
    ctx: Context | SyncContext,
    budget: str,
    call: Callable[..., Any],
    /,
    *,
    read: Read = token_counts,
    **estimate: int,
) -> Callable[..., Any]:
    """Wrap a call to charge a budget: `ctx.step("ask", metered(ctx, "team-a", client.messages.create), ...)`.

    The cost is read from the response, which is returned. With an estimate, such as `tokens=4_000`, that amount is
    reserved first: a call that might not fit is not made, and a response without counts costs the estimate. Without an
    estimate, the cost is reported afterwards, and beyond the hard limit the response is lost. `read` reads the cost of
    a response that has no `usage` with token counts.
    """
    amounts: dict[str, Any] = dict(estimate)
    if isinstance(ctx, SyncContext):
        return _metered_sync(ctx, budget, call, read, amounts)

    @functools.wraps(call)
    async def charged(*args: Any, **kwargs: Any) -> Any:
        if not amounts:
            response = await _awaited(call(*args, **kwargs))
            await ctx.report_usage(budget, **read(response))
            return response
        async with ctx.reserve(budget, **amounts) as reserved:
            response = await _awaited(call(*args, **kwargs))
            await reserved.settle(**_read_or_nothing(read, response, ctx, budget))
        return response

    return charged


def _metered_sync(
    ctx: SyncContext, budget: str, call: Callable[..., Any], read: Read, amounts: Mapping[str, Any]
) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(call):
        raise TypeError(f"{call!r} is async, but this handler is not; use a sync function")

    @functools.wraps(call)
    def charged(*args: Any, **kwargs: Any) -> Any:
        if not amounts:
            response = call(*args, **kwargs)
            ctx.report_usage(budget, **read(response))
            return response
        with ctx.reserve(budget, **amounts) as reserved:
            response = call(*args, **kwargs)
            reserved.settle(**_read_or_nothing(read, response, ctx, budget))
        return response

    return charged


def _read_or_nothing(read: Read, response: object, ctx: Context | SyncContext, budget: str) -> Mapping[str, int]:
    """Read the cost of a response, or nothing if it has no counts: `settle` then charges the estimate."""
    try:
        return read(response)
    except InvalidUsage as unread:
        log.warning(
            "could not read the usage of a call of %s; charging budget %s with the estimate: %s",
            *(ctx.execution_id, budget, unread.message),
        )
        return {}


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def _part(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _first(usage: Any, names: Sequence[str]) -> Any:
    return next((count for name in names if (count := _part(usage, name)) is not None), None)
