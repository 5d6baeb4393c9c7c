-- Settle flows: apply the end of a member to its downstream members, in the transaction of that end.

-- Derive the state of an edge group from its policy and the counts of its edges. `needed` is null for all_of.
--
--   returns  satisfied, impossible or pending; also pending while the group has fewer edges than a quorum needs,
--            because the flow is still being built
create or replace function flowfabric._judge_group(needed int, total int, succeeded int, lost int)
returns flowfabric.group_state
language plpgsql immutable as $$
declare
    least_of constant int := coalesce(_judge_group.needed, greatest(_judge_group.total, 1));
begin
    if _judge_group.total < least_of then
        return 'pending';
    elsif _judge_group.succeeded >= least_of then
        return 'satisfied';
    elsif _judge_group.lost > _judge_group.total - least_of then
        return 'impossible';
    end if;
    return 'pending';
end $$;

-- Settle the edges from members that have ended or are about to end, each once, and derive the states of their groups.
-- Also derives the states of the groups in `others`, in the partition of the first member. The caller has locked the
-- flows. Acting on the groups is a separate step.
--
--   moves    edge pending → succeeded, failed, skipped; group pending → satisfied, impossible
--   returns  the groups that left pending
create or replace function flowfabric._settle_edges(
    partitions smallint[], ids uuid[], states flowfabric.edge_state[], others uuid[] default '{}')
returns setof flowfabric.edge_groups
language plpgsql set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
begin
    return query
    with settled as (
        update flowfabric.flow_edges e set state = x.state
        from (
            select o.place, x.state from (
                select x.*
                from unnest(_settle_edges.partitions, _settle_edges.ids, _settle_edges.states)
                     as x (partition, id, state)
                where x.state is not null limit cardinality(_settle_edges.ids)) x
            cross join lateral (
                select e.ctid as place from flowfabric.flow_edges e
                where e.upstream = x.id and e.partition + 0 = x.partition and e.state = 'pending' offset 0) o) x
        where e.ctid = x.place
        returning e.partition, e.downstream, e.state
    ), counted as (
        select s.partition, s.downstream, count(*) filter (where s.state = 'succeeded') as succeeded,
               count(*) filter (where s.state = 'failed') as failed,
               count(*) filter (where s.state = 'skipped') as skipped
        from (
            select s.* from settled s
            union all
            select _settle_edges.partitions[1], o, null from unnest(_settle_edges.others) o) s
        group by 1, 2
    ), judged as (
        update flowfabric.edge_groups g
        set succeeded = g.succeeded + c.succeeded, failed = g.failed + c.failed, skipped = g.skipped + c.skipped,
            state = case when g.state <> 'pending' then g.state else flowfabric._judge_group(
                g.needed, g.total, g.succeeded + c.succeeded::int,
                (g.failed + c.failed + g.skipped + c.skipped)::int) end
        from (
            select c.*, o.place, o.state as before from counted c
            cross join lateral (
                select o.ctid as place, o.state from flowfabric.edge_groups o
                where o.partition = c.partition and o.downstream = c.downstream offset 0) o) c
        where g.ctid = c.place
        returning g as edge_group, c.before
    )
    select (j.edge_group).* from judged j where j.before = 'pending' and (j.edge_group).state <> 'pending'
    order by (j.edge_group).partition, (j.edge_group).downstream;
end $$;

-- Find the upstreams to cancel after groups with cancel_remaining have left pending: upstreams that have not ended, are
-- not skipped in the same wave, and are not needed by another pending group.
--
--   returns  one row per upstream, with the reason
create or replace function flowfabric._upstreams_to_cancel(groups flowfabric.edge_groups[], skipped uuid[])
returns table (partition smallint, id uuid, reason text)
language plpgsql stable as $$
begin
    return query
    select e.partition, e.upstream, 'sibling_quorum_' || min(g.state::text)
    from unnest(_upstreams_to_cancel.groups) g
    cross join lateral (
        select e.partition, e.upstream from flowfabric.flow_edges e
        where e.flow = g.flow and e.downstream = g.downstream and e.partition + 0 = g.partition
          and e.state = 'pending' offset 0) e
    where g.cancels and not e.upstream = any (_upstreams_to_cancel.skipped) and not exists (
        select from (select o.downstream from flowfabric.flow_edges o
                     where o.upstream = e.upstream and o.partition + 0 = e.partition and o.state = 'pending' offset 0) o
        cross join lateral (
            select from flowfabric.edge_groups w
            where w.partition = e.partition and w.downstream = o.downstream and w.state = 'pending' offset 0) w)
    group by 1, 2
    order by 1, 2;
