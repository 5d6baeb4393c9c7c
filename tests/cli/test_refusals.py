"""Every refusal says its code, the value and the remedy, and ends with 1; a mistake of the caller ends with 2."""

import msgspec
import pytest

from flowfabric.errors import DatabaseMissing
from tests.cli import scene
from tests.cli.conftest import Run
from tests.cli.scene import ASKING, DONE, PAUSED, SIGNALLED, numbered
from tests.given import Given

NOBODY = numbered(99)
LIST = "`ff executions list` shows those there are"

REFUSED = [
    ("executions show nonsense", "invalid_id", "'nonsense'", "write {fp:N}:<uuid>"),
    (f"executions show {NOBODY}", "execution_not_found", str(NOBODY), LIST),
    (f"executions explain {NOBODY}", "execution_not_found", str(NOBODY), LIST),
    (f"executions events {NOBODY}", "execution_not_found", str(NOBODY), LIST),
    (f"executions attempts {NOBODY}", "execution_not_found", str(NOBODY), LIST),
    (f"executions cancel {DONE}", "execution_ended", str(DONE), "`ff executions replay EXECUTION` runs it again"),
    (f"executions replay {PAUSED}", "execution_not_terminal", str(PAUSED), "`ff executions cancel EXECUTION` ends it"),
    (f"executions hold {ASKING}", "execution_not_runnable", str(ASKING), "`ff executions cancel EXECUTION` ends it"),
    (f"executions resume {PAUSED}", "execution_not_suspended", str(PAUSED), "`ff executions explain EXECUTION` says"),
    (f"executions set-tag {DONE} Nodot=1", "invalid_tag_key", "'Nodot'", "such as billing.customer"),
    ("executions list --cursor x", "invalid_cursor", "'x'", "pass one back unchanged, or none to start over"),
    ("executions list --flow x", "invalid_id", "'x'", "write {fp:N}:<uuid>"),
    ("executions list --flow ''", "invalid_id", "''", "write {fp:N}:<uuid>"),
    ("lanes show nowhere", "lane_not_found", "'nowhere'", "`ff lanes list` shows those there are"),
    ("lanes pause nowhere", "lane_not_found", "'nowhere'", "`ff lanes register LANE` makes one"),
    ("lanes register ''", "invalid_lane", "''", "1 to 64 printable ASCII characters"),
    ("waitpoints approve --yes " + str(PAUSED), "execution_not_suspended", str(PAUSED), "`ff executions explain"),
    (f"waitpoints approve {ASKING} other --yes", "waitpoint_not_found", "other", "`ff waitpoints show EXECUTION`"),
    (
        f"waitpoints approve {ASKING} --digest abc",
        "approval_digest_mismatch",
        "'abc'",
        "`ff waitpoints show EXECUTION`",
    ),
    (f"waitpoints signal {ASKING} publish approve", "approval_digest_mismatch", "", "`ff waitpoints show EXECUTION`"),
    (f"waitpoints show {NOBODY}", "execution_not_found", str(NOBODY), LIST),
    ("workers mark-dead ''", "invalid_worker", "''", "1 to 256 bytes without space"),
    ("keys rotate 'no spaces'", "invalid_kid", "'no spaces'", "letters, digits, dots, underscores or hyphens"),
    ("keys seed k9", "another_key_active", "k1", "`ff keys rotate KID` replaces it"),
    ("events tail --once --cursor x", "invalid_cursor", "'x'", "pass one back unchanged"),
    ("events tail --once --execution x", "invalid_id", "'x'", "write {fp:N}:<uuid>"),
    ("events tail --once --execution ''", "invalid_id", "''", "write {fp:N}:<uuid>"),
    ("events tail --once --flow ''", "invalid_id", "''", "write {fp:N}:<uuid>"),
    ("events tail --once --kind lease_aquired", "invalid_body", "'lease_aquired'", "did you mean lease_acquired or"),
    ("events tail --once --kind ''", "invalid_body", "kind ''", "Kinds of events, has them all"),
    ("submit greet --lane ''", "invalid_lane", "''", "1 to 64 printable ASCII characters"),
    ("submit greet --policy '{\"retries\": 1}'", "invalid_policy", "retries", "there is no such field"),
    ("submit greet --lane closing", "lane_draining", "closing", "`ff lanes resume LANE` opens it"),
    ("submit greet --app nowhere.py:app", "cannot_load", "nowhere.py", "there is no file"),
    (f"submit greet --app {'x' * 5_000}.py:app", "cannot_load", "'xxxx", "File name too long"),
    (f"submit greet --app {'x' * 5_000}:app", "cannot_load", "'xxxx", "there is no module"),
    ("lanes list --url mysql://x", "bad_setting", "FLOWFABRIC_URL", "it reads postgresql://"),
    ("lanes list --url postgresql://127.0.0.1:1/x", "database_unavailable", "", "check FLOWFABRIC_URL"),
]


