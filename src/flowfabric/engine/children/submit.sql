-- Submit children: executions that a handler submits, each saved at its place in the journal of its parent.

-- Look up the places of children in the journals of their parents.
--
--   returns  one value per item: 'new', 'saved' with the result if that place already has its child, 'taken' if another
--            execution has the id; or the fault
create or replace function flowfabric._find_children(
    parent_partitions int[], parents uuid[], lease_ids uuid[], epochs bigint[], attempts int[], names text[],
    occurrences int[], partitions int[], ids uuid[], out outcomes text[], out faults jsonb[], out results bytea[])
language plpgsql as $$
declare
    judged record;
    crowded uuid[];
begin
    select array_agg(f.item) as items, array_agg(coalesce(f.fault, flowfabric._step_fault(
        _find_children.names[f.item], _find_children.occurrences[f.item], 0, 0))) as faults into judged
    from flowfabric._fenced(
        _find_children.parent_partitions, _find_children.parents, _find_children.lease_ids, _find_children.epochs,
        _find_children.attempts, array_fill(1, array[cardinality(_find_children.parents)]), 1) f;
    crowded := array(
        select d.id from (
            select x.partition, x.id, count(*) as amount
            from unnest(_find_children.parent_partitions, _find_children.parents) as x (partition, id) group by 1, 2) d
        where 10000 < d.amount + (
            select count(*) from flowfabric.steps s where s.partition = d.partition and s.execution = d.id));
    select array_agg(case when s.name is not null then 'saved' when o.is_taken then 'taken' else 'new' end
                     order by j.item),
           array_agg(o.fault order by j.item), array_agg(s.result order by j.item)
    into outcomes, faults, results
    from unnest(judged.items, judged.faults) as j (item, fault)
    left join lateral (
        select s.name, s.result from flowfabric.steps s
        where s.partition = _find_children.parent_partitions[j.item] and s.execution = _find_children.parents[j.item]
          and s.name = _find_children.names[j.item]
          and s.occurrence = _find_children.occurrences[j.item] offset 0) s on true
    cross join lateral (
        select coalesce(j.fault, case when s.name is null and _find_children.parents[j.item] = any (crowded) then
                   flowfabric._too_many_steps_fault() end) as fault,
               exists (select from flowfabric.executions e
                       where e.partition = _find_children.partitions[j.item]
                         and e.id = _find_children.ids[j.item] offset 0) as is_taken) o;
end $$;

-- Link executions that were submitted in this transaction to their parents, and save them in the journals of the
-- parents. The caller has locked the parents.
create or replace function flowfabric._adopt_children(
    parent_partitions int[], parents uuid[], names text[], occurrences int[], endings text[], partitions int[],
    ids uuid[])
returns void
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    parent record;
begin
    update flowfabric.executions e set parent_partition = x.partition, parent = x.id, on_parent_end = x.ending
    from (
        select x.*, e.place
        from unnest(_adopt_children.parent_partitions, _adopt_children.parents, _adopt_children.partitions,
                    _adopt_children.ids, _adopt_children.endings)
             as x (partition, id, child_partition, child, ending)
        cross join lateral (
            select e.ctid as place from flowfabric.executions e
            where e.partition = x.child_partition and e.id = x.child offset 0) e
        limit cardinality(_adopt_children.ids)) x
    where e.ctid = x.place;
    insert into flowfabric.steps (partition, execution, name, occurrence, kind, result, at)
    select x.partition, x.id, x.name, x.occurrence, 'step',
           convert_to(to_jsonb(flowfabric._id(x.child_partition, x.child))::text, 'UTF8'), now
    from unnest(_adopt_children.parent_partitions, _adopt_children.parents, _adopt_children.names,
                _adopt_children.occurrences, _adopt_children.partitions, _adopt_children.ids)
         as x (partition, id, name, occurrence, child_partition, child)
    on conflict do nothing;
    for parent in
        select distinct x.partition, x.id
        from unnest(_adopt_children.parent_partitions, _adopt_children.parents) as x (partition, id) order by 1, 2
    loop
        update flowfabric.executions e set has_children = true
        where e.partition = parent.partition and e.id = parent.id and not e.has_children;
    end loop;
end $$;

-- Take some values out of an array, by their positions in ascending order.
--
--   returns  the values; the array itself if it is null, or if all of it is taken
create or replace function flowfabric._picked(given anycompatiblearray, places int[])
returns anycompatiblearray
language sql immutable as $$
    select case when _picked.given is null or cardinality(_picked.given) = cardinality(_picked.places)
        then _picked.given
        else array(select x.value from unnest(_picked.given) with ordinality as x (value, item)
                   where x.item::int = any (_picked.places) order by x.item) end
$$;

