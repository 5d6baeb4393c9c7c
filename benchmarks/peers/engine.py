"""What a peer is to the scenarios. Each runs on its own Python, so nothing here imports anything of ours."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

STEPS = 10
Mark = Callable[[int], None]


class Engine:
    """An engine as its users hold it.

    Three tasks take a number and mark it when they begin: `nothing` returns it, `steps` saves ten steps, `waiter` waits
    for a signal first and marks the number then. A peer that cannot do something leaves the method as it is here, and
    its entry in the list names no scenario that needs it.
    """

    versions: ClassVar[Sequence[str]] = ()
    """Packages whose versions are told with the results."""
    on_postgres: ClassVar[bool] = False
    """It stands on the Postgres that we stand on."""
    pushes: ClassVar[bool] = False
    """It hands work out itself: workers have to be there before anything can be submitted."""

    scenario: str = ""
    """What is being played: the best settings for a flood are not those for a trickle."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Let go of whatever was opened."""

    def settings(self, processes: int) -> dict[str, object]:
        """How its workers are run when there are so many processes: the best we know."""
        return {}

    async def install(self) -> None:
        """Make its tables, or whatever it needs, in an empty place."""

    async def settle(self) -> None:
        """Bring it to rest after many were submitted."""

    async def submit(self, task: str, number: int) -> Any:
        """Submit one, and return what its result is asked by."""
        raise NotImplementedError

    async def submit_many(self, task: str, numbers: Sequence[int]) -> None:
        """Submit many in the fastest way there is."""
        raise NotImplementedError

    async def result(self, submitted: Any) -> None:
        """Return when this one has ended."""
        raise NotImplementedError

    async def call(self, task: str, number: int) -> None:
        """Submit one and return when it has ended."""
        await self.result(await self.submit(task, number))

    async def ready(self) -> None:
        """Return when the workers that were started can be pushed to."""

    async def ended(self) -> int:
        """How many have ended well."""
        raise NotImplementedError

    async def suspended(self) -> int:
        """How many wait for a signal."""
        raise NotImplementedError

    async def signal(self, number: int) -> None:
        """Send the signal that this one waits for."""
        raise NotImplementedError

    async def signal_many(self, numbers: Sequence[int]) -> None:
        """Send many in the fastest way there is."""
        for number in numbers:
            await self.signal(number)

    async def size(self) -> int:
        """Bytes on disk."""
        raise NotImplementedError

    async def pin(self) -> None:
        """Open a transaction with a snapshot and leave it idle."""
        raise NotImplementedError

    async def work(self, mark: Mark, processes: int) -> None:
        """Run tasks for ever, as one of so many processes."""
        raise NotImplementedError
