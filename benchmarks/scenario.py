"""A scenario: what to measure on a fresh database, and what to compare it with."""

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
    """Runs the scenario, with the measured part inside `ground.timed()`, and returns how many items it processed."""
    unit: str = "executions/s"
    against: Mapping[str, float | None] = {}
    """The scenarios of the same run to compare with, and the required ratio, if there is one."""
    figure: str | None = None
    """Which of its figures is the result; if None, the number of items per second."""
    less_is_better: bool = False
    goal: float | None = None
    """What the result must reach, whatever it is compared with; where less is better, what it must not exceed."""
    for_peers: int = 0
    """How many items peers process; 0 if peers do not take part."""
    slow: bool = False
    """It takes minutes, so a run without named scenarios skips it."""
    engine: str = OURS


class Run(NamedTuple):
    """The result of one run: its value and its other figures."""

    value: float
    figures: Mapping[str, float]
    stolen: float = 0.0
    """The share of processor time that other virtual machines took meanwhile."""


class Result(NamedTuple):
    """The results of a scenario, round by round, for FlowFabric or a peer."""

    scenario: Scenario
    engine: str
    runs: Sequence[Run]
    ratios: Mapping[str, float]
    about: Mapping[str, object] = {}
    """What a peer reports about itself: its versions, its settings, and whether it runs on the measured Postgres."""

    @property
    def value(self) -> float:
        return median(run.value for run in self.runs)

    @property
    def spread(self) -> float:
        """The range of the runs as a fraction of their median."""
        values = [run.value for run in self.runs]
        return (max(values) - min(values)) / self.value if self.value else 0.0

    @property
    def stolen(self) -> float:
        """The share of processor time taken by others, as the median of the runs."""
        return median(run.stolen for run in self.runs)

    @property
    def figures(self) -> dict[str, float]:
        """The other figures, each as the median of the runs."""
        return {name: median(run.figures[name] for run in self.runs) for name in self.runs[0].figures}

    @property
    def missed(self) -> list[str]:
        """The goals that were not reached."""
        if self.engine != self.scenario.engine:
            return []
        ratios, goal = self.scenario.against.items(), self.scenario.goal
        missed = [f"{least:g}x {name}" for name, least in ratios if least and self.ratios.get(name, least) < least]
        if goal is not None and (self.value > goal if self.scenario.less_is_better else self.value < goal):
            missed.append(f"{goal:g} {self.scenario.unit}")
        return missed


Key = tuple[str, str]  # scenario, engine
Rounds = Mapping[Key, Sequence[Run | None]]


def results(scenarios: Sequence[Scenario], rounds: Rounds, about: Mapping[Key, Mapping[str, object]]) -> list[Result]:
    """The results with their ratios: the median of the ratios within each round.

    A scenario is compared with those it names and with each peer that took part; a peer with the bare database.
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
    """How many times better `mine` is, over the rounds in which both have a value."""
    pairs = [(m.value, t.value) for m, t in zip(mine, theirs, strict=True) if m and t and m.value and t.value]
    return median((t / m if less_is_better else m / t) for m, t in pairs) if pairs else None
