"""Submitting for an app: single calls are merged, large ones are cut into statements that go side by side."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from flowfabric.config import Config
from flowfabric.engine import clock, executions
from flowfabric.errors import FlowFabricError
from flowfabric.ids import mint_execution_ids
from flowfabric.model import Submission, Submitted
from flowfabric.postgres.batching import Batch
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier

MOST = 1_000  # in one statement
MOST_BYTES = 4 * 2**20
SIDE_BY_SIDE = 3  # one is prepared while two are written


class Submitter:
    """Takes what the tasks of an app submit to Postgres, and tells workers about it."""

    def __init__(self, config: Config, database: Database, hints: Notifier) -> None:
        self._config = config
        self._database = database
        self._notifier = hints
        self.one = Batch(self._together, size=_size, in_flight=2)

    async def many(self, asked: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
        """Submit many, as if one after the other, and answer each in its place.

        Without keys and ids of the caller's no item can meet another, so the statements need not wait for each other;
        ages are counted from one moment, so that the order of the call stays the order of their turns.
        """
        pieces = [asked[start : start + MOST] for start in range(0, len(asked), MOST)]
        apart = all(item.key is None and item.execution_id is None for item in asked)
        if len(pieces) < 2 or not apart or any(sum(map(_size, piece)) > MOST_BYTES for piece in pieces):
            return await self._together(asked)
        began = await self._database.run(clock.clock, repeat=True)
        room = asyncio.Semaphore(SIDE_BY_SIDE)

        async def send(number: int, piece: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
            async with room:
                return await self._together(piece, began + timedelta(microseconds=number * MOST))

        answers = await asyncio.gather(*(send(number, piece) for number, piece in enumerate(pieces)))
        return [answer for piece in answers for answer in piece]

    async def _together(
        self, asked: Sequence[Submission], counted_from: datetime | None = None
    ) -> list[Submitted | FlowFabricError]:
        partitions, limit = self._config.execution_partitions, self._config.payload_limit
        # With ids of our own the call can be repeated when a reply is lost: what was taken is not taken again.
        minted = mint_execution_ids(len(asked), partitions)
        answers = await self._database.run(
            lambda conn: executions.submit_many(
                conn, asked, partitions=partitions, payload_limit=limit, counted_from=counted_from, minted=minted
            ),
            repeat=True,
        )
        taken = (item.terms.lane for item, answer in zip(asked, answers, strict=True) if isinstance(answer, Submitted))
        self._notifier.send(lanes=taken)
        return answers


def _size(asked: Submission) -> int:
    return len(asked.payload or b"")
