"""The table of operations: which there are, under which name an app has them, and where the HTTP API has them.

Each operation stands here once. The methods of `app.lanes` and the other namespaces (`make sync`), the routes of the
HTTP API, its OpenAPI document and the reference pages come from this table. The signature of its function says what an
operation takes and returns.

`concept.function` names a function of the engine, and `app.module.function` one that takes the app instead of a
connection. A path is plain words: a list is `GET /v1/lanes`, one thing `GET /v1/lanes/{name}`, and an act on it
`POST /v1/lanes/{name}/pause`, with the name that the method of the app has. A parameter in braces is part of the path;
all others are in the query of a `GET`, or in the JSON body of a `POST`.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple


class Scope(StrEnum):
    """What a caller must be allowed to do to call an operation."""

    READ = "read"
    SUBMIT = "submit"
    WORK = "work"
    SIGNAL = "signal"
    APPROVE = "approve"
    OPERATE = "operate"
    ADMIN = "admin"


class Operation(NamedTuple):
    """An operation, and where the HTTP API has it."""

    function: str
    scope: Scope
    method: str = "POST"
    path: str | None = None
    """`None` if only Python has it."""
    is_repeatable: bool = True
    """Whether it may happen twice; otherwise a call whose connection was lost is not repeated."""

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.function.rpartition(".")[2]

    @property
    def concept(self) -> str:
        """The concept of the engine that its function belongs to, or the module of the app."""
        return self.function.split(".")[-2]

    @property
    def is_by_hand(self) -> bool:
        """Whether its function takes the app instead of a connection."""
        return self.function.startswith("app.")


class Namespace(NamedTuple):
    """A class of methods of an app: what its docstring says, the nouns that its methods leave out, its operations."""

    name: str
    about: str
    nouns: str
    operations: tuple[Operation, ...]

    @property
    def attribute(self) -> str:
        """The attribute of the app: `app.signing_keys`."""
        return "".join(f"_{each.lower()}" if each.isupper() else each for each in self.name).lstrip("_")

    def method(self, operation: Operation) -> str:
        """The method of an operation: its name without the nouns."""
        return "_".join(part for part in operation.name.split("_") if part not in self.nouns.split())


def _get(function: str, path: str | None) -> Operation:
    return Operation(function, Scope.READ, "GET", path)


def _post(scope: Scope, function: str, path: str | None, *, is_repeatable: bool = True) -> Operation:
    return Operation(function, scope, "POST", path, is_repeatable)


SUBMIT, SIGNAL, APPROVE, OPERATE, ADMIN = Scope.SUBMIT, Scope.SIGNAL, Scope.APPROVE, Scope.OPERATE, Scope.ADMIN

EXECUTION, FLOW, BUDGET = "/v1/executions/{execution_id}", "/v1/flows/{flow_id}", "/v1/budgets/{budget}"
LANE, QUOTA, SCHEDULE = "/v1/lanes/{name}", "/v1/quotas/{quota}", "/v1/schedules/{name}"

NAMESPACES = (
    Namespace(
        "Approvals",
        "The decisions that executions wait for",
        "approvals",
        (
            _get("waits.list_approvals", "/v1/approvals"),
            _post(APPROVE, "app.acts.approve", None),  # over HTTP a decision needs to know its person
            _post(APPROVE, "app.acts.reject", None),
        ),
    ),
    Namespace(
        "Budgets",
        "Limits on what executions may spend, and what they have spent",
        "budget budgets",
        (
            _get("budgets.list_budgets", "/v1/budgets"),
            _get("budgets.describe_budget", BUDGET),
            _post(ADMIN, "budgets.create_budget", "/v1/budgets"),
            _post(ADMIN, "budgets.change_budget", f"{BUDGET}/change"),
            _post(OPERATE, "budgets.reset_budget", f"{BUDGET}/reset", is_repeatable=False),
            _post(SUBMIT, "app.acts.report_usage", f"{BUDGET}/report_usage"),
            _post(OPERATE, "budgets.release_usage", f"{BUDGET}/release_usage"),
            _get("budgets.list_spending", f"{EXECUTION}/spending"),
            _post(SUBMIT, "budgets.reserve", f"{BUDGET}/reserve", is_repeatable=False),
            _post(SUBMIT, "budgets.settle", "/v1/reservations/{reservation_id}/settle"),
            _post(SUBMIT, "budgets.release", "/v1/reservations/{reservation_id}/release"),
        ),
    ),
    Namespace(
        "Events",
        "The event log of the database; `app.log` follows it",
        "events",
        (
            _get("events.read_events", "/v1/events"),
            _post(OPERATE, "events.acknowledge", "/v1/consumers/{consumer}/acknowledge"),
            _get("events.get_acknowledged", "/v1/consumers/{consumer}"),
        ),
    ),
    Namespace(
        "Executions",
        "The executions in the database, whichever app has submitted them",
        "executions",
        (
            _get("executions.list_executions", "/v1/executions"),
            _get("executions.describe", EXECUTION),
            _get("executions.read_tree", f"{EXECUTION}/tree"),
            _get("executions.explain", f"{EXECUTION}/explanation"),
            _get("executions.get_result", f"{EXECUTION}/result"),
            _get("attempts.list_attempts", f"{EXECUTION}/attempts"),
            _get("steps.list_steps", f"{EXECUTION}/steps"),
            _post(OPERATE, "app.acts.cancel", f"{EXECUTION}/cancel"),
            _post(OPERATE, "app.acts.override", f"{EXECUTION}/override"),
            _post(OPERATE, "executions.replay", f"{EXECUTION}/replay", is_repeatable=False),
            _post(OPERATE, "waits.resume", f"{EXECUTION}/resume", is_repeatable=False),
            _post(OPERATE, "holds.hold", f"{EXECUTION}/hold"),
            _post(OPERATE, "holds.unhold", f"{EXECUTION}/unhold"),
            _post(OPERATE, "executions.change_priority", f"{EXECUTION}/change_priority"),
            _post(OPERATE, "executions.set_tag", f"{EXECUTION}/set_tag"),
            _get("executions.get_tag", f"{EXECUTION}/tags/{{key}}"),
            _post(OPERATE, "claims.revoke", f"{EXECUTION}/revoke", is_repeatable=False),
        ),
    ),
    Namespace(
        "Flows",
        "The flows (DAGs) in the database; `app.flow` builds one",
        "flow flows",
        (
            _get("flows.list_flows", "/v1/flows"),
            _get("flows.describe_flow", FLOW),
            _post(OPERATE, "flows.cancel_flow", f"{FLOW}/cancel"),
            _post(OPERATE, "flows.set_flow_tag", f"{FLOW}/set_tag"),
            _post(SUBMIT, "flows.create_flow", "/v1/flows", is_repeatable=False),
            _post(SUBMIT, "flows.add_execution", f"{FLOW}/add_execution", is_repeatable=False),
            _post(SUBMIT, "flows.add_edge", f"{FLOW}/add_edge"),
            _post(SUBMIT, "flows.set_edge_group", f"{FLOW}/set_edge_group"),
        ),
    ),
    Namespace(
        "Lanes",
        "The lanes (queues) that workers claim from",
        "lane lanes",
        (
            _get("lanes.list_lanes", "/v1/lanes"),
            _get("lanes.describe_lane", LANE),
            _post(ADMIN, "lanes.configure_lane", f"{LANE}/configure"),
            _post(OPERATE, "lanes.pause_lane", f"{LANE}/pause"),
            _post(OPERATE, "lanes.drain_lane", f"{LANE}/drain"),
            _post(OPERATE, "app.acts.resume_lane", f"{LANE}/resume"),
        ),
    ),
    Namespace(
        "Quotas",
        "Limits on how fast and how many executions run",
        "quota quotas",
        (
            _get("quotas.list_quotas", "/v1/quotas"),
            _get("quotas.describe_quota", QUOTA),
            _post(ADMIN, "quotas.create_quota", "/v1/quotas"),
            _post(ADMIN, "quotas.change_quota", f"{QUOTA}/change"),
        ),
    ),
    Namespace(
        "Schedules",
        "Submissions by cron or interval",
        "schedule schedules",
        (
            _get("schedules.list_schedules", "/v1/schedules"),
            _get("schedules.describe_schedule", SCHEDULE),
            _post(OPERATE, "app.schedules.create_schedule", None),
            _post(OPERATE, "app.schedules.change_schedule", None),
            _post(OPERATE, "schedules.pause_schedule", f"{SCHEDULE}/pause"),
            _post(OPERATE, "schedules.resume_schedule", f"{SCHEDULE}/resume"),
            _post(OPERATE, "schedules.delete_schedule", f"{SCHEDULE}/delete", is_repeatable=False),
            _post(OPERATE, "schedules.fire_schedule", f"{SCHEDULE}/fire", is_repeatable=False),
        ),
    ),
    Namespace(
        "SigningKeys",
        "The secrets that sign the tokens of waitpoints",
        "key keys",
        (
            _get("signing_keys.list_keys", "/v1/signing_keys"),
            _post(ADMIN, "signing_keys.seed_key", None),  # secrets do not travel over HTTP
            _post(ADMIN, "signing_keys.rotate_key", None),
        ),
    ),
    Namespace(
        "Waitpoints",
        "What executions wait for, and the signals that end the waits",
        "waitpoints",
        (
            _get("waits.list_suspended", "/v1/waits"),
            _get("waits.list_waits", f"{EXECUTION}/waits"),
            _get("waits.list_waitpoints", f"{EXECUTION}/waitpoints"),
            _post(SIGNAL, "app.acts.signal", f"{EXECUTION}/waitpoints/{{waitpoint}}/signal"),
        ),
    ),
    Namespace(
        "Workers",
        "The worker processes that are live, and their tasks",
        "workers worker",
        (
            _get("workers.list_workers", "/v1/workers"),
            _get("workers.describe_worker", "/v1/workers/{instance}"),
            _post(OPERATE, "workers.mark_dead", "/v1/workers/{instance}/mark_dead", is_repeatable=False),
            _get("tasks.list_tasks", "/v1/tasks"),
            _get("tasks.describe_task", "/v1/tasks/{task}"),
        ),
    ),
)

OF_THE_APP: Mapping[str, Operation] = {
    "submit": _post(SUBMIT, "executions.submit", "/v1/executions"),
    "overview": _get("overview.overview", "/v1/overview"),
}
"""Operations that are methods of the app itself."""

FOLLOWED: Mapping[str, Operation] = {
    "events.follow": _get("app.log.subscribe", "/v1/events/follow"),
    "executions.follow_events": _get("app.executions.events", f"{EXECUTION}/events/follow"),
    "executions.follow_frames": _get("app.executions.frames", f"{EXECUTION}/frames/follow"),
}
"""What is followed: over HTTP as server-sent events, in Python as iterators with these names."""


def operations() -> Iterator[Operation]:
    """Every operation of the table."""
    for namespace in NAMESPACES:
        yield from namespace.operations
    yield from OF_THE_APP.values()
    yield from FOLLOWED.values()
