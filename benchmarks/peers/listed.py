"""The list of peers: their packages, and the scenarios they support."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

VARIABLE = "FLOWFABRIC_PEERS"
SUBMITTING = ("submit_one_by_one", "submit_concurrent", "submit_bulk")
RUNNING = ("drain_one_worker", "drain_two_workers", "idle_latency", "half_load_latency")
ON_POSTGRES = ("size", "backlog_1_000", "backlog_100_000", "backlog_1_000_000", "pinned", "unpinned")
DURABLE = ("ten_steps", "signals", "signal_latency")


class Peer(NamedTuple):
    """Another engine."""

    name: str
    packages: Sequence[str]
    scenarios: Sequence[str]
    share: float = 1.0
    """The share of the large counts that it processes: slower engines do less, so that a run ends."""
    npm: Sequence[str] = ()
    program: str | None = None
    """A server that must be on the PATH, or in `bin` under the directory of the peers."""

    def part(self, scenario: str, count: int) -> int:
        """Its share of a count. Small counts and the depth of a backlog are never reduced."""
        return round(count * self.share) if count > 1_000 and not scenario.startswith("backlog") else count

    def python(self, home: Path) -> Path:
        return home / self.name / "bin" / "python"

    def missing(self, home: Path) -> str | None:
        """Why it cannot run, or None."""
        if not self.python(home).exists():
            return f"not in {home}; install it with: python -m benchmarks.peers setup {home} {self.name}"
        if self.program and shutil.which(self.program, path=search_path(home)) is None:
            return f"needs {self.program}, which is neither on the PATH nor in {home / 'bin'}"
        if self.npm and not (home / self.name / "node_modules").exists():
            return f"its server is not in {home}; install it with: python -m benchmarks.peers setup {home} {self.name}"
        return None


def default_home() -> Path:
    """The default directory of the peers: outside the project, because they are not dependencies of it."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "flowfabric-peers")


def search_path(home: Path) -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(home / "bin")])


PEERS = [
    Peer("pgqueuer", ["pgqueuer", "asyncpg", "uvloop", "psycopg[binary]"], [*SUBMITTING, *RUNNING, *ON_POSTGRES]),
    Peer("procrastinate", ["procrastinate", "psycopg[binary,pool]"], [*SUBMITTING, *RUNNING, *ON_POSTGRES], share=0.25),
    Peer("absurd", ["absurd-sdk", "absurdctl", "psycopg[binary]"],
         [*SUBMITTING, *RUNNING, *ON_POSTGRES, *DURABLE], share=0.5),
    Peer("dbos", ["dbos", "psycopg[binary]"], [*SUBMITTING, *RUNNING, "size", "backlog_1_000", *DURABLE], share=0.25),
    Peer("restate", ["restate-sdk", "hypercorn", "aiohttp"],
         ["submit_one_by_one", "submit_concurrent", "drain_one_worker", "idle_latency", "half_load_latency", *DURABLE],
         share=0.25, npm=["@restatedev/restate-server"]),
    Peer("dramatiq", ["dramatiq[redis]", "hiredis"], ["submit_one_by_one", "submit_bulk", *RUNNING],
         share=0.5, program="redis-server"),
]  # fmt: skip
