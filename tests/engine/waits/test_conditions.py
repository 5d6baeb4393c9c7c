"""Conditions: evaluated by one SQL function, compared with plain Python."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import given as for_any
from hypothesis import strategies as st

from flowfabric.engine import executions, waits
from flowfabric.errors import FlowFabricError
from flowfabric.model import Delivered, SignalToSend
from flowfabric.postgres.driver import Connection
from tests.conftest import SOAK
from tests.engine.waits.scene import APPROVE, to, waiting, wish
from tests.given import Given

VECTORS = msgspec.json.decode(Path(__file__).parents[2].joinpath("vectors.json").read_bytes())["conditions"]
Condition = Mapping[str, Any]
Signals = Sequence[Mapping[str, str]]


def keys_of(condition: Condition) -> set[str]:
    """The waitpoints that a condition names."""
    own = {condition["waitpoint"]} if "waitpoint" in condition else set(condition.get("waitpoints", ()))
    return own.union(*(keys_of(member) for member in condition.get("members", ())))


def leaves(condition: Condition) -> list[Condition]:
    below = [leaf for member in condition.get("members", ()) for leaf in leaves(member)]
    return below or [condition]


def kinds(condition: Condition) -> set[str]:
    return {condition["kind"]}.union(*(kinds(member) for member in condition.get("members", ())))


def matches(leaf: Condition, signal: Mapping[str, str]) -> bool:
    return signal["waitpoint"] in keys_of(leaf) and all(
        leaf.get(field, signal[field]) == signal[field] for field in ("name", "source_type")
    )


def counted(leaf: Condition, signals: Signals) -> list[str]:
    """The first signal of each of the first n distinct values."""
    things: dict[str, Callable[[Mapping[str, str]], object]] = {
        "distinct_waitpoints": lambda signal: signal["waitpoint"],
        "distinct_signals": lambda signal: signal["id"],
        "distinct_sources": lambda signal: (signal["source_type"], signal["source_identity"]),
        "one": lambda _: "one",
    }
    thing = things[leaf.get("of", "one")]
    firsts: dict[object, str] = {}
    for signal in signals:
        if matches(leaf, signal):
            firsts.setdefault(thing(signal), signal["id"])
    return list(firsts.values())[: leaf.get("n", 1)]


def judge(condition: Condition, signals: Signals) -> tuple[bool, set[str], set[str]]:
    """Whether it holds, the counted signals and the satisfying signals: the rules of the spec in plain Python."""
    match condition["kind"]:
        case "single" | "count":
            found = counted(condition, signals)
            holds = len(found) >= condition.get("n", 1)
            return holds, set(found), set(found) if holds else set()
        case "all_of" | "any_of":
            members = [judge(member, signals) for member in condition["members"]]
            holds = (any if condition["kind"] == "any_of" else all)(member[0] for member in members)
            count = set().union(*(member[1] for member in members))
            return holds, count, set().union(*(member[2] for member in members)) if holds else set()
        case _:
            return False, set(), set()


def effect(condition: Condition, signals: Signals) -> str:
    """The effect of the last of these signals."""
    holds, count, _ = judge(condition, signals)
    last = signals[-1]
    if condition["kind"] in ("operator_only", "timeout_only"):
        return "no_op"
    if holds:
        return "resume_condition_satisfied"
    if last["id"] in count:
        return "appended_to_waitpoint"
    if last["waitpoint"] not in keys_of(condition):
        return "signal_ignored_not_in_condition"
    fits = any(matches(leaf, last) for leaf in leaves(condition))
    return "appended_to_waitpoint_duplicate" if fits else "signal_ignored_matcher_failed"


async def ask(conn: Any, condition: Condition, signals: Signals) -> tuple[bool, list[str], list[str], str]:
    """The answer of Postgres to the same."""
    row = await conn.fetchrow(
        """select j.satisfiers, c.counted, flowfabric._signal_effect(
               $1::text::jsonb, $3, $4, $5, j.satisfiers is not null, $6 = any (c.counted)) as effect
        from (select flowfabric._judge($1::text::jsonb, $2::text::jsonb) as satisfiers) j
        cross join (
            select coalesce(array_agg(distinct $2::text::jsonb -> p.place::int - 1 ->> 'id'), '{}') as counted
            from flowfabric._nodes($1::text::jsonb) n
            cross join unnest(flowfabric._counted_signals(n.node, $2::text::jsonb)) p (place)
            where n.node ->> 'kind' in ('single', 'count')) c""",
        *(msgspec.json.encode(value).decode() for value in (condition, signals)),
        *(signals[-1][field] if signals else "" for field in ("waitpoint", "name", "source_type", "id")),
    )
    return row["satisfiers"] is not None, row["counted"], row["satisfiers"] or [], row["effect"]


def signals_of(vector: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            **{field: given[field] for field in ("id", "waitpoint", "name")},
            "source_type": given.get("source_type", "external"),
            "source_identity": given["source"],
        }
        for given in vector["signals"]
    ]


@pytest.mark.parametrize("vector", VECTORS)
async def test_the_vectors_are_evaluated_as_they_say(conn: Connection, vector: Mapping[str, Any]) -> None:
    signals = signals_of(vector)

    for number, expected in enumerate(vector["effects"], start=1):
        holds, _, satisfiers, said = await ask(conn, vector["condition"], signals[:number])
        assert said == expected == effect(vector["condition"], signals[:number])
        assert satisfiers == (vector["satisfiers"] if holds else [])


@pytest.mark.parametrize("vector", VECTORS)
async def test_the_vectors_hold_from_suspension_to_claim(
    conn: Connection, given: Given, vector: Mapping[str, Any]
) -> None:
    """Each node counts on its own, and the handler gets exactly the signals that satisfied the condition."""
    signals = signals_of(vector)
    claim = await given.claimed()
    wanted = sorted({signal["waitpoint"] for signal in signals} | keys_of(vector["condition"]))
    answer = await waits.suspend(conn, claim.fence, wish(vector["condition"], wanted))
    points = {point.key: point for point in answer.waitpoints}
    ids = {signal["id"]: uuid4() for signal in signals}

    effects = []
    for signal in signals:
        point, who = points[signal["waitpoint"]], signal["source_identity"]
        if signal["source_type"] == "operator":
            done = await waits.deliver_approval(
                conn, claim.execution_id, point.key, signal["name"], by=who, suffix=str(uuid4())
            )
            ids[signal["id"]] = done.signal_id
        else:
            sent = to(claim.execution_id, point.id, point.token or "", signal["name"], source_identity=who)
            [told] = await waits.deliver_signals(conn, [msgspec.structs.replace(sent, signal_id=ids[signal["id"]])])
            assert isinstance(told, Delivered)
            done = told
        effects.append(done.effect)

    assert effects == vector["effects"]
    resumed = len(await given.claim())
    arrived = await waits.read_signals(conn, claim.execution_id, answer.suspension_id)
    assert resumed == (vector["satisfiers"] is not None)
    assert [signal.signal_id for signal in arrived] == [ids[name] for name in vector["satisfiers"] or ()]


KEYS = ["a", "b", "c"]
filters = {"name": st.sampled_from(["x", "y"]), "source_type": st.sampled_from(["p", "q"])}
singles = st.fixed_dictionaries({"kind": st.just("single"), "waitpoint": st.sampled_from(KEYS)}, optional=filters)
counts = st.fixed_dictionaries(
    {
        "kind": st.just("count"),
        "n": st.integers(1, 3),
        "of": st.sampled_from(["distinct_waitpoints", "distinct_signals", "distinct_sources"]),
        "waitpoints": st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True),
    },
    optional=filters,
)
conditions = st.recursive(
    singles | counts,
    lambda nodes: st.fixed_dictionaries(
        {"kind": st.sampled_from(["all_of", "any_of"]), "members": st.lists(nodes, min_size=1, max_size=3)}
    ),
    max_leaves=6,
)
arrivals = st.lists(
    st.fixed_dictionaries(
        {
            "waitpoint": st.sampled_from([*KEYS, "elsewhere"]),
            "name": st.sampled_from(["x", "y", "z"]),
            "source_type": st.sampled_from(["p", "q"]),
            "source_identity": st.sampled_from(["ann", "bob"]),
        }
    ),
    min_size=1,
    max_size=8,
)


@settings(
    max_examples=5_000 if SOAK else 400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@for_any(condition=conditions, arrived=arrivals)
async def test_any_condition_is_evaluated_as_in_plain_python(
    conn: Connection, condition: Condition, arrived: list[dict[str, str]]
) -> None:
    signals = [{"id": f"s{number}", **signal} for number, signal in enumerate(arrived)]

    holds, count, satisfiers, said = await ask(conn, condition, signals)

    expected = judge(condition, signals)
    in_order = [signal["id"] for signal in signals]
    assert (holds, said) == (expected[0], effect(condition, signals))
    assert count == [name for name in in_order if name in expected[1]]
    assert satisfiers == [name for name in in_order if name in expected[2]]


async def met_alone(conn: Any, condition: Condition, signal: Mapping[str, str]) -> bool | None:
    """The fast path: whether this signal alone satisfies a condition that does not hold yet."""
    met: bool | None = await conn.fetchval(
        "select flowfabric._is_met($1::text::jsonb, $2, $3, $4)",
        msgspec.json.encode(condition).decode(),
        *(signal[field] for field in ("waitpoint", "name", "source_type")),
    )
    return met


@settings(
    max_examples=5_000 if SOAK else 300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@for_any(condition=singles | counts | conditions, arrived=arrivals)
async def test_the_fast_path_agrees_with_the_full_evaluation(
    conn: Connection, condition: Condition, arrived: list[dict[str, str]]
) -> None:
    signals = [{"id": f"s{number}", **signal} for number, signal in enumerate(arrived)]
    first = next((number for number in range(1, len(signals) + 1) if judge(condition, signals[:number])[0]), None)
    open_until = signals[:first]

    met = [await met_alone(conn, condition, signal) for signal in open_until]

    one_will_do = all(leaf.get("n", 1) == 1 for leaf in leaves(condition)) and "all_of" not in kinds(condition)
    assert met == [judge(condition, open_until[: number + 1])[0] if one_will_do else None for number in range(len(met))]
    if met and met[-1]:
        assert judge(condition, open_until)[2] == {open_until[-1]["id"]}


plain_counts = st.fixed_dictionaries(
    {"kind": st.just("count"), "n": st.integers(2, 4), "waitpoints": st.just(["a", "b"])}
    | {"of": st.sampled_from(["distinct_signals", "distinct_sources"])}
)
several_counts = st.fixed_dictionaries(
    {"kind": st.just("all_of"), "members": st.lists(plain_counts | singles, min_size=2, max_size=3)}
)


@settings(
    max_examples=1_000 if SOAK else 80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@for_any(
    condition=plain_counts | several_counts | conditions,
    arrived=arrivals,
    early=st.integers(0, 2),
    size=st.integers(2, 8),
)
async def test_signals_of_a_batch_have_the_effects_that_they_have_one_after_the_other(
    conn: Connection, given: Given, condition: Condition, arrived: list[dict[str, str]], early: int, size: int
) -> None:
    """Signals are counted once per batch; `early` of them arrive before the execution suspends."""
    keys = sorted(keys_of(condition))
    cause = "select flowfabric._condition_cause($1::text::jsonb, $2)"
    assume(await conn.fetchval(cause, msgspec.json.encode(condition).decode(), keys) is None)
    signals = [{"id": str(uuid4()), **signal} for signal in arrived if signal["waitpoint"] in keys]
    claim = await given.claimed()
    points = {key: await waits.create_waitpoint(conn, claim.fence, key) for key in keys}

    async def send(batch: Signals) -> list[str]:
        answers = await waits.deliver_signals(conn, [sending(signal) for signal in batch])
        return [one.code if isinstance(one, FlowFabricError) else one.effect or one.outcome for one in answers]

    def sending(signal: Mapping[str, str]) -> SignalToSend:
        point, options = points[signal["waitpoint"]], {key: signal[key] for key in ("source_type", "source_identity")}
        return to(
            claim.execution_id, point.waitpoint_id, point.token, signal["name"], signal_id=UUID(signal["id"]), **options
        )

    assert await send(signals[:early]) == ["buffered_for_pending_waitpoint"] * len(signals[:early])
    answer = await waits.suspend(conn, claim.fence, wish(condition, keys))
    met = next((number for number in range(len(signals) + 1) if judge(condition, signals[:number])[0]), None)
    ended = met if met is None else max(met, early)
    for start in range(early, len(signals), size):
        batch = signals[start : start + size]
        expected = [
            effect(condition, signals[: number + 1]) if ended is None or number < ended else "waitpoint_closed"
            for number in range(start, start + len(batch))
        ]
        assert await send([*batch, batch[0]]) == [
            *expected, "duplicate" if expected[0] != "waitpoint_closed" else "waitpoint_closed"
        ]  # fmt: skip

    satisfied = judge(condition, signals[:ended])[2] if ended is not None else set()
    found = await waits.read_signals(conn, claim.execution_id, answer.suspension_id)
    await executions.cancel(conn, claim.execution_id, reason="done with", by="ops")
    assert answer.outcome == ("already_satisfied" if met is not None and met <= early else "suspended")
    assert [str(signal.signal_id) for signal in found] == [one["id"] for one in signals if one["id"] in satisfied]


async def test_signals_after_the_nth_of_the_same_batch_count_nothing(conn: Connection, given: Given) -> None:
    two = {"kind": "count", "n": 2, "of": "distinct_sources", "waitpoints": ["w"]}
    both = await waiting(given, {"kind": "all_of", "members": [two, {**APPROVE, "name": "go"}]})
    people = ["ann", "ann", "bob", "cy"]
    batch = [both.signal("vote", source_identity=who) for who in people] + [both.signal("go"), both.signal("go")]

    done = await waits.deliver_signals(conn, batch)

    counts, adds_nothing = "appended_to_waitpoint", "appended_to_waitpoint_duplicate"
    effects = [one.effect if isinstance(one, Delivered) else one.code for one in done]
    assert effects[:4] == [counts, adds_nothing, counts, adds_nothing]
    assert effects[4:] == ["resume_condition_satisfied", "waitpoint_closed"]
    satisfiers = [signal.signal_id for signal in await both.signals(conn)]
    assert satisfiers == [one.signal_id for one in done if isinstance(one, Delivered) and one.effect != adds_nothing]


async def test_a_signal_on_a_key_that_no_node_names_is_ignored(conn: Connection) -> None:
    signal = {"id": "s", "waitpoint": "other", "name": "x", "source_type": "p", "source_identity": "ann"}

    assert await ask(conn, {"kind": "single", "waitpoint": "w"}, [signal]) == (
        False,
        [],
        [],
        "signal_ignored_not_in_condition",
    )


async def test_one_signal_that_satisfies_two_nodes_is_passed_once(conn: Connection, given: Given) -> None:
    single = {"kind": "single", "waitpoint": "w"}
    claim = await given.claimed()
    both = {"kind": "all_of", "members": [single, {**single, "name": "go"}]}
    answer = await waits.suspend(conn, claim.fence, wish(both))
    point = answer.waitpoints[0]

    done = await waits.deliver_signal(conn, to(claim.execution_id, point.id, point.token or "", "go"))

    assert done.effect == "resume_condition_satisfied"
    arrived = await waits.read_signals(conn, claim.execution_id, answer.suspension_id)
    assert [signal.signal_id for signal in arrived] == [done.signal_id]
    assert (await given.event("execution_resumed"))["signals"] == [str(done.signal_id)]
