"""`ff waitpoints`: the subject of an approval is printed, and its digest is sent with the decision."""

from datetime import timedelta

import msgspec
import pytest

from flowfabric.engine import attempts, executions, steps, waits
from tests.cli import scene
from tests.cli.conftest import Run
from tests.cli.scene import ASKING, DONE, SIGNALLED
from tests.engine.waits.scene import approvals, wish
from tests.given import Given

DRAFT = '{\n  "title": "Tides",\n  "text": "The sea comes and goes."\n}'


async def test_the_subject_is_printed_and_its_digest_is_sent(here: Run, given: Given) -> None:
    await scene.asking(given)

    code, out, err = await here(f"waitpoints approve {ASKING}", stdin="y\n")

    assert (code, out) == (0, "approve by ada on waitpoint publish: accepted; the execution resumes\n")
    assert err.startswith(f"{ASKING} ")
    assert f":\n{DRAFT}\napprove this? [y/N]: " in err
    delivered = await given.event("signal_delivered", ASKING)
    suspended = await given.event("execution_suspended", ASKING)
    assert delivered["digest"] == suspended["about_digest"]
    assert delivered["source_identity"] == "ada"


@pytest.mark.parametrize("typed", ["n\n", ""])
async def test_without_a_yes_nothing_is_sent(here: Run, given: Given, typed: str) -> None:
    await scene.asking(given)

    async with given.nothing_changes():
        code, out, _ = await here(f"waitpoints reject {ASKING}", stdin=typed)

    assert (code, out) == (1, "")


async def test_with_the_digest_there_is_no_prompt(here: Run, given: Given) -> None:
    await scene.asking(given)
    shown = (await here(f"waitpoints describe {ASKING} --json")).document
    digest = shown["asked"][0]["about_digest"]

    code, out, err = await here(f"waitpoints reject {ASKING} --note nonsense --digest {digest.upper()} --json")

    assert (code, err) == (0, "")
    assert msgspec.json.decode(out)["effect"] == "resume_condition_satisfied"
    assert (await given.event("signal_delivered", ASKING))["name"] == "reject"


async def test_the_digest_of_an_earlier_subject_is_refused(here: Run, given: Given) -> None:
    claim = await given.claimed(execution_id=ASKING)
    for about in (b'"first"', b'"second"'):
        asked = wish(approvals(1, "publish"), ["publish"], about=about, bind=True)
        await waits.suspend(given.conn, claim.fence, asked)
        digest = (await here(f"waitpoints describe {ASKING} --json")).document["asked"][0]["about_digest"]
        if about == b'"first"':
            first = digest
            await here(f"executions resume {ASKING}")
            [claim] = await given.claim()

    async with given.nothing_changes():
        answer = await here(f"waitpoints approve {ASKING} --json --digest {first}")

    assert (answer.code, answer.error["error"]) == (1, "approval_digest_mismatch")
    assert all(each in answer.error["message"] for each in (digest, first))


async def test_each_person_counts_once(here: Run, given: Given) -> None:
    await scene.asking(given, approvers=2)

    first = await here(f"waitpoints approve {ASKING} --yes --json")
    again = await here(f"waitpoints approve {ASKING} --yes --json")
    other = await here(f"waitpoints approve {ASKING} --yes --json --by bob")

    outcomes = [answer.document for answer in (first, again, other)]
    assert [done["outcome"] for done in outcomes] == ["accepted", "duplicate", "accepted"]
    assert outcomes[2]["effect"] == "resume_condition_satisfied"


async def test_one_of_several_waitpoints_must_be_named(here: Run, given: Given) -> None:
    claim = await given.claimed(execution_id=ASKING)
    both = {"kind": "all_of", "members": [{"kind": "single", "waitpoint": "a"}, {"kind": "single", "waitpoint": "b"}]}
    await waits.suspend(given.conn, claim.fence, wish(both, ["a", "b"]))

    code, _, err = await here(f"waitpoints approve {ASKING} --yes")
    named = await here(f"waitpoints approve {ASKING} b --yes")

    assert code == 2
    assert "a, b" in err
    assert named.code == 0


async def test_a_token_can_come_from_standard_input(here: Run, given: Given) -> None:
    token = await scene.signalled(given)

    answer = await here(f"waitpoints signal {SIGNALLED} paid received 12 --json --token-file -", stdin=f"{token}\n")

    assert (answer.code, answer.document["outcome"]) == (0, "accepted")
    assert token not in answer.out + answer.err
    assert (await given.event("signal_delivered", SIGNALLED))["source_type"] == "external"


