"""The client of an app: sends submissions and signals and reads results, merged with calls made at the same time."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from flowfabric.engine import clock, executions, waits
from flowfabric.errors import FlowFabricError
from flowfabric.ids import ExecutionId, mint_execution_ids
from flowfabric.model import Delivered, Result, SignalToSend, Submission, Submitted
from flowfabric.postgres.batching import Batch
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier

MOST = 1_000  # submissions in one statement
MOST_BYTES = 4 * 2**20
MOST_SIGNALS = 200
CONCURRENT = 3  # statements of one `submit_many`: one is encoded while two are written


class Client:
    """Sends submissions and signals, notifies the workers of the lanes that now have work, and reads results."""

    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._config = database.config
        self._database = database
        self._notifier = notifier
        patience = database.config.call_timeout.total_seconds()
        self.submit = Batch(partial(self._submit, wait=False), size=_size, in_flight=2, patience=patience)
        self.signal = Batch(self._signal, most=MOST_SIGNALS, size=_size, in_flight=2, patience=patience)
        self.result = Batch(self._results, in_flight=2)

    async def close(self) -> None:
        """Return when every call that was made has been answered."""
        await self.submit.close()
        await self.signal.close()
        await self.result.close()

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
        """Submit many as if one after the other, and answer each in its place.

        Submissions without keys and ids cannot conflict with each other, so their statements run concurrently. All
        count their age from one moment, which keeps the order of the call as the order in which they are claimed.
        """
        pieces = [submissions[start : start + MOST] for start in range(0, len(submissions), MOST)]
        independent = all(item.key is None and item.execution_id is None for item in submissions)
        if len(pieces) < 2 or not independent or any(sum(map(_size, piece)) > MOST_BYTES for piece in pieces):
            return await self._submit(submissions)
        began = await self._database.run(clock.clock, repeat=True)
        room = asyncio.Semaphore(CONCURRENT)

        async def send(number: int, piece: Sequence[Submission]) -> list[Submitted | FlowFabricError]:
            async with room:
                return await self._submit(piece, began + timedelta(microseconds=number * MOST))

        answers = await asyncio.gather(*(send(number, piece) for number, piece in enumerate(pieces)))
        return [answer for piece in answers for answer in piece]

    async def _submit(
        self, submissions: Sequence[Submission], counted_from: datetime | None = None, *, wait: bool = True
    ) -> list[Submitted | FlowFabricError]:
        limit = self._config.payload_limit
        # Ids minted here make the call repeatable after a lost reply: an id that is already stored is not stored again.
        minted = mint_execution_ids(len(submissions))
        answers = await self._database.run(
            lambda conn: executions.submit_many(
                conn,
                submissions,
                payload_limit=limit,
                counted_from=counted_from,
                minted=minted,
                wait=wait,
            ),
            repeat=True,
            wait=wait,
        )
        answered = zip(submissions, answers, strict=True)
        self._notifier.send(lanes=(item.options.lane for item, answer in answered if isinstance(answer, Submitted)))
        return answers

    async def _signal(self, signals: Sequence[SignalToSend]) -> list[Delivered | FlowFabricError]:
        answers = await self._database.run(lambda conn: waits.deliver_signals(conn, signals, wait=False), wait=False)
        lanes = {answer.lane for answer in answers if isinstance(answer, Delivered)}
        self._notifier.send(lanes={lane for lane in lanes if lane is not None})
        return answers

    async def _results(self, execution_ids: Sequence[ExecutionId]) -> list[Result | FlowFabricError]:
        return await self._database.run(lambda conn: executions.get_result_many(conn, execution_ids), repeat=True)


def _size(item: Submission | SignalToSend) -> int:
    return len(item.payload or b"")
