"""Measuring: run every scenario once, for FlowFabric and for each peer that supports it, then all again."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.ground import EMPTY, TEMPLATE, fresh, prepare
from benchmarks.peers import side
from benchmarks.peers.listed import Peer
from benchmarks.scenario import Key, Result, Run, Scenario, results
from benchmarks.stolen import Stolen
from flowfabric.postgres import embedded


class Plan(NamedTuple):
    """What to measure."""

    scenarios: Sequence[Scenario]
    peers: Sequence[Peer]
    home: Path
    data: Path
    repeat: int = 3
    scale: float = 1.0


class Failure(NamedTuple):
    """A scenario that an engine did not finish; the others continue."""

    scenario: str
    engine: str
    error: str


async def measure(server: embedded.Server, plan: Plan) -> tuple[list[Result], list[Failure]]:
    """Run everything round by round, so that a temporarily slow machine affects all scenarios."""
    await prepare(server)
    rounds: dict[Key, list[Run | None]] = {}
    about: dict[Key, Mapping[str, object]] = {}
    failures: dict[Key, Failure] = {}
    for number in range(1, plan.repeat + 1):
        for scenario in plan.scenarios:
            for peer in [None, *_able(plan, scenario)]:
                key = scenario.name, scenario.engine if peer is None else peer.name
                stolen = Stolen()
                try:
                    played = await _one(server, plan, scenario, peer)
                except Exception as error:
                    failures[key] = Failure(*key, str(error) or repr(error))
                    tell(f"{number}/{plan.repeat} {scenario.name:24}{key[1]:14}failed: {failures[key].error}")
                    rounds.setdefault(key, []).append(None)
                    continue
                about[key] = played.about
                rounds.setdefault(key, []).append(played.run._replace(stolen=stolen.share()))
                tell(f"{number}/{plan.repeat} {scenario.name:24}{key[1]:14}{played.run.value:12,.2f} {scenario.unit}")
    return results(plan.scenarios, rounds, about), [*failures.values()]


async def _one(server: embedded.Server, plan: Plan, scenario: Scenario, peer: Peer | None) -> side.Played:
    """One run of FlowFabric or of a peer."""
    template = TEMPLATE if peer is None else EMPTY
    name = f"measured_{scenario.name}"
    async with fresh(server, name, data=plan.data, scale=plan.scale, template=template) as ground:
        if peer is not None:
            return await side.play(peer, scenario, ground, plan.home)
        count = await scenario.run(ground)
    value = ground.figures[scenario.figure] if scenario.figure else count / ground.seconds
    return side.Played(Run(value, ground.figures), {})


def _able(plan: Plan, scenario: Scenario) -> list[Peer]:
    return [peer for peer in plan.peers if scenario.for_peers and scenario.name in peer.scenarios]


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
