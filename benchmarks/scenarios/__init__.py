"""The scenarios, a file each. A new one is added to this list, behind those it is compared with."""

from benchmarks.scenario import Scenario
from benchmarks.scenarios import (
    claim_backlog,
    drain,
    events,
    log_cost,
    raw_bulk,
    raw_drain,
    raw_one_by_one,
    renew,
    routes,
    submit_bulk,
    submit_concurrent,
    submit_one_by_one,
    waits,
)

SCENARIOS: list[Scenario] = [
    raw_one_by_one.scenario,
    submit_one_by_one.scenario,
    submit_concurrent.scenario,
    raw_bulk.scenario,
    submit_bulk.scenario,
    raw_drain.scenario,
    drain.by_100,
    drain.by_500,
    drain.by_two,
    claim_backlog.small,
    claim_backlog.large,
    renew.scenario,
    routes.one,
    routes.many,
    waits.resumed,
    waits.few,
    waits.many,
    events.delivery,
    events.delivery_beside_open,
    events.follow,
    events.follow_beside_open,
    log_cost.without,
    log_cost.with_log,
]
