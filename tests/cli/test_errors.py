"""An error has its code, the value and a remedy, and ends the command with 1; wrong usage ends it with 2."""

import pytest

from flowfabric.cli.remedies import FOR_ERRORS, remedy_for
from flowfabric.errors import DatabaseMissing
from tests.cli import scene
from tests.cli.conftest import Run
from tests.cli.scene import ASKING, DONE, PAUSED, SIGNALLED, numbered
from tests.given import Given

NOBODY = numbered(99)

# The command, the error code, and the value that the message must contain.
ERRORS = [
    ("executions describe nonsense", "invalid_id", "'nonsense'"),
    (f"executions describe {NOBODY}", "execution_not_found", str(NOBODY)),
    (f"executions explain {NOBODY}", "execution_not_found", str(NOBODY)),
    (f"executions events {NOBODY}", "execution_not_found", str(NOBODY)),
    (f"executions attempts {NOBODY}", "execution_not_found", str(NOBODY)),
    (f"executions cancel {DONE}", "execution_ended", str(DONE)),
    (f"executions override {DONE} --fail --reason stuck", "execution_ended", str(DONE)),
    (f"executions override {PAUSED} --fail --reason ''", "invalid_body", "''"),
    (f"executions replay {PAUSED}", "execution_not_terminal", str(PAUSED)),
    (f"executions hold {ASKING}", "execution_not_runnable", str(ASKING)),
    (f"executions resume {PAUSED}", "execution_not_suspended", str(PAUSED)),
    (f"executions set-tag {DONE} =1", "invalid_tag_key", "''"),
    ("executions list --cursor x", "invalid_cursor", "'x'"),
    ("executions list --flow x", "invalid_id", "'x'"),
    ("executions list --flow ''", "invalid_id", "''"),
    ("lanes describe nowhere", "lane_not_found", "'nowhere'"),
    ("lanes pause nowhere", "lane_not_found", "'nowhere'"),
    ("lanes configure ''", "invalid_lane", "''"),
    (f"waitpoints approve --yes {PAUSED}", "execution_not_suspended", str(PAUSED)),
    (f"waitpoints approve {ASKING} other --yes", "waitpoint_not_found", "other"),
    (f"waitpoints approve {ASKING} --digest abc", "approval_digest_mismatch", "'abc'"),
    (f"waitpoints signal {ASKING} publish approve", "approval_digest_mismatch", ""),
    (f"waitpoints describe {NOBODY}", "execution_not_found", str(NOBODY)),
    ("workers mark-dead ''", "invalid_worker", "''"),
    ("signing-keys rotate 'no spaces'", "invalid_kid", "'no spaces'"),
    ("signing-keys seed k9", "another_key_active", "k1"),
    ("events tail --once --cursor x", "invalid_cursor", "'x'"),
    ("events tail --once --execution x", "invalid_id", "'x'"),
    ("events tail --once --execution ''", "invalid_id", "''"),
    ("events tail --once --flow ''", "invalid_id", "''"),
    ("events tail --once --kind lease_aquired", "invalid_body", "lease_acquired"),
    ("events tail --once --kind ''", "invalid_body", "''"),
    ("submit greet --lane ''", "invalid_lane", "''"),
    ("submit greet --policy '{\"retries\": 1}'", "invalid_policy", "retries"),
    ("submit greet --lane closing", "lane_draining", "closing"),
    ("submit greet --app nowhere.py:app", "cannot_load", "nowhere.py"),
    (f"submit greet --app {'x' * 5_000}.py:app", "cannot_load", "'xxxx"),
    (f"submit greet --app {'x' * 5_000}:app", "cannot_load", "'xxxx"),
    ("lanes list --url mysql://x", "bad_setting", "FLOWFABRIC_URL"),
    ("lanes list --url postgresql://127.0.0.1:1/x", "database_unavailable", "127.0.0.1"),
]

