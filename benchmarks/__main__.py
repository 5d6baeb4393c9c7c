"""`python -m benchmarks [scenario …]`: a line of JSON per result on standard output, a table on standard error."""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks import report
from benchmarks.ground import circumstances
from benchmarks.measure import Failure, Plan, measure, tell
from benchmarks.peers.listed import PEERS, VARIABLE, Peer, default_home
from benchmarks.scenario import Result, Scenario
from benchmarks.scenarios import SCENARIOS
from flowfabric.postgres import embedded


def main() -> int:
    parser = options()
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{each.name:24}{each.about}{' (slow)' * each.slow}" for each in SCENARIOS))
        return 0
    names, engines = [scenario.name for scenario in SCENARIOS], [peer.name for peer in PEERS]
    if unknown := set(given.scenario) - set(names):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if unknown := set(given.peer or ()) - set(engines):
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(engines)}")
    if given.repeat < 1 or given.scale <= 0:
        parser.error("--repeat is 1 or more, and --scale is more than 0")

    chosen = choose(given.scenario or [each.name for each in SCENARIOS if given.all or not each.slow])
    peers = [] if given.no_peers else present(given.peers, given.peer)
    load = round(os.getloadavg()[0], 2)
    with (
        tempfile.TemporaryDirectory(dir=given.data) as data,
        embedded.start(Path(data, "postgres"), durable=not given.not_durable) as server,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        plan = Plan(chosen, peers, given.peers, Path(data), given.repeat, given.scale)
        found, failures = runner.run(measure(server, plan))
        about = {**runner.run(circumstances(server, load)), "scale": given.scale}
    rows = [report.row(result, about) for result in found]
    publish(rows, failures, given.write)
    return status(found, failures, given.scale)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenario", nargs="*", help="scenarios to run, with those they are compared with; see --list")
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    parser.add_argument("--all", action="store_true", help="also run the slow scenarios")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="how often to run each scenario (3)")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="0.01 does a hundredth of everything (1)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="a directory on the disk to measure (a temporary one)")
    parser.add_argument("--not-durable", action="store_true",
                        help="do not wait for the disk: only to check that everything works")  # fmt: skip
    parser.add_argument("--peers", type=Path, metavar="DIR", default=default_home(),
                        help=f"directory of the installed peers (${VARIABLE}, or %(default)s)")  # fmt: skip
    parser.add_argument("--peer", action="append", metavar="NAME", help="only this peer; may be repeated")
    parser.add_argument("--no-peers", action="store_true", help="do not measure peers")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into this page, at its markers")
    return parser


def choose(names: Sequence[str]) -> list[Scenario]:
    """The requested scenarios and those they are compared with, in the order of the list."""
    wanted = set(names)
    for scenario in reversed(SCENARIOS):
        if scenario.name in wanted:
            wanted |= scenario.against.keys()
    return [scenario for scenario in SCENARIOS if scenario.name in wanted]


def present(home: Path, names: Sequence[str] | None) -> list[Peer]:
    """The peers that can run. Prints why the others cannot."""
    chosen = [peer for peer in PEERS if names is None or peer.name in names]
    for peer in chosen:
        if reason := peer.missing(home):
            tell(f"without {peer.name}: {reason}")
    return [peer for peer in chosen if not peer.missing(home)]


def publish(rows: Sequence[dict[str, object]], failures: Sequence[Failure], page: Path | None) -> None:
    """Print JSON lines and a table, and write the page if one is given."""
    for row in rows:
        print(report.line(row), flush=True)
    for failure in failures:
        print(report.line(failure._asdict()), flush=True)
    tell(report.table(rows))
    if page is not None:
        report.write(page, rows)


def status(found: Sequence[Result], failures: Sequence[Failure], scale: float) -> int:
    """1 if a goal was missed or a peer failed. A scaled-down run has no goals: it only shows that everything works."""
    return 1 if failures or (scale >= 1 and any(result.missed for result in found)) else 0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop if it is installed, as in a worker."""
    if find_spec("uvloop"):
        import uvloop

        return uvloop.new_event_loop
    return None


if __name__ == "__main__":
    sys.exit(main())
