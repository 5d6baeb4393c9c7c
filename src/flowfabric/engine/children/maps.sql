-- Maps: the children of a `ctx.map`, of which at most `max_running` have started and not ended. The others are blocked
-- until they have a turn.

-- Add new children to their maps, and give turns to as many as may run. A null map is none. The caller has locked the
-- parents, and submitted the children in this transaction.
--
--   moves    runnable → blocked_by_dependencies; with a turn → eligible_now, or not_eligible_until_time
create or replace function flowfabric._join_maps(
    maps uuid[], max_running int[], parent_partitions int[], parents uuid[], numbers int[], partitions int[],
    ids uuid[])
returns void
language plpgsql as $$
begin
    insert into flowfabric.maps as m (id, partition, execution, max_running)
    select distinct on (x.map) x.map, x.partition, x.parent, x.max_running
    from unnest(_join_maps.maps, _join_maps.parent_partitions, _join_maps.parents, _join_maps.max_running)
         as x (map, partition, parent, max_running)
    where x.map is not null order by x.map
    on conflict (partition, id) do update set max_running = excluded.max_running;
    insert into flowfabric.map_children (partition, execution, map, number)
    select x.partition, x.id, x.map, x.number
    from unnest(_join_maps.maps, _join_maps.numbers, _join_maps.partitions, _join_maps.ids)
         as x (map, number, partition, id)
    where x.map is not null;
    update flowfabric.tickets t set eligibility = 'blocked_by_dependencies', reason = 'waiting_for_children'
    from (
        select t.place
        from unnest(_join_maps.maps, _join_maps.partitions, _join_maps.ids) as x (map, partition, id)
        cross join lateral (
            select t.ctid as place from flowfabric.tickets t where t.partition = x.partition and t.id = x.id offset 0) t
        where x.map is not null limit cardinality(_join_maps.ids)) x
    where t.ctid = x.place;
    perform flowfabric._give_turns(array(select distinct x.map from unnest(_join_maps.maps) x (map)
                                         where x.map is not null));
end $$;

-- Give turns to blocked children of maps, in their order, while fewer than `max_running` have one. Locked children are
-- passed over, and children that are about to be cancelled because their parent has ended; then the map is marked, so
-- that the next pass looks at it again. The caller has locked the maps.
--
--   moves    blocked_by_dependencies → eligible_now, or not_eligible_until_time, unless a flow still blocks the child
--   locks    the tickets of the children, skipping locked ones
--   returns  the lanes to wake
create or replace function flowfabric._give_turns(maps uuid[])
returns text[]
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    lanes text[];
begin
    with chosen as materialized (
        select c.*, m.place as map from unnest(_give_turns.maps) as x (map)
        cross join lateral (
            select m.ctid as place, m.id, m.max_running - m.turn_count as room,
                   coalesce((select e.outcome <> 'success' from flowfabric.executions e
                             where e.partition = m.partition and e.id = m.execution), false) as is_lost
            from flowfabric.maps m where m.id = x.map offset 0) m
        cross join lateral (
            select c.ctid as place, t.place as ticket from flowfabric.map_children c
            cross join lateral (
                select t.ctid as place from flowfabric.tickets t
                where t.partition = c.partition and t.id = c.execution for update skip locked) t
            where c.map = m.id and not c.has_turn
              and not (m.is_lost and exists (
                  select from flowfabric.executions e
                  where e.partition = c.partition and e.id = c.execution and e.on_parent_end = 'cancel' offset 0))
            order by c.number limit greatest(m.room, 0)) c
    ), given as (
        update flowfabric.map_children c set has_turn = true from chosen x where c.ctid = x.place
    ), counted as (
        update flowfabric.maps m set turn_count = m.turn_count + x.amount
        from (select x.map, count(*) as amount from chosen x group by 1 limit cardinality(_give_turns.maps)) x
        where m.ctid = x.map
    ), freed as (
        update flowfabric.tickets t
        set eligibility = case when t.due_at > now then 'not_eligible_until_time'
                               else 'eligible_now' end::flowfabric.eligibility,
            reason = case when t.due_at > now then 'waiting_for_delay'
                          else 'waiting_for_worker' end::flowfabric.reason
        from chosen x
        where t.ctid = x.ticket and t.eligibility = 'blocked_by_dependencies' and not flowfabric._awaits(t)
        returning t.lane
    )
    select array_agg(distinct f.lane) into lanes from freed f;
    with looked_at as materialized (
        select m.place, m.has_room, m.max_running > m.turn_count as is_open, m.turn_count = 0 as has_none,
               exists (select from (
                   select from flowfabric.map_children c where c.map = m.id and not c.has_turn
                   order by c.number limit 1) c) as is_waiting -- in order, because a bitmap would read all of them
        from unnest(_give_turns.maps) as x (map)
        cross join lateral (select m.ctid as place, m.* from flowfabric.maps m where m.id = x.map offset 0) m
    ), removed as (
        delete from flowfabric.maps m
        where m.ctid = any (array(select l.place from looked_at l where l.has_none and not l.is_waiting))
    )
    update flowfabric.maps m set has_room = not m.has_room
    where m.ctid = any (array(
        select l.place from looked_at l
        where l.has_room <> (l.is_open and l.is_waiting) and not (l.has_none and not l.is_waiting)));
    return lanes;
