"""What the engine does, through the app and over HTTP: each test runs through both faces, with the same results."""

import asyncio

import pytest

from flowfabric import errors
from flowfabric.engine import attempts
from flowfabric.ids import mint_execution_id
from tests.given import Given
from tests.server.faces import Face


async def submitted(face: Face, **options: object) -> str:
    execution_id: str = (await face.do("submit", task="report", **options))["execution_id"]
    return execution_id


async def test_a_submission_is_described_with_its_payload_and_its_state(face: Face) -> None:
    execution_id = await submitted(face, payload={"topic": "tides"}, lane="reports", tags={"customer": "acme"})
    found = await face.do("executions.describe", execution_id=execution_id, payload=True)

    assert (found["execution_id"], found["lane"], found["task"]) == (execution_id, "reports", "report")
    assert (found["payload"], found["tags"]) == ({"topic": "tides"}, {"customer": "acme"})
    assert found["state"]["public_state"] == "waiting"
    assert found["explanation"]["sentence"].startswith("waits for a worker of lane reports")


async def test_a_second_submission_with_a_key_is_the_first_one(face: Face) -> None:
    first = await submitted(face, payload={"topic": "tides"}, key="tides-2026")

    assert await submitted(face, payload={"topic": "tides"}, key="tides-2026") == first
    with pytest.raises(errors.KeyConflict):
        await submitted(face, payload={"topic": "stars"}, key="tides-2026")


async def test_executions_are_listed_by_state_and_tag_page_by_page(face: Face) -> None:
    acme = [await submitted(face, tags={"customer": "acme"}) for _ in range(3)]
    await submitted(face, tags={"customer": "other"})
    await submitted(face, tags={"customer": "acme"}, delay="1h")
    asked = {"states": ["waiting"], "tag": ("customer", "acme"), "limit": 2}
    first = await face.do("executions.list", **asked)
    second = await face.do("executions.list", **asked, cursor=first["next"])

    assert [each["execution_id"] for each in first["items"] + second["items"]] == acme[::-1]
    assert second["next"] is None


async def test_cancelling_is_safe_to_repeat_and_the_event_names_who_did_it(face: Face) -> None:
    execution_id = await submitted(face)
    first = await face.do("executions.cancel", execution_id=execution_id, reason="not needed")

    assert first == await face.do("executions.cancel", execution_id=execution_id)
    assert first["public_state"] == "cancelled"
    page = await face.do("events.read", cursor="AgAAAAAAAAAA", execution_id=execution_id)
    [cancelled] = [each for each in page["events"] if each["kind"] == "execution_cancelled"]
    assert (cancelled["by"], cancelled["execution_id"]) == ("http", execution_id)


async def test_a_result_is_there_after_the_end_and_not_before(face: Face, given: Given) -> None:
    execution_id = await submitted(face, lane="reports")
    before = await face.do("executions.get_result", execution_id=execution_id)
    [claim] = await given.claim(lanes=["reports"])
    await attempts.complete(given.conn, claim.fence, b'{"pages": [1, 2.5, null]}')
    after = await face.do("executions.get_result", execution_id=execution_id)

    assert before == {"outcome": None, "result": None, "encoding": "json", "failure": None}
    assert after == {"outcome": "success", "result": {"pages": [1, 2.5, None]}, "encoding": "json", "failure": None}


async def test_a_paused_lane_gives_no_work_until_it_is_resumed(face: Face, given: Given) -> None:
    await submitted(face, lane="a/b c")
    paused = [await face.do("lanes.pause", name="a/b c", reason="the printer is down") for _ in range(2)]
    lane = await face.do("lanes.describe", name="a/b c")

    assert [each["outcome"] for each in paused] == ["paused", "noop"]
    assert (lane["state"], lane["by"], lane["reason"]) == ("paused", "http", "the printer is down")
    assert await given.claim(lanes=["a/b c"]) == []
    assert await face.do("lanes.resume", name="a/b c") == {"outcome": "active"}
    assert len(await given.claim(lanes=["a/b c"])) == 1


