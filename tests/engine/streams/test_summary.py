"""Summaries: a document per attempt, made by merge patches."""

import json
from typing import Any

import pytest

from flowfabric.engine import attempts, claims, steps, streams
from flowfabric.errors import InvalidPatch
from flowfabric.model import Appended, Claim, FailureClass, Step, StreamSummary
from tests.engine.streams.scene import appended, frame, patch, payloads
from tests.given import Given
from tests.sources import TESTS

VECTORS = json.loads((TESTS / "vectors.json").read_text())["merge_patch"]

# The test cases of RFC 7396, appendix A, whose patch is an object.
RFC_7396: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


async def merged(given: Given, document: Any, *patches: Any) -> Any:
    for given_patch in patches:
        [row] = await given.rows(
            "select flowfabric._merge_patch($1, $2)::text as merged", json.dumps(document), json.dumps(given_patch)
        )
        document = json.loads(row["merged"])
    return document


@pytest.mark.parametrize(("document", "patch", "result"), RFC_7396, ids=repr)
async def test_patches_are_merged_as_rfc_7396_says(given: Given, document: Any, patch: Any, result: Any) -> None:
    assert await merged(given, document, patch) == result


@pytest.mark.parametrize("document", [["c", "d"], ["c"], None, "bar"], ids=repr)
async def test_patches_of_rfc_7396_that_would_replace_the_document_are_refused(given: Given, document: Any) -> None:
    claim = await given.claimed()
    await streams.append_frame(given.conn, patch(claim, b'{"a": "foo"}'))

    with pytest.raises(InvalidPatch) as refused:
        await streams.append_frame(given.conn, patch(claim, json.dumps(document).encode()))
    assert refused.value.fields["cause"] == "not_object"
    assert (await read(given, claim)).document == {"a": "foo"}


@pytest.mark.parametrize("case", VECTORS["apply"], ids=lambda case: json.dumps(case["patches"])[:60])
async def test_patches_are_merged_as_the_vectors_say(given: Given, case: dict[str, Any]) -> None:
    assert await merged(given, case["document"], *case["patches"]) == case["result"]


async def test_each_patch_makes_a_version(given: Given) -> None:
    claim = await given.claimed()
    assert await streams.read_summary(given.conn, claim.execution_id) is None
    first = await streams.append_frame(given.conn, patch(claim, b'{"a": 1}'))
    await given.time_passes(seconds=5)
    rest = await streams.append_frames(given.conn, [patch(claim, b'{"b": 2}'), patch(claim, b'{"a": null}')])

    versions = [answer.summary_version for answer in [first, *rest] if isinstance(answer, Appended)]
    summary = await streams.read_summary(given.conn, claim.execution_id)
    assert versions == [1, 2, 3]
    assert summary is not None
    assert (summary.document, summary.version, summary.attempt) == ({"b": 2}, 3, 1)
    assert 4 < (summary.updated_at - summary.first_at).total_seconds() < 60


async def test_an_empty_patch_is_a_version_too(given: Given) -> None:
    claim = await given.claimed()
    await streams.append_frame(given.conn, patch(claim, b"{}"))

    summary = await streams.read_summary(given.conn, claim.execution_id)
    assert summary is not None
    assert (summary.document, summary.version) == ({}, 1)


async def test_patches_are_frames_with_their_version(given: Given) -> None:
    claim = await given.claimed()
    asked = [frame(claim, b'"text"'), patch(claim, b'{"a":  1}'), frame(claim, b'"more"'), patch(claim, b'{"b": 2}')]
    await streams.append_frames(given.conn, asked)

    page = await streams.read_frames(given.conn, claim.execution_id)
    assert [(it.payload, it.summary_version) for it in page.frames] == [
        (b'"text"', None),
        (b'{"a":  1}', 1),
        (b'"more"', None),
        (b'{"b": 2}', 2),
    ]


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["patch_text"][:30])
async def test_an_invalid_patch_is_refused_alone_and_changes_nothing(given: Given, case: dict[str, str]) -> None:
    claim = await given.claimed()
    await streams.append_frame(given.conn, patch(claim, b'{"a": 1}'))
    async with given.nothing_changes():
        with pytest.raises(InvalidPatch) as refused:
            await streams.append_frame(given.conn, patch(claim, case["patch_text"].encode()))
    assert refused.value.fields["cause"] == case["cause"]

    bad = patch(claim, case["patch_text"].encode())
    answers = await streams.append_frames(given.conn, [patch(claim, b'{"b": 2}'), bad, patch(claim, b'{"c": 3}')])
    assert [getattr(answer, "summary_version", None) for answer in answers] == [2, None, 3]
    assert (await read(given, claim)).document == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        (b"\xff{}", "not_json"),
        (b'{"a": "\0"}', "not_json"),
        (b'{"a": 1e400000}', "not_json"),
        (b'{"a": "\\ud800"}', "not_json"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "too_deep"),
        (b'{"a":' + b"[" * 16 + b"]" * 16 + b"}", "too_deep"),
    ],
    ids=lambda given: str(given)[:30],
)
async def test_a_patch_that_postgres_cannot_read_is_refused_alone(given: Given, payload: bytes, cause: str) -> None:
    claim = await given.claimed()
    refused, fine = await streams.append_frames(given.conn, [patch(claim, payload), patch(claim, b'{"a": 1}')])

    assert isinstance(refused, InvalidPatch)
    assert refused.fields["cause"] == cause
    assert isinstance(fine, Appended)


