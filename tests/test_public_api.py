"""What people hold in their hands is explained to them: every public name, and every method of what has one."""

import inspect

import pytest

import flowfabric
from docs import api

PAGE = api.page()
CLASSES = [thing for name in flowfabric.__all__ if inspect.isclass(thing := getattr(flowfabric, name))]


@pytest.mark.parametrize("name", flowfabric.__all__)
def test_a_public_name_is_explained(name: str) -> None:
    heading, said = f"## {name}\n\n", inspect.getdoc(getattr(flowfabric, name))

    assert said
    assert f"{heading}{said}" in PAGE


@pytest.mark.parametrize("held", CLASSES, ids=lambda held: held.__name__)
def test_what_can_be_done_with_it_is_explained(held: type) -> None:
    own = {name: thing for name, thing in vars(held).items() if not name.startswith("_")}
    methods = {name: thing for name, thing in own.items() if inspect.isfunction(thing) or isinstance(thing, property)}
    for name, thing in methods.items():
        if f"{held.__name__}.{name}" not in api.BETWEEN_MODULES:
            said = inspect.getdoc(thing)
            assert said, name
            assert f"### {held.__name__}.{name}" in PAGE
            assert said in PAGE


def test_what_is_left_out_exists_and_is_used_by_another_module() -> None:
    for path in api.BETWEEN_MODULES:
        owner, name = path.split(".")
        assert hasattr(getattr(flowfabric, owner), name), path