-- Submit the children of running executions, many in one call. A child is saved at its place in the journal of its
-- parent, under the id derived from that place, so that a repeated call finds it. The parameters from `options` on are
-- those of `submit`. `parent_flows` are the flows of the parents, if the caller knows them. `maps` are the ids of the
-- maps that children belong to, with the `max_running` of each.
--
--   moves    – → runnable: eligible_now, not_eligible_until_time if it is due later, or blocked_by_dependencies until
--            it has a turn in its map; lane – → active, if it is new
--   locks    the flows of the parents, in key order; the tickets of the parents, in key order; then as submit; the
--            maps, in key order
--   emits    execution_submitted; lane_registered, if a lane is new; flow_member_added, for members
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found,
--            too_many_steps, invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace,
--            invalid_capabilities, budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time,
--            invalid_tag_key, invalid_tag, flow_not_found, flow_already_terminal, wrong_partition, flow_too_large,
--            key_conflict; invalid_limit over 1,000 items
--   returns  per item 'new' if the child was submitted, 'saved' {result} if that place already has its child, 'taken'
--            if another execution has the id or the idempotency key, or its refusal
create or replace function flowfabric.submit_children(
    parent_partitions int[], parents uuid[], lease_ids uuid[], epochs bigint[], attempts int[], names text[],
    occurrences int[], endings text[], options text[], options_of int[], partitions int[], ids uuid[],
    payloads bytea[] default null, keys text[] default null, key_partitions int[] default null,
    priorities int[] default null, delays_ms bigint[] default null, delays_until timestamptz[] default null,
    deadlines_ms bigint[] default null, deadlines_at timestamptz[] default null, tags text[] default null,
    payload_limit int default 1048576, flows uuid[] default null, parent_flows uuid[] default null,
    wait boolean default true, maps uuid[] default null, max_running int[] default null)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    found record;
    fresh int[];
    made int[];
    refused jsonb;
    is_repeated boolean;
begin
    perform flowfabric._limit_waits(submit_children.wait);
    -- A child joins the flow of its parent, and flows are locked before any ticket.
    if submit_children.parent_flows is null or submit_children.parent_flows <> '{}' then
        perform flowfabric._lock_for_end(
            submit_children.parent_partitions, submit_children.parents, submit_children.parent_flows);
    end if;
    found := flowfabric._find_children(
        submit_children.parent_partitions, submit_children.parents, submit_children.lease_ids, submit_children.epochs,
        submit_children.attempts, submit_children.names, submit_children.occurrences, submit_children.partitions,
        submit_children.ids);
    fresh := array(
        select x.item::int from unnest(found.outcomes, found.faults) with ordinality as x (outcome, fault, item)
        where x.outcome = 'new' and x.fault is null order by x.item);
    if fresh <> '{}' then
        select array_agg(fresh[a.item] order by a.item) filter (where a.outcome = 'created'),
               jsonb_object_agg(fresh[a.item], a.detail::jsonb || jsonb_build_object('code', a.refusal))
                   filter (where a.refusal is not null), bool_or(a.outcome = 'duplicate')
        into made, refused, is_repeated
        from flowfabric.submit(
            submit_children.options, flowfabric._picked(submit_children.options_of, fresh),
            flowfabric._picked(submit_children.partitions, fresh), flowfabric._picked(submit_children.ids, fresh),
            flowfabric._picked(submit_children.payloads, fresh), flowfabric._picked(submit_children.keys, fresh),
            flowfabric._picked(submit_children.key_partitions, fresh),
            flowfabric._picked(submit_children.priorities, fresh),
            flowfabric._picked(submit_children.delays_ms, fresh),
            flowfabric._picked(submit_children.delays_until, fresh),
            flowfabric._picked(submit_children.deadlines_ms, fresh),
            flowfabric._picked(submit_children.deadlines_at, fresh), flowfabric._picked(submit_children.tags, fresh),
            submit_children.payload_limit, flows => flowfabric._picked(submit_children.flows, fresh)) a;
    end if;
    if made is not null then
        perform flowfabric._adopt_children(
            flowfabric._picked(submit_children.parent_partitions, made),
            flowfabric._picked(submit_children.parents, made), flowfabric._picked(submit_children.names, made),
            flowfabric._picked(submit_children.occurrences, made), flowfabric._picked(submit_children.endings, made),
            flowfabric._picked(submit_children.partitions, made), flowfabric._picked(submit_children.ids, made));
        if submit_children.maps is not null then
            perform flowfabric._join_maps(
                flowfabric._picked(submit_children.maps, made), flowfabric._picked(submit_children.max_running, made),
                flowfabric._picked(submit_children.parent_partitions, made),
                flowfabric._picked(submit_children.parents, made),
                flowfabric._picked(submit_children.occurrences, made),
                flowfabric._picked(submit_children.partitions, made), flowfabric._picked(submit_children.ids, made));
        end if;
    end if;
    if is_repeated then -- the same place twice in this call, or an id or a key that another transaction has taken
        found := flowfabric._find_children(
            submit_children.parent_partitions, submit_children.parents, submit_children.lease_ids,
            submit_children.epochs, submit_children.attempts, submit_children.names, submit_children.occurrences,
            submit_children.partitions, submit_children.ids);
    end if;
    return query
    select x.item::int, o.outcome, o.fault ->> 'code', case
               when o.fault is not null then (o.fault - 'code')::text
               when o.outcome = 'saved' then
                   jsonb_build_object('result', translate(encode(x.result, 'base64'), E'\n', ''))::text end
    from unnest(found.outcomes, found.faults, found.results) with ordinality as x (outcome, fault, result, item)
    cross join lateral (select coalesce(refused -> x.item::text, x.fault) as fault) f
    cross join lateral (
        select f.fault, case when f.fault is not null then null when x.item = any (made) then 'new'
                             when x.outcome = 'saved' then 'saved' else 'taken' end as outcome) o;
end $$;
