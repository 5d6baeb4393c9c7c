"""The commands of `ff`, one file per noun or verb. `flowfabric.cli.group` registers them."""
