-- Settling: what the end of a member means to those behind it, in the transaction of that end.

-- What a group is, by its rule and how its edges stand. `needed` is null where all are.
--
--   returns  pending, satisfied or impossible; pending while it has fewer edges than it needs, because it is still being built
create or replace function flowfabric._judge_group(needed int, total int, succeeded int, lost int)
returns flowfabric.group_state
language plpgsql immutable as $$
declare
    least_of constant int := coalesce(needed, greatest(total, 1));
begin
    if total < least_of then
        return 'pending';
    elsif succeeded >= least_of then
        return 'satisfied';
    elsif lost > total - least_of then
        return 'impossible';
    end if;
    return 'pending';
end $$;

-- Settle the edges from members that have ended, or are about to, each once, and judge the groups they lead to; those of
-- `others` are judged too, in the partition of the first. The caller holds the flows. Nothing else is done yet.
--
--   moves    edge pending → succeeded, failed, skipped; group pending → satisfied, impossible
--   returns  the groups that left pending
create or replace function flowfabric._settle_edges(
    partitions smallint[], ids uuid[], states flowfabric.edge_state[], others uuid[] default '{}')
returns setof flowfabric.edge_groups
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
#variable_conflict use_column
begin
    return query
    with settled as (
        update flowfabric.flow_edges e set state = x.state
        from (
            select o.place, x.state from (
                select x.* from unnest(_settle_edges.partitions, _settle_edges.ids, _settle_edges.states) as x (partition, id, state)
                where x.state is not null limit cardinality(_settle_edges.ids)) x
            cross join lateral (
                select e.ctid as place from flowfabric.flow_edges e
                where e.upstream = x.id and e.partition + 0 = x.partition and e.state = 'pending' offset 0) o) x
        where e.ctid = x.place
        returning e.partition, e.downstream, e.state
    ), counted as (
        select s.partition, s.downstream, count(*) filter (where s.state = 'succeeded') as succeeded,
               count(*) filter (where s.state = 'failed') as failed, count(*) filter (where s.state = 'skipped') as skipped
        from (
            select s.* from settled s
            union all
            select _settle_edges.partitions[1], o, null from unnest(_settle_edges.others) o) s
        group by 1, 2
    ), judged as (
        update flowfabric.edge_groups g
        set succeeded = g.succeeded + c.succeeded, failed = g.failed + c.failed, skipped = g.skipped + c.skipped,
            state = case when g.state <> 'pending' then g.state else flowfabric._judge_group(
                g.needed, g.total, g.succeeded + c.succeeded::int, (g.failed + c.failed + g.skipped + c.skipped)::int) end
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

-- Who is no longer wanted when groups have left pending that cancel what still runs for them: their upstreams that have not
-- ended and are not skipped with them, save those that another group still waits for.
--
--   returns  a row each, with why
create or replace function flowfabric._unwanted(groups flowfabric.edge_groups[], skipped uuid[])
returns table (partition smallint, id uuid, reason text)
language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
    return query
    select e.partition, e.upstream, 'sibling_quorum_' || min(g.state::text)
    from unnest(_unwanted.groups) g
    cross join lateral (
        select e.partition, e.upstream from flowfabric.flow_edges e
        where e.flow = g.flow and e.downstream = g.downstream and e.partition + 0 = g.partition and e.state = 'pending' offset 0) e
    where g.cancels and not e.upstream = any (_unwanted.skipped) and not exists (
        select from (select o.downstream from flowfabric.flow_edges o
                     where o.upstream = e.upstream and o.partition + 0 = e.partition and o.state = 'pending' offset 0) o
        cross join lateral (
            select from flowfabric.edge_groups w
            where w.partition = e.partition and w.downstream = o.downstream and w.state = 'pending' offset 0) w)
    group by 1, 2
    order by 1, 2;
end $$;

-- Do to those behind members that have ended what follows: wave by wave, however deep it goes, first decided and then done.
-- Who has not ended is certain while the flow is held. `others` are groups to judge besides, of which an edge was added.
--
--   moves    blocked_by_dependencies → eligible_now, or not_eligible_until_time; or → ended: skipped; unwanted siblings →
--            ended: cancelled; edge pending → succeeded, failed, skipped; group pending → satisfied, impossible
--   locks    the flows, in key order; the tickets it moves, in key order; the budgets of what they had set aside, in key order
--   emits    edge_group_satisfied, edge_group_impossible, execution_skipped, execution_cancelled, waitpoint_closed,
--            reservation_released
create or replace function flowfabric._settle_flows(
    partitions smallint[], ids uuid[], outcome flowfabric.outcome, others uuid[] default '{}')
returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    wave_partitions smallint[] := partitions;
    wave uuid[] := ids;
    states flowfabric.edge_state[] := array_fill(flowfabric._edge_state(outcome), array[cardinality(ids)]);
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
    perform flowfabric._lock_flows_of(_settle_flows.partitions, _settle_flows.ids);
    loop
        left_pending := array(select g from flowfabric._settle_edges(wave_partitions, wave, states, others) g);
        exit when left_pending = '{}';
        others := '{}';
        fired_partitions := fired_partitions || array(select g.partition from unnest(left_pending) g);
        fired := fired || array(select g.downstream from unnest(left_pending) g);
        select array_agg(t.partition) as partitions, array_agg(t.id) as ids, count(*)::int as amount into skipped
        from unnest(left_pending) g
        cross join lateral (
            select t.partition, t.id from flowfabric.tickets t where t.partition = g.partition and t.id = g.downstream offset 0) t
        where g.state = 'impossible' and not t.id = any (going);
        select array_agg(u.partition) as partitions, array_agg(u.id) as ids, count(*)::int as amount,
               array_agg(jsonb_build_object('class', 'cancelled', 'reason', u.reason)) as reasons
        into unwanted from flowfabric._unwanted(left_pending, coalesce(skipped.ids, '{}')) u;
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
        perform flowfabric._act_on_groups(fired_partitions, fired, skip_partitions, skips, cancel_partitions, going, reasons);
    end if;
end $$;

-- What the end of an upstream is to its edges.
--
--   returns  succeeded, skipped or failed; null for one that has not ended
create or replace function flowfabric._edge_state(outcome flowfabric.outcome)
returns flowfabric.edge_state
language plpgsql immutable as $$
begin
    return case outcome when 'success' then 'succeeded' when 'skipped' then 'skipped'
                        when 'failed' then 'failed' when 'cancelled' then 'failed' when 'expired' then 'failed' end;
end $$;

-- Do what was decided: release those whose group is satisfied, end those whose group is impossible and those who are no longer
-- wanted. The caller holds the flows and has settled the edges of all of them.
--
--   moves    blocked_by_dependencies → eligible_now, or not_eligible_until_time; any phase → ended: skipped, cancelled
--   locks    the tickets, in key order; the budgets of what they had set aside, in key order
--   emits    edge_group_satisfied, edge_group_impossible, execution_skipped, execution_cancelled, waitpoint_closed,
--            reservation_released
create or replace function flowfabric._act_on_groups(
    partitions smallint[], downstreams uuid[], skip_partitions smallint[], skips uuid[], cancel_partitions smallint[], cancels uuid[],
    reasons jsonb[])
returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    fired constant flowfabric.edge_groups[] := array(
        select g.edge_group from unnest(partitions, downstreams) as x (partition, id)
        cross join lateral (
            select g as edge_group from flowfabric.edge_groups g where g.partition = x.partition and g.downstream = x.id offset 0) g);
begin
    perform from (
        select distinct x.partition, x.id from (
            select x.* from unnest(_act_on_groups.partitions, _act_on_groups.downstreams) as x (partition, id)
            union all
            select x.* from unnest(_act_on_groups.cancel_partitions, _act_on_groups.cancels) as x (partition, id)) x
        order by x.partition, x.id) x
    cross join lateral (select from flowfabric.tickets t where t.partition = x.partition and t.id = x.id for update) t;

    perform flowfabric._note_groups('edge_group_satisfied', array(select g from unnest(fired) g where g.state = 'satisfied'));
    perform flowfabric._release(fired);
    if skips <> '{}' then
        perform flowfabric._note_groups('edge_group_impossible', array(
            select g from unnest(fired) g where g.state = 'impossible'));
        perform flowfabric._end(skip_partitions, skips, 'skipped', failures => flowfabric._skip_failures(skip_partitions, skips));
    end if;
    if cancels <> '{}' then
        perform flowfabric._end(cancel_partitions, cancels, 'cancelled', failures => reasons, detail => '{"source": "flow_cascade"}');
    end if;
end $$;

-- Let members go on whose group is satisfied: those that wait for it, not before their time, and no others.
--
--   moves    blocked_by_dependencies → eligible_now, or not_eligible_until_time while the due time is ahead
create or replace function flowfabric._release(groups flowfabric.edge_groups[])
returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
begin
    update flowfabric.tickets t
    set eligibility = case when t.due_at > now then 'not_eligible_until_time' else 'eligible_now' end::flowfabric.eligibility,
        reason = case when t.due_at > now then 'waiting_for_delay' else 'waiting_for_worker' end::flowfabric.reason
    from (
        select t.place from unnest(_release.groups) g
        cross join lateral (
            select t.ctid as place, t.eligibility from flowfabric.tickets t
            where t.partition = g.partition and t.id = g.downstream offset 0) t
        where g.state = 'satisfied' and t.eligibility = 'blocked_by_dependencies') x
    where t.ctid = x.place;
end $$;

-- Say in the log of unfinished members what has become of their groups.
--
--   emits    edge_group_satisfied, edge_group_impossible
create or replace function flowfabric._note_groups(kind text, groups flowfabric.edge_groups[])
returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    open_ones record;
begin
    select array_agg(e.partition) as partitions, array_agg(e.id) as ids, array_agg(e.route) as routes, array_agg(e.tags) as tags,
           array_agg(e.flow) as flows, array_agg(jsonb_build_object(
               'kind', g.kind, 'total', g.total, 'succeeded', g.succeeded, 'failed', g.failed, 'skipped', g.skipped)) as details
    into open_ones from unnest(_note_groups.groups) g
    cross join lateral (
        select e.partition, e.id, e.route, e.tags, e.flow from flowfabric.executions e
        where e.partition = g.partition and e.id = g.downstream and e.outcome is null offset 0) e;
    if open_ones.ids is not null then
        perform flowfabric._append_each(_note_groups.kind, open_ones.partitions, open_ones.ids, open_ones.routes, open_ones.tags, open_ones.details,
                                        flows => open_ones.flows);
    end if;
end $$;

-- Why members are skipped: which of their upstreams did not succeed, the one that failed before one that was skipped itself.
--
--   returns  a failure each, in the order given
create or replace function flowfabric._skip_failures(partitions smallint[], ids uuid[])
returns jsonb[]
language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
    return array(
        select jsonb_build_object('class', 'cancelled', 'category', 'skipped', 'reason', format(
            'upstream %s %s', flowfabric._id(x.partition, u.upstream), coalesce(flowfabric._ended_state(u.outcome), u.state::text)))
        from unnest(_skip_failures.partitions, _skip_failures.ids) with ordinality as x (partition, id, number)
        cross join lateral (
            select e.upstream, e.state, o.outcome from flowfabric.flow_edges e
            join flowfabric.executions o on o.partition = e.partition and o.id = e.upstream
            where e.partition = x.partition and e.downstream = x.id and e.state in ('failed', 'skipped')
            order by e.state, e.upstream limit 1) u
        order by x.number);
end $$;
