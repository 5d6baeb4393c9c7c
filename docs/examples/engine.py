"""The examples on the page of the engine: a comment names the operations, the lines below it are their example.

`tests/test_reference.py` runs each example; the parameters of a function are the objects that the test prepares.
"""

import hashlib
import secrets
import uuid
from datetime import UTC, datetime, timedelta

import asyncpg

from flowfabric import ExecutionId
from flowfabric.engine import (
    attempts,
    budgets,
    children,
    claims,
    clock,
    doctor,
    events,
    executions,
    flows,
    holds,
    lanes,
    overview,
    quotas,
    routes,
    schedules,
    signing_keys,
    steps,
    streams,
    tasks,
    turns,
    waits,
    workers,
)
from flowfabric.errors import FlowFabricError
from flowfabric.ids import FlowId
from flowfabric.model import (
    Begin,
    ChildToSubmit,
    Claim,
    Completion,
    Delay,
    EdgePolicy,
    EventFilter,
    ExecutionToSuspend,
    FailureClass,
    FailureReport,
    FrameToAppend,
    Link,
    Member,
    Options,
    PublicState,
    Result,
    SignalToSend,
    Slots,
    Step,
    Submission,
    Suspension,
    Tail,
    Timing,
    UsageReport,
    Wish,
)


async def of_attempts(conn: asyncpg.Connection, claim: Claim) -> None:
    # attempts.complete
    await attempts.complete(conn, claim.fence, b'{"pages": 12}')
    # attempts.complete_many
    answers = await attempts.complete_many(conn, [Completion(fence=claim.fence, result=b"12")])
    refused = [answer for answer in answers if isinstance(answer, FlowFabricError)]
    # attempts.fail
    failed = await attempts.fail(conn, claim.fence, "card declined", class_=FailureClass.PERMANENT)
    assert failed.outcome == "failed"
    # attempts.fail_many
    await attempts.fail_many(conn, [FailureReport(fence=claim.fence, reason="the bank is closed")])
    # attempts.delay
    delayed = await attempts.delay(conn, claim.fence, timedelta(minutes=10))
    print("continues at", delayed.due_at)
    # attempts.delay_many
    await attempts.delay_many(conn, [Delay(fence=claim.fence)])  # releases the lease: claimable immediately
    # attempts.list_attempts
    page = await attempts.list_attempts(conn, claim.execution_id)
    print([(attempt.number, attempt.failure) for attempt in page.items])
    # attempts.time_out_attempts
    await attempts.time_out_attempts(conn)


async def of_budgets(conn: asyncpg.Connection, claim: Claim, execution_id: ExecutionId) -> None:
    # budgets.create_budget
    await budgets.create_budget(conn, "team-b", hard_limits={"tokens": 1_000_000}, reset_interval=timedelta(days=1))
    # budgets.change_budget
    await budgets.change_budget(conn, "team-a", hard_limits={"tokens": 2_000_000}, by="ops")
    # budgets.describe_budget
    budget = await budgets.describe_budget(conn, "team-a")
    print(budget.used.get("tokens", 0), "of", budget.hard_limits["tokens"])
    # budgets.list_budgets
    page = await budgets.list_budgets(conn)
    full = [budget.name for budget in page.items if budget.is_full]
    # budgets.report_usage
    report = UsageReport(budget="team-a", amounts={"tokens": 1_900}, fence=claim.fence, dedup_key="call-17")
    usage = await budgets.report_usage(conn, report)
    # budgets.exhausted
    usage = await budgets.report_usage(conn, UsageReport(budget="team-a", amounts={"tokens": 1_900}))
    if usage.outcome == "hard_breach":
        raise budgets.exhausted("team-a", usage)
    # budgets.report_usage_many
    reports = [UsageReport(budget="team-a", amounts={"tokens": tokens}) for tokens in (300, 500)]
    await budgets.report_usage_many(conn, reports)
    # budgets.reserve
    reserved = await budgets.reserve(conn, "team-a", {"tokens": 4_000}, fence=claim.fence, ttl=timedelta(minutes=5))
    print(reserved.outcome, reserved.reservation_id)
    # budgets.settle
    reserved = await budgets.reserve(conn, "team-a", {"tokens": 4_000})
    assert reserved.reservation_id is not None
    await budgets.settle(conn, reserved.reservation_id, {"tokens": 3_100})
    # budgets.release
    reserved = await budgets.reserve(conn, "team-a", {"tokens": 4_000})
    assert reserved.reservation_id is not None
    await budgets.release(conn, reserved.reservation_id)
    # budgets.list_spending
    for spending in await budgets.list_spending(conn, execution_id):
        print(spending.name, spending.spent)
    # budgets.release_usage
    await budgets.release_usage(conn, "team-a", execution_id, by="ops")
    # budgets.reset_budget
    await budgets.reset_budget(conn, "team-a", by="ops")
    # budgets.reset_budgets
    await budgets.reset_budgets(conn)
    # budgets.expire_reservations
    await budgets.expire_reservations(conn)
    # budgets.resume_budget_waits
    await budgets.resume_budget_waits(conn)


