"""`setup DIR [peer …]` installs peers, each in its own virtualenv under DIR; `list DIR` lists the installed ones."""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.peers.listed import PEERS, Peer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("verb", choices=["setup", "list"])
    parser.add_argument("home", type=Path, metavar="DIR", help="a directory outside the project")
    parser.add_argument("peer", nargs="*", help=f"peers, all by default: {', '.join(peer.name for peer in PEERS)}")
    given = parser.parse_args()
    if unknown := set(given.peer) - {peer.name for peer in PEERS}:
        parser.error(f"unknown peer {', '.join(sorted(unknown))}; choose from {', '.join(peer.name for peer in PEERS)}")

    home = given.home.expanduser().resolve()
    chosen = [peer for peer in PEERS if not given.peer or peer.name in given.peer]
    if given.verb == "setup":
        if home.is_relative_to(Path(__file__).parents[2]):
            parser.error(f"{home} is inside the project; choose a directory outside")
        for peer in chosen:
            install(peer, home)
    for peer in chosen:
        print(f"{peer.name:16}{peer.missing(home) or 'ready'}")
    return 0


def install(peer: Peer, home: Path) -> None:
    """Create a virtualenv with the newest packages, and install the server from npm if the peer needs one."""
    directory = home / peer.name
    if not peer.python(home).exists():
        venv.create(directory, with_pip=True)
    pip = [str(peer.python(home)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*pip, *peer.packages], check=True)
    if peer.npm:
        npm = ["npm", "install", "--prefix", str(directory), "--ignore-scripts", "--no-audit", "--no-fund", *peer.npm]
        subprocess.run(npm, check=True)


if __name__ == "__main__":
    sys.exit(main())
