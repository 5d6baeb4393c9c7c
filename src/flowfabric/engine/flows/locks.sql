-- Locks: the lock order of flows. A flow is locked before the tickets of its members.

-- The unfinished members that may move when these members end: downstream members that are released or skipped, and
-- upstreams that a decided group cancels (cancel_remaining). `wins` says whether the members succeed. Decides wave by
-- wave, as settling does, but changes nothing; a member that does not end after all only makes the answer too long.
-- After 16 waves it gives up and returns all unfinished members of these flows. The caller has locked the flows.
--
--   returns  one row per member, without the given ones
create or replace function flowfabric._affected(partitions smallint[], ids uuid[], flows uuid[], wins boolean)
returns table (partition smallint, id uuid)
language plpgsql stable as $$
declare
    wave_partitions smallint[] := _affected.partitions;
    wave uuid[] := _affected.ids;
    loses boolean[] := array_fill(not _affected.wins, array[cardinality(_affected.ids)]);
    released_partitions smallint[];
    released uuid[];
    next_ones record;
begin
    for number in 1 .. 16 loop
        select array_agg(d.partition) filter (where not d.is_lost) as partitions,
               array_agg(d.id) filter (where not d.is_lost) as ids,
               array_agg(d.partition) filter (where d.is_lost) as lost_partitions,
               array_agg(d.id) filter (where d.is_lost) as lost
        into next_ones from flowfabric._decided_by(wave_partitions, wave, loses) d where not d.id = any (wave);
        released_partitions := next_ones.partitions;
        released := next_ones.ids;
        exit when next_ones.lost is null;
        wave_partitions := wave_partitions || next_ones.lost_partitions;
        wave := wave || next_ones.lost;
        loses := loses || array_fill(true, array[cardinality(next_ones.lost)]);
    end loop;
    if next_ones.lost is not null then
        return query
        select t.partition, t.id from (select distinct f.flow from unnest(_affected.flows) as f (flow)) f
        cross join lateral (
            select t.partition, t.id from flowfabric.tickets t where t.flow = f.flow offset 0) t
        where not t.id = any (_affected.ids);
    elsif released is not null or cardinality(wave) > cardinality(_affected.ids) then
        return query
        select t.partition, t.id
        from unnest(wave_partitions || released_partitions, wave || released)
             with ordinality as x (partition, id, place)
        cross join lateral (
            select t.partition, t.id from flowfabric.tickets t
            where t.partition = x.partition and t.id = x.id offset 0) t
        where x.place > cardinality(_affected.ids);
    end if;
end $$;

-- The members that move next when all these members end: of each group that may leave pending, the downstream member,
-- and the upstreams that the group cancels. A group may be decided both ways, depending on which members do end.
--
--   returns  one row per member, and whether it would end without success
create or replace function flowfabric._decided_by(partitions smallint[], ids uuid[], loses boolean[])
returns table (partition smallint, id uuid, is_lost boolean)
language plpgsql stable as $$
begin
    return query
    with counted as (
        select e.partition, e.downstream, count(*) filter (where not x.loses) as won,
               count(*) filter (where x.loses) as lost
        from unnest(_decided_by.partitions, _decided_by.ids, _decided_by.loses) as x (partition, id, loses)
        cross join lateral (
            select e.partition, e.downstream from flowfabric.flow_edges e
            where e.upstream = x.id and e.partition + 0 = x.partition and e.state = 'pending' offset 0) e
        group by 1, 2
    ), decided as (
        select g.*, g.failed + g.skipped + c.lost > g.total - n.least_of as is_impossible
        from counted c
        cross join lateral (
            select g.* from flowfabric.edge_groups g
            where g.partition = c.partition and g.downstream = c.downstream and g.state = 'pending' offset 0) g
        cross join lateral (select coalesce(g.needed, greatest(g.total, 1))) n (least_of)
        where g.total >= n.least_of
          and (g.succeeded + c.won >= n.least_of or g.failed + g.skipped + c.lost > g.total - n.least_of)
    )
    select m.partition, m.id, bool_or(m.is_lost) from (
        select d.partition, d.downstream as id, d.is_impossible as is_lost from decided d
        union all
        select e.partition, e.upstream, true from decided d
        cross join lateral (
            select e.partition, e.upstream from flowfabric.flow_edges e
            where e.flow = d.flow and e.downstream = d.downstream and e.partition + 0 = d.partition
              and e.state = 'pending' offset 0) e
        where d.cancels) m
    group by 1, 2;
