"""Write the reference pages that are generated from the code; with `--check`, only report the outdated ones."""

import ast
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import click
import msgspec

from docs import api, http, operations, sql
from flowfabric import config, errors
from flowfabric.cli.group import ff
from flowfabric.config import Config
from flowfabric.durations import format_duration
from flowfabric.errors import FlowFabricError

REFERENCE = Path(__file__).parent / "reference"

ERRORS = """# Errors

Catch an error by its class, or by its family:

```python
from flowfabric.errors import FlowFabricError, NotFound

try:
    await execution.cancel(by="ada")
except NotFound:
    ...
except FlowFabricError as error:
    print(error.code, error.message, error.fields)
```

Every error is a `FlowFabricError`. A call that raises one has changed nothing. The class says what is wrong, and has
the same name in every layer: `LaneNotFound` in Python, `lane_not_found` in SQL, in JSON and in the output of `ff`.
The family determines the HTTP status and the SQLSTATE. `error.code` is the name, `error.message` says what is wrong
and what to do, and `error.fields` has further values, such as the `cause`.

There is one exception: after `DatabaseUnavailable` the call may or may not have taken effect, because the connection
may have been lost after the commit and before the answer. Repeat the call if the operation is documented as safe to
repeat.
"""

SETTINGS = """# Settings

Set a value as an argument or as an environment variable:

```python
app = App(url="postgresql://app@db.example/app", pool_size=10)
```

```sh
export FLOWFABRIC_URL=postgresql://app@db.example/app FLOWFABRIC_POOL_SIZE=10
```

An argument overrides the environment variable, and the variable overrides the default. Durations are written `250ms`,
`30s`, `10m`, `7d`. An invalid value raises `BadSetting` at the start, and the message names the variable.

| Setting | Variable | Default | Meaning |
|---|---|---|---|
"""

COMMANDS = """# Commands

Look up a command of `ff`, with its options and an example. [The command](../concepts/command.md) describes what the
commands have in common. All of them take these options:

| Option | Meaning |
|---|---|
| `--url URL` | Postgres to connect to. Default: `FLOWFABRIC_URL`, or the embedded Postgres in `./.flowfabric`. |
| `--json` | Print JSON instead of text. |
| `-h`, `--help` | Show the help, with an example, and exit. |
"""

EVENTS = """# Kinds of events

Filter the [event log](../concepts/events.md) by kind: `EventFilter(kinds=["execution_failed"])`, or
`ff events tail --kind execution_failed`.

The table lists every [event](../glossary.md#event) that the log can contain, and the operations that write it. Some of
these operations are [sweeps](../concepts/sweeps.md) (background maintenance). An event whose kind begins with
`execution_`, `lease_`, `attempt_`, `grant_`, `waitpoint_`, `suspension_`, `signal_`, `priority_` or `tag_` is about an
execution, and has its namespace, lane and tags.

| Kind | Written by |
|---|---|
"""


def pages() -> dict[str, str]:
    """The pages, by their file names."""
    return {
        "errors.md": "\n".join([ERRORS, *_families()]),
        "settings.md": SETTINGS + "\n".join(_settings()) + "\n",
        "events.md": EVENTS + "\n".join(_kinds()) + "\n",
        "commands.md": COMMANDS + "".join(f"\n{part}\n" for part in _commands()),
        "http.md": http.page(),
        "operations.md": operations.page(),
        "sql.md": sql.page(),
        **api.pages(),
    }


def _families() -> Iterator[str]:
    for family in FlowFabricError.__subclasses__():
        members = [kind for kind in errors.by_code().values() if issubclass(kind, family)]
        yield f"## {family.__name__}, {family.status}\n\n{family.__doc__}\n"
        if members:
            lines = [f"| `{kind.__name__}` | `{kind.code}` | {_cell(kind.__doc__)} |" for kind in members]
            yield "\n".join(["| Class | Code | Meaning |", "|---|---|---|", *lines]) + "\n"


def _settings() -> Iterator[str]:
    said = _docstrings()
    for field in msgspec.structs.fields(Config):
        default = "none" if field.default is None else f"`{_default(field.default)}`"
        yield f"| `{field.name}` | `{config.variable(field.name)}` | {default} | {_cell(said[field.name])} |"


def _default(value: object) -> object:
    return format_duration(value) if isinstance(value, timedelta) else value


def _kinds() -> Iterator[str]:
    """The kinds of events, from the `emits` clauses in the headers of the SQL functions."""
    writers: dict[str, set[str]] = defaultdict(set)
    for operation in sql.operations():
        for kind in operation.emits:
            writers[kind].add(operation.name)
    for kind, functions in sorted(writers.items()):
        yield f"| `{kind}` | {', '.join(f'`{function}`' for function in sorted(functions))} |"


def _commands(command: click.Command = ff, path: str = "ff") -> Iterator[str]:
    """The commands below this one, each with its help text."""
    if not isinstance(command, click.Group):
        yield from _command(command, path)
        return
    if path != "ff":
        yield f"## `{path}`\n\n{_help(command)}"
    for name, each in sorted(command.commands.items()):
        yield from _commands(each, f"{path} {name}")


def _command(command: click.Command, path: str) -> Iterator[str]:
    arguments = [_argument(each) for each in command.params if isinstance(each, click.Argument)]
    yield f"{'#' * path.count(' ')}# `{' '.join([path, *arguments])}`\n\n{_help(command)}"
    options = [
        f"| `{_cell(_spelling(each))}` | {_cell(_meaning(each))} |"
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden and each.name not in ("url", "as_json")
    ]
    if options:
        yield "\n".join(["| Option | Meaning |", "|---|---|", *options])


def _help(command: click.Command) -> str:
    """The help text, with its example as a code block."""
    said, _, example = inspect.cleandoc(command.help or "").partition("\b\nExample:\n")
    said = re.sub(r"(?<!\n)\n(?!\n)", " ", said.strip())
    return f"{said}\n\n```\n{textwrap.dedent(example).rstrip()}\n```" if example else said


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _spelling(option: click.Option) -> str:
    spelled = " / ".join(["`, `".join(option.opts), *option.secondary_opts])
    if option.is_flag:
        return spelled
    if isinstance(option.type, click.Choice):
        return f"{spelled} {'|'.join(option.type.choices)}"
    return f"{spelled} {option.metavar or option.type.name.split()[0].upper()}"


def _meaning(option: click.Option) -> str:
    """The help text of an option, with its default."""
    said = re.sub(r"  \[default: (.*)\]$", r" Default: \1.", option.help or "")
    if isinstance(option.show_default, str):
        return f"{said} Default: {option.show_default}."
    return f"{said} Default: `{option.default}`." if option.show_default else said


def _docstrings() -> dict[str, str]:
    """The docstring below each setting."""
    tree = ast.parse(Path(config.__file__).read_text())
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config"]
    said: dict[str, str] = {}
    for setting, text in pairwise(body):
        match setting, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(sentence))):
                said[name] = sentence
    return said


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Write the outdated pages; with `--check`, fail with a list of them."""
    stale = {name: text for name, text in pages().items() if _read(REFERENCE / name) != text}
    if "--check" in arguments and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run `make docs`")
    for name, text in stale.items():
        (REFERENCE / name).write_text(text)


def _read(page: Path) -> str | None:
    return page.read_text() if page.exists() else None


if __name__ == "__main__":
    main(sys.argv[1:])
