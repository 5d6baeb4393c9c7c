-- Replay: run an execution again that has ended, or that is held because its code has changed.

-- Run an ended execution again, with a new ticket. Epoch and attempt numbers continue, retries and reclaims restart at
-- 0, the old deadline is dropped. The saved steps are kept; or those saved from a step on are deleted, so that they run
-- again; or, with `from_scratch`, all: then it starts under the version of the next worker. A skipped member of a flow
-- waits for its upstream members again. An execution that is held because its code has changed, or that waits for a
-- version of its task that no live worker has, continues in its attempt, so neither an attempt nor a replay is counted,
-- and it keeps its deadline unless another is given. In the second case only `from_scratch` helps.
--
--   moves    ended → runnable: eligible_now or blocked_by_dependencies, pending_replay_attempt; or blocked_by_operator
--            / code_changed → eligible_now
--   locks    its flow; the ticket, or the record; the pending entry to end its children
--   emits    execution_replayed
--   refuses  execution_not_found, execution_not_terminal, max_replays_exhausted, flow_already_terminal, lane_draining,
--            step_not_found, invalid_time, invalid_body
--   returns  'replayed', the lane that now has claimable work, and the execution's public state
create or replace function flowfabric.replay(
    partition int, id uuid, by text, deadline_ms bigint default null, deadline_at timestamptz default null,
    from_step text default null, from_occurrence int default 1, from_scratch boolean default false,
    out outcome text, out lane text, out public_state text)
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    ended record;
    forgotten jsonb;
begin
    perform flowfabric._check_by(replay.by);
    perform flowfabric._raise(case when replay.from_scratch and replay.from_step is not null then
        flowfabric._fault('invalid_body', 'from_step and from_scratch exclude each other; use one of them',
                          '{"field": "from_step"}') end);
    lane := flowfabric._replay_waiting(replay.partition, replay.id, replay.by, replay.deadline_ms, replay.deadline_at,
                                       replay.from_step, replay.from_occurrence, replay.from_scratch, now);
    if lane is not null then
        outcome := 'replayed';
        select flowfabric._public_state(t, flowfabric._eligibility_state(t, now)) into public_state
        from flowfabric.tickets t where t.partition = replay.partition and t.id = replay.id;
        return;
    end if;
    perform flowfabric._lock_flows(array[e.partition], array[e.flow]) from flowfabric.executions e
    where e.partition = replay.partition and e.id = replay.id;
    select e.outcome, e.ended_at, e.replays, e.policy, r.lane, l.state, e.flow,
           case when not replay.from_scratch then e.version end as version into ended
    from flowfabric.executions e join flowfabric.routes r on r.id = e.route join flowfabric.lanes l on l.name = r.lane
    where e.partition = replay.partition and e.id = replay.id for update of e;
    if not found then
        perform flowfabric._refuse_missing(replay.partition, replay.id);
    end if;
    perform flowfabric._take_flows_of(array[replay.partition::smallint], array[replay.id]);
    perform flowfabric._raise(case
        when ended.outcome is null then flowfabric._fault('execution_not_terminal',
            format('execution %s has not ended; wait until it ends, or use cancel to end it',
                   flowfabric._id(replay.partition, replay.id)))
        when ended.replays >= coalesce((ended.policy ->> 'max_replay_count')::int, 10) then
            flowfabric._fault('max_replays_exhausted',
                format('execution %s has reached its limit of %s replays (policy max_replay_count); submit a new one',
                       flowfabric._id(replay.partition, replay.id), flowfabric._number(ended.replays)))
        when ended.flow is not null then (
            select flowfabric._cancelled_flow_fault(f) from flowfabric.flows f
            where f.partition = replay.partition and f.id = ended.flow and f.cancelled_at is not null) end);
    perform flowfabric._raise(case
        when ended.state = 'draining' then flowfabric._draining_fault(ended.lane)
        else flowfabric._deadline_fault(replay.deadline_ms, replay.deadline_at, now) end);

    insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, deadline_at, eligibility, reason,
                                    attempt_state, epoch, attempt, replays, started_at, version, bytes, flow)
    select e.partition, e.id, case when ended.version is null then e.route
                                   else flowfabric._version_route(e.route, e.task, ended.version) end,
           ended.lane, e.priority, e.created_at,
           coalesce(replay.deadline_at, now + replay.deadline_ms * interval '1 ms'), 'eligible_now',
           'waiting_for_worker', 'pending_replay_attempt', e.epoch, e.attempt, e.replays + 1, e.started_at,
           ended.version, flowfabric._large(octet_length(e.payload)), e.flow
    from flowfabric.executions e where e.partition = replay.partition and e.id = replay.id;
    insert into flowfabric.attempts
    select a.* from flowfabric.executions e cross join lateral flowfabric._last_attempt(e) a
    where e.partition = replay.partition and e.id = replay.id;
    update flowfabric.executions e
    set outcome = null, result = null, result_encoding = null, failure = null, overridden = null, ended_at = null,
        attempt_epoch = null, traceback = null, version = null, replays = e.replays + 1
    where e.partition = replay.partition and e.id = replay.id;
    -- The waits in which it ended are requested again.
    delete from flowfabric.waits w
    where w.partition = replay.partition and w.execution = replay.id and w.ended_by = 'ended';
    perform flowfabric._forget_orphans(replay.partition, replay.id, ended.ended_at);
    forgotten := flowfabric._forget_from(replay.partition, replay.id, replay.from_step, replay.from_occurrence,
                                         replay.from_scratch);
    if ended.flow is not null then
        perform flowfabric._reopen(replay.partition, replay.id, ended.flow);
    end if;
    perform flowfabric._append_about(
        'execution_replayed', replay.partition, replay.id, replay.by, jsonb_strip_nulls(jsonb_build_object(
            'previous_outcome', ended.outcome, 'replays', ended.replays + 1) || forgotten));
    outcome := 'replayed';
    lane := ended.lane;
    select flowfabric._public_state(t, flowfabric._eligibility_state(t, now)) into public_state
    from flowfabric.tickets t where t.partition = replay.partition and t.id = replay.id;
