-- Ends of waits: a wait completes, times out or is released, or its execution ends.

-- Describe the open waits of a suspension as one: the reason code and the subject that they share, the timeout that
-- comes first, and the keys of their waitpoints, sorted. A suspension by a budget has none.
--
--   returns  one row
create or replace function flowfabric._open_waits(partition int, execution uuid, suspension uuid)
returns table (
    reason_code text, about bytea, about_digest bytea, timeout_at timestamptz, timeout_behavior text, keys text[])
language sql stable as $$
    select case when min(w.reason_code) <> max(w.reason_code) then 'waiting_for_signal'
                else coalesce(min(w.reason_code), 'paused_by_budget') end,
           case when count(*) = 1 then (array_agg(w.about))[1] end,
           case when count(*) = 1 then (array_agg(w.about_digest))[1] end, min(w.timeout_at),
           coalesce((array_agg(w.timeout_behavior order by w.timeout_at nulls last, w.id))[1], 'fail'),
           array(select p.key from flowfabric.waits k cross join unnest(k.waitpoints) as g (id)
                 cross join lateral (select p.key from flowfabric.waitpoints p where p.id = g.id offset 0) p
                 where k.partition = _open_waits.partition and k.execution = _open_waits.execution
                   and k.ended_at is null and k.suspension = _open_waits.suspension
                 order by p.key)
    from flowfabric.waits w
    where w.partition = _open_waits.partition and w.execution = _open_waits.execution and w.ended_at is null
      and w.suspension = _open_waits.suspension
$$;

-- End waits: close their waitpoints, and release the alternatives of those that belong to a choice. If several waits of
-- one choice are given, only the first ends. `satisfiers` holds a list of signal ids per wait, as the text of a uuid[].
-- The caller has locked the tickets.
--
--   moves    waitpoint active → closed; of an alternative active → pending
create or replace function flowfabric._end_waits(
    partitions smallint[], executions uuid[], ids uuid[], ended_by text, now timestamptz,
    satisfiers text[] default null, close_reason text default 'resumed')
returns void
language plpgsql as $$
declare
    over record;
begin
    with first as (
        select f.* from (
            select x.satisfiers, w.*,
                   row_number() over (partition by w.execution, w.suspension, w.choice order by x.number) as turn
            from unnest(_end_waits.partitions, _end_waits.executions, _end_waits.ids, _end_waits.satisfiers)
                 with ordinality as x (partition, execution, id, satisfiers, number)
            cross join lateral (
                select w.ctid as place, w.execution, w.suspension, w.choice, w.ended_at from flowfabric.waits w
                where w.partition = x.partition and w.execution = x.execution and w.id = x.id offset 0) w
            where w.ended_at is null) f
        where f.choice is null or f.turn = 1
    ), ended as (
        update flowfabric.waits w
        set satisfiers = x.satisfiers::uuid[], ended_at = _end_waits.now, timeout_at = null,
            ended_by = _end_waits.ended_by
        from first x where w.ctid = x.place
        returning w.partition, w.execution, w.suspension, w.choice, w.waitpoints
    )
    select array_agg(e.partition) as partitions, array_agg(e.execution) as executions,
           array_agg(e.suspension) as suspensions, array_agg(e.choice) as choices,
           string_agg(array_to_string(e.waitpoints, ','), ',') as waitpoints
    into over from ended e;
    if over.waitpoints is not null then
        perform flowfabric._close_waitpoints(('{' || over.waitpoints || '}')::uuid[], _end_waits.close_reason);
    end if;
    if array_remove(over.choices, null) <> '{}' then
        select array_agg(w.partition) as partitions, array_agg(w.execution) as executions, array_agg(w.id) as ids
        into over
        from unnest(over.partitions, over.executions, over.suspensions, over.choices)
             as x (partition, execution, suspension, choice)
        cross join lateral (
            select w.partition, w.execution, w.id, w.suspension, w.choice from flowfabric.waits w
            where w.partition = x.partition and w.execution = x.execution and w.ended_at is null offset 0) w
        where w.suspension = x.suspension and w.choice = x.choice;
        perform flowfabric._release_waits(over.partitions, over.executions, over.ids, _end_waits.now);
    end if;
