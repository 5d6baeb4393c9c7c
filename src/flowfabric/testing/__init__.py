"""The testing kit: a Postgres for tests, a database per test, and a clock that tests can move.

The pytest fixtures are in the module `pytest_flowfabric`. The engine of a test is in `flowfabric.testing.engine`, apart
from this module, so that tests that only need a database and a clock do not import the worker.
"""

from flowfabric.testing.clock import Clock, install_clock, move_clock, now
from flowfabric.testing.servers import Server, running

__all__ = ["Clock", "Server", "install_clock", "move_clock", "now", "running"]
