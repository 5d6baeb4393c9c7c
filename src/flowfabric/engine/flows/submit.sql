-- Submit a whole flow: members, edges and groups in one call, all or nothing.

-- Find the first edge of a cycle among numbered members (Kahn's topological sort): members without unfinished upstreams
-- are removed repeatedly; the remaining members are part of a cycle or downstream of one.
--
--   returns  the number of the edge, or null if there is no cycle
create or replace function flowfabric._first_circular(members int, upstreams int[], downstreams int[])
returns int
language plpgsql immutable as $$
declare
    -- The edges ordered by upstream, and the position where each upstream's edges start.
    targets constant int[] := array(
        select e.downstream
        from unnest(_first_circular.upstreams, _first_circular.downstreams)
             with ordinality as e (upstream, downstream, number)
        order by e.upstream, e.number);
    starts constant int[] := array(
        select coalesce(sum(c.amount) over (order by m rows between unbounded preceding and 1 preceding), 0)::int
        from generate_series(1, _first_circular.members + 1) m
        left join (select e, count(*) as amount from unnest(_first_circular.upstreams) e group by e) c on c.e = m
        order by m);
    awaited int[] := array(
        select coalesce(c.amount, 0)::int from generate_series(1, _first_circular.members) m
        left join (select e, count(*) as amount from unnest(_first_circular.downstreams) e group by e) c on c.e = m
        order by m);
    free int[] := array(select m from generate_series(1, _first_circular.members) m where awaited[m] = 0);
    at int := 1;
begin
    while at <= cardinality(free) loop
        for edge in starts[free[at]] + 1 .. starts[free[at] + 1] loop
            awaited[targets[edge]] := awaited[targets[edge]] - 1;
            if awaited[targets[edge]] = 0 then
                free := free || targets[edge];
            end if;
        end loop;
        at := at + 1;
    end loop;
    if cardinality(free) = _first_circular.members then
        return null;
    end if;
    return (
        select min(e.number)
        from unnest(_first_circular.upstreams, _first_circular.downstreams)
             with ordinality as e (upstream, downstream, number)
        where awaited[e.upstream] > 0 and awaited[e.downstream] > 0);
end $$;

-- Refuse a whole flow because of one element, and name the element.
--
--   refuses  with the code of the error
create or replace function flowfabric._raise_element(element text, fault jsonb)
returns void
language plpgsql as $$
declare
    part constant text := coalesce(_raise_element.fault ->> 'field', case _raise_element.fault ->> 'code'
        when 'invalid_lane' then 'lane' when 'lane_draining' then 'lane' when 'invalid_namespace' then 'namespace'
        when 'invalid_name' then 'task' when 'invalid_capabilities' then 'needs'
        when 'payload_too_large' then 'payload' when 'budget_not_found' then 'budgets'
        when 'quota_not_found' then 'quotas' when 'invalid_tag' then 'tags' when 'invalid_tag_key' then 'tags'
        when 'invalid_policy' then 'policy' when 'invalid_edge_group' then 'policy' end);
    whole constant text := _raise_element.element || coalesce('.' || part, '');
begin
    if _raise_element.fault is not null then
        perform flowfabric._raise(_raise_element.fault || jsonb_build_object(
            'message', format('%s: %s', whole, _raise_element.fault ->> 'message'), 'element', whole));
    end if;
end $$;

-- Submit the members of a flow, 1,000 at a time.
--
--   moves    – → runnable; lane – → active, if it is new
--   refuses  invalid_body
create or replace function flowfabric._submit_members(
    flow flowfabric.flows, options text[], options_of int[], ids uuid[], payloads bytea[], keys text[],
    key_partitions int[], priorities int[], delays_ms bigint[], delays_until timestamptz[], deadlines_ms bigint[],
    deadlines_at timestamptz[], tags text[], payload_limit int)
returns void
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    answer record;
    size int;
begin
    for start in 0 .. cardinality(_submit_members.ids) - 1 by 1000 loop
        size := least(1000, cardinality(_submit_members.ids) - start);
        for answer in
            select s.* from flowfabric.submit(
                _submit_members.options, _submit_members.options_of[start + 1 : start + size],
                array_fill(flow.partition::int, array[size]), _submit_members.ids[start + 1 : start + size],
                _submit_members.payloads[start + 1 : start + size], _submit_members.keys[start + 1 : start + size],
                _submit_members.key_partitions[start + 1 : start + size],
                _submit_members.priorities[start + 1 : start + size],
                _submit_members.delays_ms[start + 1 : start + size],
                _submit_members.delays_until[start + 1 : start + size],
                _submit_members.deadlines_ms[start + 1 : start + size],
                _submit_members.deadlines_at[start + 1 : start + size],
                _submit_members.tags[start + 1 : start + size], _submit_members.payload_limit,
                now + start * interval '1 microsecond', array_fill(flow.id, array[size])) s
            where s.outcome is distinct from 'created' order by s.item limit 1
        loop
            perform flowfabric._raise_element(format('members[%s]', start + answer.item - 1), coalesce(
                answer.detail::jsonb || jsonb_build_object('code', answer.refusal),
                flowfabric._fault('invalid_body',
                    format('its id or idempotency key already belongs to execution %s; use another one',
                           answer.detail::jsonb ->> 'execution_id'),
                    '{"field": "key"}')));
        end loop;
    end loop;
end $$;

-- Add the edges and groups of a flow that is submitted whole. All members are new, so there is nothing to settle.
--
--   moves    edge – → pending; group – → pending; downstream members → blocked_by_dependencies
--   emits    edge_added, edge_group_set
create or replace function flowfabric._link_members(
    flow flowfabric.flows, ids uuid[], upstreams int[], downstreams int[], names text[], grouped int[],
    policies jsonb[])
returns void
language plpgsql as $$
declare
    added record;
begin
    perform flowfabric._check_links(
        cardinality(_link_members.ids), _link_members.upstreams, _link_members.downstreams, _link_members.names,
        _link_members.grouped, _link_members.policies);
    insert into flowfabric.edge_groups (partition, flow, downstream, kind, needed, cancels, total)
    select flow.partition, flow.id, _link_members.ids[coalesce(d.number, p.number)],
           coalesce(p.policy ->> 'kind', 'all_of'),
           case p.policy ->> 'kind' when 'any_of' then 1 when 'quorum' then (p.policy ->> 'k')::int end,
           coalesce(p.policy ->> 'kind' <> 'all_of'
                    and coalesce(p.policy ->> 'on_satisfied', 'cancel_remaining') = 'cancel_remaining', false),
           coalesce(d.total, 0)
    from (
        select e.number, count(*)::int as total from unnest(_link_members.downstreams) as e (number)
        group by e.number) d
    full join unnest(_link_members.grouped, _link_members.policies) as p (number, policy) on p.number = d.number;
    update flowfabric.tickets t set eligibility = 'blocked_by_dependencies', reason = 'waiting_for_children'
    where t.partition = flow.partition
      and t.id = any (array(select distinct _link_members.ids[d] from unnest(_link_members.downstreams) d));
    with made as (
        insert into flowfabric.flow_edges (partition, flow, upstream, downstream, id, pass_as)
        select flow.partition, flow.id, _link_members.ids[e.upstream], _link_members.ids[e.downstream],
               gen_random_uuid(), e.name
        from unnest(_link_members.upstreams, _link_members.downstreams, _link_members.names)
             as e (upstream, downstream, name)
        returning partition, upstream, downstream, id, pass_as
    )
    select array_agg(m.partition) as partitions, array_agg(m.downstream) as ids,
           array_agg(jsonb_strip_nulls(jsonb_build_object(
               'edge_id', m.id, 'upstream', flowfabric._id(m.partition, m.upstream), 'pass_as', m.pass_as))) as details
    into added from made m;
    perform flowfabric._append_all('edge_added', added.partitions, added.ids, added.details);
    perform flowfabric._append_about('edge_group_set', flow.partition, _link_members.ids[p.number],
                                     detail => jsonb_build_object('policy', p.policy))
    from unnest(_link_members.grouped, _link_members.policies) as p (number, policy);
end $$;

-- Check the edges and groups of a flow that is submitted whole; an error names the element.
--
--   refuses  self_referencing_edge, cycle_detected, dependency_already_exists, invalid_dependency, invalid_name,
--            invalid_edge_group
create or replace function flowfabric._check_links(
    members int, upstreams int[], downstreams int[], names text[], grouped int[], policies jsonb[])
returns void
language plpgsql as $$
declare
    edge record;
    edges_into int;
    circular int;
begin
    if cardinality(_check_links.upstreams) > 100000 then
        perform flowfabric._raise(flowfabric._large_flow_fault('edges', 100000));
    end if;
    for edge in
        select e.*, row_number() over (partition by e.upstream, e.downstream order by e.number) > 1 as is_second,
               e.name is not null
                   and row_number() over (partition by e.downstream, e.name order by e.number) > 1 as is_taken,
               row_number() over (partition by e.downstream order by e.number) > 10000 as is_many
        from unnest(_check_links.upstreams, _check_links.downstreams, _check_links.names)
             with ordinality as e (upstream, downstream, name, number)
        order by e.number
    loop
        continue when edge.upstream <> edge.downstream and not (edge.is_second or edge.is_taken or edge.is_many)
            and coalesce(octet_length(edge.name), 1) between 1 and 128;
        perform flowfabric._raise_element(format('edges[%s]', edge.number - 1), case
            when edge.upstream = edge.downstream then
                flowfabric._fault('self_referencing_edge', 'a member cannot depend on itself; use another member')
            when edge.is_second then
                flowfabric._fault('dependency_already_exists',
                                  'an earlier edge already connects these two members; remove this one')
            when edge.is_many then flowfabric._large_flow_fault('upstreams for one member', 10000)
            when edge.is_taken then flowfabric._fault('invalid_dependency',
                format('pass_as %s is already used by an earlier edge; use another name',
                       flowfabric._shown(edge.name)),
                jsonb_build_object('cause', case when edge.name = 'payload' then 'payload_taken' else 'name_taken' end))
            else flowfabric._length_fault('invalid_name', 'pass_as', edge.name, 1, 128, 'pass_as') end);
    end loop;
    for number in 1 .. coalesce(cardinality(_check_links.policies), 0) loop
        edges_into := cardinality(array_positions(_check_links.downstreams, _check_links.grouped[number]));
        perform flowfabric._raise_element(format('groups[%s]', number - 1), coalesce(
            flowfabric._policy_of_group_fault(_check_links.policies[number]),
            case when number <> array_position(_check_links.grouped, _check_links.grouped[number]) then
                     flowfabric._fault('invalid_edge_group', 'the member already has a policy; remove this one',
                                       '{"cause": "fixed"}')
                 when (_check_links.policies[number] ->> 'k')::int > edges_into then flowfabric._fault(
                     'invalid_edge_group', format('k %s is invalid; use at most %s, the number of edges of the member',
                                                  _check_links.policies[number] ->> 'k', edges_into),
                     '{"cause": "k_exceeds_edges"}') end));
    end loop;
    circular := flowfabric._first_circular(_check_links.members, _check_links.upstreams, _check_links.downstreams);
    if circular is not null then
        perform flowfabric._raise_element(format('edges[%s]', circular - 1), flowfabric._fault(
            'cycle_detected', 'the edge is part of a cycle; remove one of its edges'));
    end if;
end $$;

-- Find out whether the flow that owns a key is another one: of another kind, with other members, with another task or
-- other arguments of a member, or without one of these edges. Options do not matter, nor does what was added since.
-- Arguments that a codec has encoded are not compared.
--
--   refuses  key_conflict, as a value
--   returns  the fault, or null if it is the same flow
create or replace function flowfabric._flow_key_fault(
    key text, owner flowfabric.flows, kind text, names text[], options text[], options_of int[], payloads bytea[],
    upstreams int[], downstreams int[], passed_as text[])
returns jsonb
language plpgsql as $$
declare
    ids constant uuid[] := array(
        select right(m.id, 36)::uuid
        from unnest(_flow_key_fault.names) with ordinality as n (name, number)
        left join jsonb_each_text(owner.names) m (name, id) on m.name = n.name
        order by n.number);
    what text := case
        when owner.kind <> _flow_key_fault.kind then 'of kind ' || flowfabric._shown(owner.kind)
        when cardinality(ids) <> (select count(*) from jsonb_object_keys(owner.names))
             or array_position(ids, null) is not null then 'which has other members' end;
begin
    if what is null then
        select format('whose member %s has another task or other arguments', flowfabric._shown(n.name)) into what
        from unnest(_flow_key_fault.names, ids, _flow_key_fault.options_of, _flow_key_fault.payloads) with ordinality
             as n (name, id, options_of, payload, number)
        cross join lateral (
            select o ->> 'task' as task, coalesce(o ->> 'encoding', 'json') as encoding
            from (select _flow_key_fault.options[n.options_of]::jsonb as o) x) o
        cross join lateral (
            select e.task, e.payload, coalesce(e.encoding, 'json') as encoding from flowfabric.executions e
            where e.partition = owner.partition and e.id = n.id offset 0) e
        where e.task <> o.task
           or o.encoding = 'json' and e.encoding = 'json'
              and not flowfabric._same_payload(e.payload, n.payload)
        order by n.number limit 1;
    end if;
    if what is null and exists (
        select from unnest(_flow_key_fault.upstreams, _flow_key_fault.downstreams, _flow_key_fault.passed_as)
                    as x (upstream, downstream, pass_as)
        where not exists (
            select from flowfabric.flow_edges e
            where e.partition = owner.partition and e.upstream = ids[x.upstream] and e.downstream = ids[x.downstream]
              and e.pass_as is not distinct from x.pass_as offset 0)) then
        what := 'which does not have all of these edges';
    end if;
    return flowfabric._fault('key_conflict', format(
               'key %s belongs to flow %s, %s; use another key, or the same tasks and arguments',
               flowfabric._shown(_flow_key_fault.key), flowfabric._id(owner.partition, owner.id), what),
               jsonb_build_object('flow_id', flowfabric._id(owner.partition, owner.id)))
    where what is not null;
end $$;

-- Create a flow with all its members, edges and groups, or nothing. Edges and groups refer to members by number, from
-- 1. `names` are stored, so that a repeated call returns the same map.
--
--   moves    flow – → open; members – → runnable: eligible_now, not_eligible_until_time, or blocked_by_dependencies
--   locks    the idempotency keys
--   emits    flow_created, execution_submitted, flow_member_added, edge_added, edge_group_set; lane_registered, if a
--            lane is new
--   refuses  invalid_namespace, invalid_name, invalid_body, invalid_tag_key, invalid_tag, invalid_policy, invalid_lane,
--            invalid_capabilities, budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time,
--            self_referencing_edge, cycle_detected, dependency_already_exists, invalid_dependency, invalid_edge_group,
--            flow_too_large, key_conflict
--   returns  'created' or 'duplicate', the flow, and {name: execution}
create or replace function flowfabric.submit_flow(
    partition int, id uuid, namespace text, kind text, names text[], options text[], options_of int[], ids uuid[],
    key text default null, key_partition int default null, tags text default null, payloads bytea[] default null,
    member_keys text[] default null, member_key_partitions int[] default null, priorities int[] default null,
    delays_ms bigint[] default null, delays_until timestamptz[] default null, deadlines_ms bigint[] default null,
    deadlines_at timestamptz[] default null, member_tags text[] default null, upstreams int[] default '{}',
    downstreams int[] default '{}', passed_as text[] default '{}', grouped int[] default '{}',
    policies text default '[]', payload_limit int default 1048576,
    out outcome text, out flow_id text, out executions text)
language plpgsql set enable_mergejoin = off as $$
declare
    flow flowfabric.flows;
    rules jsonb[] := array(select jsonb_strip_nulls(p) from jsonb_array_elements(submit_flow.policies::jsonb) p);
    amount constant int := cardinality(submit_flow.ids);
begin
    if amount > 10000 then
        perform flowfabric._raise(flowfabric._large_flow_fault('members', 10000));
    end if;
    select c.outcome, c.flow_id into outcome, flow_id from flowfabric.create_flow(
        submit_flow.partition, submit_flow.id, submit_flow.namespace, submit_flow.kind, submit_flow.key,
        submit_flow.key_partition, submit_flow.tags) c;
    if outcome = 'created' then
        select f.* into flow from flowfabric.flows f
        where f.partition = submit_flow.partition and f.id = submit_flow.id for update;
        perform flowfabric._submit_members(
            flow, submit_flow.options, coalesce(submit_flow.options_of, array_fill(1, array[amount])), submit_flow.ids,
            submit_flow.payloads, submit_flow.member_keys, submit_flow.member_key_partitions, submit_flow.priorities,
            submit_flow.delays_ms, submit_flow.delays_until, submit_flow.deadlines_ms, submit_flow.deadlines_at,
            submit_flow.member_tags, submit_flow.payload_limit);
        perform flowfabric._link_members(
            flow, submit_flow.ids, submit_flow.upstreams, submit_flow.downstreams, submit_flow.passed_as,
            submit_flow.grouped, rules);
        update flowfabric.flows f
        set names = (
                select jsonb_object_agg(n.name, flowfabric._id(f.partition, n.id))
                from unnest(submit_flow.names, submit_flow.ids) as n (name, id)),
            edge_count = cardinality(submit_flow.upstreams),
            revision = f.revision + cardinality(submit_flow.upstreams) + cardinality(rules)
        where f.partition = flow.partition and f.id = flow.id;
    end if;
    select f.* into flow from flowfabric.flows f where f.id = right(submit_flow.flow_id, 36)::uuid;
    if outcome = 'duplicate' and submit_flow.key is not null then
        perform flowfabric._raise(flowfabric._flow_key_fault(
            submit_flow.key, flow, submit_flow.kind, submit_flow.names, submit_flow.options,
            coalesce(submit_flow.options_of, array_fill(1, array[amount])), submit_flow.payloads,
            submit_flow.upstreams, submit_flow.downstreams, submit_flow.passed_as));
    end if;
    executions := coalesce(flow.names, '{}')::text;
end $$;
