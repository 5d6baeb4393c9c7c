-- Edges: dependencies between members, and the policy that decides when a member's dependencies are met.

-- Check an edge between two members, except for the state of the members and of the graph.
--
--   refuses  self_referencing_edge, invalid_dependency, invalid_name, as a value
--   returns  the fault, or null if the edge is valid
create or replace function flowfabric._edge_fault(
    flow flowfabric.flows, upstream_partition int, upstream uuid, downstream_partition int, downstream uuid,
    pass_as text)
returns jsonb
language plpgsql stable as $$
declare
    rival text;
    fault jsonb;
begin
    if (_edge_fault.upstream_partition, _edge_fault.upstream)
       = (_edge_fault.downstream_partition, _edge_fault.downstream) then
        return flowfabric._fault('self_referencing_edge',
            format('execution %s cannot depend on itself; use another execution',
                   flowfabric._id(_edge_fault.upstream_partition, _edge_fault.upstream)));
    end if;
    fault := coalesce(
        flowfabric._member_fault(_edge_fault.flow, _edge_fault.upstream_partition, _edge_fault.upstream),
        flowfabric._member_fault(_edge_fault.flow, _edge_fault.downstream_partition, _edge_fault.downstream),
        flowfabric._length_fault('invalid_name', 'pass_as', _edge_fault.pass_as, 1, 128, 'pass_as'));
    if fault is not null then
        return fault;
    end if;
    select flowfabric._id(e.partition, e.upstream) into rival from flowfabric.flow_edges e
    where e.flow = flow.id and e.downstream = _edge_fault.downstream and e.partition + 0 = flow.partition
      and e.pass_as = _edge_fault.pass_as and e.upstream <> _edge_fault.upstream limit 1;
    if rival is not null then
        return flowfabric._fault('invalid_dependency',
            format('pass_as %s is already used by the edge from execution %s; use another name',
                   flowfabric._shown(_edge_fault.pass_as), rival),
            jsonb_build_object(
                'cause', case when _edge_fault.pass_as = 'payload' then 'payload_taken' else 'name_taken' end));
    end if;
    return null;
end $$;

-- Check that an execution is a member of a flow.
--
--   refuses  invalid_dependency, as a value
--   returns  the fault, or null if it is a member
create or replace function flowfabric._member_fault(flow flowfabric.flows, partition int, id uuid)
returns jsonb
language plpgsql stable as $$
begin
    if _member_fault.partition = flow.partition and exists (
        select from flowfabric.executions e
        where e.partition = flow.partition and e.id = _member_fault.id and e.flow = flow.id) then
        return null;
    end if;
    return flowfabric._fault('invalid_dependency',
        format('execution %s is not a member of flow %s; use add_execution to add it',
               flowfabric._id(_member_fault.partition, _member_fault.id), flowfabric._id(flow.partition, flow.id)),
        '{"cause": "not_a_member"}');
end $$;

-- Check a new edge against the graph, the edge group and the state of the downstream member. The search for a cycle
-- visits all members downstream, so it is exact at any depth. The caller has locked the flow and the ticket of the
-- downstream member.
--
--   refuses  cycle_detected, edge_group_settled, execution_already_started, as a value
--   returns  the fault, or null if the edge is valid
create or replace function flowfabric._new_edge_fault(
    flow flowfabric.flows, upstream uuid, downstream uuid, ticket flowfabric.tickets)
returns jsonb
language plpgsql stable as $$
declare
    child constant text := flowfabric._id(flow.partition, _new_edge_fault.downstream);
    edge_group flowfabric.edge_groups;
