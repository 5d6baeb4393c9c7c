"""What must be true of the database at every moment: each function returns the SQL that finds rows which break it."""

from collections.abc import Callable

import asyncpg

from tests.given import ENDED_ATTEMPTS

Check = Callable[[], str]

ENDS = "('execution_completed','execution_failed','execution_cancelled','execution_expired','execution_skipped')"
# Events about an execution that do not depend on its state.
NOTES = "('tag_set', 'flow_member_added', 'edge_added', 'edge_group_set')"
RELEASES = "('lease_expired','lease_revoked','attempt_failed','execution_delayed','execution_suspended')"


async def hold(conn: asyncpg.Connection, check: Check) -> None:
    """Check one invariant. A single statement sees one state of the database, so this may run at any time."""
    broken = await conn.fetch(check())
    assert not broken, f"not true: {check.__name__.replace('_', ' ')}: {len(broken)} rows, such as {broken[:3]}"


def every_unfinished_execution_has_a_ticket_and_no_ended_one_has() -> str:
    return """
    select e.partition, e.id, e.outcome, t.phase from flowfabric.executions e
    full join flowfabric.tickets t on t.partition = e.partition and t.id = e.id
    where (t.id is null) <> (e.outcome is not null) or e.id is null"""


def an_active_ticket_has_a_lease_and_a_running_attempt() -> str:
    return """
    select t.* from flowfabric.tickets t
    where (t.phase = 'active') <> (t.attempt_state = 'running_attempt')
       or t.phase = 'active' and (t.lease_id is null or t.expires_at is null or t.instance is null)"""


def the_attempts_of_an_execution_are_numbered_without_a_gap() -> str:
    return f"""
    select e.id, e.outcome, t.attempt_state, coalesce(t.attempt, e.attempt) as attempt, a.*
    from flowfabric.executions e left join flowfabric.tickets t on t.partition = e.partition and t.id = e.id
    cross join lateral (
        select count(*) as ended, coalesce(max(a.number), 0) as last,
               coalesce(bool_and(a.follows), true) as in_order from (
            select a.number, a.first_epoch <= a.last_epoch and a.first_epoch > coalesce(
                       lag(a.last_epoch) over (order by a.number), 0) as follows
            from {ENDED_ATTEMPTS} where a.partition = e.partition and a.execution = e.id) a) a
    where a.ended <> a.last or not a.in_order
       or a.ended + coalesce(t.attempt_state in ('running_attempt', 'attempt_interrupted'), false)::int
          <> coalesce(t.attempt, e.attempt, 0)"""


def nothing_is_left_of_executions_that_were_removed() -> str:
    return " union all ".join(
        f"""select '{table}' as belongs_to, x.execution from flowfabric.{table} x where not exists (
        select from flowfabric.executions e where e.partition = x.partition and e.id = x.execution)"""
        for table in ("attempts", "steps", "waits", "budget_waits", "waitpoints", "signals", "spending", "tags")
    )


def a_valid_idempotency_key_belongs_to_an_existing_execution() -> str:
    return """
    select k.* from flowfabric.idempotency_keys k where k.expires_at > flowfabric.clock() and not exists (
        select from flowfabric.executions e where e.partition = k.execution_partition and e.id = k.execution)"""


def no_committed_event_is_a_draft() -> str:
    return "select d.* from flowfabric.events_drafts d"


def an_execution_is_suspended_exactly_while_it_has_an_open_wait() -> str:
    # While an execution runs, waits of its last suspension may be open, and a budget may suspend it then.
    return """
    select t.id, t.phase, t.suspension, o.waits, o.budgets from flowfabric.tickets t
    cross join lateral (
        select (select count(*) from flowfabric.waits w where w.partition = t.partition and w.execution = t.id
                and w.ended_at is null and w.suspension = t.suspension) as waits,
               (select count(*) from flowfabric.budget_waits b
                where b.partition = t.partition and b.execution = t.id) as budgets) o
    where t.phase = 'suspended' and (o.waits > 0) = (o.budgets > 0) or t.phase <> 'suspended' and o.budgets > 0"""


