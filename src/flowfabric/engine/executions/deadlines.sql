-- Due times and deadlines: make delayed executions claimable, and end executions past their deadline.

-- Expire executions whose deadline has passed. The caller has locked the tickets.
--
--   moves    any phase → ended: expired
--   emits    execution_expired
--   returns  members of their flows that ended with them
create or replace function flowfabric._expire(partitions smallint[], ids uuid[])
returns text[]
language plpgsql as $$
begin
    return (flowfabric._end(_expire.partitions, _expire.ids, 'expired', failures => array_fill(
        '{"class": "timeout", "reason": "execution_deadline"}'::jsonb, array[cardinality(_expire.ids)]))).ended;
end $$;

-- Sweep: expire executions whose deadline has passed, in any phase.
--
--   moves    any phase → ended: expired
--   locks    the tickets it moves, after their flows, skipping locked ones; the budgets of their reservations, in key
--            order
--   emits    execution_expired, edge_group_impossible, edge_group_satisfied, execution_cancelled, execution_skipped,
--            reservation_released, waitpoint_closed
--   returns  how many expired and how many could not, no lanes, the executions that ended
create or replace function flowfabric.expire_executions(
    take int default 500, passing int default 0, out moved int, out locked int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    due record;
    held uuid[];
    late record;
begin
    select array_agg(d.partition) as partitions, array_agg(d.id) as ids, array_agg(d.flow) as flows into due from (
        select t.partition, t.id, t.flow from flowfabric.tickets t where t.deadline_at <= now
        order by t.deadline_at, t.partition, t.id limit expire_executions.take offset expire_executions.passing) d;
    held := flowfabric._try_members(due.partitions, due.ids, due.flows);
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids into late
    from unnest(due.partitions, due.ids) as x (partition, id)
    cross join lateral (
        select t.partition, t.id from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.id and t.deadline_at <= now
          and (t.flow is null or t.id = any (held))
        for update skip locked) t;
    late := flowfabric._with_free_budgets(late.partitions, late.ids, held);
    moved := coalesce(cardinality(late.ids), 0);
    locked := coalesce(cardinality(due.ids), 0) - moved;
    if moved > 0 then
        ended := flowfabric._expire(late.partitions, late.ids);
        ended := ended || array(select flowfabric._id(x.partition, x.id)
                                from unnest(late.partitions, late.ids) as x (partition, id));
    end if;
end $$;

-- Sweep: make due executions claimable. A claim does it for its lanes, `among`; the sweep covers lanes that no worker
-- claims from.
--
--   moves    not_eligible_until_time → eligible_now
--   locks    the tickets it moves, skipping locked ones
--   returns  how many were moved, and the lanes that now have claimable work
create or replace function flowfabric.promote_due(
    take int default 500, passing int default 0, among text[] default null, out moved int, out lanes text[],
    out ended text[])
language plpgsql set enable_bitmapscan = off set lock_timeout = '100ms' as $$
begin
    with due as (
        select t.ctid as place from flowfabric.tickets t
        where t.lane = any (coalesce(promote_due.among, array(select l.name from flowfabric.lanes l)))
          and t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time' and t.due_at <= flowfabric.clock()
        limit promote_due.take offset promote_due.passing
        for update skip locked
    ), moved as (
        update flowfabric.tickets t set eligibility = 'eligible_now', reason = 'waiting_for_worker'
        where t.ctid = any (array(select d.place from due d))
        returning t.lane
    )
    select count(*), coalesce(array_agg(distinct m.lane), '{}') into moved, lanes from moved m;
end $$;