end $$;

-- Settle everything downstream of members that have ended: wave by wave at any depth, first all decisions, then all
-- changes. While the flow is locked, members that have not ended stay so. `others` are further groups to judge, because
-- an edge was added to them. The caller has locked the flows, unless an execution has just joined one.
--
--   moves    blocked_by_dependencies → eligible_now, or not_eligible_until_time; or → ended: skipped; remaining
--            upstreams → ended: cancelled; edge pending → succeeded, failed, skipped; group pending → satisfied,
--            impossible
--   returns  if any group was decided: the lanes where members became claimable, and the first 10,000 members that
--            ended
create or replace function flowfabric._settle_flows(
    partitions smallint[], ids uuid[], outcome flowfabric.outcome, others uuid[] default '{}', out lanes text[],
    out ended text[])
language plpgsql as $$
declare
    wave_partitions smallint[] := _settle_flows.partitions;
    wave uuid[] := _settle_flows.ids;
    states flowfabric.edge_state[] := array_fill(
        flowfabric._edge_state(_settle_flows.outcome), array[cardinality(_settle_flows.ids)]);
    left_pending flowfabric.edge_groups[];
    fired_partitions smallint[] := '{}';
    fired uuid[] := '{}';
    skipped record;
    unwanted record;
    skip_partitions smallint[] := '{}';
    skips uuid[] := '{}';
    cancel_partitions smallint[] := '{}';
    going uuid[] := '{}';
    reasons jsonb[] := '{}';
begin
    perform flowfabric._take_flows_of(_settle_flows.partitions, _settle_flows.ids);
    loop
        left_pending := array(
            select g from flowfabric._settle_edges(wave_partitions, wave, states, _settle_flows.others) g);
        exit when left_pending = '{}';
        _settle_flows.others := '{}';
        fired_partitions := fired_partitions || array(select g.partition from unnest(left_pending) g);
        fired := fired || array(select g.downstream from unnest(left_pending) g);
        select array_agg(t.partition) as partitions, array_agg(t.id) as ids, count(*)::int as amount into skipped
        from unnest(left_pending) g
        cross join lateral (
            select t.partition, t.id from flowfabric.tickets t
            where t.partition = g.partition and t.id = g.downstream offset 0) t
        where g.state = 'impossible' and not t.id = any (going);
        select array_agg(u.partition) as partitions, array_agg(u.id) as ids, count(*)::int as amount,
               array_agg(jsonb_build_object('class', 'cancelled', 'reason', u.reason)) as reasons
        into unwanted from flowfabric._upstreams_to_cancel(left_pending, coalesce(skipped.ids, '{}')) u;
        exit when skipped.amount + unwanted.amount = 0;
        skip_partitions := skip_partitions || skipped.partitions;
        skips := skips || skipped.ids;
        cancel_partitions := cancel_partitions || unwanted.partitions;
        going := going || unwanted.ids;
        reasons := reasons || unwanted.reasons;
        wave_partitions := skipped.partitions || unwanted.partitions;
        wave := skipped.ids || unwanted.ids;
        states := array_fill('skipped'::flowfabric.edge_state, array[skipped.amount])
               || array_fill('failed'::flowfabric.edge_state, array[unwanted.amount]);
    end loop;
    if fired <> '{}' then
        lanes := flowfabric._act_on_groups(
            fired_partitions, fired, skip_partitions, skips, cancel_partitions, going, reasons);
        ended := array(
            select flowfabric._id(x.partition, x.id)
            from unnest(skip_partitions || cancel_partitions, skips || going) as x (partition, id) limit 10000);
    end if;
end $$;

-- The state that an ended upstream gives its edges.
--
--   returns  succeeded, skipped or failed; null for an upstream that has not ended
create or replace function flowfabric._edge_state(outcome flowfabric.outcome)
returns flowfabric.edge_state
language plpgsql immutable as $$
begin
    return case when _edge_state.outcome = 'success' then 'succeeded'
                when _edge_state.outcome = 'skipped' then 'skipped'
                when _edge_state.outcome in ('failed', 'cancelled', 'expired') then 'failed' end;
end $$;

