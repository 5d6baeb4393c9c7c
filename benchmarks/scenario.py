"""A scenario: something to do on a fresh database, and what it is compared with."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.ground import Ground

OURS = "flowfabric"
RAW = "postgres"


class Scenario(NamedTuple):
    """What is measured."""

    name: str
    about: str
    run: Callable[[Ground], Awaitable[int]]
    """Does it, the part that counts inside `ground.timed()`, and says how many it did."""
    unit: str = "executions/s"
    against: Mapping[str, float | None] = {}
    """The scenarios of the same run it is compared with, and how many times as fast it must be, if it must."""
    figure: str | None = None
    """Which of the figures it tells is the one that counts; how many it did in a second, where none is named."""
    less_is_better: bool = False
    for_peers: int = 0
    """How many of it peers that can do the same are asked to do; 0 for what is ours alone."""
    slow: bool = False
    """It takes minutes: left out of a run that names nothing."""
    engine: str = OURS


class Run(NamedTuple):
    """What one run came to: what counts, and whatever else it told."""

    value: float
    figures: Mapping[str, float]
    stolen: float = 0.0
    """How much of the processors other machines took meanwhile."""


class Result(NamedTuple):
    """What a scenario came to, round by round, for us or for a peer."""

    scenario: Scenario
    engine: str
    runs: Sequence[Run]
    ratios: Mapping[str, float]
    about: Mapping[str, object] = {}
    """What a peer says of itself: its versions, its settings, and whether it stands on our Postgres."""

    @property
    def value(self) -> float:
        return median(run.value for run in self.runs)

    @property
    def spread(self) -> float:
        """How far the runs lie apart, as a part of the middle one."""
        values = [run.value for run in self.runs]
        return (max(values) - min(values)) / self.value if self.value else 0.0

    @property
    def stolen(self) -> float:
        """How much of the processors was taken by others, the middle one of the runs."""
        return median(run.stolen for run in self.runs)

    @property
    def figures(self) -> dict[str, float]:
        """Each other figure, the middle one of the runs."""
        return {name: median(run.figures[name] for run in self.runs) for name in self.runs[0].figures}

    @property
    def missed(self) -> list[str]:
        """What it had to reach and did not."""
        goals = self.scenario.against if self.engine == self.scenario.engine else {}
        return [f"{goal:g}x {name}" for name, goal in goals.items() if goal and self.ratios.get(name, goal) < goal]


Key = tuple[str, str]  # scenario, engine
Rounds = Mapping[Key, Sequence[Run | None]]


def results(scenarios: Sequence[Scenario], rounds: Rounds, about: Mapping[Key, Mapping[str, object]]) -> list[Result]:
    """What was measured with its ratios: the middle one of those within each round.

    A scenario is compared with those it names and with each peer that did the same; a peer with the bare database.
    """
    found = []
    for scenario in scenarios:
        engines = [engine for name, engine in rounds if name == scenario.name]
        for engine in engines:
            runs = [run for run in rounds[scenario.name, engine] if run is not None]
            if runs:
                ratios = dict(_ratios(scenario, engine, scenarios, rounds))
                found.append(Result(scenario, engine, runs, ratios, about.get((scenario.name, engine), {})))
    return found


def _ratios(scenario: Scenario, engine: str, scenarios: Sequence[Scenario], rounds: Rounds) -> list[tuple[str, float]]:
    ours = engine == scenario.engine
    own = {other.name: other.engine for other in scenarios}
    others = [(name, (name, own[name])) for name in scenario.against if name in own and (ours or own[name] == RAW)]
    if ours:
        others += [(peer, (name, peer)) for name, peer in rounds if name == scenario.name and peer != engine]
    return [
        (name, ratio)
        for name, key in others
        if (ratio := _ratio(rounds[scenario.name, engine], rounds[key], scenario.less_is_better)) is not None
    ]


def _ratio(mine: Sequence[Run | None], theirs: Sequence[Run | None], less_is_better: bool) -> float | None:
    """How many times as good, where both came to something."""
    pairs = [(m.value, t.value) for m, t in zip(mine, theirs, strict=True) if m and t and m.value and t.value]
    return median((t / m if less_is_better else m / t) for m, t in pairs) if pairs else None
