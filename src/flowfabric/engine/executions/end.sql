-- Ending: the one way an execution ends, whoever ends it.

-- End executions whose tickets the caller has locked: remove the ticket, write how it ended, close the attempt under way,
-- give back what it had set aside of budgets, say so in the log, and settle what its flow makes of it. No caller does any of that by hand. One that knows
-- the places of the tickets gives those instead of their keys.
--
--   moves    any phase → ended
--   locks    the budgets of what they had set aside, in key order; their flows, which a caller that can has taken before
--   emits    execution_completed, execution_failed, execution_cancelled, execution_expired, execution_skipped, waitpoint_closed,
--            reservation_released; for those behind it in a flow edge_group_satisfied, edge_group_impossible
--   returns  how many ended
create or replace function flowfabric._end(
    partitions smallint[], ids uuid[], outcome flowfabric.outcome, results bytea[] default null, encodings text[] default null,
    failures jsonb[] default null, detail jsonb default '{}', by text default null, places tid[] default null)
returns int
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    ended record;
begin
    places := coalesce(places, array(
        select t.place from unnest(_end.partitions, _end.ids) with ordinality as x (partition, id, number)
        left join lateral (
            select t.ctid as place from flowfabric.tickets t where t.partition = x.partition and t.id = x.id offset 0) t on true
        order by x.number));
    with gone as (
        delete from flowfabric.tickets t
        using (
            -- The limit makes the planner expect one: it goes by the places, then, however small it believes the table to be.
            select x.* from unnest(_end.places, _end.results, _end.encodings, _end.failures) as x (place, result, encoding, failure)
            limit cardinality(_end.places)) x
        where t.ctid = x.place
        returning t.partition, t.id, t.priority, t.attempt, t.attempt_type, t.attempt_state, t.worker, t.instance, t.attempt_epoch, t.epoch,
                  t.attempt_started_at, t.started_at, t.retries, t.reclaims, t.replays, t.suspension, x.result, x.encoding, x.failure
    ), closed as (
        insert into flowfabric.attempts (partition, execution, number, type, lifecycle, worker, instance, first_epoch, last_epoch,
                                         started_at, ended_at, failure)
        select g.partition, g.id, g.attempt, g.attempt_type,
               case _end.outcome when 'success' then 'ended_success' when 'cancelled' then 'ended_cancelled'
                                 when 'skipped' then 'ended_cancelled' else 'ended_failure' end::flowfabric.lifecycle,
               g.worker, g.instance, g.attempt_epoch, g.epoch, g.attempt_started_at, now, g.failure
        from gone g where g.attempt_state in ('running_attempt', 'attempt_interrupted')
    ), written as (
        update flowfabric.executions e
        set outcome = _end.outcome, result = g.result, result_encoding = g.encoding, failure = g.failure - 'traceback',
            started_at = g.started_at, ended_at = now, priority = g.priority, attempt = g.attempt, epoch = g.epoch,
            retries = g.retries, reclaims = g.reclaims, replays = g.replays
        from gone g
        where e.partition = g.partition and e.id = g.id
        returning e.partition, e.id, e.parent, e.has_children, g.suspension, e.route, e.tags, e.flow, e.attempt, e.epoch, e.failure,
                  (e.policy ->> 'retention_ms')::bigint * interval '1 ms' as retention
    ), dated as (
        insert into flowfabric.removals (partition, execution, ended_at, remove_at)
        select w.partition, w.id, now, now + w.retention from written w
    )
    select array_agg(w.partition) as partitions, array_agg(w.id) as ids, array_agg(w.route) as routes, array_agg(w.tags) as tags,
           array_agg(w.flow) as flows, array_agg(w.suspension) as suspensions,
           bool_or(w.parent is not null or w.has_children) as have_family,
           array_agg(w.partition) filter (where w.flow is not null) as member_partitions, array_agg(w.id) filter (where w.flow is not null) as members,
           array_agg(jsonb_strip_nulls(jsonb_build_object(
               'outcome', _end.outcome, 'attempt', w.attempt, 'epoch', w.epoch, 'reason', w.failure ->> 'reason')) || _end.detail) as details
    into ended from written w;

    if ended.ids is null then
        return 0;
    end if;
    if ended.have_family then
        insert into flowfabric.child_ends (partition, execution, parent_partition, parent, at)
        select e.partition, e.id, e.parent_partition, e.parent, now
        from unnest(ended.partitions, ended.ids) as x (partition, id)
        cross join lateral (
            select e.partition, e.id, e.parent_partition, e.parent from flowfabric.executions e
            where e.partition = x.partition and e.id = x.id and e.parent is not null
            union all
            select e.partition, e.id, null, null from flowfabric.executions e
            where e.partition = x.partition and e.id = x.id and e.has_children and _end.outcome <> 'success') e;
    end if;
    perform flowfabric._close_waits(ended.partitions, ended.ids, ended.suspensions, _end.outcome);
    perform flowfabric._return_reservations(ended.partitions, ended.ids);
    perform flowfabric._append_each(
        case _end.outcome when 'success' then 'execution_completed' else 'execution_' || _end.outcome end,
        ended.partitions, ended.ids, ended.routes, ended.tags, ended.details, _end.by, ended.flows);
    if ended.members is not null then
        perform flowfabric._settle_flows(ended.member_partitions, ended.members, _end.outcome);
    end if;
    return cardinality(ended.ids);
end $$;

-- A text as it is kept in the record of a failure: the first 4 096 bytes of it, in whole characters.
--
--   returns  the text, cut
create or replace function flowfabric._kept_text(given text)
returns text
language plpgsql immutable as $$
declare
    kept text := left(given, 4096);
begin
    while octet_length(kept) > 4096 loop
        -- A character has at most four bytes, so this never cuts one too many.
        kept := left(kept, length(kept) - (octet_length(kept) - 4096 + 3) / 4);
    end loop;
    return kept;
end $$;
