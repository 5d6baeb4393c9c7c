"""What an application's tests hold: an engine with a database of its own, and a clock they can move.

The fixtures of pytest that give them out are in the module `pytest_flowfabric`. What an engine is, and what it raises,
is in `flowfabric.testing.engine`; whoever needs no more than a database and a clock does not load the worker with them.
"""

from flowfabric.testing.clock import Clock, install_clock, move_clock, now
from flowfabric.testing.servers import Server, running

__all__ = ["Clock", "Server", "install_clock", "move_clock", "now", "running"]
