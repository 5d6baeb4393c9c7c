"""Write the reference pages that follow from the code; with `--check`, only say which of them are out of date."""

import ast
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import msgspec

from docs import api
from flowfabric import config, errors
from flowfabric.cli.group import ff
from flowfabric.config import Config
from flowfabric.errors import FlowFabricError

REFERENCE = Path(__file__).parent / "reference"
ENGINE = Path(config.__file__).parent / "engine"
EMITTING = re.compile(
    r"^--   emits    (.+(?:\n--     .+)*)(?:\n--.*)*\ncreate or replace function flowfabric\.([a-z]\w*)", re.M
)

ERRORS = """# Errors

A call that is refused changes nothing and raises a `FlowFabricError`, whose class says what is wrong. The name is the same in
every layer: `LaneNotFound` in Python, `lane_not_found` in SQL, over HTTP and from the command. The family gives the
HTTP status and the SQLSTATE. `error.code` is the name, `error.message` the sentence, and `error.fields` what else there
is to know.

`DatabaseUnavailable` is the one refusal that leaves open whether the call happened: the connection may have been lost
after the commit and before the answer. Operations that say they are safe to repeat may be repeated then.
"""

SETTINGS = """# Settings

A setting is taken from the argument of its name, then from its environment variable, then from its default. A value
that cannot be read is refused at the start, with the name of its variable.

| Setting | Variable | Default | What it is |
|---|---|---|---|
"""

COMMANDS = """# Commands

All that `ff` can do. [The command](../concepts/command.md) says what holds for all of them. Every one takes:

| Option | |
|---|---|
| `--url URL` | where Postgres is, instead of `FLOWFABRIC_URL`; with neither, the embedded one in `./.flowfabric` |
| `--json` | answer in JSON, and refuse in it |
| `-h`, `--help` | what it does, with an example |
"""

EVENTS = """# Kinds of events

What the [log](../concepts/events.md) can hold, and the operations that write it. Those that run by themselves are the
sweeps. A kind that begins with `execution_`, `lease_`, `attempt_`, `grant_`, `waitpoint_`, `suspension_`, `signal_`,
`priority_` or `tag_` is about an execution, and has its namespace, lane and tags.

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
        "api.md": api.page(),
    }


def _families() -> Iterator[str]:
    for family in FlowFabricError.__subclasses__():
        members = [kind for kind in errors.by_code().values() if issubclass(kind, family)]
        yield f"## {family.__name__}, {family.status}\n\n{family.__doc__}\n"
        if members:
            lines = [f"| `{kind.__name__}` | `{kind.code}` | {_cell(kind.__doc__)} |" for kind in members]
            yield "\n".join(["| Class | Code | What it says |", "|---|---|---|", *lines]) + "\n"


def _settings() -> Iterator[str]:
    said = _docstrings()
    for field in msgspec.structs.fields(Config):
        default = "none" if field.default is None else f"`{field.default}`"
        yield f"| `{field.name}` | `{config.variable(field.name)}` | {default} | {_cell(said[field.name])} |"


def _kinds() -> Iterator[str]:
    """What the headers of the SQL functions say they emit."""
    writers: dict[str, set[str]] = defaultdict(set)
    for file in ENGINE.rglob("*.sql"):
        for said, function in EMITTING.findall(file.read_text()):
            for kind in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", said):
                writers[kind].add(function)
    for kind, functions in sorted(writers.items()):
        yield f"| `{kind}` | {', '.join(f'`{function}`' for function in sorted(functions))} |"


def _commands(command: click.Command = ff, path: str = "ff") -> Iterator[str]:
    """The commands below this one, each with what its help says."""
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
        yield "\n".join(["| Option | |", "|---|---|", *options])


def _help(command: click.Command) -> str:
    """What the help says, with its example as such."""
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
    """Its help, with the default that it would show."""
    said = re.sub(r"  \[default: (.*)\]$", r" Default: \1.", option.help or "")
    if isinstance(option.show_default, str):
        return f"{said} Default: {option.show_default}."
    return f"{said} Default: `{option.default}`." if option.show_default else said


def _docstrings() -> dict[str, str]:
    """What is written below each setting."""
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
    """Write what is out of date, or fail with a list of it."""
    stale = {name: text for name, text in pages().items() if _read(REFERENCE / name) != text}
    if "--check" in arguments and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run `make docs`")
    for name, text in stale.items():
        (REFERENCE / name).write_text(text)


def _read(page: Path) -> str | None:
    return page.read_text() if page.exists() else None


if __name__ == "__main__":
    main(sys.argv[1:])
