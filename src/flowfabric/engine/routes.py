"""Routes: the class of executions that are admitted alike."""

import msgspec

from flowfabric import db
from flowfabric.db import Connection
from flowfabric.model import Terms


async def register_route(conn: Connection, terms: Terms) -> int:
    """Make the route of these terms known and return its number; safe to repeat.

    A route appears with its first submission anyway. Registered before, that submission need not wait for another
    transaction that is making the same route. Raises what `submit` refuses of a lane, a namespace, capabilities,
    budgets and quotas.
    """
    number = await db.value(
        conn,
        "register_route",
        lane=terms.lane,
        namespace=terms.namespace,
        needs=msgspec.json.encode(terms.needs).decode(),
        budgets=msgspec.json.encode(terms.budgets).decode(),
        quotas=msgspec.json.encode(terms.quotas).decode(),
    )
    return int(number)
