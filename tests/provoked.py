"""Which error codes a run of the tests really provokes: recorded in every process, and compared when all tests ran.

An error counts if code under `src/` made it; one that a test makes, or a name that a test mentions, does not count.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import pytest

from flowfabric import errors
from tests.sources import SRC, TESTS

# Codes that no test can provoke yet, with the reason.
NOT_PROVOKED: dict[str, str] = {}

NARROWING = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "collectonly", "lf")


class Node(Protocol):
    """A worker of pytest-xdist that has finished."""

    workeroutput: dict[str, Any]


class Provoked:
    """A pytest plugin: fails a run of the whole suite in which an error code was never provoked."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.codes: set[str] = set()
        self.complaint = ""

    def start(self) -> Callable[[], None]:
        """Record every error from now on, until the function that is returned is called."""
        make = errors.FlowFabricError.__init__
        codes = self.codes

        def recording(self: errors.FlowFabricError, message: str, **fields: object) -> None:
            make(self, message, **fields)
            if made_by_the_source(sys._getframe(1)):
                codes.add(self.code)

        def stop() -> None:
            errors.FlowFabricError.__init__ = make  # type: ignore[method-assign]

        errors.FlowFabricError.__init__ = recording  # type: ignore[method-assign]
        return stop

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Node) -> None:
        """Collect the codes of a worker that has finished."""
        self.codes |= set(getattr(node, "workeroutput", {}).get("provoked", []))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Report to the controller; or, in the controller, judge a run of all tests that went well."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["provoked"] = sorted(self.codes)
        elif exitstatus == pytest.ExitCode.OK and whole_suite(self.config):
            self.complaint = judge(self.codes)
            if self.complaint:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which codes are missing."""
        if self.complaint:
            terminalreporter.section("error codes", red=True)
            terminalreporter.write_line(self.complaint)


def made_by_the_source(frame: FrameType | None) -> bool:
    """Whether code of the project made the error, other than `errors.py`, which only looks up the class."""
    while frame is not None and frame.f_code.co_filename in (errors.__file__, __file__):
        frame = frame.f_back
    return frame is not None and SRC in Path(frame.f_code.co_filename).parents


def whole_suite(config: pytest.Config) -> bool:
    """Whether pytest was asked for all tests: none named, none left out."""
    asked = [Path(config.invocation_params.dir, argument).resolve() for argument in config.args]
    return asked == [TESTS] and not any(config.getoption(option, default=None) for option in NARROWING)


def judge(codes: set[str]) -> str:
    """The complaint about codes that were never provoked, or are wrongly listed as such; empty if there is none."""
    never = sorted(errors.by_code().keys() - codes - NOT_PROVOKED.keys())
    wrong = sorted(NOT_PROVOKED.keys() - (errors.by_code().keys() - codes))
    lines = [f"no test provokes: {', '.join(never)}; write a test, or give the reason in NOT_PROVOKED"] * bool(never)
    lines += [f"listed in NOT_PROVOKED, but provoked or unknown: {', '.join(wrong)}"] * bool(wrong)
    return "\n".join(lines)