-- Apply the decisions: release members whose group is satisfied, skip members whose group is impossible, and cancel the
-- remaining upstreams. Only members that are blocked by dependencies are released, and a due time in the future stays.
-- The caller has locked the flows and settled all edges.
--
--   moves    blocked_by_dependencies → eligible_now, or not_eligible_until_time; any phase → ended: skipped, cancelled
--   locks    the tickets, in key order; the budgets of their reservations, in key order
--   emits    edge_group_satisfied, edge_group_impossible, execution_skipped, execution_cancelled
--   returns  the lanes where members became claimable
create or replace function flowfabric._act_on_groups(
    partitions smallint[], downstreams uuid[], skip_partitions smallint[], skips uuid[], cancel_partitions smallint[],
    cancels uuid[], reasons jsonb[])
returns text[]
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    fired constant flowfabric.edge_groups[] := array(
        select g.edge_group from unnest(_act_on_groups.partitions, _act_on_groups.downstreams) as x (partition, id)
        cross join lateral (
            select g as edge_group from flowfabric.edge_groups g
            where g.partition = x.partition and g.downstream = x.id offset 0) g);
    now constant timestamptz := flowfabric.clock();
    lanes text[];
begin
    perform from (
        select distinct x.partition, x.id from (
            select x.* from unnest(_act_on_groups.partitions, _act_on_groups.downstreams) as x (partition, id)
            union all
            select x.* from unnest(_act_on_groups.cancel_partitions, _act_on_groups.cancels) as x (partition, id)) x
        order by x.partition, x.id) x
    cross join lateral (select from flowfabric.tickets t where t.partition = x.partition and t.id = x.id for update) t;

    perform flowfabric._note_groups('edge_group_satisfied', array(
        select g from unnest(fired) g where g.state = 'satisfied'));
    with released as (
        update flowfabric.tickets t
        set eligibility = case
                when t.due_at > now then 'not_eligible_until_time' else 'eligible_now' end::flowfabric.eligibility,
            reason = case when t.due_at > now then 'waiting_for_delay' else 'waiting_for_worker' end::flowfabric.reason
        from (
            select t.place from unnest(fired) g
            cross join lateral (
                select t.ctid as place, t.eligibility from flowfabric.tickets t
                where t.partition = g.partition and t.id = g.downstream offset 0) t
            where g.state = 'satisfied' and t.eligibility = 'blocked_by_dependencies') x
        where t.ctid = x.place
        returning t.lane, t.eligibility
    )
    select coalesce(array_agg(distinct r.lane), '{}') into lanes from released r where r.eligibility = 'eligible_now';
    if _act_on_groups.skips <> '{}' then
        perform flowfabric._note_groups('edge_group_impossible', array(
            select g from unnest(fired) g where g.state = 'impossible'));
        perform flowfabric._end(
            _act_on_groups.skip_partitions, _act_on_groups.skips, 'skipped',
            failures => array( -- because of an upstream that failed, or else of one that was skipped itself
                select jsonb_build_object('class', 'cancelled', 'category', 'skipped', 'reason', format(
                    'upstream %s %s', flowfabric._id(x.partition, u.upstream),
                    coalesce(flowfabric._ended_state(u.outcome), u.state::text)))
                from unnest(_act_on_groups.skip_partitions, _act_on_groups.skips)
                     with ordinality as x (partition, id, number)
                cross join lateral (
                    select e.upstream, e.state, o.outcome from flowfabric.flow_edges e
                    join flowfabric.executions o on o.partition = e.partition and o.id = e.upstream
                    where e.partition = x.partition and e.downstream = x.id and e.state in ('failed', 'skipped')
                    order by e.state, e.upstream limit 1) u
                order by x.number));
    end if;
    if _act_on_groups.cancels <> '{}' then
        perform flowfabric._end(
            _act_on_groups.cancel_partitions, _act_on_groups.cancels, 'cancelled',
            failures => _act_on_groups.reasons, detail => '{"source": "flow_cascade"}');
    end if;
    return lanes;
end $$;

-- Append an event about the edge group of each unfinished member. The caller has locked the tickets.
--
--   emits    edge_group_satisfied, edge_group_impossible
create or replace function flowfabric._note_groups(kind text, groups flowfabric.edge_groups[])
returns void
language plpgsql as $$
declare
    open_ones record;
begin
    select array_agg(t.partition) as partitions, array_agg(t.id) as ids, array_agg(jsonb_build_object(
               'kind', g.kind, 'total', g.total, 'succeeded', g.succeeded, 'failed', g.failed,
               'skipped', g.skipped)) as details
    into open_ones from unnest(_note_groups.groups) g
    cross join lateral (
        select t.partition, t.id from flowfabric.tickets t
        where t.partition = g.partition and t.id = g.downstream offset 0) t;
    perform flowfabric._append_all(_note_groups.kind, open_ones.partitions, open_ones.ids, open_ones.details);
end $$;
