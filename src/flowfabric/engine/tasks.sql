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

-- The tasks that live workers have registered. Instances with the same tasks are read together.
--
--   returns  a row per task and version: its lanes, and how many instances have it
create or replace function flowfabric._registered_tasks(namespace text, now timestamptz)
returns table (task text, version int, lanes jsonb, worker_count bigint)
language sql stable as $$
    select t.task ->> 'name', (t.task -> 'version')::int, jsonb_agg(distinct t.task -> 'lane'), sum(w.amount)::bigint
    from (select l.tasks, count(*) as amount
          from flowfabric._live_workers(null, _registered_tasks.namespace, _registered_tasks.now) l group by l.tasks) w
    cross join lateral jsonb_array_elements(w.tasks) t (task)
    group by 1, 2
$$;

-- Unfinished executions that have started under a version of their task: a loose index scan over the versions, and an
-- index range for each of their routes.
--
--   returns  a row per task and version with such executions, counted up to 10,001
create or replace function flowfabric._left_of_versions(namespace text, task text)
returns table (task text, version int, amount bigint)
language sql stable as $$
    with recursive known as (
        (select r.task, r.version from flowfabric.routes r where r.version is not null
         order by r.task, r.version limit 1)
        union all
        select n.task, n.version from known k cross join lateral (
            select r.task, r.version from flowfabric.routes r
            where r.version is not null and (r.task, r.version) > (k.task, k.version)
            order by r.task, r.version limit 1) n
    )
    select k.task, k.version, c.amount from known k cross join lateral (
        select count(*) as amount from (
            select from flowfabric.routes r cross join lateral (
                select from flowfabric.tickets t where t.route = r.id and t.version is not null limit 10001) t
            where r.task = k.task and r.version = k.version
              and (_left_of_versions.namespace is null or r.namespace = _left_of_versions.namespace)
            limit 10001) x) c
    where (_left_of_versions.task is null or k.task = _left_of_versions.task) and c.amount > 0
$$;

-- Unfinished executions without a version, among the first 10,000 tickets: the next run starts them under the newest
-- version of its worker, unless code without versions has saved steps of them, which counts as version 1.
--
--   returns  a row per task: how many there are, and for how many steps are saved
create or replace function flowfabric._left_without_version(namespace text, task text)
returns table (task text, amount bigint, saved_count bigint)
language sql stable as $$
    select e.task, count(*), count(*) filter (where t.attempt > 0 and exists (
        select from flowfabric.steps s where s.partition = t.partition and s.execution = t.id))
    from (select t.partition, t.id, t.route, t.attempt, t.version from flowfabric.tickets t limit 10000) t
    cross join lateral (
        select e.task from flowfabric.executions e where e.partition = t.partition and e.id = t.id offset 0) e
    where t.version is null and (_left_without_version.task is null or e.task = _left_without_version.task)
      and (_left_without_version.namespace is null or exists (
          select from flowfabric.routes r where r.id = t.route and r.namespace = _left_without_version.namespace))
    group by e.task
$$;

-- The tasks that live workers have or that have unfinished executions, by name, or only one of them.
--
--   returns  a row per task, as list_tasks has it
create or replace function flowfabric._tasks(namespace text, task text, after text, take int)
returns table (name text, new_count bigint, is_exact boolean, versions jsonb)
language plpgsql stable as $$
declare
    now timestamptz := flowfabric.clock();
    is_all boolean := (select count(*) from (select from flowfabric.tickets t limit 10001) x) <= 10000;
begin
    return query
    with registered as materialized (
        select r.* from flowfabric._registered_tasks(_tasks.namespace, now) r
        where _tasks.task is null or r.task = _tasks.task
    ), started as materialized (
        select s.* from flowfabric._left_of_versions(_tasks.namespace, _tasks.task) s
    ), others as materialized (
        select o.* from flowfabric._left_without_version(_tasks.namespace, _tasks.task) o
    ), named as (
        select n.name from (select r.task collate "C" as name from registered r union select s.task from started s
                            union select o.task from others o) n
        where n.name > coalesce(_tasks.after, '')
        order by n.name limit _tasks.take
    ), numbered as (
        -- If there is nothing but version 1, it will run what no version has started.
        select n.name, coalesce(o.amount, 0) as amount,
               case when v.newest = 1 then o.amount else o.saved_count end as first_count
        from named n left join others o on o.task = n.name
        cross join lateral (
            select greatest((select max(r.version) from registered r where r.task = n.name),
                            (select max(s.version) from started s where s.task = n.name)) as newest) v
    ), counted as (
        select x.name, x.version, sum(x.amount) as amount, sum(x.worker_count) as worker_count,
               jsonb_agg(x.lanes) filter (where x.lanes is not null) -> 0 as lanes
        from (
            select r.task, r.version, 0, r.worker_count, r.lanes from registered r
            union all
            select s.task, s.version, s.amount, 0, null from started s
            union all
            select n.name, 1, n.first_count, 0, null from numbered n where n.first_count > 0
        ) x (name, version, amount, worker_count, lanes)
        group by x.name, x.version
    )
    select n.name, least(n.amount - coalesce(n.first_count, 0), 10001), is_all, (
               select coalesce(jsonb_agg(jsonb_build_object(
                   'version', c.version, 'left_count', least(c.amount, 10001), 'worker_count', c.worker_count,
                   'lanes', coalesce(c.lanes, '[]')) order by c.version desc), '[]')
               from counted c where c.name = n.name)
    from numbered n order by n.name;
end $$;

-- List the tasks that live workers have or that have unfinished executions, by name (keyset pagination).
--
--   refuses  invalid_limit
--   returns  a row per task: how many unfinished executions no version has started, and a list of its versions, the
--            newest first, as {version, left_count, worker_count, lanes}. Counts stop at 10,001. If there are more than
--            10,000 unfinished executions, those without a version are counted among the first 10,000, and the counts
--            are not exact
create or replace function flowfabric.list_tasks(
    namespace text default null, after text default null, take int default 50)
returns table (name text, new_count bigint, is_exact boolean, versions text)
language sql stable set enable_bitmapscan = off as $$
    select t.name, t.new_count, t.is_exact, t.versions::text
    from flowfabric._tasks(list_tasks.namespace, null, list_tasks.after, flowfabric._page(list_tasks.take)) t
$$;

-- Describe a task that a live worker has or that has unfinished executions.
--
--   returns  a row as list_tasks has it, with the first 20 instances of each version; no row if there is no such task
create or replace function flowfabric.describe_task(task text, namespace text default null)
returns table (name text, new_count bigint, is_exact boolean, versions text)
language sql stable set enable_bitmapscan = off as $$
    select t.name, t.new_count, t.is_exact, (
        select coalesce(jsonb_agg(v.version || jsonb_build_object('instances', array(
            select w.instance from flowfabric._live_workers(null, describe_task.namespace, flowfabric.clock()) w
            where w.tasks @> jsonb_build_array(
                jsonb_build_object('name', describe_task.task, 'version', v.version -> 'version'))
            order by w.instance limit 20)) order by v.number), '[]')
        from jsonb_array_elements(t.versions) with ordinality as v (version, number))::text
    from flowfabric._tasks(describe_task.namespace, describe_task.task, null, 1) t
$$;
