"""Every remedy names a command that exists."""

import inspect
import re
from collections.abc import Iterator

import click
import pytest

from flowfabric import errors
from flowfabric.cli import remedies
from flowfabric.cli.group import ff
from flowfabric.cli.remedies import FOR_ERRORS, remedy_for

COMMAND = re.compile(r"\bff ([a-z][^;`\"]*)")


def _named(text: str) -> Iterator[list[str]]:
    """The commands that a text names, as words."""
    for line in COMMAND.findall(text):
        yield line.split()


def _check(words: list[str]) -> None:
    context = click.Context(ff, **ff.context_settings)
    command: click.Command = ff
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    known = {option for each in command.params for option in each.opts}
    assert {word for word in words if word.startswith("--")} <= known, words


@pytest.mark.parametrize("code", sorted(FOR_ERRORS))
def test_the_remedy_of_an_error_can_be_typed(code: str) -> None:
    assert code in {*errors.by_code(), "execution_failed", "execution_cancelled", "execution_expired"}
    for words in _named(FOR_ERRORS[code]):
        _check(words)


def test_the_remedy_of_an_error_names_its_execution() -> None:
    assert remedy_for("execution_ended", {"execution_id": "019d"}) == "to run it again: ff executions replay 019d"
    assert remedy_for("execution_ended", {}) == "to run it again: ff executions replay EXECUTION"
    assert remedy_for("payload_too_large", {"execution_id": "019d"}) is None


def test_the_remedies_of_explain_can_be_typed() -> None:
    named = [words for part in (remedies.remedy, remedies._answer) for words in _named(inspect.getsource(part))]

    assert len(named) > 10
    for words in named:
        _check(words)