end $$;

-- Lock flows.
--
--   locks    the flows, in key order
create or replace function flowfabric._lock_flows(partitions smallint[], flows uuid[])
returns void
language plpgsql as $$
begin
    perform from (
        select distinct x.partition, x.flow
        from unnest(_lock_flows.partitions, _lock_flows.flows) as x (partition, flow)
        order by x.partition, x.flow) x
    cross join lateral (select from flowfabric.flows f where f.partition = x.partition and f.id = x.flow for update) f;
end $$;

-- Lock the flows of executions whose tickets or records the caller has already locked. The caller has locked these
-- flows before, unless an execution joined one after the caller had looked for them. Such a flow is taken only if it is
-- free: another transaction that has locked it may be waiting for the caller.
--
--   locks    the flows; never waits: the statement fails with lock_not_available
create or replace function flowfabric._take_flows_of(partitions smallint[], ids uuid[])
returns void
language plpgsql as $$
begin
    perform from unnest(_take_flows_of.partitions, _take_flows_of.ids) as x (partition, id)
    cross join lateral (
        select e.flow from flowfabric.executions e where e.partition = x.partition and e.id = x.id offset 0) e
    cross join lateral (
        select from flowfabric.flows f where f.partition = x.partition and f.id = e.flow for update nowait) f;
end $$;

-- The items of a call that are members of flows. A caller that knows the flows (one per item) passes them.
--
--   returns  their partitions, ids and flows; null when there are none
create or replace function flowfabric._members(
    inout partitions int[], inout ids uuid[], inout flows uuid[])
language plpgsql as $$
begin
    select array_agg(x.partition), array_agg(x.id), array_agg(coalesce(x.flow, t.flow)) into partitions, ids, flows
    from unnest(_members.partitions, _members.ids, _members.flows) as x (partition, id, flow)
    left join lateral (
        select t.flow from flowfabric.tickets t
        where _members.flows is null and t.partition = x.partition and t.id = x.id offset 0) t on true
    where coalesce(x.flow, t.flow) is not null;
end $$;

-- Lock the flows of executions that a call may end, before the call locks their tickets. A caller that knows the flows
-- (one per item) passes them, and pays nothing when there are none. The tickets of all members that these ends affect
-- are locked here together with the tickets of the call, then the budgets in which any of them has reservations,
-- together with the `budgets` that the call names. `wins` says whether the executions would end with success.
--
--   locks    the flows, in key order; the tickets, in key order; the budgets of their reservations, in key order
create or replace function flowfabric._lock_for_end(
    partitions int[], ids uuid[], flows uuid[] default null, wins boolean default false,
    budgets uuid[] default '{}')
returns void
language plpgsql as $$
declare
    members record := flowfabric._members(_lock_for_end.partitions, _lock_for_end.ids, _lock_for_end.flows);
    affected record;
begin
    if members.ids is null then
        return;
    end if;
    perform flowfabric._lock_flows(members.partitions::smallint[], members.flows);
    select array_agg(a.partition::int) as partitions, array_agg(a.id) as ids into affected
    from flowfabric._affected(members.partitions::smallint[], members.ids, members.flows, _lock_for_end.wins) a;
    if affected.ids is not null then
        perform from (
            select distinct x.partition, x.id
            from unnest(affected.partitions || _lock_for_end.partitions, affected.ids || _lock_for_end.ids)
                 as x (partition, id)
            order by x.partition, x.id) x
        cross join lateral (
            select from flowfabric.tickets t where t.partition = x.partition and t.id = x.id for update) t;
        perform flowfabric._lock_reserved_budgets(
            affected.partitions || _lock_for_end.partitions, affected.ids || _lock_for_end.ids,
            _lock_for_end.budgets);
    end if;
