"""The log of `ff worker` and `ff dev`."""

import logging

from flowfabric.cli.logs import ExecutionFormatter
from flowfabric.handler.logs import log_execution, running
from tests.cli.scene import TRACEBACK
from tests.given import Given


async def test_only_the_lines_of_handlers_name_an_execution(given: Given) -> None:
    claim = await given.claimed()
    record = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": "packed %d", "args": (3,)})
    outside = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": "here"})
    log_execution(outside)
    before = running.set(claim)
    log_execution(record)
    running.reset(before)

    line = ExecutionFormatter().format(record)
    assert line.endswith(f" INFO shop: [{claim.task} {claim.execution_id} attempt 1] packed 3")
    assert ExecutionFormatter().format(outside).endswith(" INFO shop: here")


def test_our_frames_in_tracebacks_are_folded() -> None:
    record = logging.makeLogRecord({"name": "shop", "levelname": "ERROR", "msg": "failed: %s", "args": (TRACEBACK,)})

    line = ExecutionFormatter().format(record)
    assert "… 2 frames of flowfabric" in line
    assert "/srv/shop.py" in line
    assert "worker/run.py" not in line
