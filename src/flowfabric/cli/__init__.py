"""Private: the command `ff`. Each command is a file of `commands/`; the files here are what the commands share.

| File | What is in it |
|---|---|
| `group` | the root command, which registers all others and turns errors into an exit code |
| `command_group` | groups of commands that suggest the right name for a mistyped one |
| `options` | options, arguments and their parsers |
| `output` | the decorator `prints`: run a command and print its result as a table, a card, a sentence or JSON |
| `tables`, `formatting` | tables, cards and progress bars; values as text or JSON |
| `errors`, `remedies` | how a command fails, and which command to type next |
| `connection`, `load_app` | the database a command uses; the app behind `file.py:app` |
| `submissions` | what `ff submit` and `ff schedules create` submit |
| `processes` | the worker processes of `ff worker --processes` |
| `logs` | the log of `ff worker` and `ff dev` |
| `run_lines`, `reloading` | what `ff dev` prints about each run; `ff dev --reload` |
| `top_screen` | the screen of `ff top` |
| `watching`, `trees` | `--watch`, which refreshes a screen; `--tree`, which draws executions with their children |
"""

import sys


def main() -> None:
    """Run `ff`."""
    try:
        from flowfabric.cli.group import ff
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "rich", "watchfiles"):
            raise
        sys.exit(f"ff needs the package {missing.name}: pip install 'flowfabric[cli]'")
    ff(prog_name="ff")
