-- Reading flows: where one stands, what is in it, and lists of them. All that one call shows is from one snapshot.

-- How many members of a flow are in each public state. A route is asked once whether it is open, however many wait in it.
--
--   returns  {public_state: number}, without those of which there are none
create or replace function flowfabric._flow_counts(home flowfabric.flows, now timestamptz)
returns jsonb
language sql stable set enable_seqscan = off as $$
    select coalesce(jsonb_object_agg(s.state, s.amount), '{}') from (
        select x.state, sum(x.amount) as amount from (
            select flowfabric._ended_state(e.outcome) as state, count(*) as amount from flowfabric.executions e
            where e.partition = (home).partition and e.flow = (home).id and e.outcome is not null
            group by 1
            union all
            select case
                when t.state <> 'ready' then t.state
                when flowfabric._admission(t.route, _flow_counts.now) in ('blocked_by_budget', 'blocked_by_quota') then 'rate_limited'
                else 'waiting' end, t.amount
            from (
                select case
                    when t.phase <> 'runnable' then t.phase::text
                    when t.eligibility = 'blocked_by_dependencies' then 'waiting_children'
                    when t.eligibility = 'not_eligible_until_time' and t.due_at > _flow_counts.now then 'delayed'
                    when t.eligibility = 'blocked_by_operator' or t.eligibility = 'granted' and t.expires_at > _flow_counts.now then 'waiting'
                    else 'ready' end as state, t.route, count(*) as amount
                from flowfabric.tickets t where t.flow = (home).id
                group by 1, 2) t) x
        group by 1) s
$$;

-- Where a flow stands, from where its members do.
--
--   returns  cancelled, open, failed, completed, running or blocked
create or replace function flowfabric._flow_state(flow flowfabric.flows, counts jsonb)
returns text
language sql immutable as $$
    select case
        when (flow).cancelled_at is not null then 'cancelled'
        when counts = '{}' then 'open'
        when counts - '{completed,failed,cancelled,expired,skipped}'::text[] = '{}' then
            case when counts ?| '{failed,cancelled,expired}' then 'failed' else 'completed' end
        when counts ? 'active' then 'running'
        when counts ?| '{suspended,delayed,rate_limited,waiting_children}' and not counts ? 'waiting' then 'blocked'
        else 'open' end
$$;

-- What a list shows of a flow.
--
--   returns  the summary
create or replace function flowfabric._flow_summary(flow flowfabric.flows, counts jsonb)
returns jsonb
language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'flow_id', flowfabric._id((flow).partition, (flow).id), 'kind', (flow).kind, 'namespace', (flow).namespace,
        'state', flowfabric._flow_state(flow, counts), 'revision', (flow).revision, 'node_count', (flow).node_count,
        'edge_count', (flow).edge_count, 'created_at', (flow).created_at, 'changed_at', (flow).changed_at,
        'cancelled_at', (flow).cancelled_at, 'tags', coalesce((flow).tags, '{}'),
        'cancel', case when (flow).cancelled_at is not null then jsonb_build_object(
            'policy', (flow).cancel_policy, 'reason', (flow).cancel_reason, 'by', (flow).cancel_by) end))
$$;

-- The members of a flow in order of their ids, behind one of them, each with the edges and the group that lead to it.
--
--   refuses  invalid_limit
--   returns  {members, edges, groups, next_cursor?}
create or replace function flowfabric._flow_page(home flowfabric.flows, after uuid, take int, now timestamptz)
returns jsonb
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
declare
    ids uuid[] := array(
        select e.id from flowfabric.executions e
        where e.partition = home.partition and e.flow = home.id and (_flow_page.after is null or e.id > _flow_page.after)
        order by e.id limit flowfabric._page(_flow_page.take));
    more constant boolean := cardinality(ids) > least(take, 1000);
begin
    ids := ids[1:least(take, 1000)];
    return jsonb_strip_nulls(jsonb_build_object(
        'next_cursor', case when more then flowfabric._id(home.partition, ids[cardinality(ids)]) end,
        'members', coalesce((
            select jsonb_agg(jsonb_build_object(
                'execution_id', flowfabric._id(home.partition, e.id), 'task', e.task,
                'public_state', case when e.outcome is not null then flowfabric._ended_state(e.outcome)
                                     else flowfabric._public_state(t, flowfabric._eligibility_state(t, _flow_page.now)) end) order by e.id)
            from flowfabric.executions e left join flowfabric.tickets t on t.partition = e.partition and t.id = e.id
            where e.partition = home.partition and e.id = any (ids)), '[]'),
        'edges', coalesce((
            select jsonb_agg(jsonb_build_object(
                'edge_id', e.id, 'upstream', flowfabric._id(e.partition, e.upstream), 'downstream', flowfabric._id(e.partition, e.downstream),
                'state', e.state, 'pass_as', e.pass_as) order by e.downstream, e.upstream)
            from flowfabric.flow_edges e where e.partition = home.partition and e.downstream = any (ids)), '[]'),
        'groups', coalesce((
            select jsonb_agg(jsonb_build_object(
                'downstream', flowfabric._id(g.partition, g.downstream), 'policy', flowfabric._policy_of_group(g.kind, g.needed, g.cancels),
                'n', g.total, 'succeeded', g.succeeded, 'failed', g.failed, 'skipped', g.skipped,
                'running', g.total - g.succeeded - g.failed - g.skipped, 'state', g.state) order by g.downstream)
            from flowfabric.edge_groups g where g.partition = home.partition and g.downstream = any (ids)), '[]')));
