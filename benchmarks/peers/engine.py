"""The interface of a peer. Each peer runs on its own Python, so this module imports nothing from FlowFabric."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

STEPS = 10
Mark = Callable[[int], None]


class Engine:
    """An engine as its users use it.

    Three tasks take a number and mark it when they start: `nothing` returns it, `steps` saves ten steps, `waiter` waits
    for a signal first and marks the number then. A peer that cannot do something does not override the method, and its
    entry in the list names no scenario that needs it.
    """

    versions: ClassVar[Sequence[str]] = ()
    """Packages whose versions are reported with the results."""
    on_postgres: ClassVar[bool] = False
    """Whether it runs on the same Postgres as FlowFabric."""
    pushes: ClassVar[bool] = False
    """Whether it pushes work to workers, which must run before anything can be submitted."""

    scenario: str = ""
    """The current scenario: the best settings depend on the load."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close everything that was opened."""

    def settings(self, processes: int) -> dict[str, object]:
        """The best known settings of its workers for this many processes."""
        return {}

    async def install(self) -> None:
        """Create its tables, or what else it needs, in an empty database or directory."""

    async def settle(self) -> None:
        """Let it settle after many submissions."""

    async def submit(self, task: str, number: int) -> Any:
        """Submit one, and return what `result` needs."""
        raise NotImplementedError

    async def submit_many(self, task: str, numbers: Sequence[int]) -> None:
        """Submit many in the fastest way available."""
        raise NotImplementedError

    async def result(self, submitted: Any) -> None:
        """Return when this one has ended."""
        raise NotImplementedError

    async def call(self, task: str, number: int) -> None:
        """Submit one and return when it has ended."""
        await self.result(await self.submit(task, number))

    async def ready(self) -> None:
        """Return when work can be pushed to the started workers."""

    async def ended(self) -> int:
        """How many have ended successfully."""
        raise NotImplementedError

    async def suspended(self) -> int:
        """How many wait for a signal."""
        raise NotImplementedError

    async def signal(self, number: int) -> None:
        """Send the signal that this one waits for."""
        raise NotImplementedError

    async def signal_many(self, numbers: Sequence[int]) -> None:
        """Send many signals in the fastest way available."""
        for number in numbers:
            await self.signal(number)

    async def size(self) -> int:
        """Bytes on disk."""
        raise NotImplementedError

    async def pin(self) -> None:
        """Open a transaction with a snapshot and keep it idle."""
        raise NotImplementedError

    async def work(self, mark: Mark, processes: int) -> None:
        """Run tasks for ever, as one of this many processes."""
        raise NotImplementedError
