-- Ending: the single code path by which every execution ends.

-- Mark a ticket as having waits, reservations or streams to close when its execution ends. The caller has locked the
-- ticket.
create or replace function flowfabric._mark_for_closing(partition int, execution uuid)
returns void
language plpgsql as $$
begin
    update flowfabric.tickets t set ties = true
    where t.partition = _mark_for_closing.partition and t.id = _mark_for_closing.execution and t.ties is null;
end $$;

-- End executions whose tickets the caller has locked: delete the ticket, write outcome and result, close the current
-- attempt, its stream and its waits, release reservations, append the event, and settle the flow. No caller does any of
-- this itself. A caller that knows the tickets' row addresses (ctid) passes `places` instead of keys. The event names
-- the lease that the end took away; the frequent one, of a completion by the lease's holder, needs only the epoch.
--
--   moves    any phase → ended
--   emits    execution_completed, execution_failed, execution_cancelled, execution_expired, execution_skipped
--   returns  if that changed other members of their flows: the lanes where members became claimable, and the first
--            10,000 members that were skipped or cancelled
create or replace function flowfabric._end(
    partitions smallint[], ids uuid[], outcome flowfabric.outcome, results bytea[] default null,
    encodings text[] default null, failures jsonb[] default null, detail jsonb default '{}', by text default null,
    places tid[] default null, out lanes text[], out ended text[])
language plpgsql set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
declare
    now timestamptz := flowfabric.clock();
    event text := case _end.outcome when 'success' then 'execution_completed' else 'execution_' || _end.outcome end;
    done record;
begin
    if _end.places is null then
        _end.places := array(
            select t.place from unnest(_end.partitions, _end.ids) with ordinality as x (partition, id, number)
            left join lateral (
                select t.ctid as place from flowfabric.tickets t where t.partition = x.partition and t.id = x.id
                offset 0) t on true
            order by x.number);
    end if;
    perform flowfabric._lock_log();
    with written as (
        update flowfabric.executions e
        set outcome = _end.outcome, result = x.result, result_encoding = x.encoding, failure = x.failure - 'traceback',
            started_at = t.started_at, ended_at = now, priority = t.priority, attempt = t.attempt, epoch = t.epoch,
            retries = t.retries, reclaims = t.reclaims, replays = t.replays, attempt_type = t.attempt_type,
            attempt_epoch = case when t.attempt_state in ('running_attempt', 'attempt_interrupted')
                                 then t.attempt_epoch end,
            attempt_started_at = t.attempt_started_at, worker = t.worker, instance = t.instance, version = t.version,
            traceback = x.failure -> 'traceback'
        from (select x.* from unnest(_end.places, _end.results, _end.encodings, _end.failures)
                              as x (place, result, encoding, failure)
              limit cardinality(_end.places)) x
        join flowfabric.tickets t on t.ctid = x.place
        where e.partition = any (array[t.partition]) and e.id between t.id and t.id
        returning e.partition, e.id, e.parent is not null or e.has_children as has_family, t.ties,
                  e.route, e.tags, e.flow, e.attempt, e.epoch, e.failure,
                  (e.policy ->> 'retention_ms')::bigint * interval '1 ms' as retention,
                  case when t.phase = 'active' and (_end.outcome <> 'success' or _end.by is not null) then
                     jsonb_build_object('lease_id', t.lease_id, 'worker', t.worker, 'instance', t.instance) end as lease
    ), gone as (
        delete from flowfabric.tickets t where t.ctid = any (_end.places)
    ), dated as (
        insert into flowfabric.removals (ended_at, remove_at, amount, partitions, executions)
        select now, now + w.retention, count(*), array_agg(w.partition), array_agg(w.id) from written w
        group by w.retention
    ), noted as (
        insert into flowfabric.events (at, kind, partition, execution, route, tags, flow, by, epoch, attempt, detail)
        select now, event, w.partition, w.id, w.route, w.tags, w.flow, _end.by, w.epoch, w.attempt,
               flowfabric._end_detail(w.failure, w.lease, _end.detail)
        from written w where w.ties is null
    )
    select array_agg(w.partition) filter (where w.has_family) as kin_partitions,
           array_agg(w.id) filter (where w.has_family) as kin, array_agg(w.lease) filter (where w.ties) as leases,
           array_agg(w.partition) filter (where w.ties) as tied_partitions,
           array_agg(w.id) filter (where w.ties) as tied, array_agg(w.attempt) filter (where w.ties) as attempts,
           array_agg(flowfabric._closed_reason(_end.outcome, w.failure)) filter (where w.ties) as reasons,
           array_agg(w.partition) filter (where w.flow is not null) as member_partitions,
           array_agg(w.id) filter (where w.flow is not null) as members
    into done from written w;
    if done.kin is not null then
        perform flowfabric._queue_child_ends(done.kin_partitions, done.kin, _end.outcome, now);
    end if;
    if done.tied is not null then
        perform flowfabric._close_waits(done.tied_partitions, done.tied, _end.outcome);
        perform flowfabric._return_reservations(done.tied_partitions, done.tied);
        perform flowfabric._close_streams(done.tied_partitions, done.tied, done.attempts, done.reasons);
        -- Appended here, after the events above: the end must be the last event of an execution.
        insert into flowfabric.events (at, kind, partition, execution, route, tags, flow, by, epoch, attempt, detail)
        select now, event, e.partition, e.id, e.route, e.tags, e.flow, _end.by, e.epoch, e.attempt,
               flowfabric._end_detail(e.failure, x.lease, _end.detail)
        from unnest(done.tied_partitions, done.tied, done.leases) as x (partition, id, lease)
        cross join lateral (select e.* from flowfabric.executions e where e.partition = x.partition and e.id = x.id
                            offset 0) e;
    end if;
    if done.members is not null then
        select s.lanes, s.ended into lanes, ended
        from flowfabric._settle_flows(done.member_partitions, done.members, _end.outcome) s;
    end if;
end $$;

-- Queue the ends of executions that have a parent or children, for the sweeps that notify the parent and end the
-- children.
create or replace function flowfabric._queue_child_ends(
    partitions smallint[], ids uuid[], outcome flowfabric.outcome, now timestamptz)
returns void
language plpgsql as $$
begin
    insert into flowfabric.child_ends (partition, execution, parent_partition, parent, at)
    select e.partition, e.id, e.parent_partition, e.parent, _queue_child_ends.now
    from unnest(_queue_child_ends.partitions, _queue_child_ends.ids) as x (partition, id)
    cross join lateral (
        select e.partition, e.id, e.parent_partition, e.parent from flowfabric.executions e
        where e.partition = x.partition and e.id = x.id and e.parent is not null
        union all
        select e.partition, e.id, null, null from flowfabric.executions e
        where e.partition = x.partition and e.id = x.id and e.has_children
          and _queue_child_ends.outcome <> 'success') e;
end $$;

-- Build the detail of an execution's end, as far as the event has no columns for it. Stable, as the functions in it:
-- Postgres would not inline it otherwise.
--
--   returns  the reason if the execution has one, the lease that the end took away, and what the caller adds; usually
--            null
create or replace function flowfabric._end_detail(failure jsonb, lease jsonb, more jsonb)
returns jsonb
language sql stable as $$
    select case when _end_detail.failure ->> 'reason' is not null or _end_detail.lease is not null
                     or _end_detail.more <> '{}'
        then jsonb_strip_nulls(jsonb_build_object('reason', _end_detail.failure ->> 'reason'))
             || coalesce(_end_detail.lease, '{}') || _end_detail.more end
$$;
