"""A scenario: something to do on a fresh database, and what it is compared with."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.ground import Ground


class Scenario(NamedTuple):
    """What is measured."""

    name: str
    about: str
    run: Callable[[Ground], Awaitable[int]]
    """Does it, the part that counts inside `ground.timed()`, and says how many it did."""
    unit: str = "executions/s"
    against: Mapping[str, float | None] = {}
    """The scenarios of the same run it is compared with, and how many times as fast it must be, if it must."""


class Result(NamedTuple):
    """How often per second, run by run."""

    scenario: Scenario
    rates: list[float]
    ratios: Mapping[str, float]

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def spread(self) -> float:
        """How far the runs lie apart, as a part of the middle one."""
        return (max(self.rates) - min(self.rates)) / self.rate

    @property
    def missed(self) -> list[str]:
        """What it had to reach and did not."""
        goals = self.scenario.against
        return [f"{goals[name]:g}x {name}" for name in self.ratios if self.ratios[name] < (goals[name] or 0.0)]


def results(scenarios: Sequence[Scenario], rates: Mapping[str, list[float]]) -> list[Result]:
    """The measurements with their ratios: the middle one of those within each round."""

    def ratio(name: str, other: str) -> float:
        return median(mine / theirs for mine, theirs in zip(rates[name], rates[other], strict=True))

    return [Result(s, rates[s.name], {other: ratio(s.name, other) for other in s.against}) for s in scenarios]
