"""The list of sweeps: it contains every sweep function, under its own name."""

from datetime import timedelta

from flowfabric.config import Config
from flowfabric.postgres.database import Database
from flowfabric.sweeps import run_each, sweeps
from tests.given import Given
from tests.sources import ROOT

# A sweep returns how many rows it moved, and which lanes and executions to notify.
FUNCTIONS = """
select p.proname as name from pg_proc p
where p.pronamespace = 'flowfabric'::regnamespace and p.proname not like '\\_%'
  and p.proargnames[:2] = '{take,passing}' and p.proargnames @> '{moved,lanes,ended}'
"""


async def test_every_sweep_function_is_in_the_list(given: Given) -> None:
    written = {row["name"] for row in await given.rows(FUNCTIONS)}

    assert written == {sweep.name for sweep in sweeps(Config())}


async def test_every_sweep_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "concepts" / "sweeps.md").read_text()

    assert [sweep.name for sweep in sweeps(Config()) if f"| `{sweep.name}` |" not in page] == []


async def test_no_sweep_is_listed_twice_or_takes_rows_without_limit() -> None:
    listed = sweeps(Config())

    assert len({sweep.name for sweep in listed}) == len(listed)
    assert all(1 <= sweep.limit <= 500 for sweep in listed)
    assert all(timedelta(0) < sweep.every <= timedelta(minutes=1) for sweep in listed)


async def test_every_sweep_runs_under_its_own_name_and_moves_nothing_in_an_empty_database(database: Database) -> None:
    runs = await run_each(database, sweeps(Config()))

    assert [(run.sweep, run.moved, run.error) for run in runs] == [(s.name, 0, None) for s in sweeps(Config())]


async def test_retention_comes_from_the_settings(database: Database, given: Given) -> None:
    await given.cancelled()
    await given.time_passes(seconds=2)

    moved = {run.sweep: run.moved for run in await run_each(database, sweeps(Config()))}
    assert moved["remove_ended"] == 0
    moved = {run.sweep: run.moved for run in await run_each(database, sweeps(Config(retention=timedelta(seconds=1))))}
    assert moved["remove_ended"] == 1
    assert await given.count("executions") == 0
