"""The API reference: every public name, and every public method, has a docstring and an entry."""

import inspect

import pytest

import flowfabric
from docs import api

PAGE = api.page()
CLASSES = [thing for name in flowfabric.__all__ if inspect.isclass(thing := getattr(flowfabric, name))]


@pytest.mark.parametrize("name", flowfabric.__all__)
def test_a_public_name_is_documented(name: str) -> None:
    heading, said = f"## {name}\n\n", inspect.getdoc(getattr(flowfabric, name))

    assert said
    assert f"{heading}{said}" in PAGE


@pytest.mark.parametrize("held", CLASSES, ids=lambda held: held.__name__)
def test_every_public_method_is_documented(held: type) -> None:
    own = {name: thing for name, thing in vars(held).items() if not name.startswith("_")}
    methods = {name: thing for name, thing in own.items() if inspect.isfunction(thing) or isinstance(thing, property)}
    for name, thing in methods.items():
        if f"{held.__name__}.{name}" not in api.BETWEEN_MODULES:
            said = inspect.getdoc(thing)
            assert said, name
            assert f"### {held.__name__}.{name}" in PAGE
            assert said in PAGE


def test_undocumented_methods_exist() -> None:
    for path in api.BETWEEN_MODULES:
        owner, name = path.split(".")
        assert hasattr(getattr(flowfabric, owner), name), path
