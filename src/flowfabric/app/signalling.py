"""Signalling for an app: signals that are sent at the same time go to Postgres together."""

from collections.abc import Sequence

from flowfabric.engine import waits
from flowfabric.errors import FlowFabricError
from flowfabric.model import Delivered, SignalToSend
from flowfabric.postgres.batching import Batch
from flowfabric.postgres.database import Database
from flowfabric.postgres.notify import Notifier


class Signaller:
    """Takes what an app signals to Postgres, and tells workers what goes on because of it."""

    def __init__(self, database: Database, hints: Notifier) -> None:
        self._database = database
        self._notifier = hints
        self.one = Batch(self._together, most=200, size=_size, in_flight=2)

    async def _together(self, asked: Sequence[SignalToSend]) -> list[Delivered | FlowFabricError]:
        answers = await self._database.run(lambda conn: waits.deliver_signals(conn, asked))
        lanes = {answer.lane for answer in answers if isinstance(answer, Delivered)}
        self._notifier.send(lanes={lane for lane in lanes if lane is not None})
        return answers


def _size(asked: SignalToSend) -> int:
    return len(asked.payload or b"")