end $$;

-- Release waits that the run no longer requests. Their waitpoints stay open for a later wait: tokens stay valid, and
-- signals are buffered. The caller has locked the tickets.
--
--   moves    waitpoint active → pending
create or replace function flowfabric._release_waits(
    partitions smallint[], executions uuid[], ids uuid[], now timestamptz)
returns void
language plpgsql as $$
begin
    with released as (
        delete from flowfabric.waits w
        using (
            select w.place
            from unnest(_release_waits.partitions, _release_waits.executions, _release_waits.ids)
                 as x (partition, execution, id)
            cross join lateral (
                select w.ctid as place from flowfabric.waits w
                where w.partition = x.partition and w.execution = x.execution and w.id = x.id offset 0) w
            limit cardinality(_release_waits.ids)) x
        where w.ctid = x.place
        returning w.id, w.about_digest, w.waitpoints
    )
    update flowfabric.waitpoints p
    set state = 'pending', wait = null, activated_at = null, expires_at = _release_waits.now + interval '30 days',
        question = flowfabric._question(x.id, x.about_digest)
    from (
        select p.place, r.id, r.about_digest from released r cross join lateral unnest(r.waitpoints) as g (id)
        cross join lateral (select p.ctid as place from flowfabric.waitpoints p where p.id = g.id offset 0) p
        limit 2147483647) x
    where p.ctid = x.place;
end $$;

-- Resume executions that have no open wait left; after a timeout, regardless of their other open waits. An execution
-- that a budget has suspended meanwhile still waits for the budget. The caller has locked the tickets.
--
--   moves    suspended → runnable: eligible_now, or not_eligible_until_time / waiting_for_resume_delay
--   returns  the lanes to wake
create or replace function flowfabric._resume_finished(partitions smallint[], executions uuid[], ended_by text)
returns text[]
language plpgsql as $$
declare
    free record;
begin
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids, array_agg(distinct t.lane) as lanes into free
    from (select distinct x.partition, x.execution
          from unnest(_resume_finished.partitions, _resume_finished.executions) as x (partition, execution)) x
    cross join lateral (
        select t.partition, t.id, t.lane, t.phase from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.execution offset 0) t
    where t.phase = 'suspended'
      and (_resume_finished.ended_by = 'timeout' or not exists (
          select from flowfabric.waits w
          where w.partition = t.partition and w.execution = t.id and w.ended_at is null offset 0))
      and not exists (select from flowfabric.budget_waits b
                      where b.partition = t.partition and b.execution = t.id offset 0);
    if free.ids is not null then
        perform flowfabric._resume(free.partitions, free.ids, _resume_finished.ended_by);
    end if;
    return free.lanes;
end $$;

-- End the waits of executions that have ended, and close their waitpoints.
--
--   moves    waitpoint pending, active → closed
create or replace function flowfabric._close_waits(partitions smallint[], ids uuid[], outcome flowfabric.outcome)
returns void
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    open_ones uuid[];
begin
    update flowfabric.waits w set ended_at = flowfabric.clock(), timeout_at = null, ended_by = 'ended'
    from (
        select w.place from unnest(_close_waits.partitions, _close_waits.ids) as x (partition, id)
        cross join lateral (
            select w.ctid as place from flowfabric.waits w
            where w.partition = x.partition and w.execution = x.id and w.ended_at is null offset 0) w
        limit 2147483647) x
    where w.ctid = x.place;
    delete from flowfabric.budget_waits b
    using unnest(_close_waits.partitions, _close_waits.ids) as x (partition, id)
    where b.partition = any (array[x.partition]) and b.execution between x.id and x.id;
    open_ones := array(
        select p.id from unnest(_close_waits.partitions, _close_waits.ids) as x (partition, id)
        cross join lateral (
            select p.id, p.state from flowfabric.waitpoints p
            where p.partition = x.partition and p.execution = x.id offset 0) p
        where p.state <> 'closed');
    if open_ones <> '{}' then
        perform flowfabric._close_waitpoints(
            open_ones, case _close_waits.outcome when 'cancelled' then 'cancelled' else 'ended' end);
    end if;
end $$;
