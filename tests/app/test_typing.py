"""Type checking of code that uses tasks."""

import textwrap
from pathlib import Path

from mypy import api

BEFORE = """
from flowfabric import App, Blocking, Context, metered

app = App(
    budgets={"team-a": {"tokens": 1_000}, "team-b": {"hard_limits": {"tokens": 5}, "reset_interval": "1d"}},
    quotas={"model": {"max_concurrent": 3}},
    url="postgresql://localhost/none",
)

@app.task(lane="research")
async def report(ctx: Context, topic: str, pages: int = 1) -> list[str]:
    return [topic]

@app.schedule(cron="0 9 * * 1-5", tz="Europe/Berlin", arguments={"n": 3}, overlap="skip")
@app.task
def plain(n: int) -> float:
    return n / 2

@app.task
def blocked(ctx: Blocking[Context], n: int) -> bytes:
    return b""

@app.step(retries=2)
async def search(topic: str) -> dict[str, int]:
    return {}

async def count(topic: str) -> int:
    return 1
"""

GOOD = """
async def good(ctx: Context, sync: Blocking[Context]) -> None:
    execution = await report.with_options(priority=5, delay="1h").submit("tides", pages=2)
    topics: list[str] = await execution.result(timeout=5)
    half: float = await (await plain.submit(n=3)).result()
    raw: bytes = await (await blocked.submit(1)).result()
    called: list[str] = await report(ctx, "tides")
    direct: float = plain(3)
    notes: dict[str, int] = await search(ctx, "tides")
    at_once: dict[str, int] = search(sync, "tides")
    counted: int = await ctx.step("count", count, "tides")
    length: int = await ctx.step("length", len, "tides")
    verdict: bool = (await ctx.approval("publish")).approved
    used: int | None = (await ctx.report_usage("team-a", tokens=5)).used
    async with ctx.reserve("team-a", tokens=5, ttl="1h") as held:
        await held.settle(tokens=3)
    charged: int = await metered(ctx, "team-a", count, tokens=5)("tides")
    charged_at_once: int = metered(sync, "team-a", len)("tides")
    charged_step: int = await ctx.step("charged", metered(ctx, "team-a", count), "tides")
"""

BAD = {
    "await ctx.report_usage('team-a', tokens='many')": 'incompatible type "str"; expected "int"',
    "await metered(ctx, 'team-a', count)(3)": 'incompatible type "int"; expected "str"',
    "App(quotas={'model': {'most': 3}})": 'Extra key "most"',
    "await report.submit(3)": 'incompatible type "int"; expected "str"',
    "await report.submit()": 'Missing positional argument "topic"',
    "await report.submit(ctx, 'tides')": "incompatible type",
    "await report.submit('tides', colour=1)": 'Unexpected keyword argument "colour"',
    "await plain.submit('three')": 'incompatible type "str"; expected "int"',
    "await blocked.submit('x')": 'incompatible type "str"; expected "int"',
    "await report('tides')": 'incompatible type "str"; expected "Context"',
    "report.with_options(prio=5)": 'Unexpected keyword argument "prio"',
    "report.with_options(priority='high')": 'incompatible type "str"; expected "int"',
    "x: int = await (await report.submit('tides')).result()": 'has type "list[str]", variable has type "int"',
    "y: str = await search(ctx, 'tides')": 'has type "dict[str, int]", variable has type "str"',
    "await search(ctx, 3)": "No overload variant",
    "z: str = await ctx.step('count', count, 'tides')": "incompatible type",
    "app.schedule(evry='1h')": 'Unexpected keyword argument "evry"',
    "app.schedule(every='1h', overlap='maybe')": 'Argument "overlap" to "schedule"',
    "await app.create_schedule('hourly', report, every=3)": 'incompatible type "int"',
    "w: str = (await ctx.approval('x')).approved": 'has type "bool", variable has type "str"',
}


def test_good_code_is_accepted_and_every_line_of_bad_code_is_rejected(tmp_path: Path) -> None:
    before = f"{BEFORE}{GOOD}\nasync def bad(ctx: Context) -> None:\n"
    first = len(before.splitlines()) + 1

    errors = checked(before + textwrap.indent("\n".join(BAD), "    ") + "\n", tmp_path)

    assert {line: said for line, said in errors.items() if line < first} == {}
    missed = {
        code: errors.get(line, "") for line, code in enumerate(BAD, first) if BAD[code] not in errors.get(line, "")
    }
    assert missed == {}


def checked(program: str, folder: Path) -> dict[int, str]:
    """The errors that mypy reports for a program, by line."""
    file, config = folder / "program.py", folder / "mypy.ini"
    file.write_text(program)
    source = Path(__file__).parents[2] / "src"
    config.write_text(f"[mypy]\nmypy_path = {source}\n[mypy-asyncpg.*]\nignore_missing_imports = True\n")
    options = ["--strict", "--config-file", str(config), "--cache-dir", str(folder / "cache")]
    out, err, _ = api.run([*options, str(file)])
    assert err == ""
    errors: dict[int, str] = {}
    for line in out.splitlines():
        if "program.py" in line and "error:" in line:
            number = int(line.split(":")[1])
            errors[number] = f"{errors.get(number, '')}{line}\n"
    return errors