async def of_children(conn: asyncpg.Connection, claim: Claim, child_id: ExecutionId) -> None:
    # children.submit_children
    submission = Submission(options=Options(task="search"))
    child = ChildToSubmit(
        fence=claim.fence, name="submit:search", occurrence=1, execution_id=child_id, submission=submission
    )
    await children.submit_children(conn, [child])
    # children.deliver_child_ends
    await children.deliver_child_ends(conn)


async def of_claims(conn: asyncpg.Connection, claim: Claim, running_id: ExecutionId) -> None:
    # claims.claim
    claimed = await claims.claim(conn, "worker", instance="worker-1", lanes=["reports"], take=10)
    # claims.submit_and_claim
    slots = Slots(worker="worker", instance="worker-1", lanes=["default"], free=3)
    _, claimed = await claims.submit_and_claim(conn, [Submission(options=Options(task="report"))], slots)
    # claims.signal_and_claim
    waitpoint = await waits.create_waitpoint(conn, claim.fence, "paid")
    signal = SignalToSend(
        execution_id=claim.execution_id, waitpoint_id=waitpoint.waitpoint_id, token=waitpoint.token, name="paid"
    )
    slots = Slots(worker="worker", instance="worker-1", lanes=["default"], free=3)
    _, claimed = await claims.signal_and_claim(conn, [signal], slots)
    print(len(claimed), "resumed here")
    # claims.renew
    renewed = await claims.renew(conn, claim.fence, lease=timedelta(minutes=1))
    print("until", renewed.expires_at)
    # claims.renew_many
    await claims.renew_many(conn, [claim.fence])
    # claims.mark_begun_many
    await claims.mark_begun_many(conn, [Begin(fence=claim.fence)])
    # claims.revoke
    revoked = await claims.revoke(conn, running_id, by="ops", reason="the host is gone")
    # claims.issue_grant
    [grant] = await claims.issue_grant(conn, "worker", instance="worker-1", lanes=["reports"])
    # claims.verify_grant
    [grant] = await claims.issue_grant(conn, "worker", instance="worker-1", lanes=["reports"])
    verified = await claims.verify_grant(conn, grant.grant_key)
    # claims.claim_granted
    [grant] = await claims.issue_grant(conn, "worker", instance="worker-1", lanes=["reports"])
    claim = await claims.claim_granted(conn, grant.grant_key, "worker", instance="worker-1")
    # claims.expire_grants
    await claims.expire_grants(conn)
    # claims.expire_leases
    swept = await claims.expire_leases(conn)
    print(swept.moved, "leases expired")


async def of_the_clock(conn: asyncpg.Connection) -> None:
    # clock.clock
    now = await clock.clock(conn)


async def of_the_doctor(conn: asyncpg.Connection) -> None:
    # doctor.diagnose
    facts = await doctor.diagnose(conn)
    for late in facts.overdue:
        print(late.sweep, "is late by", late.late_s, "seconds")


