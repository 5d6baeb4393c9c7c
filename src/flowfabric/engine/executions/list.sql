-- Listing: any filter, either order, page by page.

-- The part of the query that finds executions by public state. Unfinished states are looked for among the tickets, so
-- that a million ended executions cost them nothing.
--
--   refuses  invalid_body, for a word that is no public state
--   returns  the condition, over e (executions) and t (tickets)
create or replace function flowfabric._state_condition(states text[])
returns text
language plpgsql immutable as $$
declare
    conditions text[] := '{}';
    state text;
begin
    foreach state in array states loop
        conditions := conditions || case state
            when 'completed' then 'e.outcome = ''success'''
            when 'failed' then 'e.outcome = ''failed'''
            when 'cancelled' then 'e.outcome = ''cancelled'''
            when 'expired' then 'e.outcome = ''expired'''
            when 'skipped' then 'e.outcome = ''skipped'''
            when 'active' then 't.phase = ''active'''
            when 'suspended' then 't.phase = ''suspended'''
            when 'waiting_children' then 't.phase = ''runnable'' and t.eligibility = ''blocked_by_dependencies'''
            when 'delayed' then 't.phase = ''runnable'' and t.eligibility = ''not_eligible_until_time'' and t.due_at > $1'
            when 'waiting' then 't.phase = ''runnable'' and (t.eligibility in (''eligible_now'', ''granted'', ''blocked_by_operator'')'
                             || ' or t.eligibility = ''not_eligible_until_time'' and t.due_at <= $1)'
            when 'rate_limited' then 'false'
        end;
        if conditions[cardinality(conditions)] is null then
            perform flowfabric._refuse('invalid_body', format('state %s: there is no such public state', flowfabric._shown(state)), '{"field": "state"}');
        end if;
    end loop;
    return '((' || array_to_string(conditions, ') or (') || '))';
end $$;

-- Where the rows come from: tickets when only unfinished states are asked for, records when none is, both otherwise.
--
--   returns  the from clause
create or replace function flowfabric._list_source(states text[], tag_key text)
returns text
language sql immutable as $$
    select 'flowfabric.executions e'
        || case
            when states <@ '{completed,failed,cancelled,expired,skipped}' then ''
            when states && '{completed,failed,cancelled,expired,skipped}' then
                ' left join flowfabric.tickets t on t.partition = e.partition and t.id = e.id'
            else ' join flowfabric.tickets t on t.partition = e.partition and t.id = e.id' end
        || case when tag_key is not null then
            ' join flowfabric.tags g on g.partition = e.partition and g.execution = e.id and g.key = $6 and g.value = $7' else '' end
$$;

-- Find executions. Every filter given must hold; the order and the cursor agree, so that no page loses or repeats one.
-- The query is put together from the filters that are there, and planned for the values given.
--
--   refuses  invalid_limit, invalid_body
--   returns  a summary each, one more than asked for when more follows
create or replace function flowfabric.list_executions(
    namespace text default null, lane text default null, kind text default null, states text[] default null, flow uuid default null,
    flow_partition int default null, tag_key text default null, tag_value text default null, created_after timestamptz default null,
    created_before timestamptz default null, newest_first boolean default true, after_created timestamptz default null,
    after_partition int default null, after_id uuid default null, take int default 50)
returns table (summary text)
language plpgsql stable as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    routes int[];
    sort_key text := case when newest_first then 'g_created_at desc, e.partition desc, e.id desc' else 'e.partition, e.id' end;
    conditions text[] := '{true}';
begin
    if namespace is not null or lane is not null then
        select coalesce(array_agg(r.id), '{}') into routes from flowfabric.routes r
        where r.namespace = coalesce(list_executions.namespace, r.namespace) and r.lane = coalesce(list_executions.lane, r.lane);
        conditions := conditions || case cardinality(routes)
            when 1 then 'e.route = $2[1]' else 'e.route = any ($2)' end;
    end if;
    sort_key := replace(sort_key, 'g_created_at', case when tag_key is not null then 'g.created_at' else 'e.created_at' end);
    conditions := conditions
        || case when kind is not null then 'e.kind = $3' end
        || case when flow is not null then 'e.partition = $4 and e.flow = $5' end
        || case when states is not null then flowfabric._state_condition(states) end
        || case when created_after is not null then 'e.created_at > $8' end
        || case when created_before is not null then 'e.created_at < $9' end
        || case when after_id is not null and newest_first then
               'e.created_at <= $10 and (e.created_at, e.partition, e.id) < ($10, $11, $12)' end
        || case when after_id is not null and not newest_first then '(e.partition, e.id) > ($11, $12)' end;

    return query execute format(
        'select flowfabric._summary(x.partition, x.id, $1)::text from (
             select e.partition, e.id from %s where %s order by %s limit $13) x',
        flowfabric._list_source(coalesce(states, '{completed}'), tag_key),
        array_to_string(conditions, ' and '), sort_key)
    using now, routes, kind, flow_partition::smallint, flow, tag_key, tag_value, created_after, created_before, after_created,
          after_partition::smallint, after_id, flowfabric._page(take);
end $$;
