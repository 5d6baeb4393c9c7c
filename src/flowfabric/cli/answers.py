"""How commands run and answer: an operation to its end, then text for people or JSON for programs."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

import click
import msgspec

P = ParamSpec("P")

as_json = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


def asynchronous(command: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """A command that is a coroutine."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(command(*args, **kwargs))

    return run


def answer(text: str, value: object, *, as_json: bool) -> None:
    """Print one of the two."""
    click.echo(msgspec.json.encode(value) if as_json else text)
