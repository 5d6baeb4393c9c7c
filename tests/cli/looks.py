"""Compare the output of commands with the files in `snapshots/`; `SNAPSHOTS=write` overwrites the files."""

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent / "snapshots"
WRITING = os.environ.get("SNAPSHOTS") == "write"

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
FIXED = "00000000-0000-[08]000-[089a-f]000-|019df237-3e80-8a31-"  # ids that a test chose, and the id in the examples

# What differs from run to run, and its replacement: of the same width, so that tables do not change.
VARYING = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "2026-05-04 09:00:00 UTC"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "2026-05-04T09:00:00Z"),
    (r"\b1\d{15}(?=,)", "1777885200000000"),
    (r"\b1\d{12}-\d\b", "1777885200000-0"),
    (r"\b[0-9a-f]{16}\b(?!,)", "f" * 16),
    (r'(_in_ms":)\d+', r"\g<1>3600000"),
    (r"migration \d+", "migration 9"),
    (r'"last_migration":\d+', '"last_migration":9'),
]


class Looks:
    """Runs a command with several arguments and compares the output with its snapshot."""

    def __init__(self, run: Callable[..., Awaitable[Any]]) -> None:
        self._run = run

    async def __call__(self, command: str, *ways: str) -> None:
        seen = "\n".join([await self._see(f"{command} {way}".strip()) for way in ("--help", *ways)])
        file = FOLDER / f"{command.replace(' ', '-')}.txt"
        if WRITING:
            file.write_text(seen)
        assert seen == file.read_text()  # to accept the change: SNAPSHOTS=write make test ARGS=tests/cli

    async def _see(self, line: str) -> str:
        code, out, err = await self._run(line)
        if "--json" in line.split():
            for document in (out or err).splitlines():
                msgspec.json.decode(document)
        lines = [f"$ ff {line}", *out.splitlines(), *(f"! {each}" for each in err.splitlines())]
        return stable("\n".join([*lines, *([f"[{code}]"] if code else []), ""]))


def stable(text: str) -> str:
    """The text with everything replaced that differs from run to run."""
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    known: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        uuid = found[0]
        return (
            uuid if re.match(FIXED, uuid) else known.setdefault(uuid, f"11111111-0000-7000-8000-{len(known) + 1:012}")
        )

    return re.sub(UUID, named, text)