async def test_a_patch_of_16_levels_is_accepted(given: Given) -> None:
    claim = await given.claimed()
    answer = await streams.append_frame(given.conn, patch(claim, VECTORS["accepted_depth_16"].encode()))

    assert answer.summary_version == 1


async def test_a_summary_does_not_grow_beyond_1_mib(given: Given) -> None:
    claim = await given.claimed()
    parts = [patch(claim, json.dumps({f"k{n}": "x" * 65_000}).encode()) for n in range(17)]
    answers = await streams.append_frames(given.conn, [*parts, patch(claim, b'{"k0": null}')])

    assert isinstance(answers[16], InvalidPatch)
    assert answers[16].fields["cause"] == "document_too_large"
    assert [getattr(it, "summary_version", None) for it in answers[15:]] == [16, None, 17]
    assert sorted((await read(given, claim)).document) == sorted(f"k{n}" for n in range(1, 16))


async def test_a_repeated_patch_is_applied_once(given: Given) -> None:
    claim = await given.claimed()
    asked = [patch(claim, b'{"a": 1}', number=1), patch(claim, b'{"a": 2}', number=2)]
    await streams.append_frames(given.conn, asked)
    again = await streams.append_frames(given.conn, [asked[0]])

    assert [it.outcome for it in again if isinstance(it, Appended)] == ["duplicate"]
    assert ((await read(given, claim)).document, (await read(given, claim)).version) == ({"a": 2}, 2)


async def test_each_attempt_has_its_own_summary(given: Given) -> None:
    claim = await given.claimed()
    other = await given.claimed()
    await streams.append_frames(given.conn, [patch(claim, b'{"a": 1}'), patch(other, b'{"b": 2}')])
    await given.time_passes(minutes=1)
    await claims.expire_leases(given.conn)
    [again] = await given.claim(take=1)
    before = await streams.read_summary(given.conn, again.execution_id)
    await streams.append_frame(given.conn, patch(again, b'{"c": 3}'))

    assert before is None
    assert (await read(given, again)).document == {"c": 3}
    assert (await read(given, again, attempt=1)).document in ({"a": 1}, {"b": 2})


async def test_a_summary_stays_when_its_patches_are_trimmed(given: Given) -> None:
    claim = await given.claimed()
    await streams.append_frames(given.conn, [patch(claim, b'{"n": %d}' % n) for n in range(200)])
    await streams.trim_frames(given.conn, limit=1_000)
    await attempts.complete(given.conn, claim.fence)

    assert await payloads(given.conn, claim.execution_id) == [b'{"n": %d}' % n for n in range(136, 200)]
    assert ((await read(given, claim)).document, (await read(given, claim)).version) == ({"n": 199}, 200)


async def read(given: Given, claim: Any, attempt: int | None = None) -> StreamSummary:
    summary = await streams.read_summary(given.conn, claim.execution_id, attempt=attempt)
    assert summary is not None
    return summary


async def test_text_frames_do_not_touch_the_summary(given: Given) -> None:
    claim = await given.claimed()
    await appended(given.conn, claim, b'{"a": 1}')

    assert await streams.read_summary(given.conn, claim.execution_id) is None


async def saved(given: Given, claim: Claim) -> None:
    await steps.save_step(given.conn, Step(fence=claim.fence, name="one", occurrence=1, result=b"1"))


async def retried(given: Given, claim: Claim) -> Claim:
    await attempts.fail(given.conn, claim.fence, "down", class_=FailureClass.TRANSIENT)
    await given.time_passes(minutes=5)
    [again] = await given.claim()
    return again


async def test_a_retry_that_does_not_repeat_what_is_saved_begins_with_the_summary_of_the_attempt_before(
    given: Given,
) -> None:
    claim = await given.claimed(policy={"retry": {"max_retries": 3}})
    await streams.append_frame(given.conn, patch(claim, b'{"files": {"a": "done"}, "progress": 40}'))
    await saved(given, claim)
    again = await retried(given, claim)
    before = await streams.read_summary(given.conn, claim.execution_id)
    answer = await streams.append_frame(given.conn, patch(again, b'{"progress": 60}'))
    after = await streams.read_summary(given.conn, claim.execution_id)

    assert before is not None
    assert (before.attempt, before.document) == (1, {"files": {"a": "done"}, "progress": 40})
    assert after is not None
    assert (after.attempt, after.document) == (2, {"files": {"a": "done"}, "progress": 60})
    assert (answer.summary_version, after.version) == (1, 1)
    assert await streams.read_summary(given.conn, claim.execution_id, attempt=3) is None


async def test_a_retry_that_repeats_everything_begins_with_an_empty_summary(given: Given) -> None:
    claim = await given.claimed(policy={"retry": {"max_retries": 3}})
    await streams.append_frame(given.conn, patch(claim, b'{"files": {"a": "done"}}'))
    again = await retried(given, claim)

    assert await streams.read_summary(given.conn, claim.execution_id) is None
    await streams.append_frame(given.conn, patch(again, b'{"progress": 0}'))
    summary = await streams.read_summary(given.conn, claim.execution_id)
    assert summary is not None
    assert summary.document == {"progress": 0}
