"""Formatting of generated files."""

import subprocess
import sys
from pathlib import Path


def formatted(text: str, path: Path) -> str:
    """The text as ruff formats it, without unused imports."""
    for command in (["check", "--quiet", "--fix-only", "--select", "F401,I,UP"], ["format", "--quiet"]):
        asked = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(asked, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return text
