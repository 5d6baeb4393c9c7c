-- Listing executions: filters, two sort orders, keyset pagination.

-- Find the routes that a budget or a quota closes now. Each budget and quota is evaluated once, however many routes use
-- it, and a hash join finds its routes.
--
--   returns  their ids, among the routes given, or among all routes if `routes` is null
create or replace function flowfabric._limited_routes(routes int[], now timestamptz)
returns int[]
language plpgsql stable set enable_nestloop = off set enable_bitmapscan = off as $$
declare
    closed uuid[];
begin
    if not exists (select from flowfabric.routes r where r.budgets <> '{}' or r.quotas <> '{}') then
        return '{}';
    end if;
    closed := array(
        select b.id from (
            select distinct u.id from flowfabric.routes r cross join lateral unnest(r.budgets) u (id)
            where r.budgets <> '{}' and (_limited_routes.routes is null or r.id = any (_limited_routes.routes))
            offset 0) b
        where coalesce(flowfabric._budgets_closed(array[b.id], _limited_routes.now), true)
        union all
        select q.id from (
            select distinct u.id from flowfabric.routes r cross join lateral unnest(r.quotas) u (id)
            where r.quotas <> '{}' and (_limited_routes.routes is null or r.id = any (_limited_routes.routes))
            offset 0) q
        left join flowfabric.quotas k on k.id = q.id
        where coalesce(flowfabric._quota_room(k, _limited_routes.now, _limited_routes.now, 1), 0) = 0);
    return array(
        select distinct r.id from (
            select r.id, r.lane, r.needs, r as route, u.id as limit_id
            from flowfabric.routes r cross join lateral unnest(r.budgets || r.quotas) u (id)
            where (r.budgets <> '{}' or r.quotas <> '{}')
              and (_limited_routes.routes is null or r.id = any (_limited_routes.routes))) r
        join unnest(closed) c (id) on c.id = r.limit_id
        join flowfabric.lanes l on l.name = r.lane
        -- A paused lane or a lack of workers takes precedence: those routes are not reported as rate limited.
        where l.state <> 'paused' and (r.needs = '{}' or flowfabric._is_covered(r.route, _limited_routes.now)));
end $$;

-- Build the condition that filters executions by public state. If no route is closed by a budget or a quota, the
-- condition for rate_limited is simply false.
--
--   refuses  invalid_body, for an unknown public state
--   returns  the condition, over e (executions) and t (tickets); for an empty list, a condition that is always false
create or replace function flowfabric._state_condition(states text[], limited_count int)
returns text
language plpgsql immutable as $$
declare
    rate_limited constant text := case when _state_condition.limited_count = 0 then 'false' else
        't.phase = ''runnable'' and t.route = any ($14) and (t.eligibility = ''eligible_now'' or '
        || 't.eligibility = ''not_eligible_until_time'' and t.due_at <= $1 or '
        || 't.eligibility = ''granted'' and t.expires_at <= $1)' end;
    conditions text[] := '{false}';
    state text;
begin
    foreach state in array coalesce(_state_condition.states, '{}') loop
        conditions := conditions || case state
            when 'completed' then 'e.outcome = ''success'''
            when 'failed' then 'e.outcome = ''failed'''
            when 'cancelled' then 'e.outcome = ''cancelled'''
            when 'expired' then 'e.outcome = ''expired'''
            when 'skipped' then 'e.outcome = ''skipped'''
            when 'active' then 't.phase = ''active'''
            when 'suspended' then 't.phase = ''suspended'''
            when 'waiting_dependencies' then 't.phase = ''runnable'' and t.eligibility = ''blocked_by_dependencies'''
            when 'delayed'
                then 't.phase = ''runnable'' and t.eligibility = ''not_eligible_until_time'' and t.due_at > $1'
            when 'waiting' then
                't.phase = ''runnable'' and '
                || '(t.eligibility in (''eligible_now'', ''granted'', ''blocked_by_operator'')'
                || ' or t.eligibility = ''not_eligible_until_time'' and t.due_at <= $1)'
                || case when _state_condition.limited_count > 0 then ' and not (' || rate_limited || ')' else '' end
            when 'rate_limited' then rate_limited
        end;
        if conditions[cardinality(conditions)] is null then
            perform flowfabric._refuse('invalid_body', format(
                'state %s is invalid; use waiting, delayed, waiting_dependencies, rate_limited, active, suspended, '
                'completed, failed, cancelled, expired or skipped', flowfabric._shown(state)), '{"field": "state"}');
        end if;
    end loop;
    return '((' || array_to_string(conditions, ') or (') || '))';
end $$;

-- Build the lateral join that looks up the record of each row, one by one, until the page is full. `offset 0` keeps the
-- planner from turning it into a join that reads all records first.
--
--   returns  the join; its alias is e
create or replace function flowfabric._record_lookup(source text)
returns text
language sql immutable as $$
    select format(
        'cross join lateral (
             select e.route, e.task, e.flow, e.outcome from flowfabric.executions e
             where e.partition = %1$s.partition and e.id = %1$s.id offset 0) e', _record_lookup.source)
