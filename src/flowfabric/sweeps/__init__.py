"""Private: background maintenance (sweeps). One list of sweeps, one loop that runs them."""

from flowfabric.sweeps.loop import SweepRun, run_each, run_once, run_sweeps
from flowfabric.sweeps.registry import Sweep, sweeps

__all__ = ["Sweep", "SweepRun", "run_each", "run_once", "run_sweeps", "sweeps"]
