"""What a command asks to have submitted: from the code of an app, where one is given, and from its options."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from flowfabric.app import App
from flowfabric.cli import texts
from flowfabric.cli.apps import load_app
from flowfabric.errors import InvalidBody
from flowfabric.ids import shown
from flowfabric.model import Options, Submission


def _load(_ctx: click.Context, _param: click.Parameter, place: str | None) -> App | None:
    return None if place is None else load_app(place)


as_in_app = click.option("--app", callback=_load, metavar="PLACE", help="Take lane, retries and such from FILE.py:app.")


@contextmanager
def called_with(task: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Refuse arguments that a task cannot be called with. Raises `InvalidBody`."""
    try:
        yield
    except TypeError as error:
        raise InvalidBody(f"{task} cannot be called with {shown(texts.json(arguments))}: {error}") from None


def asked_with(asked: Submission, given: Mapping[str, Any]) -> Submission:
    """What is submitted, with these options, each where it belongs: to its options or to itself."""
    own = {option: dict(value) if option == "tags" else value for option, value in given.items()}
    options = {option: own.pop(option) for option in Options.__struct_fields__ if option in own}
    return msgspec.structs.replace(asked, options=msgspec.structs.replace(asked.options, **options), **own)