async def of_events(conn: asyncpg.Connection, execution_id: ExecutionId) -> None:
    # events.read_events
    page = await events.read_events(conn, events.OLDEST, EventFilter(kinds=["execution_failed"]))
    for event in page.events:
        print(event.at, event.execution_id)
    # events.OLDEST
    page = await events.read_events(conn, events.OLDEST, limit=100)  # the oldest events that are kept
    # events.timeline
    page = await events.read_events(conn, events.OLDEST, events.timeline(execution_id))
    # events.completions
    page = await events.read_events(conn, events.OLDEST, events.completions())
    # events.lease_history
    page = await events.read_events(conn, events.OLDEST, events.lease_history())
    # events.operator_acts
    page = await events.read_events(conn, events.OLDEST, events.operator_acts())
    # events.signal_deliveries
    page = await events.read_events(conn, events.OLDEST, events.signal_deliveries())
    # events.acknowledge, events.get_acknowledged
    cursor = await events.get_acknowledged(conn, "billing") or events.OLDEST
    page = await events.read_events(conn, cursor)
    await events.acknowledge(conn, "billing", page.cursor)
    # events.advance_horizon
    newest = await events.advance_horizon(conn)
    # events.watch_log
    horizon_id, last_id = await events.watch_log(conn)
    print(f"{last_id - horizon_id} event ids cannot be read yet")
    # events.extend_events
    await events.extend_events(conn)
    # events.trim_events
    await events.trim_events(conn, retention=timedelta(days=30))


async def of_executions(conn: asyncpg.Connection, execution_id: ExecutionId, ended_id: ExecutionId) -> None:
    # executions.submit
    report = Options(task="report", lane="reports", policy={"retry": {"max_retries": 3}})
    submitted = await executions.submit(conn, Submission(options=report, payload=b'{"topic": "tides"}', key="tides"))
    # executions.submit_many
    asked = [Submission(options=Options(task="report"), key=topic) for topic in ("tides", "winds")]
    answers = await executions.submit_many(conn, asked)
    # executions.describe
    found = await executions.describe(conn, execution_id, payload=True)
    print(found.task, found.state.public_state, found.payload)
    # executions.explain
    print((await executions.explain(conn, execution_id)).sentence)
    # executions.get_result
    result = await executions.get_result(conn, ended_id)
    print(result.outcome, result.result)
    # executions.get_result_many
    results = await executions.get_result_many(conn, [execution_id, ended_id])
    print([isinstance(each, Result) and each.outcome for each in results])
    # executions.list_executions
    page = await executions.list_executions(conn, lane="reports", states=[PublicState.FAILED], limit=20)
    for summary in page.items:
        print(summary.execution_id, summary.failure)
    # executions.read_tree
    tree = await executions.read_tree(conn, execution_id)
    print(tree.execution.task, tree.child_count, tree.child_states, [each.execution.task for each in tree.children])
    # executions.match_executions
    lowest, highest = (
        uuid.UUID(int=0x019DF237 << 96),
        uuid.UUID(int=(0x019DF238 << 96) - 1),
    )  # ids that begin with 019df237
    matching = await executions.match_executions(conn, lowest, highest)
    # executions.list_ended
    ended = await executions.list_ended(conn, [execution_id, ended_id])
    # executions.cancel
    await executions.cancel(conn, execution_id, reason="no longer needed", by="ada")
    # executions.override
    await executions.override(conn, execution_id, "success", result=b'{"paid": true}', reason="by phone", by="ada")
    # executions.change_priority
    await executions.change_priority(conn, execution_id, 50, by="ops")
    # executions.replay
    await executions.replay(conn, ended_id, by="ops", from_scratch=True)
    # executions.set_tag
    await executions.set_tag(conn, execution_id, "billing.customer", "ada")
    # executions.get_tag
    customer = await executions.get_tag(conn, execution_id, "billing.customer")
    # executions.promote_due
    await executions.promote_due(conn)
    # executions.expire_executions
    await executions.expire_executions(conn)
    # executions.remove_ended
    await executions.remove_ended(conn, retention=timedelta(days=30))
    # executions.remove_idempotency_keys
    await executions.remove_idempotency_keys(conn)


