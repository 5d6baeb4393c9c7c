"""`python -m benchmarks [scenario …]`: a line of JSON per result on standard output, a table for people besides."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import msgspec

from benchmarks.ground import circumstances, fresh, prepare
from benchmarks.scenario import Result, Scenario, results
from benchmarks.scenarios import SCENARIOS
from flowfabric import embedded


def main() -> int:
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "scenario", nargs="*", help=f"which to run, with those they are compared with: {', '.join(names)}"
    )
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="how often each is run (3)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="a directory on the disk to measure (a temporary one)")
    given = parser.parse_args()
    if unknown := set(given.scenario) - set(names):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(names)}")

    chosen = choose(given.scenario or names)
    with (
        tempfile.TemporaryDirectory(dir=given.data) as data,
        embedded.start(Path(data, "postgres")) as server,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        about, found = runner.run(measure(server, chosen, given.repeat))
    for result in found:
        print(line(result, about), flush=True)
    tell(table(found))
    return 1 if any(result.missed for result in found) else 0


def choose(names: Sequence[str]) -> list[Scenario]:
    """The scenarios asked for and all they are compared with, in the order of the list."""
    wanted = set(names)
    for scenario in reversed(SCENARIOS):
        if scenario.name in wanted:
            wanted |= scenario.against.keys()
    return [scenario for scenario in SCENARIOS if scenario.name in wanted]


async def measure(
    server: embedded.Server, scenarios: Sequence[Scenario], repeat: int
) -> tuple[Mapping[str, object], list[Result]]:
    """Every scenario once, then all again: what slows the machine for a while slows them all."""
    await prepare(server)
    rates: dict[str, list[float]] = {scenario.name: [] for scenario in scenarios}
    for number in range(1, repeat + 1):
        for scenario in scenarios:
            async with fresh(server, f"{scenario.name}_{number}") as ground:
                count = await scenario.run(ground)
            rates[scenario.name].append(count / ground.seconds)
            tell(f"{number}/{repeat} {scenario.name:24}{rates[scenario.name][-1]:12,.0f} {scenario.unit}")
    return await circumstances(server), results(scenarios, rates)


def line(result: Result, about: Mapping[str, object]) -> str:
    """A result as a machine reads it."""
    return msgspec.json.encode(
        {
            "scenario": result.scenario.name,
            "at": datetime.now(UTC),
            "unit": result.scenario.unit,
            "rate": round(result.rate, 1),
            "runs": [round(rate, 1) for rate in result.rates],
            "spread": round(result.spread, 3),
            "ratios": {name: round(ratio, 3) for name, ratio in result.ratios.items()},
            "missed": result.missed,
            **about,
        }
    ).decode()


def table(found: Sequence[Result]) -> str:
    """The results as people read them."""
    lines = [f"\n{'scenario':24}{'rate':>12}  {'unit':14}{'spread':>7}  compared"]
    for result in found:
        ratios = ", ".join(f"{ratio:.2f}x {name}" for name, ratio in result.ratios.items())
        missed = f"  MISSED {', '.join(result.missed)}" if result.missed else ""
        name, unit = result.scenario.name, result.scenario.unit
        lines.append(f"{name:24}{result.rate:12,.0f}  {unit:14}{result.spread:7.0%}  {ratios}{missed}".rstrip())
    return "\n".join(lines)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed, as a worker would use it."""
    if find_spec("uvloop"):
        import uvloop

        return uvloop.new_event_loop
    return None


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
