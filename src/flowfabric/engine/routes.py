"""Routes: executions with the same lane, namespace, capabilities, budgets and quotas are admitted alike."""

from collections.abc import Collection

import msgspec

from flowfabric.ids import check_text
from flowfabric.model import Options
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def register_route(conn: Connection, options: Options) -> int:
    """Create the route of these options if it does not exist, and return its id; safe to repeat.

    The first submission creates its route anyway. If the route already exists, that submission cannot wait for another
    transaction that is creating it. Raises the errors of `submit` about lane, namespace, capabilities, budgets and
    quotas.
    """
    number = await call.value(
        conn,
        "register_route",
        lane=check_text(options.lane, "lane"),
        namespace=check_text(options.namespace, "namespace"),
        needs=_words(options.needs, "needs"),
        budgets=_words(options.budgets, "budgets"),
        quotas=_words(options.quotas, "quotas"),
    )
    return int(number)


def _words(words: Collection[str], what: str) -> str:
    """Encode a set of words as JSON; SQL validates it."""
    given = words if isinstance(words, str) else list(words)
    for word in given:
        if isinstance(word, str):
            check_text(word, what)
    return msgspec.json.encode(given).decode()