end $$;

-- Lock the flows of executions that a breach of one of these budgets would end. Budgets that neither fail nor cancel
-- executions are skipped, and most are of that kind.
create or replace function flowfabric._lock_flows_for_breach(budgets uuid[], partitions int[], ids uuid[])
returns void
language plpgsql as $$
begin
    if exists (
        select from flowfabric.budgets b
        where b.id = any (_lock_flows_for_breach.budgets) and b.on_hard_limit in ('fail', 'cancel')) then
        perform flowfabric._lock_for_end(_lock_flows_for_breach.partitions, _lock_flows_for_breach.ids,
                                         budgets => _lock_flows_for_breach.budgets);
    end if;
end $$;

-- Find the members of a flow that can end now: the tickets of all members that these ends affect can be locked without
-- waiting. If that is not possible for all of them, tries halves of them, then halves of those, beside the members for
-- which it was possible: about 2 * log2(n) tries for one locked ticket. After 50 tries the members that are left count
-- as locked; the order is random, so that the same members are not always left.
--
--   locks    the tickets of the affected members; skips locked ones
--   returns  the members that can end now
create or replace function flowfabric._try_most(partition smallint, ids uuid[], flow uuid, wins boolean)
returns uuid[]
language plpgsql as $$
declare
    members uuid[] := _try_most.ids;
    got uuid[] := '{}';
    firsts int[] := '{1}';
    lasts int[] := array[cardinality(members)];
    first int;
    last int;
    tried uuid[];
begin
    for number in 1 .. 50 loop
        first := firsts[cardinality(firsts)];
        last := lasts[cardinality(lasts)];
        exit when first is null or last < first;
        firsts := trim_array(firsts, 1);
        lasts := trim_array(lasts, 1);
        tried := got || members[first : last];
        if coalesce((
            select bool_and(t.is_ours is not null)
            from flowfabric._affected(array_fill(_try_most.partition, array[cardinality(tried)]), tried,
                                      array[_try_most.flow], _try_most.wins) a
            left join lateral (
                select true as is_ours from flowfabric.tickets t
                where t.partition = a.partition and t.id = a.id for update skip locked) t on true), true)
        then
            got := tried;
        elsif last > first then
            firsts := firsts || ((first + last) / 2 + 1) || first;
            lasts := lasts || last || ((first + last) / 2);
        end if;
        if number = 1 then
            members := array(select m from unnest(members) m order by random());
        end if;
    end loop;
    return got;
end $$;

-- Lock everything that the ends of members need, without waiting: their flows, their own tickets, and the tickets of
-- the members that the ends affect. For sweeps, and for calls that many callers share: they end only the members
-- returned here. `flows` has one per item, and null for executions that need no flow. A member that has ended counts as
-- locked by this transaction.
--
--   locks    the flows, in key order; the tickets; skips locked rows
--   returns  the members that can end now
create or replace function flowfabric._try_members(
    partitions smallint[], ids uuid[], flows uuid[], wins boolean default false)
returns uuid[]
language plpgsql as $$
declare
    got uuid[] := '{}';
    home record;
    free uuid[];
begin
    for home in
        select x.partition, x.flow, array_agg(distinct x.id) as ids
        from unnest(_try_members.partitions, _try_members.ids, _try_members.flows) as x (partition, id, flow)
        where x.flow is not null
        group by 1, 2 order by 1, 2
    loop
        perform from flowfabric.flows f where f.partition = home.partition and f.id = home.flow for update skip locked;
        continue when not found;
        free := array(
            select x.id from unnest(home.ids) as x (id)
            left join lateral (
                select true as is_ours from flowfabric.tickets t
                where t.partition = home.partition and t.id = x.id for update skip locked) t on true
            where t.is_ours or not exists (
                select from flowfabric.tickets t where t.partition = home.partition and t.id = x.id offset 0));
        got := got || flowfabric._try_most(home.partition, free, home.flow, _try_members.wins);
    end loop;
    return got;
end $$;