begin
    select g.* into edge_group from flowfabric.edge_groups g
    where g.partition = flow.partition and g.downstream = _new_edge_fault.downstream;
    if edge_group.state = 'impossible' or edge_group.state = 'satisfied' and edge_group.needed is not null then
        return flowfabric._fault('edge_group_settled',
            format('the edge group of execution %s is already %s; add edges before that', child, edge_group.state));
    elsif ticket.id is null or ticket.phase <> 'runnable' or ticket.attempt > 0 then
        return flowfabric._fault('execution_already_started',
            format('execution %s has already %s; add edges before its first attempt starts',
                   child, case when ticket.id is null then 'ended' else 'started' end));
    elsif flow.edge_count >= 100000 then
        return flowfabric._large_flow_fault('edges', 100000);
    elsif edge_group.total >= 10000 then
        return flowfabric._large_flow_fault('upstreams for one member', 10000);
    elsif exists (
        with recursive behind as (
            select _new_edge_fault.downstream as id
            union
            select n.downstream from behind b cross join lateral (
                select e.downstream from flowfabric.flow_edges e
                where e.upstream = b.id and e.partition + 0 = flow.partition offset 0) n
        )
        select from behind b where b.id = _new_edge_fault.upstream) then
        return flowfabric._fault('cycle_detected',
            format('the edge would create a cycle: execution %s already depends on %s; remove one of the edges',
                   flowfabric._id(flow.partition, _new_edge_fault.upstream), child));
    end if;
    return null;
end $$;

-- Make a member wait for another. The edge, the edge group and the downstream member change in one transaction. If the
-- upstream has already ended, this edge is settled immediately; other edges of that upstream stay as they are.
--
--   moves    edge – → pending; group satisfied → pending, for all_of; downstream member runnable →
--            blocked_by_dependencies, or further when the edge is settled immediately
--   locks    the flow; the ticket of the downstream member; the locks of settling
--   emits    edge_added, edge_group_satisfied, edge_group_impossible, execution_skipped, execution_cancelled,
--            waitpoint_closed, reservation_released
--   refuses  flow_not_found, flow_already_terminal, stale_graph_revision, invalid_dependency, invalid_name,
--            self_referencing_edge, cycle_detected, dependency_already_exists, execution_already_started,
--            edge_group_settled, flow_too_large
--   returns  'added' {edge_id, revision, unsatisfied}, or 'already_applied' {edge_id}; the lanes where members became
--            claimable, and the members that ended
create or replace function flowfabric.add_edge(
    partition int, flow uuid, upstream_partition int, upstream uuid, downstream_partition int, downstream uuid,
    edge_id uuid, is_minted boolean default false, pass_as text default null, expected_revision int default null,
    out outcome text, out applied_edge uuid, out revision int, out unsatisfied int, out lanes text[],
    out ended text[])
language plpgsql as $$
declare
    home flowfabric.flows;
    ticket flowfabric.tickets;
    there flowfabric.flow_edges;
    ended_as flowfabric.edge_state;
begin
    home := flowfabric._lock_open_flow(add_edge.partition, add_edge.flow);
    perform flowfabric._raise(flowfabric._edge_fault(
        home, add_edge.upstream_partition, add_edge.upstream, add_edge.downstream_partition, add_edge.downstream,
        add_edge.pass_as));
    select e.* into there from flowfabric.flow_edges e
    where e.upstream = add_edge.upstream and e.downstream = add_edge.downstream and e.partition + 0 = home.partition;
    if not found then
        select e.* into there from flowfabric.flow_edges e
        where e.partition = home.partition and e.id = add_edge.edge_id;
    end if;
    if there.id is not null then
        if there.upstream <> add_edge.upstream or there.downstream <> add_edge.downstream
           or there.pass_as is distinct from add_edge.pass_as
           or there.id <> add_edge.edge_id and not add_edge.is_minted then
            perform flowfabric._refuse('dependency_already_exists',
                format('edge %s already exists with other attributes and cannot be changed; remove this one', there.id),
                jsonb_build_object('edge_id', there.id));
        end if;
        outcome := 'already_applied';
        applied_edge := there.id;
        return;
    elsif add_edge.expected_revision <> home.revision then
        perform flowfabric._refuse('stale_graph_revision',
            format('the flow is at revision %s, not at %s; read it again and retry', home.revision,
                   add_edge.expected_revision),
            jsonb_build_object('revision', home.revision));
    end if;
    select t.* into ticket from flowfabric.tickets t where t.partition = home.partition and t.id = add_edge.downstream
    for update;
    perform flowfabric._raise(flowfabric._new_edge_fault(home, add_edge.upstream, add_edge.downstream, ticket));
    ended_as := (
        select flowfabric._edge_state(e.outcome) from flowfabric.executions e
        where e.partition = home.partition and e.id = add_edge.upstream);

    insert into flowfabric.flow_edges (partition, flow, upstream, downstream, id, pass_as, state)
    values (home.partition, home.id, add_edge.upstream, add_edge.downstream, add_edge.edge_id, add_edge.pass_as,
            coalesce(ended_as, 'pending'));
    home := flowfabric._touch_flow(home.partition, home.id, edges => 1);
    perform flowfabric._widen_group(home.partition, home.id, add_edge.downstream, ended_as);
    perform flowfabric._append_about('edge_added', home.partition, add_edge.downstream, detail => jsonb_build_object(
        'edge_id', add_edge.edge_id, 'upstream', flowfabric._id(home.partition, add_edge.upstream),
        'pass_as', add_edge.pass_as, 'revision', home.revision));
    select s.lanes, s.ended into lanes, ended
    from flowfabric._settle_flows(array[home.partition], '{}', null, array[add_edge.downstream]) s;
    outcome := 'added';
    applied_edge := add_edge.edge_id;
    revision := home.revision;
    select g.total - g.succeeded - g.failed - g.skipped into unsatisfied from flowfabric.edge_groups g
    where g.partition = home.partition and g.downstream = add_edge.downstream;
