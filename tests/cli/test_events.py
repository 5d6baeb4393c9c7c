"""`ff events tail`: follows, and goes on from a cursor."""

import asyncio
import signal
from asyncio.subprocess import Process

import msgspec

from tests.cli import scene
from tests.cli.conftest import Run, Start
from tests.given import Given


async def next_kind(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return str(msgspec.json.decode(await process.stdout.readline())["kind"])


async def test_it_follows_until_ctrl_c(start: Start, given: Given) -> None:
    await given.submitted()
    process = await start("events", "tail", "--json", "--cursor", "oldest")
    assert [await next_kind(process), await next_kind(process)] == ["lane_registered", "execution_submitted"]

    await given.cancelled()
    assert [await next_kind(process), await next_kind(process)] == ["execution_submitted", "execution_cancelled"]

    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(10):
        out, err = await process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")


async def test_it_goes_on_from_the_cursor_of_a_line(here: Run, given: Given) -> None:
    await scene.ended(given)
    lines = [msgspec.json.decode(line) for line in (await here("events tail --once --json")).out.splitlines()]

    rest = (await here("events tail --once --json --cursor", lines[2]["cursor"])).out.splitlines()

    assert [msgspec.json.decode(line)["event_id"] for line in rest] == [line["event_id"] for line in lines[3:]]


async def test_ids_and_digests_are_left_to_programs(here: Run, given: Given) -> None:
    await scene.ended(given)

    _, told, _ = await here("events tail --once --kind lease_acquired --limit 1")
    _, kept, _ = await here("events tail --once --kind lease_acquired --limit 1 --json")

    assert told.endswith("  worker=pool, attempt=1, resumed=false, instance=pool-1, attempt_type=initial\n")
    assert {"epoch", "lease_id", "worker"} <= set(msgspec.json.decode(kept)["detail"])


async def test_a_kind_that_does_not_exist_is_refused_and_not_followed_for_ever(ff: Run, database_url: str) -> None:
    code, out, err = await ff("events", "tail", "--kind", "execution_faild", FLOWFABRIC_URL=database_url)

    assert (code, out) == (1, "")
    assert err.startswith(
        "invalid_body: kind 'execution_faild': there is no such kind of event; did you mean execution_"
    )


async def test_a_shell_completes_the_kinds(ff: Run) -> None:
    words = {"COMP_WORDS": "ff events tail --kind lease_", "COMP_CWORD": "4"}
    code, out, _ = await ff(_FF_COMPLETE="bash_complete", **words)

    assert code == 0
    assert out.split() == [f"plain,lease_{past}" for past in ("acquired", "expired", "renewed", "revoked")]


async def test_more_than_a_page_is_read_to_its_end(here: Run, given: Given) -> None:
    await here("submit greet --each -", stdin="{}\n" * 600)

    _, out, _ = await here("events tail --once --kind execution_submitted")

    assert len(out.splitlines()) == 600


async def test_filters_narrow_it(here: Run, given: Given) -> None:
    await given.submitted(lane="mail", namespace="acme", tags={"a.b": "c"})
    await scene.ended(given)

    for option in ("--lane mail", "--namespace acme", "--tag a.b=c", "--kind execution_submitted --lane mail"):
        kinds = [
            msgspec.json.decode(line)["kind"]
            for line in (await here(f"events tail --once --json {option}")).out.splitlines()
        ]
        assert kinds[-1:] == ["execution_submitted"], option
        assert len(kinds) <= 2, option
    assert "by ops" in (await here("events tail --once --by ops")).out
