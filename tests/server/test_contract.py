"""Random requests from the OpenAPI document: no status 5xx, and no answer that the document does not have."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from flowfabric import App
from flowfabric.server.serving import HttpServer, listen
from tests.conftest import SOAK

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SECONDS = 60 if SOAK else 15


async def test_random_requests_get_documented_answers_and_no_5xx(app: App, tmp_path: Path) -> None:
    async with app:
        server = HttpServer(app, listen("127.0.0.1", 0))
        running = asyncio.create_task(server.run())
        process = await asyncio.create_subprocess_exec(
            *(Path(sys.executable).parent / "schemathesis", "run", f"{server.address}/v1/openapi.json"),
            *("--phases", "examples,coverage,fuzzing", "--checks", CHECKS, "--max-time", str(SECONDS)),
            *("--exclude-path-regex", "/follow$", "--max-examples", "10", "--no-color"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        server.stop()
        await running

    assert process.returncode == 0, said.decode()
    assert not re.search(rb"\b0 generated", said)
