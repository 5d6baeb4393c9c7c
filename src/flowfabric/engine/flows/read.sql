-- Read flows: describe a flow, list flows and set their tags. One call reads one snapshot.

-- Count the members of a flow by public state. Checks each route once, however many members use it.
--
--   returns  {public_state: count}, without zero counts
create or replace function flowfabric._flow_counts(home flowfabric.flows, now timestamptz)
returns jsonb
language sql stable as $$
    select coalesce(jsonb_object_agg(s.state, s.amount), '{}') from (
        select x.state, sum(x.amount) as amount from (
            select flowfabric._ended_state(e.outcome) as state, count(*) as amount from flowfabric.executions e
            where e.partition = (_flow_counts.home).partition and e.flow = (_flow_counts.home).id
              and e.outcome is not null
            group by 1
            union all
            select case
                when t.state <> 'ready' then t.state
                when flowfabric._admission(t.route, _flow_counts.now) in ('blocked_by_budget', 'blocked_by_quota')
                    then 'rate_limited'
                else 'waiting' end, t.amount
            from (
                select case
                    when t.phase <> 'runnable' then t.phase::text
                    when t.eligibility = 'blocked_by_dependencies' then 'waiting_dependencies'
                    when t.eligibility = 'not_eligible_until_time' and t.due_at > _flow_counts.now then 'delayed'
                    when t.eligibility = 'blocked_by_operator'
                      or t.eligibility = 'granted' and t.expires_at > _flow_counts.now then 'waiting'
                    else 'ready' end as state, t.route, count(*) as amount
                from flowfabric.tickets t where t.flow = (_flow_counts.home).id
                group by 1, 2) t) x
        group by 1) s
$$;

-- The summary of a flow, as in a list. Its state is derived from the counts of its members.
--
--   returns  the summary; its state is cancelled, open, failed, completed, running or blocked
create or replace function flowfabric._flow_summary(flow flowfabric.flows, counts jsonb)
returns jsonb
language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'flow_id', flowfabric._id_json((_flow_summary.flow).partition, (_flow_summary.flow).id),
        'kind', (_flow_summary.flow).kind, 'namespace', (_flow_summary.flow).namespace,
        'state', case
            when (_flow_summary.flow).cancelled_at is not null then 'cancelled'
            when _flow_summary.counts = '{}' then 'open'
            when _flow_summary.counts - '{completed,failed,cancelled,expired,skipped}'::text[] = '{}' then
                case when _flow_summary.counts ?| '{failed,cancelled,expired}' then 'failed' else 'completed' end
            when _flow_summary.counts ? 'active' then 'running'
            when _flow_summary.counts ?| '{suspended,delayed,rate_limited,waiting_dependencies}'
             and not _flow_summary.counts ? 'waiting' then 'blocked'
            else 'open' end,
        'revision', (_flow_summary.flow).revision, 'node_count', (_flow_summary.flow).node_count,
        'edge_count', (_flow_summary.flow).edge_count, 'created_at', (_flow_summary.flow).created_at,
        'changed_at', (_flow_summary.flow).changed_at, 'cancelled_at', (_flow_summary.flow).cancelled_at,
        'tags', coalesce((_flow_summary.flow).tags, '{}'),
        'cancel', case when (_flow_summary.flow).cancelled_at is not null then jsonb_build_object(
            'policy', (_flow_summary.flow).cancel_policy, 'reason', (_flow_summary.flow).cancel_reason,
            'by', (_flow_summary.flow).cancel_by) end))
$$;

