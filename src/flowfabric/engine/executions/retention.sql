-- Retention: remove ended executions and expired idempotency keys.

-- Sweep: remove ended executions after their retention, with everything that belongs to them. The policy's retention
-- takes precedence over the deployment's. The members of a flow are removed together with the flow, once the retention
-- of all of them has passed. Members of a flow that is locked are retried a minute later, so that they do not fill the
-- next pass. A removal entry is processed as a whole, so a pass may exceed `take` by the executions of one entry.
--
--   locks    the removal entries and the flows, skipping locked ones
--   returns  how many ended executions were processed
create or replace function flowfabric.remove_ended(
    take int default 500, passing int default 0, retention_ms bigint default 604800000, out moved int, out lanes text[],
    out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    retention interval := remove_ended.retention_ms * interval '1 ms';
    entries record;
    items record;
    flows record;
begin
    with defaults as (
        select r.ctid as place, r.amount, r.ended_at + retention as at from flowfabric.removals r
        where r.remove_at is null and r.ended_at <= now - retention
        order by r.ended_at limit remove_ended.take + remove_ended.passing for update skip locked
    ), dated as (
        select r.ctid as place, r.amount, r.remove_at as at from flowfabric.removals r
        where r.remove_at <= now
        order by r.remove_at limit remove_ended.take + remove_ended.passing for update skip locked
    )
    select array_agg(d.place) filter (where d.before < remove_ended.take) as places into entries from (
        select d.place, sum(d.amount) over (order by d.at, d.place) - d.amount as before from (
            select d.* from (select d.* from defaults d union all select d.* from dated d) d
            order by d.at limit remove_ended.take offset remove_ended.passing) d) d;
    select array_agg(x.partition) as partitions, array_agg(x.execution) as ids, array_agg(x.ended_at) as ends
    into items from (
        select x.partition, x.execution, r.ended_at
        from flowfabric.removals r cross join lateral unnest(r.partitions, r.executions) as x (partition, execution)
        where r.ctid = any (entries.places)) x;
    flows := flowfabric._remove_flows(items.partitions, items.ids, retention, now);
    insert into flowfabric.removals (ended_at, remove_at, amount, partitions, executions)
    select x.ended_at, now + interval '1 minute', 1, array[x.partition], array[x.id]
    from unnest(items.partitions, items.ids, items.ends) as x (partition, id, ended_at) where x.id = any (flows.busy);
    delete from flowfabric.removals r where r.ctid = any (entries.places);
    moved := coalesce(cardinality(items.ids), 0);
    with taken as (
        select x.partition, x.id as execution, x.ended_at
        from unnest(items.partitions, items.ids, items.ends) as x (partition, id, ended_at)
        where not x.id = any (flows.busy)
    ), removed as (
        -- An execution that was replayed has another ended_at, or none, and is kept.
        delete from flowfabric.executions e using taken k
        where e.partition = any (array[k.partition]) and e.id between k.execution and k.execution
          and e.ended_at = k.ended_at and e.flow is null
        returning e.partition, e.id
    ), members_removed as (
        delete from flowfabric.executions e using unnest(flows.member_partitions, flows.members) as m (partition, id)
        where e.partition = any (array[m.partition]) and e.id between m.id and m.id
        returning e.partition, e.id
    ), gone as (
        select r.* from removed r union all select m.* from members_removed m
    ), attempts_removed as (
        delete from flowfabric.attempts a using gone r
        where a.partition = any (array[r.partition]) and a.execution between r.id and r.id
    ), steps_removed as (
        delete from flowfabric.steps s using gone r
        where s.partition = any (array[r.partition]) and s.execution between r.id and r.id
    ), waits_removed as (
        delete from flowfabric.waits w using gone r
        where w.partition = any (array[r.partition]) and w.execution between r.id and r.id
    ), waitpoints_removed as (
        delete from flowfabric.waitpoints w using gone r
        where w.partition = any (array[r.partition]) and w.execution between r.id and r.id
    ), signals_removed as (
        delete from flowfabric.signals s using gone r
        where s.partition = any (array[r.partition]) and s.execution between r.id and r.id
    ), streams_left as (
        -- A stream may have more frames than one transaction should delete: trim_frames removes it.
        update flowfabric.streams s set trim_at = '-infinity' from gone r
        where s.partition = any (array[r.partition]) and s.execution between r.id and r.id
    ), spending_removed as (
        delete from flowfabric.spending s using gone r
        where s.partition = any (array[r.partition]) and s.execution between r.id and r.id
    )
    delete from flowfabric.tags g using gone r
    where g.partition = any (array[r.partition]) and g.execution between r.id and r.id;
end $$;

-- Sweep: delete idempotency keys (not signing keys) whose window has expired, unless their execution keeps them, and
-- the idempotency keys of usage reports after a day. A key that is kept is checked again a day later, or in the next
-- pass if its policy has chosen the window.
--
--   locks    the idempotency keys it deletes or keeps, skipping locked ones
--   returns  how many were deleted or kept for another day
create or replace function flowfabric.remove_idempotency_keys(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    old_ones int;
begin
    with expired as (
        select k.ctid as place, flowfabric._keeps_key(k.execution_partition, k.execution) as is_kept
        from flowfabric.idempotency_keys k
        where k.expires_at <= flowfabric.clock()
          and not exists (select from flowfabric.executions e
                          where e.partition = k.execution_partition and e.id = k.execution and e.outcome is null
                            and e.policy ? 'dedup_window_ms')
        order by k.expires_at limit remove_idempotency_keys.take offset remove_idempotency_keys.passing
        for update of k skip locked
    ), kept as (
        update flowfabric.idempotency_keys k set expires_at = flowfabric.clock() + interval '1 day'
        where k.ctid = any (array(select x.place from expired x where x.is_kept)) returning 1
    ), forgotten as (
        delete from flowfabric.idempotency_keys k
        where k.ctid = any (array(select x.place from expired x where not x.is_kept)) returning 1
    )
    select (select count(*) from kept) + (select count(*) from forgotten) into moved;
    delete from flowfabric.usage_keys k where k.ctid = any (array(
        select o.ctid from flowfabric.usage_keys o where o.at <= flowfabric.clock() - interval '24 hours'
        order by o.at limit greatest(remove_idempotency_keys.take - moved, 0) for update skip locked));
    get diagnostics old_ones = row_count;
    moved := moved + old_ones;
end $$;
