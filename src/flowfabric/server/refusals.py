"""Refusals over HTTP: every answer that is not the one asked for has the same shape, and the status of its family.

{"error": "lane_not_found", "message": "lane \"reprots\" does not exist; …", "detail": {…}}
"""

import logging
from typing import Any

import msgspec

from flowfabric.errors import DatabaseUnavailable, FlowFabricError, RowLocked, ShuttingDown
from flowfabric.server import answers

log = logging.getLogger("flowfabric.server")

RETRY_AFTER_MS = 1_000
PASSING = (DatabaseUnavailable, RowLocked, ShuttingDown)
"""What a caller may simply try again."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was refused. Nothing was changed."""

    error: str
    """The code: the name of the error in every layer."""
    message: str
    """What is wrong, with the value, and what to do."""
    detail: dict[str, Any]
    retry_after_ms: int | None = None
    """The same request may succeed after this long."""


def refusal(error: FlowFabricError) -> Refusal:
    """The refusal that an error is over HTTP."""
    retry_after = RETRY_AFTER_MS if isinstance(error, PASSING) else None
    detail = {name: answers.plain(value) for name, value in error.fields.items()}
    return Refusal(error=error.code, message=error.message, detail=detail, retry_after_ms=retry_after)


def encoded(error: FlowFabricError) -> bytes:
    """The body of the answer to a refused request."""
    return msgspec.json.encode(refusal(error), enc_hook=str)


def headers(error: FlowFabricError) -> dict[str, str]:
    """The headers of the answer to a refused request."""
    return {"retry-after": str(RETRY_AFTER_MS // 1_000)} if isinstance(error, PASSING) else {}


def unexpected(error: Exception, what: str) -> bytes:
    """Log an error that nobody has foreseen, and return the body of the answer, which says nothing of it."""
    log.error("request %s failed; its caller got the status 500", what, exc_info=error)
    told = Refusal(error="internal_error", message="the server failed on this request; its log says why", detail={})
    return msgspec.json.encode(told)