-- A page of the members of a flow in id order (keyset pagination), with the edges and the edge group that lead to each.
--
--   returns  {members, edges, groups, next_cursor?}
create or replace function flowfabric._flow_page(home flowfabric.flows, after uuid, take int, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    ids uuid[] := array(
        select e.id from flowfabric.executions e
        where e.partition = home.partition and e.flow = home.id
          and (_flow_page.after is null or e.id > _flow_page.after)
        order by e.id limit flowfabric._page(_flow_page.take));
    more constant boolean := cardinality(ids) > least(_flow_page.take, 1000);
begin
    ids := ids[1:least(_flow_page.take, 1000)];
    return jsonb_strip_nulls(jsonb_build_object(
        'next_cursor', case when more then flowfabric._id(home.partition, ids[cardinality(ids)]) end,
        'members', coalesce((
            select jsonb_agg(jsonb_build_object(
                'execution_id', flowfabric._id_json(home.partition, e.id), 'task', e.task,
                'public_state', case
                    when e.outcome is not null then flowfabric._ended_state(e.outcome)
                    else flowfabric._public_state(t, flowfabric._eligibility_state(t, _flow_page.now)) end)
                order by e.id)
            from flowfabric.executions e left join flowfabric.tickets t on t.partition = e.partition and t.id = e.id
            where e.partition = home.partition and e.id = any (ids)), '[]'),
        'edges', coalesce((
            select jsonb_agg(jsonb_build_object(
                'edge_id', e.id, 'upstream', flowfabric._id_json(e.partition, e.upstream),
                'downstream', flowfabric._id_json(e.partition, e.downstream),
                'state', e.state, 'pass_as', e.pass_as) order by e.downstream, e.upstream)
            from flowfabric.flow_edges e where e.partition = home.partition and e.downstream = any (ids)), '[]'),
        'groups', coalesce((
            select jsonb_agg(jsonb_build_object(
                'downstream', flowfabric._id_json(g.partition, g.downstream),
                'policy', flowfabric._policy_of_group(g.kind, g.needed, g.cancels),
                'n', g.total, 'succeeded', g.succeeded, 'failed', g.failed, 'skipped', g.skipped,
                'running', g.total - g.succeeded - g.failed - g.skipped, 'state', g.state) order by g.downstream)
            from flowfabric.edge_groups g where g.partition = home.partition and g.downstream = any (ids)), '[]')));
end $$;

-- Describe a flow: its state, exact counts per public state, and a page of members with their edges and groups.
--
--   refuses  flow_not_found, invalid_limit
--   returns  the description
create or replace function flowfabric.describe_flow(
    partition int, id uuid, after uuid default null, take int default 50)
returns text
language plpgsql stable as $$
declare
    now timestamptz := flowfabric.clock();
    flow flowfabric.flows;
    counts jsonb;
begin
    select f.* into flow from flowfabric.flows f
    where f.partition = describe_flow.partition and f.id = describe_flow.id;
    if not found then
        perform flowfabric._raise(flowfabric._no_flow_fault(describe_flow.partition, describe_flow.id));
    end if;
    counts := flowfabric._flow_counts(flow, now);
    return flowfabric._flow_summary(flow, counts) || jsonb_build_object('counts', counts)
        || flowfabric._flow_page(flow, describe_flow.after, describe_flow.take, now);
end $$;

-- Whether a flow can be in a state, without counting its members: one or two index lookups decide all states but
-- blocked and open.
--
--   returns  false if the flow is in another state
create or replace function flowfabric._may_be(home flowfabric.flows, state text)
returns boolean
language plpgsql stable as $$
begin
    return case
        when home.cancelled_at is not null or _may_be.state = 'cancelled' then
            home.cancelled_at is not null and _may_be.state = 'cancelled'
        when home.node_count = 0 then _may_be.state = 'open'
        when _may_be.state = 'running' then exists (
            select from flowfabric.tickets t where t.flow = home.id and t.phase = 'active')
        when _may_be.state in ('open', 'blocked') then exists (select from flowfabric.tickets t where t.flow = home.id)
        else not exists (select from flowfabric.tickets t where t.flow = home.id)
            and (_may_be.state = 'failed') = exists (
                select from flowfabric.executions e
                where e.partition = home.partition and e.flow = home.id
                  and e.outcome in ('failed', 'cancelled', 'expired')) end;
end $$;

-- List flows in id order (keyset pagination). Members are counted only in flows that can be in the state.
--
--   refuses  invalid_limit, invalid_body
--   returns  one summary per row, and one more row than asked for if more follow
create or replace function flowfabric.list_flows(
    namespace text default null, state text default null, after_partition int default null, after_id uuid default null,
    take int default 50)
returns table (summary text)
language plpgsql stable as $$
declare
    now timestamptz := flowfabric.clock();
begin
    if list_flows.state not in ('open', 'running', 'blocked', 'completed', 'failed', 'cancelled') then
        perform flowfabric._refuse('invalid_body',
            format('state %s is invalid; use open, running, blocked, completed, failed or cancelled',
                   flowfabric._shown(list_flows.state)),
            '{"field": "state"}');
    end if;
    return query
    select s.summary::text from (
        select f from flowfabric.flows f
        where (list_flows.namespace is null or f.namespace = list_flows.namespace)
          and (list_flows.after_id is null or (f.partition, f.id) > (list_flows.after_partition, list_flows.after_id))
        order by f.partition, f.id offset 0) x
    cross join lateral (select where list_flows.state is null or flowfabric._may_be(x.f, list_flows.state) offset 0) m
    cross join lateral (select flowfabric._flow_summary(x.f, flowfabric._flow_counts(x.f, now)) as summary offset 0) s
    where list_flows.state is null or s.summary ->> 'state' = list_flows.state
    limit flowfabric._page(list_flows.take);
end $$;

-- Set, change or (without a value) remove a tag of a flow.
--
--   locks    the flow
--   emits    tag_set
--   refuses  flow_not_found, invalid_tag_key, invalid_tag, invalid_body
--   returns  'set', 'removed', or 'noop' if nothing changes
create or replace function flowfabric.set_flow_tag(
    partition int, id uuid, key text, value text default null, by text default null)
returns text
language plpgsql as $$
declare
    flow flowfabric.flows;
    new_tags jsonb;
begin
    perform flowfabric._raise(flowfabric._tags_fault(
        jsonb_build_object(set_flow_tag.key, coalesce(set_flow_tag.value, ''))));
    perform flowfabric._check_by(set_flow_tag.by);
    flow := flowfabric._lock_flow(set_flow_tag.partition, set_flow_tag.id);
    new_tags := flowfabric._with_tag(flow.tags, set_flow_tag.key, set_flow_tag.value);
    if new_tags = coalesce(flow.tags, '{}') then
        return 'noop';
    end if;
    update flowfabric.flows f set tags = nullif(new_tags, '{}') where f.partition = flow.partition and f.id = flow.id;
    perform flowfabric._append_flow('tag_set', flow.partition, flow.id, set_flow_tag.by,
                                    jsonb_build_object('key', set_flow_tag.key, 'value', set_flow_tag.value));
    return case when set_flow_tag.value is null then 'removed' else 'set' end;
end $$;
