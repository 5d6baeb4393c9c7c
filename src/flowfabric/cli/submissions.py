"""What a command submits: from the code of an app, if `--app` is given, and from the options."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from flowfabric.cli import formatting
from flowfabric.errors import InvalidBody
from flowfabric.ids import shown
from flowfabric.model import Options, Submission


@contextmanager
def checking_arguments(task: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Turn a `TypeError` of a call into an error that shows the arguments. Raises `InvalidBody`."""
    try:
        yield
    except TypeError as error:
        message = f"task {task} does not accept the arguments {shown(formatting.json(arguments))}: {error}"
        raise InvalidBody(message) from None


def with_options(submission: Submission, given: Mapping[str, Any]) -> Submission:
    """A submission with these options: some belong to its options, the others to the submission itself."""
    own = {option: dict(value) if option == "tags" else value for option, value in given.items()}
    options = {option: own.pop(option) for option in Options.__struct_fields__ if option in own}
    return msgspec.structs.replace(submission, options=msgspec.structs.replace(submission.options, **options), **own)