end $$;

-- Add an edge to the group of a member, reset the group to pending and block the member. A member held by an operator
-- stays held. `ended_as` is the state of the edge if its upstream has ended. The caller has locked the flow and the
-- ticket, and derives the state of the group next.
--
--   moves    group – → pending, or satisfied → pending; downstream member → blocked_by_dependencies
create or replace function flowfabric._widen_group(
    partition int, flow uuid, downstream uuid, ended_as flowfabric.edge_state)
returns void
language plpgsql as $$
begin
    insert into flowfabric.edge_groups as g (partition, flow, downstream, kind, total, succeeded, failed, skipped)
    values (_widen_group.partition, _widen_group.flow, _widen_group.downstream, 'all_of', 1,
            coalesce((_widen_group.ended_as = 'succeeded')::int, 0),
            coalesce((_widen_group.ended_as = 'failed')::int, 0), coalesce((_widen_group.ended_as = 'skipped')::int, 0))
    on conflict (partition, downstream) do update
    set total = g.total + 1, state = 'pending', succeeded = g.succeeded + excluded.succeeded,
        failed = g.failed + excluded.failed, skipped = g.skipped + excluded.skipped;
    update flowfabric.tickets t
    set eligibility = 'blocked_by_dependencies', reason = 'waiting_for_children',
        grant_kid = null, grant_worker = null, grant_instance = null
    where t.partition = _widen_group.partition and t.id = _widen_group.downstream
      and t.eligibility not in ('blocked_by_dependencies', 'blocked_by_operator');
end $$;

-- Check the policy of an edge group.
--
--   refuses  invalid_edge_group, as a value
--   returns  the fault, or null if the policy is valid
create or replace function flowfabric._policy_of_group_fault(policy jsonb)
returns jsonb
language plpgsql immutable as $$
declare
    given constant jsonb := _policy_of_group_fault.policy;
    cause text := case
        when jsonb_typeof(given) is distinct from 'object'
          or coalesce(given ->> 'kind', '') not in ('all_of', 'any_of', 'quorum') then 'unknown_kind'
        when given - '{kind,k,on_satisfied}'::text[] <> '{}' or given ->> 'kind' <> 'quorum' and given ? 'k'
          or given ->> 'kind' = 'all_of' and given ? 'on_satisfied' then 'unknown_field'
        when coalesce(given ->> 'on_satisfied', 'let_run') not in ('cancel_remaining', 'let_run') then 'unknown_field'
        when given ->> 'kind' <> 'quorum' then null
        when jsonb_typeof(given -> 'k') is distinct from 'number'
          or (given ->> 'k')::numeric <> trunc((given ->> 'k')::numeric) or (given ->> 'k')::numeric < 1 then 'k_zero'
        when (given ->> 'k')::numeric > 10000 then 'k_exceeds_edges' end;
