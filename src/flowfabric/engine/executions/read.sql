-- Reading executions: describe, list, explain and results. Each call reads from one snapshot.

-- Build the error for an execution that does not exist.
--
--   refuses  execution_not_found, as a value
create or replace function flowfabric._missing_fault(partition int, id uuid)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('execution_not_found',
        format('execution %s does not exist, or retention has removed it; check the id',
               flowfabric._id(_missing_fault.partition, _missing_fault.id)))
$$;

-- Refuse a call about an execution that does not exist.
create or replace function flowfabric._refuse_missing(partition int, id uuid)
returns void
language sql as $$
    select flowfabric._raise(flowfabric._missing_fault(_refuse_missing.partition, _refuse_missing.id))
$$;

-- Build the summary of an execution for a list. It omits payload, result, policy and tags, which may be large.
--
--   returns  the summary, or null if the execution does not exist
create or replace function flowfabric._summary(partition int, id uuid, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    ticket flowfabric.tickets;
    route flowfabric.routes;
    asked record;
begin
    select e.flow, e.parent_partition, e.parent, e.route, e.task, e.creator, e.created_at, e.started_at,
           e.ended_at, e.outcome, e.priority, e.attempt, e.retries, e.reclaims, e.replays, e.version, e.failure,
           e.overridden
    into asked from flowfabric.executions e where e.partition = _summary.partition and e.id = _summary.id;
    if not found then
        return null;
    end if;
    select t.* into ticket from flowfabric.tickets t where t.partition = _summary.partition and t.id = _summary.id;
    select r.* into route from flowfabric.routes r where r.id = asked.route;

    return jsonb_strip_nulls(jsonb_build_object(
        'execution_id', flowfabric._id_json(_summary.partition, _summary.id),
        'flow_id', flowfabric._id_json(_summary.partition, asked.flow),
        'parent_id', flowfabric._id_json(asked.parent_partition, asked.parent),
        'namespace', route.namespace, 'lane', route.lane, 'task', asked.task,
        'version', coalesce(ticket.version, asked.version), 'creator', asked.creator,
        'priority', coalesce(ticket.priority, asked.priority),
        'needs', route.needs, 'budgets', route.budgets, 'quotas', route.quotas,
        'state', flowfabric._state(ticket, asked.outcome, asked.attempt, _summary.now),
        'explanation', case
            when ticket.phase = 'runnable' then flowfabric._explain_runnable(ticket, asked.task, _summary.now)
            when ticket.phase = 'active' then flowfabric._explain_active(ticket, _summary.now)
            when ticket.phase = 'suspended' then flowfabric._explain_suspended(ticket)
            else flowfabric._explain_ended(asked.outcome, asked.ended_at, asked.attempt, asked.failure,
                                           asked.overridden) end,
        'attempt', case when ticket.attempt_state in ('running_attempt', 'attempt_interrupted') then jsonb_build_object(
            'number', ticket.attempt, 'type', ticket.attempt_type, 'started_at', ticket.attempt_started_at) end,
        'lease', case when ticket.phase = 'active' then jsonb_build_object(
            'lease_id', ticket.lease_id, 'epoch', ticket.epoch, 'worker', ticket.worker, 'instance', ticket.instance,
            'expires_at', ticket.expires_at) end,
        'running', (select jsonb_agg(r) from flowfabric._running_steps(ticket) r),
        'suspension', flowfabric._suspension_summary(ticket),
        'counts', jsonb_build_object(
            'attempts', coalesce(ticket.attempt, asked.attempt), 'retries', coalesce(ticket.retries, asked.retries),
            'reclaims', coalesce(ticket.reclaims, asked.reclaims), 'replays', coalesce(ticket.replays, asked.replays)),
        'created_at', asked.created_at, 'started_at', coalesce(ticket.started_at, asked.started_at),
        'due_at', ticket.due_at, 'deadline_at', ticket.deadline_at, 'ended_at', asked.ended_at,
        'failure', asked.failure, 'overridden', asked.overridden));
end $$;

-- Find the given executions that have ended or do not exist.
--
--   returns  their positions in the arrays, from 1
create or replace function flowfabric.list_ended(partitions int[], ids uuid[])
returns table (item int)
language plpgsql stable as $$
begin
    return query
    select x.item::int from unnest(list_ended.partitions, list_ended.ids) with ordinality as x (partition, id, item)
    left join lateral (select true as is_there from flowfabric.tickets t where t.partition = x.partition and t.id = x.id
                       offset 0) t on true
    where t.is_there is null;
end $$;

-- Describe an execution: its whole state, its tags and its policy.
--
--   refuses  execution_not_found
--   returns  the description, and payload and result as bytes if requested; with `with_last_failure` also the failure
--            of the last attempt that failed, with its traceback
create or replace function flowfabric.describe(
    partition int, id uuid, with_payload boolean default false, with_result boolean default false,
    with_last_failure boolean default false,
    out description text, out payload bytea, out encoding text, out result bytea, out result_encoding text)
language plpgsql stable as $$
declare
    summary jsonb := flowfabric._summary(describe.partition, describe.id, flowfabric.clock());
begin
    if summary is null then
        perform flowfabric._refuse_missing(describe.partition, describe.id);
    end if;
    select summary || jsonb_build_object('tags', coalesce(e.tags, '{}'), 'policy', coalesce(e.policy, '{}'))
           || case when describe.with_last_failure then jsonb_build_object('last_failure', case
                  when e.outcome in ('failed', 'expired') and e.attempt_epoch is not null then
                      e.failure || jsonb_strip_nulls(jsonb_build_object('traceback', e.traceback))
                  else (select a.failure from flowfabric.attempts a
                        where a.partition = e.partition and a.execution = e.id and a.lifecycle = 'ended_failure'
                        order by a.number desc limit 1) end) else '{}' end,
           case when describe.with_payload then e.payload end, coalesce(e.encoding, 'json'),
           case when describe.with_result then e.result end, coalesce(e.result_encoding, 'json')
    into description, payload, encoding, result, result_encoding
    from flowfabric.executions e where e.partition = describe.partition and e.id = describe.id;
end $$;

-- Return the outcomes and results of executions, from the first one on, as many as fit into `most` bytes; at least one.
--
--   refuses  execution_not_found, per item
--   returns  per item the outcome (null while the execution is unfinished), the result, the failure; or its refusal
create or replace function flowfabric.get_result(partitions int[], ids uuid[], most bigint default 16777216)
returns table (item int, outcome text, result bytea, encoding text, failure text, refusal text, detail text)
language plpgsql stable as $$
begin
    return query
    select f.item, f.outcome::text, f.result, f.encoding, f.failure::text, f.fault ->> 'code',
           (f.fault - 'code')::text
    from (
        select x.item::int, e.outcome, e.result, coalesce(e.result_encoding, 'json') as encoding, e.failure,
               case when e.id is null then flowfabric._missing_fault(x.partition, x.id) end as fault,
               coalesce(sum(octet_length(e.result)) over (order by x.item), 0) as bytes
        from unnest(get_result.partitions, get_result.ids) with ordinality as x (partition, id, item)
        left join lateral (
            select e.id, e.outcome, e.result, e.result_encoding, e.failure from flowfabric.executions e
            where e.partition = x.partition and e.id = x.id offset 0) e on true) f
    where f.item = 1 or f.bytes <= get_result.most;
end $$;