end $$;

-- Pass the turns of ended children of maps on to the next ones. Ends of children whose map another transaction has
-- locked are left out, for the next pass. A child that was replayed meanwhile keeps its turn.
--
--   moves    blocked_by_dependencies → eligible_now, or not_eligible_until_time
--   locks    the maps and the tickets of the next children, skipping locked ones
--   returns  the other ends, and the lanes to wake
create or replace function flowfabric._pass_turns(
    inout held flowfabric.child_ends[], inout moot flowfabric.child_ends[], out lanes text[])
language plpgsql as $$
declare
    ended record;
    free uuid[];
    locked uuid[];
begin
    select array_agg(c.map) as maps, array_agg(c.execution) as ids into ended
    from unnest(_pass_turns.held || _pass_turns.moot) n
    cross join lateral (
        select c.map, c.execution from flowfabric.map_children c
        where c.partition = n.partition and c.execution = n.execution offset 0) c;
    if ended.maps is null and not exists (select from flowfabric.maps m where m.has_room) then
        return;
    end if;
    free := array(
        select m.id from (
            select x.map from unnest(ended.maps) as x (map)
            union
            (select m.id from flowfabric.maps m where m.has_room limit 100)
            order by 1) x
        cross join lateral (select m.id from flowfabric.maps m where m.id = x.map for update skip locked) m);
    locked := array(select x.id from unnest(ended.maps, ended.ids) as x (map, id) where x.map <> all (free));
    if locked <> '{}' then
        held := (select array_agg(n) from unnest(_pass_turns.held) n where n.execution <> all (locked));
        moot := (select array_agg(n) from unnest(_pass_turns.moot) n where n.execution <> all (locked));
    end if;
    with gone as (
        delete from flowfabric.map_children c
        using (
            select c.place from unnest(_pass_turns.held || _pass_turns.moot) n
            cross join lateral (
                select c.ctid as place from flowfabric.map_children c
                where c.partition = n.partition and c.execution = n.execution offset 0) c
            where not exists (
                select from flowfabric.executions e
                where e.partition = n.partition and e.id = n.execution and e.outcome is null offset 0)
            limit cardinality(ended.ids)) x
        where c.ctid = x.place
        returning c.map, c.has_turn
    )
    update flowfabric.maps m set turn_count = m.turn_count - x.amount
    from (
        select m.place, g.amount
        from (select g.map, count(*) as amount from gone g where g.has_turn group by 1) g
        cross join lateral (select m.ctid as place from flowfabric.maps m where m.id = g.map offset 0) m
        limit cardinality(free)) x
    where m.ctid = x.place;
    lanes := flowfabric._give_turns(free);
end $$;

-- Whether an execution waits for its turn in a map.
--
--   returns  true or false
create or replace function flowfabric._awaits_turn(partition int, id uuid)
returns boolean
language sql stable as $$
    select exists (
        select from flowfabric.map_children c
        where c.partition = _awaits_turn.partition and c.execution = _awaits_turn.id and not c.has_turn)
$$;

-- Explain what a child of a map waits for.
--
--   returns  the explanation; null if it does not wait for a turn
create or replace function flowfabric._explain_turn(ticket flowfabric.tickets)
returns jsonb
language plpgsql stable as $$
begin
    return (
        select flowfabric._explanation(
            format('waits for its turn: at most %s of the children that execution %s has mapped run at once; %s ahead '
                   'of it', flowfabric._number(m.max_running), flowfabric._id(m.partition, m.execution),
                   flowfabric._number((
                       select count(*) from flowfabric.map_children o
                       where o.map = c.map and not o.has_turn and o.number < c.number))),
            'turn', ticket.created_at, 'complete')
        from flowfabric.map_children c
        join flowfabric.maps m on m.id = c.map
        where c.partition = ticket.partition and c.execution = ticket.id and not c.has_turn);
end $$;
