"""The sync classes agree with the async ones."""

import inspect

import pytest

from docs import public
from flowfabric import SyncApp
from flowfabric.app import namespaces_sync
from flowfabric.blocking import Sync
from tools import sync_classes

ASYNC = {**public.app_names(), **public.RETURNED, **public.testing_names()}
NAMES = [name for name, thing in ASYNC.items() if inspect.isclass(thing) and issubclass(thing, Sync)]


def test_the_sync_classes_are_those_that_the_generator_writes() -> None:
    outdated = [path.name for path, text in sync_classes.written().items() if path.read_text() != text]

    assert outdated == []  # `make sync` rewrites them


@pytest.mark.parametrize("name", NAMES)
def test_a_sync_class_has_every_public_method_of_its_async_class(name: str) -> None:
    left_out = {each.partition(".")[2] for each in sync_classes.EXCLUDED if each.startswith(f"{name[4:]}.")}
    wanted = public.members(name[4:], ASYNC[name[4:]]).keys() - left_out

    assert [each for each in wanted if not hasattr(ASYNC[name], each)] == []


def test_a_namespace_has_the_same_operations_without_await() -> None:
    for name, kind in public.namespaces().items():
        sync = getattr(namespaces_sync, f"Sync{kind.__name__}")
        assert hasattr(SyncApp, name)
        assert public.members("", kind).keys() == {each for each in vars(sync) if not each.startswith("_")}


def test_every_class_with_a_sync_version_is_public() -> None:
    returned = {"EventLog", "Subscription", *(kind.__name__ for kind in public.namespaces().values())}

    assert {f"Sync{name}" for name in sync_classes.MODULE_OF} - {*NAMES} == {f"Sync{name}" for name in returned}