def an_ended_execution_has_no_open_wait_and_no_open_waitpoint() -> str:
    return """
    select e.id, e.outcome from flowfabric.executions e
    where e.outcome is not null
      and (exists (select from flowfabric.waits w
                   where w.partition = e.partition and w.execution = e.id and w.ended_at is null)
           or exists (select from flowfabric.budget_waits b where b.partition = e.partition and b.execution = e.id)
           or exists (select from flowfabric.waitpoints p
                      where p.partition = e.partition and p.execution = e.id and p.state <> 'closed'))"""


def a_waitpoint_is_active_exactly_while_its_wait_is_open() -> str:
    return """
    select p.* from flowfabric.waitpoints p
    left join flowfabric.waits w on w.partition = p.partition and w.execution = p.execution and w.id = p.wait
    where p.state = 'active' and (w.id is null or w.ended_at is not null or p.id <> all (w.waitpoints))
       or p.state = 'closed' and w.ended_at is null and w.id is not null"""


def of_the_waitpoints_with_the_same_key_only_the_newest_is_open() -> str:
    return """
    select p.* from flowfabric.waitpoints p
    where p.state <> 'closed'
      and p.id <> flowfabric._newest_waitpoint(p.partition, p.execution, p.key)"""


def no_execution_is_suspended_by_a_condition_that_its_signals_satisfy() -> str:
    return """
    select w.execution, w.condition, j.satisfiers from flowfabric.waits w
    cross join lateral (
        select coalesce(jsonb_agg(jsonb_build_object(
            'id', g.id, 'waitpoint', p.key, 'name', g.name, 'source_type', g.source_type,
            'source_identity', g.source_identity) order by g.number), '[]') as signals
        from flowfabric.waitpoints p
        join flowfabric.signals g on g.partition = p.partition and g.execution = p.execution and g.waitpoint = p.id
        where p.partition = w.partition and p.execution = w.execution and p.wait = w.id
          and (not w.bind or g.digest = w.about_digest)) g
    cross join lateral flowfabric._judge(w.condition, g.signals) j (satisfiers)
    where w.ended_at is null and w.child is null and not w.is_sleep and j.satisfiers is not null"""


def a_wait_for_a_child_that_has_ended_is_about_to_be_answered() -> str:
    return """
    select s.execution, s.child, c.outcome from flowfabric.waits s
    left join flowfabric.executions c on c.partition = s.child_partition and c.id = s.child
    where s.child is not null and s.ended_at is null and (c.id is null or c.outcome is not null) and not exists (
        select from flowfabric.child_ends n where n.execution = s.child and n.parent = s.execution)"""


def an_unfinished_child_of_an_ended_parent_is_about_to_be_cancelled() -> str:
    # A child that was replayed since then runs on.
    return """
    select c.id, p.outcome from flowfabric.executions c
    join flowfabric.executions p on p.partition = c.parent_partition and p.id = c.parent
    where c.outcome is null and c.replays = 0 and c.on_parent_end = 'cancel'
      and p.outcome is not null and p.outcome <> 'success' and not exists (
        select from flowfabric.child_ends n where n.execution = p.id and n.parent is null)"""


def a_budget_has_used_the_sum_of_its_ledger() -> str:
    return """
    select b.name, b.period, b.used, l.spent from flowfabric.budgets b
    cross join lateral (
        select coalesce(jsonb_object_agg(x.key, x.total) filter (where x.total > 0), '{}') as spent from (
            select a.key, sum(a.value::bigint) as total from flowfabric.spending s
            cross join lateral jsonb_each_text(s.spent) a
            where s.budget = b.id and s.period = b.period group by 1) x) l
    -- A reset that is due is stored by the next call; until then, retention may have removed what the period counted.
    where b.used <> l.spent and b.name like 'ledger%' and b.next_reset_at > flowfabric.clock()"""