async def test_a_drained_lane_refuses_what_is_submitted(face: Face) -> None:
    await submitted(face, lane="reports")
    drained = await face.do("lanes.drain", name="reports")

    assert drained == {"outcome": "draining", "left_count": 1}
    with pytest.raises(errors.LaneDraining):
        await submitted(face, lane="reports")
    assert [lane["name"] for lane in (await face.do("lanes.list"))["items"]] == ["reports"]


async def test_an_operator_holds_overrides_and_replays_an_execution(face: Face) -> None:
    execution_id = await submitted(face)
    held = await face.do("executions.hold", execution_id=execution_id)
    unheld = await face.do("executions.unhold", execution_id=execution_id)
    raised = await face.do("executions.change_priority", execution_id=execution_id, priority=7)
    ended = await face.do(
        "executions.override", execution_id=execution_id, outcome="success", reason="known", result=[1]
    )
    result = await face.do("executions.get_result", execution_id=execution_id)
    replayed = await face.do("executions.replay", execution_id=execution_id)

    assert (held["outcome"], unheld["outcome"]) == ("held", "unheld")
    assert raised == {"priority": 7, "previous": 0}
    assert (ended["public_state"], result["result"], replayed["public_state"]) == ("completed", [1], "waiting")


async def test_a_budget_is_created_changed_and_listed(face: Face) -> None:
    await face.do("budgets.create", name="team a", hard_limits={"tokens": 10}, reset_interval="1d")
    await face.do("budgets.change", budget="team a", hard_limits={"tokens": 20})
    used = await face.do("budgets.report_usage", budget="team a", amounts={"tokens": 4})
    [budget] = (await face.do("budgets.list"))["items"]

    assert used["outcome"] == "ok"
    assert (budget["name"], budget["hard_limits"], budget["used"]) == ("team a", {"tokens": 20}, {"tokens": 4})
    assert budget["reset_interval_ms"] == 86_400_000


@pytest.mark.parametrize(
    ("operation", "arguments", "refused"),
    [
        ("executions.describe", {"execution_id": "nonsense"}, errors.InvalidId),
        ("executions.describe", {"execution_id": str(mint_execution_id())}, errors.ExecutionNotFound),
        ("executions.cancel", {"execution_id": str(mint_execution_id())}, errors.ExecutionNotFound),
        ("executions.list", {"cursor": "nonsense"}, errors.InvalidCursor),
        ("executions.list", {"limit": -1}, errors.InvalidLimit),
        ("executions.list", {"states": ["nonsense"]}, errors.InvalidBody),
        ("lanes.pause", {"name": "nowhere"}, errors.LaneNotFound),
        ("lanes.pause", {"name": "no\0where"}, errors.InvalidText),
        ("budgets.describe", {"budget": "nothing"}, errors.BudgetNotFound),
        ("budgets.create", {"name": ""}, errors.InvalidName),
        ("schedules.pause", {"name": "nothing"}, errors.ScheduleNotFound),
        ("submit", {"task": "report", "lane": "x" * 65}, errors.InvalidLane),
        ("submit", {"task": "report", "tags": {"": "x"}}, errors.InvalidTagKey),
        ("submit", {"task": "report", "budgets": ["nothing"]}, errors.BudgetNotFound),
        ("submit", {"task": "re\0port"}, errors.InvalidText),
    ],
)
async def test_a_refusal_is_the_same_error(
    face: Face, operation: str, arguments: dict[str, object], refused: type[errors.FlowFabricError]
) -> None:
    with pytest.raises(refused):
        await face.do(operation, **arguments)


async def test_concurrent_submissions_are_all_stored(face: Face) -> None:
    ids = await asyncio.gather(*(submitted(face, payload={"number": number}) for number in range(50)))
    found = await face.do("executions.list", limit=100)

    assert {each["execution_id"] for each in found["items"]} == set(ids)
