"""Requests that are refused, and how: one shape for every refusal, and nothing is changed."""

import json
from typing import Any

import httpx
import pytest

from flowfabric import App

REPORT = {"task": "report"}
UNKNOWN = "019df237-3e80-8a31-800c-3f9b71e5d004"
JSON = {"content-type": "application/json"}
DEEP = b"[" * 100_000


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """The status and the code of a refusal, whose shape is checked."""
    document = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert document.keys() - {"retry_after_ms"} == {"error", "message", "detail"}
    assert isinstance(document["detail"], dict)
    return answer.status_code, document["error"]


@pytest.mark.parametrize(
    ("method", "path", "refused"),
    [
        ("GET", "/", (404, "route_not_found")),
        ("GET", "/v1/nothing", (404, "route_not_found")),
        ("GET", "/v1/../etc/passwd", (404, "route_not_found")),
        ("GET", "/v1/%2e%2e/healthz", (404, "route_not_found")),
        ("DELETE", "/v1/lanes", (405, "method_not_allowed")),
        ("GET", "/v1/lanes/nowhere/pause", (405, "method_not_allowed")),
        ("GET", "/v1/lanes/%00", (422, "invalid_text")),
        ("GET", "/v1/lanes/%ff", (422, "invalid_text")),
        ("GET", "/v1/lanes/..%2f..%2fetc", (404, "lane_not_found")),
        ("GET", "/v1/workers/nobody", (404, "not_found")),
        ("GET", "/v1/executions?nonsense=1", (422, "invalid_body")),
        ("GET", "/v1/executions?limit=1&limit=2", (422, "invalid_body")),
        ("GET", "/v1/executions?limit=many", (422, "invalid_body")),
        ("GET", "/v1/executions?tag=customer", (422, "invalid_body")),
        ("GET", "/v1/executions?task=%ff", (422, "invalid_text")),
        ("GET", f"/v1/executions?{'&'.join(['state=failed'] * 2_000)}", (422, "invalid_body")),
        ("GET", "/v1/executions?created_after=2026-05-04T09:00:00", (422, "invalid_body")),
        ("GET", f"/v1/executions/{UNKNOWN}/result?wait=1d", (422, "invalid_body")),
        ("GET", f"/v1/executions/{UNKNOWN}/result?wait=soon", (422, "invalid_body")),
        ("GET", f"/v1/executions/{UNKNOWN}/result?wait=30s", (404, "execution_not_found")),
    ],
)
async def test_a_request_that_is_wrong_is_refused(
    client: httpx.AsyncClient, method: str, path: str, refused: tuple[int, str]
) -> None:
    assert refusal(await client.request(method, path)) == refused


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        (b"", (422, "invalid_body")),
        (b"{", (422, "invalid_body")),
        (b"\xff\xfe", (422, "invalid_body")),
        (b'"report"', (422, "invalid_body")),
        (b'{"task": 1}', (422, "invalid_body")),
        (b'{"task": "report", "tsk": 1}', (422, "invalid_body")),
        (b'{"task": "report", "delay": "soon"}', (422, "invalid_body")),
        (b'{"task": "report", "delay": 3}', (422, "invalid_body")),
        (b'{"task": "report", "priority": 1e400}', (422, "invalid_body")),
        (b'{"task": "report", "priority": 99999999999999999999}', (422, "invalid_body")),
        (b'{"task": "report", "key": ""}', (422, "invalid_body")),
        (b'{"task": "re\\u0000port"}', (422, "invalid_text")),
        (b'{"task": "report", "tags": {"a": "\\u0000"}}', (422, "invalid_text")),
        (b'{"task": "report", "execution_id": "nonsense"}', (422, "invalid_id")),
        (b'{"task": "report", "payload": ' + b'"' + b"x" * 1_048_576 + b'"}', (422, "payload_too_large")),
        (b'{"task": "report", "payload": ' + DEEP, (422, "invalid_body")),
        (b" " * 8_388_609, (413, "body_too_large")),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else "",
)
async def test_a_body_that_is_wrong_is_refused_and_stores_nothing(
    client: httpx.AsyncClient, app: App, body: bytes, refused: tuple[int, str]
) -> None:
    assert refusal(await client.post("/v1/executions", content=body, headers=JSON)) == refused
    assert (await app.executions.list()).items == []