@pytest.mark.parametrize(
    ("typed", "name", "payload"),
    [
        ("", "paid", None),
        ("received", "received", None),
        ("""'{"ok": 1}'""", "paid", b'{"ok":1}'),
        ("12", "paid", b"12"),
        ("""'"received"'""", "paid", b'"received"'),
        ("received 12", "received", b"12"),
        ("12 received", "12", None),
    ],
)
async def test_a_signal_is_named_as_its_waitpoint_unless_a_name_comes_before_the_payload(
    here: Run, given: Given, typed: str, name: str, payload: bytes | None
) -> None:
    await scene.signalled(given)

    answer = await here(f"waitpoints signal {SIGNALLED} paid {typed}")

    if typed == "12 received":
        assert (answer.code, await given.count("signals")) == (2, 0)
        return
    [signal] = await given.rows("select name, payload from flowfabric.signals")
    assert (answer.code, signal["name"], signal["payload"]) == (0, name, payload)
    counts = "the execution resumes" if name == "received" else "ignored: the wait on this waitpoint does not count"
    assert counts in answer.out


async def test_a_payload_that_is_not_json_is_wrong_usage(here: Run, given: Given) -> None:
    await scene.signalled(given)

    async with given.nothing_changes():
        code, _, err = await here(f"waitpoints signal {SIGNALLED} paid '{{ok: 1}}'")
    assert code == 2
    assert "is invalid JSON" in err


async def test_a_signal_to_a_waitpoint_that_does_not_exist_is_refused(here: Run, given: Given) -> None:
    await scene.signalled(given)

    async with given.nothing_changes():
        code, _, err = await here(f"waitpoints signal {SIGNALLED} piad received")
    assert code == 1
    assert err.startswith("waitpoint_not_found: ")
    assert "'piad'" in err


async def test_a_forged_token_is_refused_and_not_printed(here: Run, given: Given) -> None:
    await scene.signalled(given)
    forged = "k1:" + "0" * 64

    async with given.nothing_changes():
        code, out, err = await here(f"waitpoints signal {SIGNALLED} paid received --token-file -", stdin=forged)

    assert (code, out) == (1, "")
    assert err.startswith("invalid_token: ")
    assert forged not in err


async def test_the_note_reaches_the_handler(here: Run, given: Given) -> None:
    await scene.asking(given)
    await here(f"waitpoints approve {ASKING} --yes --note", "read it twice")

    [claim] = await given.claim(lanes=["research"])
    [entry] = await steps.read_journal(given.conn, claim.execution_id, begun=claim.journal)
    assert [(each.name, each.payload) for each in entry.signals] == [("approve", b'"read it twice"')]
    await attempts.complete(given.conn, claim.fence)


async def test_a_cursor_gets_the_next_page(here: Run, given: Given) -> None:
    await scene.asking(given)
    await scene.signalled(given)

    first = msgspec.json.decode((await here("waitpoints list --limit 1 --json")).out)
    second = msgspec.json.decode((await here("waitpoints list --json --cursor", first["next_cursor"])).out)

    assert [item["execution_id"] for page in (first, second) for item in page["items"]] == [str(ASKING), str(SIGNALLED)]
    assert second["next_cursor"] is None


async def test_an_execution_that_was_never_suspended_has_no_waitpoints(here: Run, given: Given) -> None:
    await given.completed(execution_id=DONE)

    assert (await here(f"waitpoints describe {DONE} --json")).document == {"asked": [], "waitpoints": []}
    assert "never" in (await here(f"waitpoints describe {DONE}")).out
    assert (await executions.describe(given.conn, DONE)).suspension is None


async def test_control_characters_in_a_subject_are_escaped(here: Run, given: Given) -> None:
    claim = await given.claimed(execution_id=ASKING)
    about = msgspec.json.encode("harmless\x1b[2K\x1b[1Aapprove me")
    asked = wish(approvals(1, "publish"), ["publish"], about=about, timeout=timedelta(hours=1))
    await waits.suspend(given.conn, claim.fence, asked)

    listed = await here("waitpoints list")
    shown = await here(f"waitpoints approve {ASKING} --yes")

    assert "\x1b" not in shown.out + shown.err + listed.out
    assert "harmless\\x1b[2K\\x1b[1Aapprove me" in listed.out
