"""The pytest plugin of FlowFabric: fixtures that give a test an engine with its own database.

If FlowFabric is installed, every pytest run loads this module. So it imports nothing of FlowFabric before a test uses a
fixture, and does not affect tests that use none.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from flowfabric.testing import Clock, Server
    from flowfabric.testing.engine import Engine
    from flowfabric.testing.sync import SyncClock, SyncEngine

T = TypeVar("T")

FIXTURE = "flowfabric_engine"


@pytest.fixture(scope="session")
def flowfabric_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Server]":
    """The Postgres of this test run: the one that FLOWFABRIC_TEST_URL names, or an embedded one for all processes."""
    from flowfabric import testing

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base
    with testing.running(shared / "postgres") as server:
        yield server


@pytest.fixture(scope="session")
def flowfabric_tables() -> str:
    """SQL that creates your own tables in the database of every test; override it in your conftest.py."""
    return ""


@pytest.fixture(scope="session")
def flowfabric_template(flowfabric_server: "Server", flowfabric_tables: str) -> str:
    """The name of the template database that each test gets a copy of; created once per run."""
    return _run(flowfabric_server.make_template(flowfabric_tables))


@pytest.fixture
def flowfabric_url(flowfabric_server: "Server", flowfabric_template: str) -> Iterator[str]:
    """The URL of this test's own database."""
    name = _run(flowfabric_server.create(flowfabric_template))
    yield flowfabric_server.url(name)
    _run(flowfabric_server.drop(name))


@pytest.fixture
def flowfabric_engine(request: pytest.FixtureRequest, flowfabric_url: str) -> "Iterator[Engine | SyncEngine]":
    """The engine of this test; in a sync test, with sync methods."""
    from flowfabric.blocking import opened
    from flowfabric.testing.engine import Engine
    from flowfabric.testing.sync import SyncEngine

    engine, test = Engine(flowfabric_url), request.node
    function = getattr(test, "obj", None)
    try:
        if inspect.iscoroutinefunction(function):
            test.obj = _closing(engine, function)
            yield engine
            test.obj = function
        else:
            with opened(engine) as (_, loop):
                yield SyncEngine(engine, loop)
    finally:
        engine.give_back()


@pytest.fixture
def engine(flowfabric_engine: "Engine | SyncEngine") -> "Engine | SyncEngine":
    """The engine of this test, with its own database: `await engine.approve(execution)`."""
    return flowfabric_engine


@pytest.fixture
def clock(flowfabric_engine: "Engine | SyncEngine") -> "Clock | SyncClock":
    """The clock of this test's engine: `await clock.advance("2d")`."""
    return flowfabric_engine.clock


@pytest.fixture
def app_worker(flowfabric_engine: "Engine | SyncEngine") -> Callable[..., Any]:
    """Open an app on the database of this test, with a worker: `await app_worker(app)`."""
    return flowfabric_engine.work


@pytest.fixture
def run_now(flowfabric_engine: "Engine | SyncEngine") -> Callable[..., Any]:
    """Run a task to its end and return its result: `await run_now(report, "tides")`."""
    run: Callable[..., Any] = flowfabric_engine.run_now
    return run


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run an async test that uses the engine, if no plugin for async tests does."""
    if FIXTURE not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


def _closing(engine: "Engine", test: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Wrap a test so that the engine closes at its end, on the test's event loop, whichever plugin runs it."""

    @functools.wraps(test)
    async def closing(*args: Any, **kwargs: Any) -> T:
        async with engine:
            return await test(*args, **kwargs)

    return closing


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in another thread, because this one may have a running event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