def a_budget_has_reserved_the_sum_of_its_open_reservations() -> str:
    return """
    select b.name, b.reserved, r.estimates from flowfabric.budgets b
    cross join lateral (
        select coalesce(jsonb_object_agg(x.key, x.total) filter (where x.total > 0), '{}') as estimates from (
            select a.key, sum(a.value::bigint) as total from flowfabric.reservations r
            cross join lateral jsonb_each_text(r.estimate) a
            where r.budget = b.id and r.ended_at is null group by 1) x) r
    where b.reserved <> r.estimates"""


def no_budget_whose_limits_never_sank_is_over_them() -> str:
    return """
    select b.name, b.hard_limits, b.used, b.reserved from flowfabric.budgets b
    cross join lateral jsonb_each_text(b.hard_limits) l
    where b.mode = 'strict' and b.name not like '%sinking'
      and coalesce((b.used ->> l.key)::bigint, 0) + coalesce((b.reserved ->> l.key)::bigint, 0) > l.value::bigint"""


def no_reservation_of_an_ended_execution_is_open() -> str:
    return """
    select r.* from flowfabric.reservations r
    join flowfabric.executions e on e.partition = r.execution_partition and e.id = r.execution
    where r.ended_at is null and e.outcome is not null"""


def no_quota_whose_limits_never_sank_has_too_many_running() -> str:
    return """
    select q.name, q.max_concurrent, h.held from flowfabric.quotas q
    cross join lateral (
        select count(*) as held from flowfabric.tickets t join flowfabric.routes r on r.id = t.route
        where q.id = any (r.quotas) and (t.phase = 'active' or t.eligibility = 'granted')) h
    where h.held > q.max_concurrent and q.name not like '%sinking'"""


def every_running_execution_holds_a_slot_of_its_quotas() -> str:
    return """
    select t.id, q.name from flowfabric.tickets t join flowfabric.routes r on r.id = t.route
    join flowfabric.quotas q on q.id = any (r.quotas)
    where (t.phase = 'active' or t.eligibility = 'granted') and not exists (
        select from flowfabric.quota_slots s
        where s.partition = q.partition and s.quota = q.id
          and s.execution_partition = t.partition and s.execution = t.id
          and s.epoch = t.epoch + (t.eligibility = 'granted')::int)"""


def no_stripe_has_more_than_it_counts_and_no_quota_more_than_its_limits() -> str:
    return """
    select q.name, s.number, s.slots, s.entries, h.slots, h.newest, f.* from flowfabric.quotas q
    join flowfabric.quota_stripes s on s.partition = q.partition and s.quota = q.id
    cross join lateral (
        select (select count(*) from flowfabric.quota_slots x
                where x.partition = s.partition and x.quota = s.quota and x.stripe = s.number) as slots,
               (select coalesce(max(e.number), s.newest) from flowfabric.quota_entries e
                where e.partition = s.partition and e.quota = s.quota and e.stripe = s.number) as newest) h
    cross join lateral (
        select sum(greatest(o.slot_share, o.slots)) as all_slots, sum(greatest(o.entry_share, o.entries)) as all_entries
        from flowfabric.quota_stripes o where o.partition = q.partition and o.quota = q.id) f
    where h.slots > s.slots or h.newest <> s.newest or q.name not like '%sinking' and (
        f.all_slots > q.max_concurrent or f.all_entries > q.max_requests_per_window)"""


def no_window_whose_limits_never_sank_admitted_too_many() -> str:
    return """
    select q.name, q.max_requests_per_window, e.number, w.admitted from flowfabric.quotas q
    join flowfabric.quota_entries e on e.partition = q.partition and e.quota = q.id and e.grant_expires_at is null
    cross join lateral (
        select count(*) as admitted from flowfabric.quota_entries o
        where o.partition = q.partition and o.quota = q.id and o.grant_expires_at is null
          and o.at > e.at - q.window_seconds * interval '1 second' and o.at <= e.at) w
    where w.admitted > q.max_requests_per_window and q.name not like '%sinking'"""


