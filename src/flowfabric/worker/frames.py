"""Frames of runs: appended in one call for all runs of the worker that have some at the same time."""

from collections.abc import Sequence
from functools import partial
from itertools import islice

from flowfabric.app import App
from flowfabric.calls import MOST_BYTES, MOST_ITEMS
from flowfabric.engine import streams
from flowfabric.errors import FlowFabricError, RowLocked
from flowfabric.model import Appended, Claim, FrameToAppend
from flowfabric.postgres.batching import Batch
from flowfabric.worker.leased import LeasedCalls

Answers = Sequence[Appended | FlowFabricError]


class Frames:
    """Appends the frames of a worker's runs. A run has one call in flight, so that its frames keep their order."""

    def __init__(self, app: App, leased: LeasedCalls) -> None:
        self._app = app
        self._leased = leased
        self._append = Batch[Sequence[FrameToAppend], Answers](self._append_all, size=_size, in_flight=2)

    async def close(self) -> None:
        """Return when every call has been answered."""
        await self._append.close()

    async def append(self, claim: Claim, frames: Sequence[FrameToAppend]) -> Answers:
        """Append numbered frames of one run, and return an answer for each. Repeats the call while it must."""
        return await self._leased.persist(claim, lambda: self._append(frames))

    async def _append_all(self, calls: Sequence[Sequence[FrameToAppend]]) -> list[Answers | FlowFabricError]:
        """Append the frames of many runs, and notify the processes that tail them.

        The frames of a run whose execution is locked are all refused, so that they are sent again together.
        """
        asked = [frame for frames in calls for frame in frames]
        append = partial(streams.append_frames, frames=asked, wait=False)
        answered = iter(await self._app.database.run(append, repeat=True, wait=False))
        self._app.notifier.send(streams={str(frames[0].fence.execution_id) for frames in calls if frames})
        answers = [list(islice(answered, len(frames))) for frames in calls]
        return [next((each for each in some if isinstance(each, RowLocked)), some) for some in answers]


def _size(frames: Sequence[FrameToAppend]) -> int:
    """The size of a call in a batch, which is full at 8 MiB or about 1,000 frames."""
    return sum(max(len(frame.payload), MOST_BYTES // MOST_ITEMS) for frame in frames)
