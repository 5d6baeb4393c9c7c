"""Inputs: results that upstreams pass to a member."""

from collections.abc import Collection

from flowfabric import calls
from flowfabric.ids import ExecutionId, check_text
from flowfabric.model import Input
from flowfabric.postgres import call
from flowfabric.postgres.driver import Connection


async def read_inputs(
    conn: Connection, execution_id: ExecutionId, *, names: Collection[str] | None = None
) -> dict[str, Input]:
    """Read the inputs of a member by name, or only those with the given names; `payload` replaces its payload.

    A claim carries the inputs if they fit, and otherwise sets `more_inputs`. An execution without inputs, or outside a
    flow, gets an empty dict.
    """
    wanted = None if names is None else [check_text(name, "name") for name in names]
    inputs: dict[str, Input] = {}
    more = True
    while more:
        place = {"after_name": list(inputs)[-1]} if inputs else {}
        found = await call.rows(conn, "read_inputs", **calls.about(execution_id), names=wanted, **place)
        for row in found:
            upstream = ExecutionId(execution_id.partition, row["upstream"])
            inputs[row["name"]] = Input(row["result"], row["encoding"], upstream)
        more = bool(found) and found[-1]["more"]
    return inputs
