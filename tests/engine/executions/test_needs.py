"""Capabilities that an execution needs: equal sets share a route."""

import json
from pathlib import Path

import pytest

from flowfabric import errors
from flowfabric.engine import executions, lanes, routes
from flowfabric.errors import FlowFabricError, InvalidCapabilities
from flowfabric.model import Options
from flowfabric.postgres.driver import Connection
from tests.engine.executions.stored import stored
from tests.given import Given, submission

CAPABILITIES = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["capabilities"]

# Tokens that the vectors describe in words.
GENERATED: dict[str, list[str]] = {
    "c000 to c255": [f"c{number:03}" for number in range(256)],
    "c000 to c256": [f"c{number:03}" for number in range(257)],
    "one token of 4096 letters x": ["x" * 4096],
    "one token of 4097 letters x": ["x" * 4097],
    "two tokens, 2047 letters x and 2048 letters y": ["x" * 2047, "y" * 2048],
    "two tokens, 2048 letters x and 2048 letters y": ["x" * 2048, "y" * 2048],
}


async def test_needs_are_kept_as_a_sorted_set(conn: Connection, given: Given) -> None:
    for vector in [*CAPABILITIES["valid"], {"in": ["b", "a", "B", "ä", "a"], "out": ["B", "a", "b", "ä"]}]:
        execution_id = await given.submitted(needs=vector["in"])

        assert (await executions.describe(conn, execution_id)).needs == vector["out"]


async def test_invalid_needs_are_refused_with_their_cause(conn: Connection, given: Given) -> None:
    before = await stored(given)
    more = [([["gpu"]], "non_string_token"), ([None], "non_string_token"), ({"gpu": 1}, "not_array")]
    more += [(["a\u00a0b"], "control_or_whitespace"), (["a\u3000"], "control_or_whitespace"), (3, "not_array")]
    bad = [(vector["in"], vector["cause"]) for vector in CAPABILITIES["invalid"]] + more

    answers = await executions.submit_many(conn, [submission(needs=needs, lane="new") for needs, _ in bad])

    assert [(type(a), getattr(a, "fields", None)) for a in answers] == [
        (InvalidCapabilities, {"cause": cause}) for _, cause in bad
    ]
    assert await stored(given) == before


@pytest.mark.parametrize("vector", CAPABILITIES["generated"], ids=lambda vector: str(vector["tokens"]))
async def test_needs_are_accepted_up_to_256_words_and_4096_bytes(
    conn: Connection, given: Given, vector: dict[str, str]
) -> None:
    tokens = GENERATED[vector["tokens"]]
    [answer] = await executions.submit_many(conn, [submission(needs=[*tokens, tokens[0]])])

    if vector["result"] == "ok":
        assert not isinstance(answer, FlowFabricError)
        assert (await executions.describe(conn, answer.execution_id)).needs == sorted(tokens)
    else:
        assert isinstance(answer, InvalidCapabilities)
        assert answer.fields == {"cause": vector["result"]}
        assert await given.count("routes") == await given.count("executions") == 0


async def test_the_same_needs_in_any_order_are_one_route(conn: Connection, given: Given) -> None:
    for needs in (
        ["gpu", "llm"],
        ["llm", "gpu"],
        {"llm", "gpu"},
        ("gpu", "gpu", "llm"),
        dict.fromkeys(["llm", "gpu"]).keys(),
    ):
        await given.submitted(needs=needs)
    assert await given.count("routes") == 1

    await given.submitted(needs=["gpu"])
    await given.submitted(needs=["gpu", "llm"], namespace="other")
    await given.submitted(needs=["gpu", "llm"], lane="other")
    assert await given.count("routes") == 4


async def test_needs_are_stored_on_the_route_where_claims_read_them(conn: Connection, given: Given) -> None:
    """Capabilities must be stored where the claim reads them."""
    execution_id = await given.submitted(needs=["gpu"])

    state = (await executions.describe(conn, execution_id)).state

    assert (state.eligibility_state, state.blocking_reason) == ("blocked_by_route", "waiting_for_capable_worker")


async def test_submissions_use_a_registered_route(conn: Connection, given: Given) -> None:
    options = Options(task="report", lane="reports", namespace="a", needs=["llm", "gpu"])

    number = await routes.register_route(conn, options)
    assert (
        await routes.register_route(conn, Options(task="x", lane="reports", namespace="a", needs={"gpu", "llm"}))
        == number
    )

    await given.submitted(lane="reports", namespace="a", needs=["gpu", "llm"])
    assert [row["route"] for row in await given.rows("select route from flowfabric.executions")] == [number]
    assert await given.count("routes") == 1
    assert await given.events() == ["lane_registered", "execution_submitted"]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (Options(task="k", lane=""), errors.InvalidLane),
        (Options(task="k", namespace=""), errors.InvalidNamespace),
        (Options(task="k", needs=["a b"]), errors.InvalidCapabilities),
        (Options(task="k", needs="gpu"), errors.InvalidCapabilities),
        (Options(task="k", budgets=["b"]), errors.BudgetNotFound),
        (Options(task="k", quotas=["q"]), errors.QuotaNotFound),
        (Options(task="k", budgets="b"), errors.InvalidBody),
        (Options(task="k", lane="a\0"), errors.InvalidText),
        (Options(task="k", namespace="a\ud800"), errors.InvalidText),
        (Options(task="k", needs=["a\0"]), errors.InvalidText),
        (Options(task="k", quotas=["a\ud800"]), errors.InvalidText),
        (Options(task="k", lane="draining"), errors.LaneDraining),
    ],
)
async def test_an_invalid_route_is_refused_like_a_submission(
    conn: Connection, given: Given, options: Options, kind: type[FlowFabricError]
) -> None:
    await lanes.configure_lane(conn, "draining")
    await lanes.drain_lane(conn, "draining", by="ops")
    before = await stored(given)

    with pytest.raises(kind):
        await routes.register_route(conn, options)

    assert await stored(given) == before
