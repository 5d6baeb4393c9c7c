-- Explain: one sentence that says what an execution waits for and what releases it.

-- Count the executions ahead of a ticket in its lane: all with a higher priority, and older ones with the same
-- priority, by a loose index scan over the routes. The count stops at 1,000 executions and 1,000 routes, which bounds
-- the cost for a huge backlog.
create or replace function flowfabric._ahead_of(ticket flowfabric.tickets)
returns bigint
language sql stable set enable_bitmapscan = off as $$
    with recursive same_priority as (
        (select t.route from flowfabric.tickets t
         where t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.lane = (_ahead_of.ticket).lane
           and t.priority = (_ahead_of.ticket).priority
         order by t.route limit 1)
        union all
        select n.route from same_priority s cross join lateral (
            select t.route from flowfabric.tickets t
            where t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.lane = (_ahead_of.ticket).lane
              and t.priority = (_ahead_of.ticket).priority and t.route > s.route
            order by t.route limit 1) n
    )
    select count(*) from (
        (select from flowfabric.tickets t
         where t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.lane = (_ahead_of.ticket).lane
           and t.priority > (_ahead_of.ticket).priority
         order by t.priority desc limit 1000)
        union all
        (select from (select s.route from same_priority s limit 1000) s cross join lateral (
             select from flowfabric.tickets t
             where t.phase = 'runnable' and t.eligibility = 'eligible_now' and t.lane = (_ahead_of.ticket).lane
               and t.priority = (_ahead_of.ticket).priority and t.route = s.route
               and t.created_at < (_ahead_of.ticket).created_at
             order by t.created_at limit 1000) t
         limit 1000)
        limit 1000) ahead
$$;

-- Explain why no worker can claim from a route: name the worker that comes closest and the capabilities it lacks.
create or replace function flowfabric._explain_uncovered(route flowfabric.routes, now timestamptz)
returns text
language sql stable as $$
    select format('no live worker of lane %s has {%s}', (_explain_uncovered.route).lane,
                  array_to_string((_explain_uncovered.route).needs, ', ')) || coalesce(
        (select format('; nearest worker %s lacks {%s}', w.worker, array_to_string(m.missing, ', '))
         from flowfabric.workers w
         cross join lateral (
             select array(select unnest((_explain_uncovered.route).needs)
                          except select unnest(w.capabilities || w.versions) order by 1) as missing) m
         where w.expires_at > _explain_uncovered.now and (_explain_uncovered.route).lane = any (w.lanes)
           and coalesce(w.namespace, (_explain_uncovered.route).namespace) = (_explain_uncovered.route).namespace
         order by cardinality(m.missing), w.instance limit 1), '')
$$;

-- Who has paused a lane, since when, and why.
create or replace function flowfabric._paused_words(lane flowfabric.lanes)
returns text
language sql immutable as $$
    select format('lane %s has been paused since %s by %s%s', (_paused_words.lane).name,
                  flowfabric._moment((_paused_words.lane).since),
                  coalesce((_paused_words.lane).by, 'an unnamed operator'), ': ' || (_paused_words.lane).reason)
$$;

-- Who holds an execution, since when, and why. Without a `by`, a worker held it because its code has changed: then also
-- the version of its task then and now.
create or replace function flowfabric._held_words(hold jsonb)
returns text
language sql stable as $$
    select format(case when _held_words.hold ? 'by' then 'held by %2$s since %1$s%3$s'
                       else 'held since %1$s because its code has changed%3$s' end,
                  flowfabric._moment((_held_words.hold ->> 'since')::timestamptz), _held_words.hold ->> 'by',
                  ': ' || (_held_words.hold ->> 'reason'))
           || case when _held_words.hold -> 'version_then' <> _held_words.hold -> 'version_now' then format(
                       '; its task had version %s then and has version %s now', _held_words.hold -> 'version_then',
                       _held_words.hold -> 'version_now')
                   when _held_words.hold ? 'version_now' then format(
                       '; its task had version %s then, as now', _held_words.hold -> 'version_then')
                   else '' end
$$;

-- Build an explanation.
--
--   returns  {sentence, waits_for, since, releases_at?, released_by?}
create or replace function flowfabric._explanation(
    sentence text, waits_for text, since timestamptz, released_by text default null,
    releases_at timestamptz default null)
returns jsonb
language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'sentence', _explanation.sentence, 'waits_for', _explanation.waits_for, 'since', _explanation.since,
        'released_by', _explanation.released_by, 'releases_at', _explanation.releases_at))
$$;

