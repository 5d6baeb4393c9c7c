-- Tasks: which of them the live workers have registered, and in which versions. A task that no live worker has is
-- usually misspelt.

-- Compare two names by the pairs of neighbouring characters that they share (Dice coefficient).
--
--   returns  0 for nothing in common, 1 for the same pairs
create or replace function flowfabric._similarity(one text, other text)
returns numeric
language sql immutable as $$
    with pairs as (
        select x.side, substr(x.name, n, 2) as pair
        from (values (1, '^' || lower(left(_similarity.one, 64)) || '$'),
                     (2, '^' || lower(left(_similarity.other, 64)) || '$')) x (side, name)
        cross join lateral generate_series(1, length(x.name) - 1) n
    ), counted as (
        select p.pair, count(*) filter (where p.side = 1) as ones, count(*) filter (where p.side = 2) as others
        from pairs p group by p.pair
    )
    select 2.0 * sum(least(c.ones, c.others)) / sum(c.ones + c.others) from counted c
$$;

-- The live workers that serve a lane and a namespace; null stands for any. An instance whose lock is missing is
-- probably dead and does not count.
--
--   returns  the workers
create or replace function flowfabric._live_workers(lane text, namespace text, now timestamptz)
returns setof flowfabric.workers
language sql stable as $$
    select w.* from flowfabric.workers w
    where w.expires_at > _live_workers.now and w.lock_missing_since is null
      and (_live_workers.lane is null or _live_workers.lane = any (w.lanes))
      and (_live_workers.namespace is null or w.namespace is null or w.namespace = _live_workers.namespace)
$$;

-- The registered tasks with the most similar names. Compares 100 names of about the same length, of ten workers.
--
--   returns  up to three names, the most similar one first
create or replace function flowfabric._similar_tasks(task text, lane text, namespace text, now timestamptz)
returns text[]
language sql stable as $$
    select array(
        select s.name from (
            select n.name, flowfabric._similarity(n.name, _similar_tasks.task) as similarity
            from (select distinct t.task ->> 'name' as name
                  from (select l.tasks from flowfabric._live_workers(
                            _similar_tasks.lane, _similar_tasks.namespace, _similar_tasks.now) l limit 10) w
                  cross join lateral jsonb_array_elements(w.tasks) t (task)
                  where abs(length(t.task ->> 'name') - length(_similar_tasks.task)) <= 4
                  limit 100) n) s
        where s.similarity >= 0.5
        order by s.similarity desc, s.name limit 3)
$$;

-- Whether no live worker that can claim from a route has a task. A worker that has registered no tasks may have any.
--
--   returns  the sentence that says so, with the most similar name; null if a worker may have it, or none is live
create or replace function flowfabric._missing_task(route flowfabric.routes, task text, now timestamptz)
returns text
language plpgsql stable as $$
#variable_conflict use_column
declare
    is_possible boolean;
begin
    select bool_or(w.tasks is null or w.tasks @> jsonb_build_array(jsonb_build_object('name', _missing_task.task)))
    into is_possible
    from flowfabric._live_workers(route.lane, route.namespace, _missing_task.now) w
    where route.needs <@ (w.capabilities || w.versions);
    if is_possible is distinct from false then
        return null;
    end if;
    return format('no running worker of lane %s has task %s', route.lane, flowfabric._shown(_missing_task.task))
           || coalesce('; did you mean ' || flowfabric._shown((flowfabric._similar_tasks(
               _missing_task.task, route.lane, route.namespace, _missing_task.now))[1]) || '?', '');
end $$;

-- Whether no live worker of a route has the version of the task under which the route's executions have started.
--
--   returns  the sentence that says so, with the versions that are served; null if a worker has it, or the route is not
--            for a version
create or replace function flowfabric._missing_version(route flowfabric.routes, now timestamptz)
returns text
language plpgsql stable as $$
#variable_conflict use_column
declare
    served text[];
begin
    if route.version is null then
        return null;
    end if;
    select array_agg(distinct (t.task -> 'version')::int order by (t.task -> 'version')::int) into served
    from flowfabric._live_workers(route.lane, route.namespace, _missing_version.now) w
    cross join lateral jsonb_array_elements(w.tasks) t (task)
    where t.task ->> 'name' = route.task;
    if route.version::text = any (served) then
        return null;
    end if;
    return format('no running worker of lane %s has version %s of task %s', route.lane, route.version,
                  flowfabric._shown(route.task))
           || coalesce(' (served: version ' || array_to_string(served, ', ') || ')', '');
end $$;

-- Find out whether a live worker of any lane has registered a task.
--
--   returns  'registered'; 'possible' if only workers that registered no tasks may have it; 'missing'; 'no_worker' if
--            none is live; and up to three registered tasks with similar names
create or replace function flowfabric.find_task(
    task text, namespace text default 'default', out outcome text, out nearest text[])
language plpgsql stable as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
begin
    select case when bool_or(w.tasks @> jsonb_build_array(jsonb_build_object('name', find_task.task))) then 'registered'
                when bool_or(w.tasks is null) then 'possible'
                when count(*) > 0 then 'missing'
                else 'no_worker' end
    into outcome from flowfabric._live_workers(null, find_task.namespace, now) w;
    nearest := case when outcome = 'missing'
        then flowfabric._similar_tasks(find_task.task, null, find_task.namespace, now) else '{}' end;
end $$;