def the_entries_of_a_stripe_are_numbered_without_a_gap() -> str:
    return """
    select e.quota, e.stripe, min(e.number), max(e.number), count(*) from flowfabric.quota_entries e
    group by 1, 2 having max(e.number) - min(e.number) + 1 <> count(*)"""


def a_flow_counts_its_members_and_edges() -> str:
    return """
    select f.id, f.node_count, m.members, f.edge_count, d.edges from flowfabric.flows f
    cross join lateral (select count(*) as members from flowfabric.executions e
                        where e.partition = f.partition and e.flow = f.id) m
    cross join lateral (select count(*) as edges from flowfabric.flow_edges e where e.flow = f.id) d
    where f.node_count <> m.members or f.edge_count <> d.edges"""


def the_counters_of_a_group_are_the_states_of_its_edges() -> str:
    return """
    select g.*, c.* from flowfabric.edge_groups g
    cross join lateral (
        select count(*) as edges, count(*) filter (where e.state = 'succeeded') as edges_succeeded,
               count(*) filter (where e.state = 'failed') as edges_failed,
               count(*) filter (where e.state = 'skipped') as edges_skipped
        from flowfabric.flow_edges e where e.partition = g.partition and e.downstream = g.downstream) c
    where (g.total, g.succeeded, g.failed, g.skipped)
       <> (c.edges, c.edges_succeeded, c.edges_failed, c.edges_skipped)"""


def a_pending_group_is_undecided_and_a_decided_group_is_not() -> str:
    return """
    select g.* from flowfabric.edge_groups g
    where g.state = 'pending'
      and flowfabric._judge_group(g.needed, g.total, g.succeeded, g.failed + g.skipped) <> 'pending'"""


def an_edge_of_a_pending_group_has_the_state_of_its_upstream() -> str:
    # A replayed member that had been skipped waits until its upstreams, which have ended, are replayed too.
    return """
    select d.*, u.outcome from flowfabric.flow_edges d
    join flowfabric.edge_groups g on g.partition = d.partition and g.downstream = d.downstream
    join flowfabric.executions u on u.partition = d.partition and u.id = d.upstream
    join flowfabric.executions m on m.partition = d.partition and m.id = d.downstream
    where g.state = 'pending' and d.state <> coalesce(flowfabric._edge_state(u.outcome), 'pending')
      and not (d.state = 'pending' and m.replays > 0)"""


def a_member_is_blocked_exactly_while_its_group_is_pending() -> str:
    return """
    select t.id, t.phase, t.eligibility, g.* from flowfabric.tickets t
    left join flowfabric.edge_groups g on g.partition = t.partition and g.downstream = t.id
    where case when g.total > 0 and g.state = 'pending'
        then t.eligibility not in ('blocked_by_dependencies', 'blocked_by_operator')
        else t.eligibility = 'blocked_by_dependencies' end"""


def no_unfinished_member_waits_for_a_group_that_is_impossible() -> str:
    return """
    select t.id, t.phase, g.* from flowfabric.tickets t
    join flowfabric.edge_groups g on g.partition = t.partition and g.downstream = t.id
    where g.state = 'impossible'"""


def the_epoch_of_an_execution_grows_by_one_with_every_lease() -> str:
    return """
    select l.* from (
        select e.execution, e.id, e.epoch, e.attempt,
               row_number() over story as number, lag(e.attempt, 1, 0) over story as before
        from flowfabric.events e where e.kind = 'lease_acquired'
        window story as (partition by e.execution order by e.id)) l
    where l.epoch <> l.number or l.attempt - l.before not in (0, 1)"""


def a_lease_is_acquired_only_after_the_previous_one_has_ended() -> str:
    return f"""
    select l.* from (
        select e.execution, e.id, e.kind, lag(e.kind) over (partition by e.execution order by e.id) as before
        from flowfabric.events e
        where e.kind = 'lease_acquired' or e.kind in {RELEASES} or e.kind in {ENDS}) l
    where l.kind = 'lease_acquired' and l.before = 'lease_acquired'"""


