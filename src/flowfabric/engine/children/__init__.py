"""Children: executions that a handler submits, and how parent and child learn of each other's end."""

from flowfabric.engine.children.ends import deliver_child_ends
from flowfabric.engine.children.submit import submit_children

__all__ = ["deliver_child_ends", "submit_children"]