end $$;

-- Let an execution run again, in the same attempt, that is held because its code has changed, or whose version no live
-- worker has.
--
--   moves    blocked_by_operator / code_changed → eligible_now; not_eligible_until_time → eligible_now when due
--   locks    the ticket
--   emits    execution_replayed
--   refuses  execution_not_terminal, if what is to be forgotten is too little to help
--   returns  its lane, or null if there is no such ticket
create or replace function flowfabric._replay_waiting(
    partition int, id uuid, by text, deadline_ms bigint, deadline_at timestamptz, from_step text, from_occurrence int,
    from_scratch boolean, now timestamptz)
returns text
language plpgsql as $$
declare
    ticket flowfabric.tickets;
    missing text;
begin
    select t.* into ticket from flowfabric.tickets t
    where t.partition = _replay_waiting.partition and t.id = _replay_waiting.id and t.phase = 'runnable';
    if ticket.reason <> 'code_changed' and ticket.version is not null
       and flowfabric._eligibility_state(ticket, _replay_waiting.now) = 'blocked_by_route' then
        select flowfabric._missing_version(r, _replay_waiting.now) into missing
        from flowfabric.routes r where r.id = ticket.route;
    end if;
    select t.* into ticket from flowfabric.tickets t
    where t.partition = _replay_waiting.partition and t.id = _replay_waiting.id and t.phase = 'runnable'
      and (t.reason = 'code_changed' or missing is not null and t.route = ticket.route) for update;
    if not found then
        return null;
    end if;
    perform flowfabric._raise(case
        when missing is not null and not _replay_waiting.from_scratch then flowfabric._fault(
            'execution_not_terminal', format(
                'execution %s has not ended, and %s; start a worker that has it, or replay the execution from scratch',
                flowfabric._id(_replay_waiting.partition, _replay_waiting.id), missing))
        when _replay_waiting.from_step is null and not _replay_waiting.from_scratch then flowfabric._fault(
            'execution_not_terminal', format(
                'execution %s has not ended, it is held because its code has changed; replay it from a step or from '
                'scratch, or use unhold to continue with what it has saved',
                flowfabric._id(_replay_waiting.partition, _replay_waiting.id)))
        else flowfabric._deadline_fault(_replay_waiting.deadline_ms, _replay_waiting.deadline_at,
                                        _replay_waiting.now) end);
    update flowfabric.tickets t
    set eligibility = 'eligible_now', reason = 'waiting_for_worker', hold = null, due_at = null,
        version = case when not _replay_waiting.from_scratch then t.version end,
        route = case when _replay_waiting.from_scratch and t.version is not null then (
            select e.route from flowfabric.executions e where e.partition = t.partition and e.id = t.id)
            else t.route end,
        deadline_at = coalesce(_replay_waiting.deadline_at,
                               _replay_waiting.now + _replay_waiting.deadline_ms * interval '1 ms', t.deadline_at)
    where t.partition = ticket.partition and t.id = ticket.id;
    perform flowfabric._append_about(
        'execution_replayed', ticket.partition, ticket.id, _replay_waiting.by,
        jsonb_build_object('attempt', ticket.attempt) || flowfabric._forget_from(
            ticket.partition, ticket.id, _replay_waiting.from_step, _replay_waiting.from_occurrence,
            _replay_waiting.from_scratch));
    return ticket.lane;
end $$;
