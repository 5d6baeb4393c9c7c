"""The command `ff`: read, call, answer. Every command is a module; `group` holds what they share."""

import sys


def main() -> None:
    """Run the command."""
    try:
        from flowfabric.cli.group import ff
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "rich"):
            raise
        sys.exit(f"ff needs the package {missing.name}: pip install 'flowfabric[cli]'")
    ff(prog_name="ff")