async def of_flows(conn: asyncpg.Connection, flow_id: FlowId, first_id: ExecutionId, second_id: ExecutionId) -> None:
    # flows.submit_flow
    search, write = (Submission(options=Options(task=task)) for task in ("search", "write"))
    flow = await flows.submit_flow(
        conn,
        "report",
        [Member(name="search", submission=search), Member(name="write", submission=write)],
        [Link(upstream="search", downstream="write", pass_as="notes")],
    )
    # flows.create_flow
    flow_id = (await flows.create_flow(conn, "report", key="tides")).flow_id
    # flows.add_execution
    added = await flows.add_execution(conn, flow_id, Submission(options=Options(task="search")))
    # flows.add_edge
    await flows.add_edge(conn, flow_id, first_id, second_id, pass_as="notes")
    # flows.set_edge_group
    await flows.set_edge_group(conn, flow_id, second_id, EdgePolicy("any_of"))
    # flows.describe_flow
    found = await flows.describe_flow(conn, flow_id)
    print(found.state, dict(found.counts))
    # flows.match_flows
    lowest, highest = (
        uuid.UUID(int=0x019DF237 << 96),
        uuid.UUID(int=(0x019DF238 << 96) - 1),
    )  # ids that begin with 019df237
    matching_flows = await flows.match_flows(conn, lowest, highest)
    # flows.list_flows
    page = await flows.list_flows(conn, state="running")
    # flows.set_flow_tag
    await flows.set_flow_tag(conn, flow_id, "billing.customer", "ada", by="ops")
    # flows.cancel_flow
    await flows.cancel_flow(conn, flow_id, reason="wrong input", by="ops", policy="cancel_pending")
    # flows.read_inputs
    inputs = await flows.read_inputs(conn, second_id, names=["notes"])


async def of_holds(conn: asyncpg.Connection, execution_id: ExecutionId, claim: Claim) -> None:
    # holds.hold
    await holds.hold(conn, execution_id, by="ops")
    # holds.hold_changed, holds.hold_changed_many
    await holds.hold_changed(conn, claim.fence, "step 'charge' was renamed", steps=["charge"])
    # holds.unhold
    unheld = await holds.unhold(conn, execution_id, by="ops")
    print(unheld.public_state)


async def of_lanes(conn: asyncpg.Connection) -> None:
    # lanes.configure_lane
    await lanes.configure_lane(conn, "reports", keep_renewals=True)
    # lanes.pause_lane
    await lanes.pause_lane(conn, "reports", by="ops")
    # lanes.drain_lane
    drained = await lanes.drain_lane(conn, "reports", by="ops")
    print(drained.left_count, "executions left")
    # lanes.resume_lane
    await lanes.resume_lane(conn, "reports", by="ops")
    # lanes.describe_lane
    lane = await lanes.describe_lane(conn, "reports")
    # lanes.list_lanes
    for lane in (await lanes.list_lanes(conn)).items:
        print(lane.name, lane.state, lane.waiting_count)


async def of_the_overview(conn: asyncpg.Connection) -> None:
    # overview.overview
    frame = await overview.overview(conn)
    for stuck in frame.stuck:
        print(stuck.lane, stuck.amount, stuck.sentence)


async def of_quotas(conn: asyncpg.Connection) -> None:
    # quotas.create_quota
    await quotas.create_quota(conn, "search-api", max_requests_per_window=100, window_seconds=60)
    # quotas.change_quota
    await quotas.change_quota(conn, "model", max_concurrent=40, by="ops")
    # quotas.describe_quota
    quota = await quotas.describe_quota(conn, "model")
    print("room for", quota.room)
    # quotas.list_quotas
    page = await quotas.list_quotas(conn)
    # quotas.trim_windows
    await quotas.trim_windows(conn)


async def of_routes(conn: asyncpg.Connection) -> None:
    # routes.register_route
    route = await routes.register_route(conn, Options(task="report", lane="reports", needs=["gpu"]))


