"""Our side of a peer: starts its program on its own Python and reads the result."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.ground import Ground
from benchmarks.peers.listed import Peer, search_path
from benchmarks.scenario import Run, Scenario

ROOT = Path(__file__).parent.parent.parent
TIMEOUT = 1_800


class PeerFailed(Exception):
    """A peer did not finish a scenario; the message is the end of its error output."""


class Played(NamedTuple):
    """A run of a peer, and what it reports about itself."""

    run: Run
    about: dict[str, Any]


async def play(peer: Peer, scenario: Scenario, ground: Ground, home: Path) -> Played:
    """Let a peer run a scenario in an empty database. Raises `PeerFailed`."""
    asked = {
        "peer": peer.name, "scenario": scenario.name, "url": ground.url, "directory": str(ground.directory),
        "amount": ground.scaled(peer.part(scenario.name, scenario.for_peers)), "scale": ground.scale,
        "processes": 1, "server": ground.server,
    }  # fmt: skip
    command = [str(peer.python(home)), "-m", "benchmarks.peers.stage", "play", json.dumps([*asked.values()])]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PATH": search_path(home), "BENCHMARK_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        said, complained = await asyncio.wait_for(process.communicate(), TIMEOUT)
    except TimeoutError:
        raise PeerFailed(f"not finished after {TIMEOUT} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session: everything it has left behind
    if process.returncode != 0 or not said.strip():
        raise PeerFailed("\n".join(complained.decode(errors="replace").splitlines()[-15:]))
    return _read(scenario, json.loads(said.splitlines()[-1]))


def _read(scenario: Scenario, told: dict[str, Any]) -> Played:
    figures = told["figures"]
    value = figures[scenario.figure] if scenario.figure else told["rate"]
    return Played(Run(value, figures), {name: told[name] for name in ("versions", "settings", "on_postgres")})