begin
    if cause is null then
        return null;
    end if;
    return flowfabric._fault('invalid_edge_group',
        format('policy %s is invalid; %s', flowfabric._shown(given::text), case cause
            when 'unknown_kind' then 'use the kind all_of, any_of or quorum'
            when 'unknown_field' then 'use k with quorum only, and on_satisfied (cancel_remaining or let_run) with '
                                      'any_of and quorum only'
            else 'use a whole number from 1 to the number of edges as k' end),
        jsonb_build_object('cause', cause));
end $$;

-- The policy of an edge group as JSON.
--
--   returns  {kind, k?, on_satisfied?}
create or replace function flowfabric._policy_of_group(kind text, needed int, cancels boolean)
returns jsonb
language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'kind', _policy_of_group.kind, 'k', case when _policy_of_group.kind = 'quorum' then _policy_of_group.needed end,
        'on_satisfied', case when _policy_of_group.kind <> 'all_of' then case
            when _policy_of_group.cancels then 'cancel_remaining' else 'let_run' end end))
$$;

-- Set the policy for all edges into a member. Possible only before the member's first edge.
--
--   moves    group – → pending
--   locks    the flow; the member's ticket, if there is one; its record
--   emits    edge_group_set
--   refuses  flow_not_found, flow_already_terminal, invalid_edge_group, invalid_dependency, edge_group_already_fixed
--   returns  'set', or 'already_set' if the group has this policy
create or replace function flowfabric.set_edge_group(
    partition int, flow uuid, downstream_partition int, downstream uuid, policy text)
returns text
language plpgsql as $$
declare
    home flowfabric.flows;
    wanted jsonb := jsonb_strip_nulls(set_edge_group.policy::jsonb);
    there jsonb;
begin
    home := flowfabric._lock_open_flow(set_edge_group.partition, set_edge_group.flow);
    perform flowfabric._raise(flowfabric._policy_of_group_fault(wanted));
    perform flowfabric._raise(flowfabric._member_fault(
        home, set_edge_group.downstream_partition, set_edge_group.downstream));
    wanted := flowfabric._policy_of_group(
        wanted ->> 'kind', (wanted ->> 'k')::int,
        coalesce(wanted ->> 'on_satisfied', 'cancel_remaining') = 'cancel_remaining');
    select flowfabric._policy_of_group(g.kind, g.needed, g.cancels) into there from flowfabric.edge_groups g
    where g.partition = home.partition and g.downstream = set_edge_group.downstream;
    if there = wanted then
        return 'already_set';
    elsif there is not null then
        perform flowfabric._refuse('edge_group_already_fixed',
            format('the edge group already has the policy %s; set the policy before the first edge', there),
            jsonb_build_object('policy', there));
    end if;
    perform flowfabric._lock_whole(home.partition, set_edge_group.downstream); -- it orders the events of the member
    insert into flowfabric.edge_groups (partition, flow, downstream, kind, needed, cancels)
    values (home.partition, home.id, set_edge_group.downstream, wanted ->> 'kind',
            case wanted ->> 'kind' when 'any_of' then 1 when 'quorum' then (wanted ->> 'k')::int end,
            wanted ->> 'on_satisfied' is not distinct from 'cancel_remaining');
    home := flowfabric._touch_flow(home.partition, home.id);
    perform flowfabric._append_about('edge_group_set', home.partition, set_edge_group.downstream,
                                     detail => jsonb_build_object('policy', wanted, 'revision', home.revision));
    return 'set';
end $$;

-- Whether a member waits for upstreams: it has some, and its group is pending.
create or replace function flowfabric._awaits(ticket flowfabric.tickets)
returns boolean
language plpgsql as $$
begin
    return ticket.flow is not null and exists (
        select from flowfabric.edge_groups g
        where g.partition = ticket.partition and g.downstream = ticket.id and g.state = 'pending' and g.total > 0);
end $$;