async def of_schedules(conn: asyncpg.Connection) -> None:
    # schedules.create_schedule
    timing = Timing(cron="0 9 * * 1-5", tz="Europe/Berlin", overlap="skip")
    await schedules.create_schedule(conn, "daily", Submission(options=Options(task="report")), timing, by="ops")
    # schedules.change_schedule
    await schedules.change_schedule(conn, "hourly", timing=Timing(every=timedelta(hours=2)), by="ops")
    # schedules.describe_schedule
    schedule = await schedules.describe_schedule(conn, "hourly")
    print(schedule.when, schedule.next_tick_at)
    # schedules.list_schedules
    page = await schedules.list_schedules(conn, namespace="default")
    # schedules.pause_schedule
    await schedules.pause_schedule(conn, "hourly", by="ops")
    # schedules.resume_schedule
    await schedules.resume_schedule(conn, "hourly", by="ops")
    # schedules.delete_schedule
    await schedules.delete_schedule(conn, "hourly", by="ops")
    # schedules.fire_schedule
    fired = await schedules.fire_schedule(conn, "hourly", by="ops")
    print(fired.execution_id)
    # schedules.fire_schedules
    await schedules.fire_schedules(conn)
    # schedules.check_timing
    timing = schedules.check_timing(Timing(cron="0 9 * * 1-5", tz="Europe/Berlin"))
    # schedules.submission_of
    submission = schedules.submission_of(await schedules.describe_schedule(conn, "hourly"))
    await executions.submit(conn, submission)


async def of_signing_keys(conn: asyncpg.Connection) -> None:
    # signing_keys.rotate_key
    rotated = await signing_keys.rotate_key(conn, "2027-01", secrets.token_hex(32), grace=timedelta(days=7), by="ops")
    print(rotated.open_waitpoints, "tokens depend on older keys")
    # signing_keys.seed_key
    await signing_keys.seed_key(conn, "k1", "5f" * 32)
    # signing_keys.list_keys
    print([key.kid for key in await signing_keys.list_keys(conn)])
    # signing_keys.retire_signing_keys
    await signing_keys.retire_signing_keys(conn)


async def of_steps(conn: asyncpg.Connection, claim: Claim) -> None:
    # steps.save_step
    saved = await steps.save_step(conn, Step(fence=claim.fence, name="search", occurrence=1, result=b'["a", "b"]'))
    # steps.save_step_many
    await steps.save_step_many(conn, [Step(fence=claim.fence, name="page", occurrence=n) for n in (1, 2)])
    # steps.list_steps
    page = await steps.list_steps(conn, claim.execution_id, results=True)
    print([(each.name, each.state, each.size, each.result) for each in page.items])
    # steps.read_journal
    for entry in await steps.read_journal(conn, claim.execution_id, begun=claim.journal):
        print(entry.kind, entry.name, entry.result)


async def of_streams(conn: asyncpg.Connection, claim: Claim) -> None:
    # streams.append_frame, streams.append_frames
    frame = FrameToAppend(fence=claim.fence, payload=b'"Once upon"', kind="stdout", number=1)
    appended = await streams.append_frame(conn, frame)
    print(appended.frame_id)
    patch = FrameToAppend(fence=claim.fence, payload=b'{"progress": 40}', mode="summary", number=2)
    await streams.append_frames(conn, [frame, patch])
    # streams.read_frames, streams.tail_frames
    page = await streams.read_frames(conn, claim.execution_id, kinds=["stdout"], limit=1_000)
    print("".join(each.data for each in page.frames), page.closed_reason)
    tail = Tail(execution_id=claim.execution_id, after=page.frames[-1].id if page.frames else "0-0")
    pages = await streams.tail_frames(conn, [tail])
    print(len(pages))
    # streams.find_valid_frames
    valid = await streams.find_valid_frames(conn, claim.execution_id)
    print("frames of attempt 1 stay valid up to", valid.get(1))
    # streams.read_summary
    summary = await streams.read_summary(conn, claim.execution_id)
    if summary is not None:
        print(summary.document["progress"], summary.version)
    # streams.trim_frames
    await streams.trim_frames(conn)


async def of_tasks(conn: asyncpg.Connection) -> None:
    # tasks.find_task
    found = await tasks.find_task(conn, "reprot")
    if found.outcome == "missing":
        print("no running worker has it; did you mean", " or ".join(found.nearest))
    # tasks.list_tasks
    for task in (await tasks.list_tasks(conn)).items:
        print(task.name, task.new_count, "have not started")
    # tasks.describe_task
    report = await tasks.describe_task(conn, "report")
    for version in report.versions if report else ():
        print(version.version, "has", version.left_count, "left and", version.worker_count, "workers")