-- Explain which budget or quota closes a route, and what opens it again.
create or replace function flowfabric._explain_limited(
    route flowfabric.routes, by_budget boolean, since timestamptz, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    budget jsonb;
    quota flowfabric.quotas;
    opens_at timestamptz;
begin
    if _explain_limited.by_budget then
        budget := flowfabric._budget_words(route.budgets, _explain_limited.now);
        opens_at := budget ->> 'next_reset_at';
        return flowfabric._explanation(
            case when budget is null then 'one of its budgets does not exist; use create_budget to create it'
                 else format('budget %s has used %s of %s %s%s; ', budget ->> 'name',
                             flowfabric._number((budget ->> 'used')::bigint),
                             flowfabric._number((budget ->> 'hard_limit')::bigint), budget ->> 'dimension',
                             ' and reserved ' || flowfabric._number(nullif((budget ->> 'reserved')::bigint, 0)))
                      || coalesce('it resets at ' || flowfabric._moment(opens_at), 'raise or reset it') end,
            'budget', _explain_limited.since,
            case when opens_at is null then 'change_budget' else 'time' end, opens_at);
    end if;
    quota := (flowfabric._full_quota(route.quotas, _explain_limited.now)).quota;
    opens_at := flowfabric._next_room_at(quota, _explain_limited.now);
    return flowfabric._explanation(
        case when quota.id is null then 'one of its quotas does not exist; use create_quota to create it'
             when opens_at is not null then
                 format('quota %s admits %s per %s s; it has room again at %s', quota.name,
                        flowfabric._number(quota.max_requests_per_window), flowfabric._number(quota.window_seconds),
                        flowfabric._moment(opens_at))
             else format('quota %s has %s of %s running; it has room again when one of them ends', quota.name,
                         flowfabric._number(flowfabric._held_slots(quota, _explain_limited.now)),
                         flowfabric._number(quota.max_concurrent)) end,
        'quota', _explain_limited.since,
        case when opens_at is null then 'complete' else 'time' end, opens_at);
end $$;

-- Explain what a runnable execution waits for.
create or replace function flowfabric._explain_runnable(ticket flowfabric.tickets, task text, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    lane flowfabric.lanes;
    route flowfabric.routes;
    since timestamptz := greatest(ticket.created_at, ticket.due_at);
    eligibility_state text := flowfabric._eligibility_state(_explain_runnable.ticket, _explain_runnable.now);
    missing text;
begin
    select l.* into lane from flowfabric.lanes l where l.name = ticket.lane;
    select r.* into route from flowfabric.routes r where r.id = ticket.route;
    case eligibility_state
        when 'not_eligible_until_time' then
            return flowfabric._explain_delay(_explain_runnable.ticket, _explain_runnable.task);
        when 'blocked_by_dependencies' then
            return coalesce(flowfabric._explain_turn(_explain_runnable.ticket),
                            flowfabric._explain_dependencies(_explain_runnable.ticket));
        when 'blocked_by_operator' then
            return flowfabric._explanation(
                flowfabric._held_words(ticket.hold) || case when ticket.reason = 'code_changed' then
                    '; deploy a fix and unhold it, or replay it from a step or from scratch'
                    else '; unhold releases it' end,
                'operator', (ticket.hold ->> 'since')::timestamptz, 'unhold');
        when 'blocked_by_lane_state' then
            return flowfabric._explanation(flowfabric._paused_words(lane) || '; resume_lane releases it',
                                           'lane', lane.since, 'resume_lane');
        when 'blocked_by_route' then
            missing := flowfabric._missing_version(route, _explain_runnable.now);
            if missing is not null then
                return flowfabric._explanation(
                    missing || ', under which it has started; start a worker that has it, or replay the execution '
                    'from scratch under another version', 'worker_with_version', since, 'register_worker');
            end if;
            return flowfabric._explanation(
                flowfabric._explain_uncovered(route, _explain_runnable.now) || '; start a worker that has them',
                'capable_worker', since, 'register_worker');
        when 'blocked_by_budget', 'blocked_by_quota' then
            return flowfabric._explain_limited(route, eligibility_state = 'blocked_by_budget', since,
                                               _explain_runnable.now);
        else
            if ticket.eligibility = 'granted' and ticket.expires_at > _explain_runnable.now then
                return flowfabric._explanation(
                    format('granted to worker %s (instance %s) until %s; after that any worker can claim it',
                           ticket.grant_worker, ticket.grant_instance, flowfabric._moment(ticket.expires_at)),
                    'worker', since, 'claim_granted', ticket.expires_at);
            end if;
            missing := flowfabric._missing_task(route, _explain_runnable.task, _explain_runnable.now);
            if missing is not null then
                return flowfabric._explanation(missing, 'worker_with_task', since, 'register_worker');
            end if;
            return flowfabric._explanation(
                format('waits for a worker of lane %s; %s ahead of it', lane.name,
                       flowfabric._number(flowfabric._ahead_of(_explain_runnable.ticket))),
                'worker', since, 'claim');
    end case;
end $$;

-- Explain what a delayed execution waits for. Without its task, the workers that have the task are not considered.
create or replace function flowfabric._explain_delay(ticket flowfabric.tickets, task text default null)
returns jsonb
language plpgsql stable as $$
declare
    until text := flowfabric._moment(ticket.due_at);
    last_failure jsonb;
    last_end timestamptz;
    policy jsonb;
    reason text;
    missing text;
begin
    if ticket.attempt_state = 'pending_reclaim_attempt' then
        return flowfabric._explanation(
            format('%s leases expired while it ran, so it may be what ended its workers; it runs again at %s, alone',
                   ticket.crashes, until),
            'time', ticket.attempt_started_at, 'time', ticket.due_at);
    end if;
    if ticket.reason = 'waiting_for_retry_backoff' then
        select a.failure, a.ended_at into last_failure, last_end from flowfabric.attempts a
        where a.partition = ticket.partition and a.execution = ticket.id and a.number = ticket.attempt;
        select e.policy into policy from flowfabric.executions e
        where e.partition = ticket.partition and e.id = ticket.id;
        return flowfabric._explanation(
            format('retry %s of %s at %s after: %s', ticket.retries, coalesce(policy #>> '{retry,max_retries}', '3'),
                   until, last_failure ->> 'reason'),
            'time', last_end, 'time', ticket.due_at);
    end if;
    if ticket.reason = 'waiting_for_delay' and ticket.attempt_state = 'attempt_interrupted' then
        select v.detail ->> 'reason' into reason from flowfabric.events v
        where v.execution = ticket.id and v.kind = 'execution_delayed' order by v.id desc limit 1;
        -- A worker gives its reason: it has no such task, or runs as many as its limit allows.
        if reason is not null and _explain_delay.task is not null then
            select flowfabric._missing_task(r, _explain_delay.task, flowfabric.clock()) into missing
            from flowfabric.routes r where r.id = ticket.route;
        end if;
        if missing is not null then
            return flowfabric._explanation(
                format('delayed until %s: %s', until, missing), 'worker_with_task', ticket.created_at,
                'register_worker');
        end if;
    end if;
    return flowfabric._explanation(
        format(case when ticket.reason = 'waiting_for_resume_delay' then 'resumes at %s' else 'delayed until %s' end,
               until) || coalesce(': ' || reason, ''),
        'time', ticket.created_at, 'time', ticket.due_at);
end $$;

-- Where an active execution is: its attempt, and the step that it has run for longest.
--
--   returns  the beginning of a sentence
create or replace function flowfabric._place_words(ticket flowfabric.tickets, now timestamptz)
returns text
language sql stable as $$
    select format('attempt %s', (_place_words.ticket).attempt) || coalesce((
        select format(', step %s %s for %s%s,', (array_agg(r.number))[1], flowfabric._shown((array_agg(r.name))[1]),
                      flowfabric._lasting(_place_words.now - min(r.started_at)),
                      case when count(*) > 1 then format(' and %s more', count(*) - 1) else '' end)
        from flowfabric._running_steps(_place_words.ticket) r having count(*) > 0), '')
$$;

-- Explain which worker runs an active execution.
create or replace function flowfabric._explain_active(ticket flowfabric.tickets, now timestamptz)
returns jsonb
language sql stable as $$
    select case when (_explain_active.ticket).expires_at > _explain_active.now
        then flowfabric._explanation(
            format('%s runs on %s (instance %s), lease until %s',
                   flowfabric._place_words(_explain_active.ticket, _explain_active.now),
                   (_explain_active.ticket).worker, (_explain_active.ticket).instance,
                   flowfabric._moment((_explain_active.ticket).expires_at)),
            'worker_outcome', (_explain_active.ticket).attempt_started_at,
            'complete', (_explain_active.ticket).expires_at)
        else flowfabric._explanation(
            format('attempt %s ran on %s (instance %s); its lease expired at %s and the next sweep reclaims it',
                   (_explain_active.ticket).attempt, (_explain_active.ticket).worker, (_explain_active.ticket).instance,
                   flowfabric._moment((_explain_active.ticket).expires_at)),
            'expire_leases', (_explain_active.ticket).expires_at, 'expire_leases')
    end
$$;

-- Explain how an execution ended.
create or replace function flowfabric._explain_ended(
    outcome flowfabric.outcome, ended_at timestamptz, attempts int, failure jsonb, overridden jsonb)
returns jsonb
language sql immutable as $$
    select flowfabric._explanation(
        format('%s at %s%s%s', flowfabric._ended_state(_explain_ended.outcome),
               flowfabric._moment(_explain_ended.ended_at),
               case when _explain_ended.outcome = 'failed' then
                   format(' after %s attempt%s', _explain_ended.attempts,
                          case when _explain_ended.attempts = 1 then '' else 's' end)
                   else '' end,
               coalesce(', overridden by ' || (_explain_ended.overridden ->> 'by')
                            || ': ' || (_explain_ended.overridden ->> 'reason'),
                        ': ' || (_explain_ended.failure ->> 'reason'), '')),
        'nothing', _explain_ended.ended_at, case when _explain_ended.outcome <> 'success' then 'replay' end)
$$;

-- Explain in one sentence what an execution waits for and what releases it.
--
--   refuses  execution_not_found
--   returns  {sentence, waits_for, since, releases_at?, released_by?}
create or replace function flowfabric.explain(partition int, id uuid)
returns text
language plpgsql stable as $$
declare
    summary jsonb := flowfabric._summary(explain.partition, explain.id, flowfabric.clock());
begin
    if summary is null then
        perform flowfabric._refuse_missing(explain.partition, explain.id);
    end if;
    return summary -> 'explanation';
end $$;
