-- Ends of children: how parent and child learn of each other's end. No transaction locks the tickets of both: an end is
-- recorded with the end itself, and a sweep delivers it afterwards.

-- End waits for children that have ended. Each wait gets a signal with the state of its child, and its result or its
-- failure; if the record of the child was removed, the state is `removed`. The caller has locked the tickets of the
-- parents. `partitions` and `executions` are the execution of each wait.
--
--   moves    waitpoint active → pending, of an alternative
--   emits    signal_delivered
create or replace function flowfabric._answer_children(
    partitions smallint[], executions uuid[], waits uuid[], now timestamptz)
returns void
language plpgsql as $$
declare
    answered record;
begin
    perform flowfabric._lock_log();
    with asked as materialized (
        select w.partition, w.execution, w.id, gen_random_uuid() as signal,
               flowfabric._id(w.child_partition, w.child) as child, last.number,
               coalesce(flowfabric._ended_state(c.outcome), 'removed') as name, c.result_encoding,
               case when c.outcome = 'success' then c.result else convert_to(c.failure::text, 'UTF8') end as payload,
               row_number() over (partition by w.partition, w.execution order by c.ended_at, w.child) as turn,
               e.route, e.tags, e.flow
        from unnest(_answer_children.partitions, _answer_children.executions, _answer_children.waits)
             as x (partition, execution, id)
        cross join lateral (
            select w.partition, w.execution, w.id, w.child_partition, w.child, w.ended_at from flowfabric.waits w
            where w.partition = x.partition and w.execution = x.execution and w.id = x.id offset 0) w
        cross join lateral (
            select e.route, e.tags, e.flow from flowfabric.executions e
            where e.partition = w.partition and e.id = w.execution offset 0) e
        cross join lateral (select coalesce(max(g.number), 0) as number from flowfabric.signals g
                            where g.partition = w.partition and g.execution = w.execution) last
        left join lateral (
            select e.outcome, e.result, e.failure, e.ended_at,
                   case when e.outcome = 'success' then e.result_encoding end as result_encoding
            from flowfabric.executions e where e.partition = w.child_partition and e.id = w.child offset 0) c on true
        where w.ended_at is null
    ), written as (
        insert into flowfabric.signals (partition, execution, id, number, at, name, category, source_type,
                                        source_identity, effect, encoding, payload)
        select a.partition, a.execution, a.signal, a.number + a.turn, _answer_children.now, a.name, 'child', 'system',
               a.child, 'appended_to_waitpoint', a.result_encoding, a.payload
        from asked a
    ), noted as (
        insert into flowfabric.events (at, kind, partition, execution, route, tags, flow, detail)
        select _answer_children.now, 'signal_delivered', a.partition, a.execution, a.route, a.tags, a.flow,
               jsonb_build_object('signal_id', a.signal, 'name', a.name, 'source_type', 'system',
                                  'source_identity', a.child, 'child', a.child, 'effect',
                                  'appended_to_waitpoint')
        from asked a order by a.turn
    )
    select array_agg(a.partition order by a.turn) as partitions,
           array_agg(a.execution order by a.turn) as executions, array_agg(a.id order by a.turn) as waits,
           array_agg(array[a.signal]::text order by a.turn) as satisfiers
    into answered from asked a;
    if answered.waits is not null then
        perform flowfabric._end_waits(
            answered.partitions, answered.executions, answered.waits, 'signal', _answer_children.now,
            answered.satisfiers);
    end if;
end $$;