async def of_turns(conn: asyncpg.Connection) -> None:
    # turns.take_turn, turns.end_turn
    process = uuid.uuid4()
    if await turns.take_turn(conn, "remove_ended", process, turn=timedelta(minutes=2)):
        await executions.remove_ended(conn)
        await turns.end_turn(conn, "remove_ended", process)


async def of_waits(
    conn: asyncpg.Connection, claim: Claim, execution_id: ExecutionId, suspended_id: ExecutionId, child_id: ExecutionId
) -> None:
    # waits.suspend
    paid = {"kind": "single", "waitpoint": "paid", "name": "paid"}
    wish = Suspension(condition=paid, waitpoints=["paid"], timeout=timedelta(days=3), timeout_behavior="auto_resume")
    suspended = await waits.suspend(conn, claim.fence, wish)
    print("give away:", suspended.waitpoints[0].token)
    # waits.suspend_many
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    wishes = [Wish(name="sleep", occurrence=1, what=tomorrow), Wish(name="child", occurrence=1, what=child_id)]
    await waits.suspend_many(conn, [ExecutionToSuspend(fence=claim.fence, waits=wishes)])
    # waits.create_waitpoint
    waitpoint = await waits.create_waitpoint(conn, claim.fence, "paid", expires_in=timedelta(days=3))
    # waits.deliver_signal
    waitpoint = await waits.create_waitpoint(conn, claim.fence, "paid")
    signal = SignalToSend(
        execution_id=claim.execution_id, waitpoint_id=waitpoint.waitpoint_id, token=waitpoint.token, name="paid"
    )
    await waits.deliver_signal(conn, signal)
    # waits.deliver_signals
    waitpoint = await waits.create_waitpoint(conn, claim.fence, "paid")
    signal = SignalToSend(
        execution_id=claim.execution_id, waitpoint_id=waitpoint.waitpoint_id, token=waitpoint.token, name="paid"
    )
    await waits.deliver_signals(conn, [signal])
    # waits.deliver_approval
    shown = hashlib.sha256(b'{"amount":30}').digest()
    await waits.deliver_approval(conn, suspended_id, "publish", "approve", by="ada", digest=shown)
    # waits.resume
    await waits.resume(conn, suspended_id, by="ops", note="answered by phone")
    # waits.read_signals
    [wait] = await waits.list_waits(conn, suspended_id)
    signals = await waits.read_signals(conn, suspended_id, wait.suspension_id)
    # waits.list_suspended
    page = await waits.list_suspended(conn, reason_code="waiting_for_approval")
    # waits.list_approvals
    inbox = await waits.list_approvals(conn, lane="default", tag=("team", "research"))
    # waits.list_waits
    for wait in await waits.list_waits(conn, suspended_id):
        print(wait.waitpoint_keys, wait.timeout_at)
    # waits.list_waitpoints
    page_of_waitpoints = await waits.list_waitpoints(conn, suspended_id, state="active")
    # waits.time_out_waits
    await waits.time_out_waits(conn)
    # waits.close_waitpoints
    await waits.close_waitpoints(conn)


async def of_workers(conn: asyncpg.Connection) -> None:
    # workers.register_worker
    await workers.register_worker(conn, "worker", instance="worker-1", lanes=["reports"], capabilities=["gpu"])
    # workers.beat
    [beat] = await workers.beat(conn, ["worker-1"])
    if beat.outcome == "not_registered":
        print("register again")
    # workers.hold_lock
    await workers.hold_lock(conn, "worker-1")
    # workers.mark_dead
    marked = await workers.mark_dead(conn, "worker-1", by="ops", reason="the host is gone")
    print(marked.revoked, "leases revoked")
    # workers.list_workers
    page = await workers.list_workers(conn, lane="reports")
    # workers.describe_worker
    described = await workers.describe_worker(conn, "worker-1")
    # workers.unregister_worker
    await workers.unregister_worker(conn, "worker-1")
    # workers.expire_workers
    await workers.expire_workers(conn)
    # workers.return_orphans
    await workers.return_orphans(conn)
