"""Breaking things on purpose. `benchmarks/proxy.py` has connections that go silent."""

import os
import signal
from pathlib import Path

# Closes all connections to the database except the one that runs this.
CUT = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""


def kill_server(data: Path) -> None:
    """Kill the main process of an embedded server with SIGKILL; its sessions notice and end."""
    pid = int((data / "cluster" / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
