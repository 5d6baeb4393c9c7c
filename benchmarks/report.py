"""Reports: a result as a line of JSON, as a table in the terminal, and as a table in the docs.

`python -m benchmarks.report RESULTS PAGE` writes the table of a results file into a page, between its two markers.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.scenario import Result

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def row(result: Result, about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything about a result, for one line of JSON."""
    return {
        "scenario": result.scenario.name,
        "engine": result.engine,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "unit": result.scenario.unit,
        "value": _rounded(result.value),
        "runs": [_rounded(run.value) for run in result.runs],
        "spread": round(result.spread, 3),
        "stolen": round(result.stolen, 3),
        "figures": {name: _rounded(value) for name, value in result.figures.items()},
        "ratios": {name: _digits(ratio) for name, ratio in result.ratios.items()},
        "missed": result.missed,
        **_circumstances(result, about),
        "machine": about["machine"],
        "scale": about["scale"],
    }


def _circumstances(result: Result, about: Mapping[str, Any]) -> dict[str, Any]:
    """Versions and settings of the measured engine, and of the Postgres that it runs on."""
    theirs = result.about or {"versions": about["ours"], "settings": about["own_settings"], "on_postgres": True}
    server = about if theirs["on_postgres"] else {"versions": {}, "settings": {}}
    return {name: {**server[name], **_mapping(theirs[name])} for name in ("versions", "settings")}


def line(row: Mapping[str, Any]) -> str:
    return msgspec.json.encode(row).decode()


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as a table for the terminal."""
    lines = [f"\n{'scenario':24}{'engine':14}{'result':>12}  {'unit':18}{'spread':>7}{'stolen':>7}  compared"]
    for each in rows:
        missed = f"  MISSED {', '.join(each['missed'])}" if each["missed"] else ""
        told = f"{each['scenario']:24}{each['engine']:14}{_shown(each['value']):>12}  {each['unit']:18}"
        lines.append(f"{told}{each['spread']:7.0%}{each['stolen']:7.0%}  {_compared(each)}{missed}".rstrip())
        if each["figures"]:
            lines.append(f"{'':24}{_figures(each)}")
    return "\n".join(lines)


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| scenario | engine | result | unit | spread | stolen | compared | besides |",
        "|---|---|--:|---|--:|--:|---|---|",
    ]
    versions: dict[str, str] = {}
    for each in rows:
        shares = [f"{each[name]:.0%}" for name in ("spread", "stolen")]
        cells = (each["scenario"], each["engine"], _shown(each["value"]), each["unit"], *shares)
        lines.append(f"| {' | '.join(cells)} | {_compared(each)} | {_figures(each)} |")
        versions |= each["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in sorted(versions))
    return "\n".join([*lines, "", f"Versions: {named}."])


def write(page: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the table into a page, between its markers. Raises `ValueError` if the page has none."""
    head, begin, rest = page.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no place for results; add the lines {BEGIN} and {END}")
    page.write_text(f"{head}{BEGIN}\n\n{markdown(rows)}\n\n{END}{tail}")


def read(results: Path) -> list[dict[str, Any]]:
    """The rows of a results file; for each scenario and engine, the last one."""
    rows = [msgspec.json.decode(each) for each in results.read_text().splitlines() if each.startswith("{")]
    return [*{(each["scenario"], each["engine"]): each for each in rows if "value" in each}.values()]


def _compared(each: Mapping[str, Any]) -> str:
    return ", ".join(f"{_times(ratio)}x {name}" for name, ratio in each["ratios"].items())


def _figures(each: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in each["figures"].items())


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _rounded(value: float) -> float:
    return round(value, 1 if abs(value) >= 100 else 4)


def _digits(ratio: float) -> float:
    """Round to four significant digits, because small ratios matter as much as large ones."""
    return float(f"{ratio:.4g}")


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("python -m benchmarks.report RESULTS PAGE")
    write(Path(sys.argv[2]), read(Path(sys.argv[1])))
