"""Percentiles. Imports nothing from FlowFabric, because the programs that run peers use it too."""

from collections.abc import Sequence


def percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile in milliseconds: `start_p50_ms`, `start_p99_ms`."""
    ordered = sorted(seconds)
    middle, slowest = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return {f"{name}_p50_ms": middle * 1_000, f"{name}_p99_ms": slowest * 1_000}