$$;

-- Build the query for unfinished executions. It reads the tickets, so ended executions cost nothing. It compares a
-- tag's value outside the tag lookup: inside, the planner may read all tags with a rare value for each ticket.
--
--   returns  the query, which yields partition and id
create or replace function flowfabric._unfinished_query(
    tickets_where text, records_where text, place text, tag_key text)
returns text
language sql immutable as $$
    select format(
        'select t.partition, t.id from (
             select t.partition, t.id, t.created_at from flowfabric.tickets t
             where %1$s order by %2$s offset 0) t %3$s %4$s
         where %5$s order by %2$s limit $13',
        _unfinished_query.tickets_where, _unfinished_query.place,
        case when _unfinished_query.records_where <> 'true' then flowfabric._record_lookup('t') end,
        case when _unfinished_query.tag_key is not null then
            'cross join lateral (
                 select g.value from flowfabric.tags g
                 where g.partition = t.partition and g.execution = t.id and g.key = $6 offset 0) g' end,
        concat_ws(' and ', _unfinished_query.records_where,
                  case when _unfinished_query.tag_key is not null then 'g.value = $7' end))
$$;

-- Build the query for executions with a tag, ended or not. It reads the tags in index order, by creation time.
--
--   returns  the query, which yields partition and id
create or replace function flowfabric._tagged_query(tags_where text, records_where text, place text)
returns text
language sql immutable as $$
    select format(
        'select g.partition, g.id from (
             select g.partition, g.execution as id, g.created_at from flowfabric.tags g
             where g.key = $6 and g.value = $7) g %s
         left join flowfabric.tickets t on t.partition = g.partition and t.id = g.id
         where %s and %s order by %s limit $13',
        case when _tagged_query.records_where <> 'true' then flowfabric._record_lookup('g') end,
        _tagged_query.tags_where, _tagged_query.records_where, _tagged_query.place)
$$;

-- Build the query for executions, ended or not. It reads the execution of the key, the children of the parent or the
-- members of the flow, or else an index in the order of the list. For one task, or up to 100 routes, an index on (task
-- or route, creation time) fits. Ordering by that column and filtering it as a range stops the planner from scanning
-- the index on creation time alone, where old executions come after all younger ones.
--
--   returns  the query, which yields partition and id
create or replace function flowfabric._records_query(records_where text, place text, scope text, walk text)
returns text
language sql immutable as $$
    select format(
        case _records_query.walk
            when 'route' then
                'select e.partition, e.id from unnest($2) r (route) cross join lateral (
                     select e.partition, e.id, e.created_at from %1$s
                     where e.route between r.route and r.route and %2$s order by e.route desc, %3$s limit $13) e
                 order by %3$s limit $13'
            when 'task' then
                'select e.partition, e.id from %1$s
                 where e.task between $3 and $3 and %2$s order by e.task desc, %3$s limit $13'
            else 'select e.partition, e.id from %1$s where %2$s order by %3$s limit $13' end,
        case when _records_query.scope is null then 'flowfabric.executions e'
             else '(select * from flowfabric.executions e where ' || _records_query.scope || ' offset 0) e' end
            || ' left join flowfabric.tickets t on t.partition = e.partition and t.id = e.id',
        _records_query.records_where, _records_query.place)
$$;

-- Build the query of a list from the filters given.
--
--   returns  the query, which yields partition and id; list_executions supplies its parameters
create or replace function flowfabric._list_query(
    route_count int, limited_count int, task text, states text[], flow uuid, tag_key text, created_after timestamptz,
    created_before timestamptz, newest_first boolean, after_id uuid, lease_expired boolean, parent uuid,
    with_key boolean)