async def test_a_body_of_another_type_is_refused_with_what_to_send(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/executions", data=REPORT)

    assert refusal(answer) == (415, "unsupported_media_type")
    assert "curl --json" in answer.json()["message"]


async def test_the_header_idempotency_key_is_the_key_of_the_submission(client: httpx.AsyncClient) -> None:
    first, again = [await client.post("/v1/executions", json=REPORT, headers={"idempotency-key": "a"}) for _ in "12"]
    other = await client.post("/v1/executions", json={**REPORT, "key": "b"}, headers={"idempotency-key": "a"})
    many = await client.post("/v1/executions", json=[REPORT], headers={"idempotency-key": "a"})

    assert (first.json()["outcome"], again.json()["outcome"]) == ("created", "duplicate")
    assert first.json()["execution_id"] == again.json()["execution_id"]
    assert refusal(other) == refusal(many) == (422, "invalid_body")


@pytest.mark.parametrize("lines", [False, True], ids=["array", "lines"])
async def test_many_are_submitted_at_once_and_each_has_its_answer(client: httpx.AsyncClient, lines: bool) -> None:
    given: list[Any] = [REPORT, {"task": 3}, {**REPORT, "key": "a"}, {**REPORT, "key": "a"}]
    body = "\n\n".join(map(json.dumps, given)) if lines else json.dumps(given)
    media = "application/x-ndjson" if lines else "application/json"
    answer = await client.post("/v1/executions", content=body, headers={"content-type": media})
    first, wrong, second, again = answer.json()["items"]

    assert [first["outcome"], second["outcome"], again["outcome"]] == ["created", "created", "duplicate"]
    assert (wrong["error"], wrong["detail"]) == ("invalid_body", {"field": "task"})
    assert second["execution_id"] == again["execution_id"]


async def test_too_many_at_once_are_refused(client: httpx.AsyncClient) -> None:
    assert refusal(await client.post("/v1/executions", json=[{}] * 10_001)) == (422, "invalid_body")


async def test_no_request_says_who_makes_a_change(client: httpx.AsyncClient) -> None:
    await client.post("/v1/executions", json={**REPORT, "lane": "mail"})

    assert refusal(await client.post("/v1/lanes/mail/pause", json={"by": "ada"})) == (422, "invalid_body")
    assert (await client.post("/v1/lanes/mail/pause")).json() == {"outcome": "paused"}
    assert (await client.get("/v1/lanes/mail")).json()["by"] == "http"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil.example", "[::2]"])
async def test_a_request_for_another_host_is_refused(client: httpx.AsyncClient, host: str) -> None:
    assert refusal(await client.get("/v1/lanes", headers={"host": host})) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost.evil.example", "http://localhost:1"]
)
async def test_a_request_from_a_page_of_another_site_is_refused(client: httpx.AsyncClient, origin: str) -> None:
    answer = await client.post("/v1/executions", json=REPORT, headers={"origin": origin})

    assert refusal(answer) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in answer.headers
    assert (
        await client.get("/healthz", headers={"host": "localhost:7717", "origin": "http://localhost:7717"})
    ).is_success


async def test_a_path_says_which_methods_it_has(client: httpx.AsyncClient) -> None:
    refused = await client.delete("/v1/budgets")
    options = await client.options("/v1/budgets")

    assert (options.status_code, options.headers["allow"]) == (204, "GET, OPTIONS, POST")
    assert {*refused.headers["allow"].split(", ")} == {"GET", "OPTIONS", "POST"}


async def test_every_answer_says_that_it_is_no_page_and_is_not_to_be_kept(client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/readyz", "/v1/lanes", "/v1/nothing"):
        headers = (await client.get(path)).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]


async def test_a_task_that_the_server_knows_has_its_lane_and_its_arguments_are_checked(
    app: App, client: httpx.AsyncClient
) -> None:
    @app.task(lane="reports")
    async def report(topic: str) -> str:
        return topic

    good = await client.post("/v1/executions", json={**REPORT, "payload": {"topic": "tides"}})
    found = await client.get(f"/v1/executions/{good.json()['execution_id']}")
    wrong = await client.post("/v1/executions", json={**REPORT, "payload": {"subject": "tides"}})
    listed = await client.post("/v1/executions", json={**REPORT, "payload": ["tides"]})
    unknown = await client.post("/v1/executions", json={"task": "reprot"})
    elsewhere = await client.post("/v1/executions", json={"task": "reprot", "lane": "default"})

    assert (found.json()["lane"], found.json()["creator"]) == ("reports", "http")
    assert refusal(wrong) == refusal(listed) == (422, "invalid_body")
    assert refusal(unknown) == (422, "unknown_task")
    assert elsewhere.json()["outcome"] == "created"
