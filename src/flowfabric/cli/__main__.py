"""`python -m flowfabric.cli` is `ff`."""

from flowfabric.cli import main

main()