end $$;

-- Show a flow: where it stands, how many members are in which state, and a page of members with what leads to each.
--
--   refuses  flow_not_found, invalid_limit
--   returns  the description
create or replace function flowfabric.describe_flow(partition int, id uuid, after uuid default null, take int default 50)
returns text
language plpgsql stable as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    flow flowfabric.flows;
    counts jsonb;
begin
    select f.* into flow from flowfabric.flows f where f.partition = describe_flow.partition and f.id = describe_flow.id;
    if not found then
        perform flowfabric._raise(flowfabric._no_flow_fault(describe_flow.partition, describe_flow.id));
    end if;
    counts := flowfabric._flow_counts(flow, now);
    return flowfabric._flow_summary(flow, counts) || jsonb_build_object('counts', counts)
        || flowfabric._flow_page(flow, describe_flow.after, describe_flow.take, now);
end $$;

-- Find flows, in order of their ids.
--
--   refuses  invalid_limit, invalid_body
--   returns  a summary each, one more than asked for when more follows
create or replace function flowfabric.list_flows(
    namespace text default null, state text default null, after_partition int default null, after_id uuid default null, take int default 50)
returns table (summary text)
language plpgsql stable as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
begin
    if list_flows.state not in ('open', 'running', 'blocked', 'completed', 'failed', 'cancelled') then
        perform flowfabric._refuse('invalid_body', format('state %s: a flow is open, running, blocked, completed, failed or cancelled',
            flowfabric._shown(list_flows.state)), '{"field": "state"}');
    end if;
    return query
    select s.summary::text from (
        select f from flowfabric.flows f
        where (list_flows.namespace is null or f.namespace = list_flows.namespace)
          and (list_flows.after_id is null or (f.partition, f.id) > (list_flows.after_partition, list_flows.after_id))
        order by f.partition, f.id offset 0) x
    cross join lateral (select flowfabric._flow_summary(x.f, flowfabric._flow_counts(x.f, now)) as summary offset 0) s
    where list_flows.state is null or s.summary ->> 'state' = list_flows.state
    limit flowfabric._page(list_flows.take);
end $$;

-- Give a flow a tag, change it, or (without a value) take it away.
--
--   locks    the flow
--   emits    tag_set
--   refuses  flow_not_found, invalid_tag_key, invalid_tag, invalid_body
--   returns  'set', 'removed', or 'noop' when it was so already
create or replace function flowfabric.set_flow_tag(partition int, id uuid, key text, value text default null, by text default null)
returns text
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    flow flowfabric.flows;
    new_tags jsonb;
begin
    perform flowfabric._raise(coalesce(flowfabric._tag_key_fault(set_flow_tag.key), flowfabric._tag_value_fault(set_flow_tag.key, set_flow_tag.value)));
    perform flowfabric._check_by(set_flow_tag.by);
    select f.* into flow from flowfabric.flows f where f.partition = set_flow_tag.partition and f.id = set_flow_tag.id for update;
    if not found then
        perform flowfabric._raise(flowfabric._no_flow_fault(set_flow_tag.partition, set_flow_tag.id));
    end if;
    new_tags := case when set_flow_tag.value is null then coalesce(flow.tags, '{}') - set_flow_tag.key
                     else coalesce(flow.tags, '{}') || jsonb_build_object(set_flow_tag.key, set_flow_tag.value) end;
    if new_tags = coalesce(flow.tags, '{}') then
        return 'noop';
    end if;
    perform flowfabric._raise(flowfabric._tags_fault(new_tags));
    update flowfabric.flows f set tags = nullif(new_tags, '{}') where f.partition = flow.partition and f.id = flow.id;
    perform flowfabric._append_flow('tag_set', flow.partition, flow.id, set_flow_tag.by,
                                    jsonb_build_object('key', set_flow_tag.key, 'value', set_flow_tag.value));
    return case when set_flow_tag.value is null then 'removed' else 'set' end;
end $$;