-- Lock the budgets with reservations of executions that a sweep is about to end, and of members that those ends may
-- cancel, and leave out the executions whose budgets another transaction keeps locked. `members` are the executions
-- whose flows the sweep has locked; the others cancel nobody.
--
--   returns  the executions that can end now, and whether the transaction holds budgets for them
create or replace function flowfabric._with_free_budgets(
    inout partitions smallint[], inout ids uuid[], members uuid[], out holds_budgets boolean)
language plpgsql as $$
declare
    ends record;
    affected record;
    wanted uuid[];
    busy uuid[];
begin
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids, array_agg(t.flow) as flows into ends
    from unnest(_with_free_budgets.partitions, _with_free_budgets.ids) as x (partition, id)
    cross join lateral (
        select t.partition, t.id, t.flow from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.id and t.id = any (_with_free_budgets.members) offset 0) t;
    select array_agg(a.partition) as partitions, array_agg(a.id) as ids into affected
    from flowfabric._affected(ends.partitions, ends.ids, ends.flows, false) a where ends.ids is not null;
    wanted := flowfabric._budgets_to_lock('{}', partitions || affected.partitions, ids || affected.ids);
    holds_budgets := wanted <> '{}';
    if not holds_budgets then
        return;
    end if;
    busy := array(select unnest(wanted) except select unnest(flowfabric._try_budgets(wanted)));
    if busy = '{}' then
        return;
    end if;
    -- A member that affects one with a busy budget cannot end either; which one does is not looked up.
    busy := busy || array(
        select distinct t.flow from unnest(affected.partitions, affected.ids) as x (partition, id)
        cross join lateral (
            select t.flow from flowfabric.tickets t where t.partition = x.partition and t.id = x.id offset 0) t
        where flowfabric._budgets_to_lock('{}', array[x.partition], array[x.id]) && busy);
    select array_agg(x.partition), array_agg(x.id) into partitions, ids
    from unnest(_with_free_budgets.partitions, _with_free_budgets.ids) as x (partition, id)
    where not flowfabric._budgets_to_lock('{}', array[x.partition], array[x.id]) && busy
      and not exists (select from unnest(ends.ids, ends.flows) as e (id, flow)
                      where e.id = x.id and e.flow = any (busy));
end $$;

-- Lock a flow that must exist.
--
--   locks    the flow
create or replace function flowfabric._lock_flow(partition int, id uuid)
returns flowfabric.flows
language plpgsql as $$
declare
    flow flowfabric.flows;
begin
    select f.* into flow from flowfabric.flows f
    where f.partition = _lock_flow.partition and f.id = _lock_flow.id for update;
    if not found then
        perform flowfabric._raise(flowfabric._no_flow_fault(_lock_flow.partition, _lock_flow.id));
    end if;
    return flow;
end $$;

-- Lock a flow that must exist and must not be cancelled.
create or replace function flowfabric._lock_open_flow(partition int, id uuid)
returns flowfabric.flows
language plpgsql as $$
declare
    flow flowfabric.flows := flowfabric._lock_flow(_lock_open_flow.partition, _lock_open_flow.id);
begin
    if flow.cancelled_at is not null then
        perform flowfabric._raise(flowfabric._cancelled_flow_fault(flow));
    end if;
    return flow;
end $$;

-- Build the error for a flow that does not exist.
--
--   refuses  flow_not_found, as a value
create or replace function flowfabric._no_flow_fault(partition int, id uuid)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('flow_not_found',
        format('flow %s does not exist, or retention has removed it; check the id',
               flowfabric._id(_no_flow_fault.partition, _no_flow_fault.id)))
$$;

-- Build the error for a change to a cancelled flow.
--
--   refuses  flow_already_terminal, as a value
create or replace function flowfabric._cancelled_flow_fault(flow flowfabric.flows)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('flow_already_terminal',
        format('flow %s was cancelled at %s and cannot be changed; create another flow',
               flowfabric._id((_cancelled_flow_fault.flow).partition, (_cancelled_flow_fault.flow).id),
               flowfabric._moment((_cancelled_flow_fault.flow).cancelled_at)))
$$;