def an_execution_is_suspended_and_resumed_in_turn() -> str:
    return f"""
    select l.* from (
        select e.execution, e.id, e.kind, lag(e.kind) over (partition by e.execution order by e.id) as before
        from flowfabric.events e
        where e.kind in ('execution_suspended', 'execution_resumed') or e.kind in {ENDS}) l
    where l.kind = 'execution_resumed' and l.before is distinct from 'execution_suspended'
       or l.kind = 'execution_suspended' and l.before = 'execution_suspended'"""


def the_story_of_an_execution_begins_with_its_submission() -> str:
    return """
    select l.* from (
        select e.execution, e.kind, row_number() over (partition by e.execution order by e.id) as number
        from flowfabric.events e where e.execution is not null) l
    where (l.number = 1) <> (l.kind = 'execution_submitted')"""


def after_its_end_only_a_replay_happens_to_an_execution() -> str:
    return f"""
    select l.* from (
        select e.execution, e.id, e.kind, lag(e.kind) over (partition by e.execution order by e.id) as before
        from flowfabric.events e
        where e.execution is not null and e.kind not in {NOTES}) l
    where (l.before in {ENDS}) <> (l.kind = 'execution_replayed')"""


def the_last_event_of_an_ended_execution_is_its_end() -> str:
    return f"""
    select x.id, x.outcome, l.kind from flowfabric.executions x
    cross join lateral (
        select e.kind from flowfabric.events e
        where e.execution = x.id and e.kind not in {NOTES}
        order by e.id desc limit 1) l
    where (x.outcome is not null) <> (l.kind in {ENDS})"""


# Cheap enough to check while the actors act.
STATE: list[Check] = [
    every_unfinished_execution_has_a_ticket_and_no_ended_one_has,
    an_active_ticket_has_a_lease_and_a_running_attempt,
    the_attempts_of_an_execution_are_numbered_without_a_gap,
    nothing_is_left_of_executions_that_were_removed,
    a_valid_idempotency_key_belongs_to_an_existing_execution,
    no_committed_event_is_a_draft,
    an_execution_is_suspended_exactly_while_it_has_an_open_wait,
    an_ended_execution_has_no_open_wait_and_no_open_waitpoint,
    a_waitpoint_is_active_exactly_while_its_wait_is_open,
    of_the_waitpoints_with_the_same_key_only_the_newest_is_open,
    no_execution_is_suspended_by_a_condition_that_its_signals_satisfy,
    a_wait_for_a_child_that_has_ended_is_about_to_be_answered,
    an_unfinished_child_of_an_ended_parent_is_about_to_be_cancelled,
    a_budget_has_used_the_sum_of_its_ledger,
    a_budget_has_reserved_the_sum_of_its_open_reservations,
    no_budget_whose_limits_never_sank_is_over_them,
    no_reservation_of_an_ended_execution_is_open,
    no_quota_whose_limits_never_sank_has_too_many_running,
    every_running_execution_holds_a_slot_of_its_quotas,
    no_window_whose_limits_never_sank_admitted_too_many,
    the_entries_of_a_stripe_are_numbered_without_a_gap,
    no_stripe_has_more_than_it_counts_and_no_quota_more_than_its_limits,
    a_flow_counts_its_members_and_edges,
    the_counters_of_a_group_are_the_states_of_its_edges,
    a_pending_group_is_undecided_and_a_decided_group_is_not,
    an_edge_of_a_pending_group_has_the_state_of_its_upstream,
    a_member_is_blocked_exactly_while_its_group_is_pending,
    no_unfinished_member_waits_for_a_group_that_is_impossible,
]
HISTORY: list[Check] = [
    the_epoch_of_an_execution_grows_by_one_with_every_lease,
    a_lease_is_acquired_only_after_the_previous_one_has_ended,
    an_execution_is_suspended_and_resumed_in_turn,
    the_story_of_an_execution_begins_with_its_submission,
    after_its_end_only_a_replay_happens_to_an_execution,
    the_last_event_of_an_ended_execution_is_its_end,
]
