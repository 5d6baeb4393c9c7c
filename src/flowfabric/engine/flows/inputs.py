"""Inputs: what the upstreams of a member hand on to it."""

from collections.abc import Collection

from flowfabric import calls
from flowfabric.ids import ExecutionId, check_text
from flowfabric.model import Input
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def read_inputs(
    conn: Connection, execution_id: ExecutionId, *, names: Collection[str] | None = None
) -> dict[str, Input]:
    """What a member is handed, by name, or only what has one of these names; `payload` stands for its payload.

    A claim brings all of it where that has room, and says so by `more_inputs` where it has not. What is no member, and
    who is handed nothing, has none.
    """
    wanted = None if names is None else [check_text(name, "name") for name in names]
    inputs: dict[str, Input] = {}
    more = True
    while more:
        place = {"after_name": list(inputs)[-1]} if inputs else {}
        found = await call.rows(conn, "read_inputs", **calls.about(execution_id), names=wanted, **place)
        inputs |= {row["name"]: Input(row["result"], row["encoding"]) for row in found}
        more = bool(found) and found[-1]["more"]
    return inputs
