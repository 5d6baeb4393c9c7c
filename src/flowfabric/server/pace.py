"""How long the server waits for its clients."""

from typing import NamedTuple


class Pace(NamedTuple):
    """Times in seconds."""

    body: float = 30.0
    """In which the body of a request must arrive."""
    taken: float = 30.0
    """In which a client that follows something must take what it is sent."""
    heartbeat: float = 15.0
    """After which a client that follows something is sent a comment, if there is nothing else."""