# The command, and what the message must contain: the value, and how to write it.
USAGE = [
    ("executions list --state gone", "'gone' is not one of 'waiting'"),
    ("executions list --limit 1001", "1001 is not in the range 0<=x<=1000"),
    ("executions list --tag nothing", "'nothing'", "billing.customer=4711"),
    ("executions list --since yesterday", "'yesterday'", "30s"),
    ("executions list --until 2026-13-04", "'2026-13-04'", "2026-01-31T10:00"),
    ("submit greet --delay 2026-05-04T09:00:00", "time zone", "2026-05-04T09:00:00Z"),
    ("executions list --why x", "No such option", "--why"),
    ("executions cancel", "Missing argument 'EXECUTION...'"),
    (f"executions override {PAUSED} --fail", "Missing option '--reason'"),
    (f"executions override {PAUSED} --reason x", "--complete JSON or --fail"),
    (f"executions override {PAUSED} --fail --complete 1 --reason x", "--complete JSON or --fail"),
    (f"executions override {PAUSED} --complete {{paid}} --reason x", "'{paid}'", "invalid JSON"),
    ("submit greet '[1]'", "'[1]'", '{"name": "Ada"}'),
    ("submit greet {name:Ada}", "'{name:Ada}'", '\'{"name": "Ada"}\''),
    ("submit greet --delay soon", "'soon'", "30s"),
    ("submit greet --each nowhere.jsonl", "nowhere.jsonl", "No such file"),
    ("signing-keys rotate k2 --secret-file nowhere", "nowhere", "No such file"),
    (f"waitpoints signal {SIGNALLED} paid received --digest xyz", "'xyz'", "ff waitpoints describe"),
    ("worker hello.py:app --lanes ''", "''", "reports,mail"),
    ("worker hello.py:app --lanes ' ,'", "' ,'", "reports,mail"),
    ("dev hello.py:app --lease ''", "''", "30s"),
    ("lanes lst", "No such command 'lst'", "'list'"),
    ("completion tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
]


@pytest.fixture
async def system(given: Given) -> None:
    await scene.ended(given)
    await scene.blocked(given)
    await given.submitted(lane="closing")
    await given.rows("update flowfabric.lanes set state = 'draining' where name = 'closing'")


async def test_an_error_has_its_code_the_value_and_the_remedy(here: Run, given: Given, system: None) -> None:
    async with given.nothing_changes():
        for line, expected, value in ERRORS:
            code, out, err = await here(line)
            assert (code, out) == (1, ""), line
            assert err.startswith(f"{expected}: "), (line, err)
            assert value in err, (line, err)
            assert FOR_ERRORS.get(expected, "").split("EXECUTION")[0] in err, (line, err)


async def test_with_json_an_error_is_json_too(here: Run, system: None) -> None:
    for line, expected, value in ERRORS:
        answer = await here(f"{line} --json")
        assert (answer.code, answer.out, answer.error["error"]) == (1, "", expected), line
        assert value in answer.error["message"], line
        assert answer.error.get("remedy") == remedy_for(expected, answer.error), line


async def test_the_fields_of_an_error_are_in_its_json(here: Run, system: None) -> None:
    error = (await here(f"executions cancel {DONE} --json")).error

    assert error.keys() == {"error", "message", "remedy", "outcome", "execution_id"}
    assert (error["error"], error["outcome"], error["execution_id"]) == ("execution_ended", "success", str(DONE))


async def test_an_error_of_one_execution_does_not_stop_the_others(here: Run, given: Given, system: None) -> None:
    code, out, err = await here(f"executions cancel {DONE} {PAUSED} nonsense")

    assert code == 1
    assert out.splitlines()[1:] == [f"{PAUSED}  cancelled"]
    assert [line.split(":")[0] for line in err.splitlines() if line[0] != " "] == ["execution_ended", "invalid_id"]
    assert (await given.events(PAUSED))[-1] == "execution_cancelled"


@pytest.mark.parametrize("case", USAGE, ids=lambda case: case[0])
async def test_wrong_usage_ends_with_2_and_says_what_to_write(here: Run, case: tuple[str, ...]) -> None:
    line, *parts = case
    code, out, err = await here(line)

    assert (code, out) == (2, "")
    assert [part for part in parts if part not in " ".join(err.split())] == [], err


async def test_a_command_that_reads_creates_no_database(ff: Run) -> None:
    for command in (["executions", "list"], ["migrate", "--check"], ["sweep", "--once"], ["submit", "greet"]):
        code, out, err = await ff(*command)
        assert (code, out) == (1, "")
        assert err.startswith(f"{DatabaseMissing.code}: ")
        assert all(part in err for part in ("FLOWFABRIC_URL", ".flowfabric;", "`ff dev FILE.py:app`", "`ff migrate`"))
