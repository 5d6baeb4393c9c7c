"""Ids as SQL writes them: the same text that Python writes, for every UUID and partition."""

import json
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from flowfabric import ids
from flowfabric.ids import ExecutionId
from flowfabric.postgres.driver import Connection

VECTORS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())


async def test_sql_and_python_write_the_same_id(conn: Connection) -> None:
    uuids = [uuid4() for _ in range(200)] + [UUID(int=0), UUID(int=2**128 - 1), UUID(int=8 << 76), UUID(int=2 << 62)]
    stamped = [ids.stamped(uuid.int, uuid.int % 32_768) for uuid in uuids]
    asked = [ExecutionId.of(each) for each in uuids + stamped]
    asked += [ExecutionId(number % 256, each) for number, each in enumerate(uuids + stamped)]

    found = await conn.fetch(
        "select flowfabric._id(x.partition, x.id) as text, flowfabric._tagged_id(x.partition, x.id) as tagged"
        " from unnest($1::int[], $2::uuid[]) with ordinality as x (partition, id, number) order by x.number",
        [each.partition for each in asked],
        [each.uuid for each in asked],
    )

    assert [row["text"] for row in found] == [str(each) for each in asked]
    assert [row["tagged"] for row in found] == [each.wire for each in asked]


@pytest.mark.parametrize("vector", VECTORS["crc16_xmodem"])
async def test_the_checksum_of_sql_is_xmodem(conn: asyncpg.Connection, vector: dict[str, str]) -> None:
    data = bytes.fromhex(vector["hex"]) if "hex" in vector else vector["text"].encode()

    assert f"{await conn.fetchval('select flowfabric._crc16($1)', data):04x}" == vector["crc"]


async def test_no_id_is_no_text(conn: asyncpg.Connection) -> None:
    assert await conn.fetchval("select flowfabric._id(7, null)") is None