returns text
language plpgsql immutable as $$
declare
    unfinished constant boolean := coalesce(
        _list_query.lease_expired or not _list_query.states && '{completed,failed,cancelled,expired,skipped}', false);
    -- Few executions have this parent or key, so their tickets and tags are read one by one.
    scoped constant boolean := _list_query.parent is not null or _list_query.with_key;
    source constant text := case when scoped then 'e' when unfinished then 't'
                                 when _list_query.tag_key is not null then 'g' else 'e' end;
    walk constant text := case
        when source <> 'e' or scoped or _list_query.flow is not null or not _list_query.newest_first then 'none'
        when _list_query.route_count <= 100 and _list_query.task is null then 'route'
        when _list_query.route_count is null and _list_query.task is not null then 'task'
        else 'none' end;
    place constant text := format(
        case when _list_query.newest_first then '%1$s.created_at desc, %1$s.partition desc, %1$s.id desc'
             else '%1$s.partition, %1$s.id' end, source);
    place_where constant text := format(
        concat_ws(' and ', 'true',
            case when _list_query.flow is not null then '%1$s.partition = $4' end,
            case when _list_query.created_after is not null then '%1$s.created_at > $8' end,
            case when _list_query.created_before is not null then '%1$s.created_at < $9' end,
            case when _list_query.after_id is not null and _list_query.newest_first then
                '%1$s.created_at <= $10 and (%1$s.created_at, %1$s.partition, %1$s.id) < ($10, $11, $12)' end,
            case when _list_query.after_id is not null and not _list_query.newest_first
                then '(%1$s.partition, %1$s.id) > ($11, $12)' end), source);
    in_states constant text := flowfabric._state_condition(_list_query.states, _list_query.limited_count);
    -- Only active executions have a lease.
    state_where constant text := case
        when _list_query.lease_expired and coalesce('active' = any (_list_query.states), true)
            then 't.phase = ''active'' and t.expires_at <= $1'
        when _list_query.lease_expired then 'false'
        when _list_query.states is not null then in_states end;
    route_where constant text := case when _list_query.route_count is not null and walk <> 'route'
        then '%s.route = any ($2)' end;
    task_where constant text := case when _list_query.task is not null and walk <> 'task' then 'e.task = $3' end;
    flow_where constant text := case when _list_query.flow is not null then 'e.flow = $5' end;
    parent_where constant text := case when _list_query.parent is not null
        then 'e.parent_partition = $15 and e.parent = $16' end;
    key_where constant text := case when _list_query.with_key then 'e.partition = $17 and e.id = $18' end;
    tag_where constant text := case when scoped and _list_query.tag_key is not null then 'e.tags ->> $6 = $7' end;
begin
    return case source
        when 't' then flowfabric._unfinished_query(
            concat_ws(' and ', place_where, state_where, format(route_where, 't')),
            concat_ws(' and ', 'true', task_where, flow_where), place, _list_query.tag_key)
        when 'g' then flowfabric._tagged_query(
            place_where, concat_ws(' and ', 'true', state_where, format(route_where, 'e'), task_where, flow_where),
            place)
        else flowfabric._records_query(
            concat_ws(' and ', place_where, state_where, format(route_where, 'e'), task_where, parent_where, flow_where,
                      tag_where),
            place, coalesce(key_where, parent_where, case when flow_where is not null then 'e.partition = $4 and ' end
                                                     || flow_where), walk)
    end;
end $$;

-- List the executions that match all filters. `key` is an idempotency key of the namespace. Keyset pagination: no page
-- skips or repeats an execution. The query is dynamic SQL, planned for the values given.
--
--   refuses  invalid_limit, invalid_body
--   returns  one summary per row, and one more than `take` if another page follows
create or replace function flowfabric.list_executions(
    namespace text default null, lane text default null, task text default null, states text[] default null,
    flow uuid default null, flow_partition int default null, tag_key text default null, tag_value text default null,
    created_after timestamptz default null, created_before timestamptz default null, newest_first boolean default true,
    after_created timestamptz default null, after_partition int default null, after_id uuid default null,
    take int default 50, lease_expired boolean default false, parent uuid default null,
    parent_partition int default null, key text default null, key_partition int default null)
returns table (summary text)
language plpgsql stable as $$
declare
    now timestamptz := flowfabric.clock();
    routes int[];
    limited int[] := '{}';
    owner record;
begin
    select k.execution_partition as partition, k.execution as id into owner from flowfabric.idempotency_keys k
    where k.partition = list_executions.key_partition and k.namespace = list_executions.namespace
      and k.key = list_executions.key;
    if list_executions.namespace is not null or list_executions.lane is not null then
        select coalesce(array_agg(r.id), '{}') into routes from flowfabric.routes r
        where r.namespace = coalesce(list_executions.namespace, r.namespace)
          and r.lane = coalesce(list_executions.lane, r.lane);
    end if;

    if list_executions.states && '{waiting,rate_limited}' then
        limited := flowfabric._limited_routes(routes, now);
    end if;

    return query execute format(
        'select flowfabric._summary(x.partition, x.id, $1)::text from (%s) x',
        flowfabric._list_query(
            cardinality(routes), cardinality(limited), list_executions.task, list_executions.states,
            list_executions.flow, list_executions.tag_key, list_executions.created_after,
            list_executions.created_before, list_executions.newest_first, list_executions.after_id,
            list_executions.lease_expired, list_executions.parent, list_executions.key is not null))
    using now, routes, list_executions.task, list_executions.flow_partition::smallint, list_executions.flow,
          list_executions.tag_key, list_executions.tag_value, list_executions.created_after,
          list_executions.created_before, list_executions.after_created, list_executions.after_partition::smallint,
          list_executions.after_id, flowfabric._page(list_executions.take), limited,
          list_executions.parent_partition::smallint, list_executions.parent, owner.partition, owner.id;
end $$;
