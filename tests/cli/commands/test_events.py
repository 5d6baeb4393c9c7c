"""`ff events tail`: follows the log, filters it, and continues after a cursor."""

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


async def test_it_continues_after_the_cursor_of_a_line(here: Run, given: Given) -> None:
    await scene.ended(given)
    lines = [msgspec.json.decode(line) for line in (await here("events tail --once --json")).out.splitlines()]

    rest = (await here("events tail --once --json --cursor", lines[2]["cursor"])).out.splitlines()

    assert [msgspec.json.decode(line)["event_id"] for line in rest] == [line["event_id"] for line in lines[3:]]


async def test_ids_and_digests_are_only_in_the_json(here: Run, given: Given) -> None:
    await scene.ended(given)

    text = await here("events tail --once --kind lease_acquired --limit 1")
    json = await here("events tail --once --kind lease_acquired --limit 1 --json")

    assert text.out.endswith("  worker=pool, attempt=1, resumed=false, instance=pool-1, attempt_type=initial\n")
    assert {"epoch", "lease_id", "worker"} <= set(json.document["detail"])


async def test_an_unknown_kind_is_an_error_with_a_suggestion(ff: Run, database_url: str) -> None:
    answer = await ff("events", "tail", "--json", "--kind", "execution_faild", FLOWFABRIC_URL=database_url)

    assert (answer.code, answer.out, answer.error["error"]) == (1, "", "invalid_body")
    assert all(part in answer.error["message"] for part in ("'execution_faild'", "execution_failed"))


async def test_a_shell_completes_the_kinds(ff: Run) -> None:
    words = {"COMP_WORDS": "ff events tail --kind lease_", "COMP_CWORD": "4"}
    code, out, _ = await ff(_FF_COMPLETE="bash_complete", **words)

    assert code == 0
    assert out.split() == [f"plain,lease_{past}" for past in ("acquired", "expired", "renewed", "revoked")]


async def test_once_reads_more_than_one_page(here: Run, given: Given) -> None:
    await here("submit greet --each -", stdin="{}\n" * 600)

    _, out, _ = await here("events tail --once --kind execution_submitted")

    assert len(out.splitlines()) == 600


async def test_filters(here: Run, given: Given) -> None:
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
