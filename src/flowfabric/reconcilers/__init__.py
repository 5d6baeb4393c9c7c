"""Reconcilers: what happens by itself. One list of sweeps, one loop that runs them."""

from flowfabric.reconcilers.loop import SweepRun, run_each, run_once, run_sweeps
from flowfabric.reconcilers.sweeps import Sweep, sweeps

__all__ = ["Sweep", "SweepRun", "run_each", "run_once", "run_sweeps", "sweeps"]
