"""Routes: the class of executions that are admitted alike."""

from collections.abc import Collection

import msgspec

from flowfabric.ids import check_text
from flowfabric.model import Options
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def register_route(conn: Connection, options: Options) -> int:
    """Make the route of these options known and return its number; safe to repeat.

    A route appears with its first submission anyway. Registered before, that submission need not wait for another
    transaction that is making the same route. Raises what `submit` refuses of a lane, a namespace, capabilities,
    budgets and quotas.
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
    """A set of words as JSON; whether they can be one is for SQL to say."""
    given = words if isinstance(words, str) else list(words)
    for word in given:
        if isinstance(word, str):
            check_text(word, what)
    return msgspec.json.encode(given).decode()