@pytest.fixture
async def system(given: Given) -> None:
    await scene.ended(given)
    await scene.blocked(given)
    await given.submitted(lane="closing")
    await given.rows("update flowfabric.lanes set state = 'draining' where name = 'closing'")


async def test_every_refusal_says_its_code_the_value_and_the_remedy(here: Run, given: Given, system: None) -> None:
    async with given.nothing_changes():
        for line, expected, value, remedy in REFUSED:
            code, out, err = await here(line)
            assert (code, out) == (1, ""), line
            assert err.startswith(f"{expected}: "), (line, err)
            assert value in err, (line, err)
            assert remedy in err, (line, err)


async def test_with_json_a_refusal_is_json_too(here: Run, system: None) -> None:
    for line, expected, _, _ in REFUSED:
        code, out, err = await here(f"{line} --json")
        said = msgspec.json.decode(err, type=dict[str, object])
        assert (code, out, said["error"]) == (1, "", expected), line
        assert said.keys() >= {"error", "message"}


async def test_the_fields_of_a_refusal_stand_beside_its_message(here: Run, system: None) -> None:
    _, _, err = await here(f"executions cancel {DONE} --json")

    assert msgspec.json.decode(err) == {
        "error": "execution_ended",
        "message": f"execution {DONE} has ended: completed",
        "remedy": "`ff executions replay EXECUTION` runs it again",
        "outcome": "success",
        "execution_id": str(DONE),
    }


async def test_one_that_is_refused_harms_no_other(here: Run, given: Given, system: None) -> None:
    code, out, err = await here(f"executions cancel {DONE} {PAUSED} nonsense")

    assert code == 1
    assert out.splitlines()[1:] == [f"{PAUSED}  cancelled"]
    assert [line.split(":")[0] for line in err.splitlines() if line[0] != " "] == ["execution_ended", "invalid_id"]
    assert (await given.events(PAUSED))[-1] == "execution_cancelled"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("executions list --state gone", "'gone' is not one of 'waiting'"),
        ("executions list --limit 1001", "1001 is not in the range 0<=x<=1000"),
        ("executions list --tag nothing", "'nothing' is no tag; write key=value, such as billing.customer=4711"),
        ("executions list --created-after yesterday", "'yesterday' is no moment; write one like 2026-05-04T09:00:00Z"),
        ("executions list --created-after 2026-05-04T09:00:00", "write one like 2026-05-04T09:00:00Z"),
        ("executions cancel", "Missing argument 'EXECUTION...'"),
        ("submit greet '[1]'", '\'[1]\' is no object; write one, such as {"name": "Ada"}'),
        ("submit greet {name:Ada}", "'{name:Ada}' is not JSON"),
        ("submit greet --delay soon", "'soon' is no span of time; write one like 250ms, 30s, 10m, 1h30m, 2d or 1w"),
        ("submit greet --each nowhere.jsonl", "No such file"),
        ("keys rotate k2 --secret-file nowhere", "No such file"),
        (f"waitpoints signal {SIGNALLED} paid received --digest xyz", "digest 'xyz' is not hexadecimal"),
        ("worker hello.py:app --lanes ''", "'' names nothing; write words with commas between them: reports,mail"),
        ("worker hello.py:app --lanes ' ,'", "' ,' names nothing"),
        ("dev hello.py:app --lease ''", "'' is no span of time; write one like 250ms, 30s"),
        ("lanes lst", "No such command 'lst'"),
        ("completion tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
async def test_a_mistake_of_the_caller_ends_with_2(here: Run, line: str, said: str) -> None:
    code, out, err = await here(line)

    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


async def test_where_there_is_no_database_none_is_made_for_somebody_who_looks(ff: Run) -> None:
    for command in (["executions", "list"], ["migrate", "--check"], ["sweep", "--once"], ["submit", "greet"]):
        code, out, err = await ff(*command)
        assert (code, out) == (1, "")
        assert err.startswith(f"{DatabaseMissing.code}: FLOWFABRIC_URL is not set and there is no database in /")
        assert err.endswith(".flowfabric; `ff dev FILE.py:app` or `ff migrate` makes one there\n")