-- Sweep: notify parents that children have ended, start the next children of maps, and cancel children (orphans) whose
-- parent ended but did not complete. One pass handles many children of one parent, at most `take` of them. Locked rows
-- are left for the next pass. A pass waits for budget locks only once: after it has released the reservations of
-- orphans, it ends.
--
--   moves    suspended → runnable, if a parent has no open wait left; blocked_by_dependencies → eligible_now, or
--            not_eligible_until_time, of the next children of a map; any phase of an orphan → ended: cancelled
--   locks    the tickets of the parents that it notifies, of the children that it starts and of orphans, maps, and the
--            child ends that it handles, skipping locked ones
--   emits    signal_delivered, execution_resumed, execution_cancelled, waitpoint_closed, reservation_released,
--            edge_group_impossible, edge_group_satisfied, execution_skipped
--   returns  how many were handled, the lanes to wake, the executions that ended
create or replace function flowfabric.deliver_child_ends(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set enable_hashjoin = off set enable_mergejoin = off set lock_timeout = '100ms' as $$
declare
    noted record := flowfabric._oldest_child_ends(deliver_child_ends.take, deliver_child_ends.passing);
    notified record := flowfabric._close_child_ends(noted.held, noted.moot);
    gone record;
    orphans record;
begin
    moved := notified.moved;
    lanes := notified.lanes;
    -- Locked parents must not delay the others. With `passing`, the rows to skip are among the oldest.
    if moved < deliver_child_ends.take and deliver_child_ends.passing = 0 and exists (
        select from flowfabric.child_ends c where c.parent is not null
        order by c.at, c.execution offset deliver_child_ends.take - moved limit 1) then
        noted := flowfabric._other_child_ends(deliver_child_ends.take - moved);
        notified := flowfabric._close_child_ends(noted.held, noted.moot);
        moved := moved + notified.moved;
        lanes := lanes || notified.lanes;
    end if;
    for gone in
        select c.ctid as place, c.* from flowfabric.child_ends c
        where c.parent is null and coalesce(c.retry_at, '-infinity') <= flowfabric.clock() order by c.at, c.execution
        limit least(deliver_child_ends.take, 100) for update skip locked
    loop
        exit when moved >= deliver_child_ends.take;
        orphans := flowfabric._cancel_orphans(
            gone.partition, gone.execution, gone.after_partition, gone.after_id, deliver_child_ends.take - moved);
        if orphans.more then
            update flowfabric.child_ends c set after_partition = orphans.last_partition, after_id = orphans.last_id
            where c.ctid = gone.place;
        elsif orphans.are_left then
            -- Later, so that families with locked children do not fill the next pass.
            update flowfabric.child_ends c
            set after_partition = null, after_id = null, retry_at = flowfabric.clock() + interval '1 second'
            where c.ctid = gone.place;
        else
            delete from flowfabric.child_ends c where c.ctid = gone.place;
        end if;
        moved := moved + orphans.passed + (not orphans.more and not orphans.are_left)::int;
        ended := ended || orphans.ended;
        exit when orphans.holds_budgets;
    end loop;
end $$;

-- Find the child ends that can be handled among the oldest `take` + `passing`.
--
--   locks    the tickets of parents, skipping locked ones
--   returns  the ends whose parent is now locked by this transaction, and those whose parent has ended itself
create or replace function flowfabric._oldest_child_ends(
    take int, passing int, out held flowfabric.child_ends[], out moot flowfabric.child_ends[])
language plpgsql as $$
begin
    select array_agg(x.note) filter (where x.is_held), array_agg(x.note) filter (where not x.is_held) into held, moot
    from (
        select n.note, t.is_held
        from (
            select c as note, c.parent_partition, c.parent from flowfabric.child_ends c where c.parent is not null
            order by c.at, c.execution limit _oldest_child_ends.take + _oldest_child_ends.passing) n
        cross join lateral (
            select true as is_held from (
                select from flowfabric.tickets t
                where t.partition = n.parent_partition and t.id = n.parent for update skip locked) t
            union all
            select false where not exists (
                select from flowfabric.tickets t where t.partition = n.parent_partition and t.id = n.parent offset 0)) t
        limit _oldest_child_ends.take offset _oldest_child_ends.passing) x;
end $$;

-- Find child ends that can be handled when the oldest belong to locked parents: a loose index scan over distinct
-- parents, which takes one step per locked parent, however many of its children have ended. It skips up to a thousand
-- locked parents, as many as one batch can lock, and starts at a random parent, so that no parent always comes last.
--
--   locks    the tickets of parents, and those ends, skipping locked ones
--   returns  the ends whose parent is now locked by this transaction, and those whose parent has ended itself
create or replace function flowfabric._other_child_ends(
    take int, out held flowfabric.child_ends[], out moot flowfabric.child_ends[])
language plpgsql as $$
declare
    oldest timestamptz := (
        select c.at from flowfabric.child_ends c where c.parent is not null order by c.at, c.execution limit 1);
    newest timestamptz := (
        select c.at from flowfabric.child_ends c
        where c.parent is not null order by c.at desc, c.execution desc limit 1);
    moment timestamptz := oldest + random() * (newest - oldest);
    first uuid := (select c.parent from flowfabric.child_ends c where c.parent is not null and c.at >= moment
                   order by c.at, c.execution limit 1);
begin
    with recursive families as (
        (select 1 as number, false as wrapped, c.parent_partition, c.parent from flowfabric.child_ends c
         where c.parent >= first order by c.parent limit 1)
        union all
        select f.number + 1, n.* from families f cross join lateral (
            select f.wrapped, c.* from (
                select c.parent_partition, c.parent from flowfabric.child_ends c
                where c.parent > f.parent order by c.parent limit 1) c
            where not f.wrapped or c.parent < first
            union all
            select true, c.* from (
                select c.parent_partition, c.parent from flowfabric.child_ends c
                where c.parent < first order by c.parent limit 1) c
            where not f.wrapped
            limit 1) n
        where f.number < _other_child_ends.take + 1000
    )
    select array_agg(x.note) filter (where x.is_held), array_agg(x.note) filter (where not x.is_held) into held, moot
    from (
        select n.note, f.is_held
        from (
            select f.parent, t.is_held from families f
            cross join lateral (
                select true as is_held from (
                    select from flowfabric.tickets t
                    where t.partition = f.parent_partition and t.id = f.parent for update skip locked) t
                union all
                select false where not exists (
                    select from flowfabric.tickets t
                    where t.partition = f.parent_partition and t.id = f.parent offset 0)) t
            offset 0) f
        cross join lateral (
            -- `between` instead of `=`: with equality, the planner might scan all ends in the order of their time.
            select c as note from flowfabric.child_ends c where c.parent between f.parent and f.parent
            order by c.parent, c.at, c.execution limit _other_child_ends.take for update skip locked) n
        limit _other_child_ends.take) x;
end $$;

-- Notify locked parents of the ends of their children, and delete these ends and those whose parent has ended. Waits
-- for such a child end, a parent with no open wait left resumes, and in a map the next children start. A child that was
-- replayed in between will end again, and its parent waits for that.
--
--   moves    suspended → runnable, if a parent has no open wait left; waitpoint active → pending, of an alternative;
--            blocked_by_dependencies → eligible_now, or not_eligible_until_time
--   locks    the maps and the tickets of children that start, and the ends, skipping locked ones
--   returns  how many were deleted, and the lanes to wake
create or replace function flowfabric._close_child_ends(
    held flowfabric.child_ends[], moot flowfabric.child_ends[], out moved int, out lanes text[])
language plpgsql as $$
declare
    passed record := flowfabric._pass_turns(_close_child_ends.held, _close_child_ends.moot);
    over record;
begin
    lanes := passed.lanes;
    _close_child_ends.held := passed.held;
    _close_child_ends.moot := passed.moot;
    select null::uuid[] as waits into over;
    if _close_child_ends.held is not null then
        select array_agg(w.partition) as partitions, array_agg(w.execution) as executions, array_agg(w.id) as waits
        into over
        from unnest(_close_child_ends.held) n
        cross join lateral (
            select w.* from flowfabric.waits w
            where w.child = n.execution and w.child_partition = n.partition offset 0) w
        where w.execution = n.parent and w.ended_at is null
          and not exists (select from flowfabric.executions e
                          where e.partition = n.partition and e.id = n.execution and e.outcome is null offset 0);
    end if;
    if over.waits is not null then
        perform flowfabric._answer_children(over.partitions, over.executions, over.waits, flowfabric.clock());
        lanes := lanes || flowfabric._resume_finished(over.partitions, over.executions, 'signal');
    end if;
    with closed as (
        delete from flowfabric.child_ends c
        using (select c.place from unnest(_close_child_ends.held || _close_child_ends.moot) n
               cross join lateral (
                   select c.ctid as place from flowfabric.child_ends c
                   where c.at = n.at and c.execution = n.execution and c.parent = n.parent for update skip locked) c) x
        where c.ctid = x.place
        returning 1
    )
    select count(*) into moved from closed;
end $$;

-- Cancel children of an execution that has ended, with keyset pagination: at most `take` children after the given one.
-- Those that are locked are passed over; after the last child the caller starts again from the first, later, if any of
-- them is left. A parent that was replayed meanwhile keeps its children.
--
--   moves    any phase → ended: cancelled
--   locks    the tickets, after their flows, skipping locked ones; the budgets of their reservations, in key order
--   emits    execution_cancelled
--   returns  how many were passed and the last of them, whether there may be more, whether locked ones are left behind
--            the last child, the executions that ended, and whether budgets are locked for that
create or replace function flowfabric._cancel_orphans(
    partition int, parent uuid, after_partition smallint, after_id uuid, take int,
    out passed int, out last_partition smallint, out last_id uuid, out more boolean, out are_left boolean,
    out ended text[], out holds_budgets boolean)
language plpgsql as $$
declare
    next_ones record;
    held uuid[];
    orphans record;
begin
    passed := 0;
    more := false;
    are_left := false;
    last_partition := coalesce(_cancel_orphans.after_partition, -1);
    last_id := coalesce(_cancel_orphans.after_id, '00000000-0000-0000-0000-000000000000');
    if exists (select from flowfabric.tickets t
               where t.partition = _cancel_orphans.partition and t.id = _cancel_orphans.parent) then
        return;
    end if;
    select array_agg(c.partition) as partitions, array_agg(c.id) as ids, count(*)::int as amount into next_ones from (
        -- A row comparison instead of `=`: with equality, the planner might scan all executions in key order.
        select e.parent_partition, e.parent, e.partition, e.id from flowfabric.executions e
        where e.parent is not null
          and (e.parent_partition, e.parent, e.partition, e.id) > (
              _cancel_orphans.partition::smallint, _cancel_orphans.parent, last_partition, last_id)
        order by e.parent_partition, e.parent, e.partition, e.id limit _cancel_orphans.take) c
    where c.parent_partition = _cancel_orphans.partition and c.parent = _cancel_orphans.parent;
    held := (select flowfabric._try_members(array_agg(t.partition), array_agg(t.id), array_agg(t.flow))
             from unnest(next_ones.partitions, next_ones.ids) as x (partition, id)
             cross join lateral (
                 select t.partition, t.id, t.flow from flowfabric.tickets t
                 where t.partition = x.partition and t.id = x.id offset 0) t);
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids into orphans from (
        select t.partition, t.id from unnest(next_ones.partitions, next_ones.ids) as x (partition, id)
        cross join lateral (
            select e.on_parent_end from flowfabric.executions e
            where e.partition = x.partition and e.id = x.id offset 0) e
        cross join lateral (
            select t.partition, t.id from flowfabric.tickets t
            where t.partition = x.partition and t.id = x.id and e.on_parent_end = 'cancel'
              and (t.flow is null or t.id = any (held))
            for update skip locked) t) t;
    orphans := flowfabric._with_free_budgets(orphans.partitions, orphans.ids, held);
    holds_budgets := orphans.holds_budgets;
    if orphans.ids is not null then
        ended := (flowfabric._end(
            orphans.partitions, orphans.ids, 'cancelled', detail => '{"source": "parent_ended"}',
            failures => array_fill(
                jsonb_build_object('class', 'cancelled', 'reason', 'parent_ended'),
                array[cardinality(orphans.ids)]))).ended;
    end if;
    ended := ended || array(select flowfabric._id(x.partition, x.id)
                            from unnest(orphans.partitions, orphans.ids) as x (partition, id));
    passed := next_ones.amount;
    more := next_ones.amount = _cancel_orphans.take;
    last_partition := coalesce(next_ones.partitions[passed], last_partition);
    last_id := coalesce(next_ones.ids[passed], last_id);
    are_left := not more and exists (
        select from (
            select e.partition, e.id, e.parent_partition, e.parent, e.on_parent_end from flowfabric.executions e
            where e.parent is not null
              and (e.parent_partition, e.parent) >= (_cancel_orphans.partition::smallint, _cancel_orphans.parent)
              and (e.parent_partition, e.parent) <= (_cancel_orphans.partition::smallint, _cancel_orphans.parent)
            order by e.parent_partition, e.parent, e.partition, e.id offset 0) e
        cross join lateral (select from flowfabric.tickets t where t.partition = e.partition and t.id = e.id offset 0) t
        where e.on_parent_end = 'cancel');
end $$;

-- Forget the children that were cancelled because their parent had ended, so that a replay submits them again. The
-- replay finds all other children again, and that earlier end no longer cancels any. Waits for a sweep that is just
-- cancelling them.
create or replace function flowfabric._forget_orphans(partition int, id uuid, ended_at timestamptz)
returns void
language plpgsql as $$
begin
    delete from flowfabric.child_ends c
    where c.parent is null and c.at = _forget_orphans.ended_at and c.execution = _forget_orphans.id;
    -- Not a join: the planner might scan one side for each row of the other.
    delete from flowfabric.steps s
    where s.partition = _forget_orphans.partition and s.execution = _forget_orphans.id and s.kind = 'step'
      and coalesce(s.result in (
          select convert_to(to_jsonb(flowfabric._id(e.partition, e.id))::text, 'UTF8') from flowfabric.executions e
          where e.parent_partition = _forget_orphans.partition and e.parent = _forget_orphans.id
            and e.outcome = 'cancelled' and e.failure ->> 'reason' = 'parent_ended'), false);
end $$;
