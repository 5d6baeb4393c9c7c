-- Due times and deadlines: make delayed executions claimable, and end executions past their deadline.

-- Expire executions whose deadline has passed. The caller has locked the tickets.
--
--   moves    any phase → ended: expired
--   locks    the budgets of their reservations, in key order
--   emits    execution_expired
create or replace function flowfabric._expire(partitions smallint[], ids uuid[])
returns void
language plpgsql as $$
begin
    perform flowfabric._end(_expire.partitions, _expire.ids, 'expired', failures => array_fill(
        '{"class": "timeout", "reason": "execution_deadline"}'::jsonb, array[cardinality(_expire.ids)]));
end $$;

-- Sweep: expire executions whose deadline has passed, in any phase.
--
--   moves    any phase → ended: expired
--   locks    the tickets it moves, after their flows, skipping locked ones; the budgets of their reservations, in key
--            order
--   emits    execution_expired
--   returns  how many ended, and their ids
create or replace function flowfabric.expire_executions(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    held uuid[];
    late record;
begin
    held := (select flowfabric._try_for_end(array_agg(d.partition), array_agg(d.id), array_agg(d.flow)) from (
        select t.partition, t.id, t.flow from flowfabric.tickets t where t.deadline_at <= now and t.flow is not null
        order by t.deadline_at, t.partition, t.id limit expire_executions.take + expire_executions.passing) d);
    select array_agg(x.partition) as partitions, array_agg(x.id) as ids,
           array_agg(flowfabric._id(x.partition, x.id)) as names
    into late from (
        select t.partition, t.id from flowfabric.tickets t
        where t.deadline_at <= now and (t.flow is null or t.id = any (held))
        order by t.deadline_at, t.partition, t.id limit expire_executions.take offset expire_executions.passing
        for update skip locked) x;
    moved := coalesce(cardinality(late.ids), 0);
    if moved > 0 then
        perform flowfabric._lock_budgets_for_end(late.partitions, late.ids, held);
        perform flowfabric._expire(late.partitions, late.ids);
        ended := late.names;
    end if;
end $$;

-- Sweep: make due executions claimable. A claim also does this; the sweep covers lanes that no worker claims from.
--
--   moves    not_eligible_until_time → eligible_now
--   locks    the tickets it moves, skipping locked ones
--   returns  how many were moved, and the lanes that now have claimable work
create or replace function flowfabric.promote_due(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    promoted text[];
begin
    promoted := flowfabric._promote(array(select l.name from flowfabric.lanes l), promote_due.take, flowfabric.clock(),
                                    promote_due.passing);
    moved := coalesce(cardinality(promoted), 0);
    lanes := array(select distinct p from unnest(promoted) p);
end $$;
