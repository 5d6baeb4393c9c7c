-- Inputs: what the upstreams of a member hand on to it.

-- The results that upstreams pass to members which are claimed. One that did not succeed, or gave no result, passes nothing. In all
-- 16 MiB come of it, and 20 000 edges are looked at: a member comes with all that it is handed or with nothing of it, those with
-- little before those with much, so that one of a thousand upstreams takes nothing from the others.
--
--   returns  a row each: for which item, under which name, and the bytes; one without a name for an item whose inputs have no room
create or replace function flowfabric._list_inputs(partitions int[], ids uuid[])
returns table (item int, name text, result bytea, encoding text)
language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
    return query
    with asked as materialized (
        select x.item::int, x.partition, x.id, g.flow, sum(g.total) over (order by g.total, x.item) as looks
        from unnest(_list_inputs.partitions, _list_inputs.ids) with ordinality as x (partition, id, item)
        cross join lateral (
            select g.total, g.flow from flowfabric.edge_groups g where g.partition = x.partition and g.downstream = x.id offset 0) g
    ), found as (
        select a.item, a.partition, e.upstream, e.pass_as, u.bytes, sum(u.bytes) over (partition by a.item) as weight
        from asked a
        cross join lateral (
            select e.upstream, e.pass_as from flowfabric.flow_edges e
            where e.flow = a.flow and e.downstream = a.id and e.partition + 0 = a.partition and e.pass_as is not null and e.state = 'succeeded'
            offset 0) e
        cross join lateral (
            -- The length is known without reading the bytes.
            select octet_length(u.result) + 200 as bytes from flowfabric.executions u
            where u.partition = a.partition and u.id = e.upstream and u.result is not null offset 0) u
        where a.looks <= 20000
    ), weighed as materialized (
        select f.*, sum(f.bytes) over (order by f.weight, f.item) as size from found f
    )
    select w.item, w.pass_as, u.result, u.encoding from weighed w
    cross join lateral (
        select u.result, coalesce(u.result_encoding, 'json') as encoding from flowfabric.executions u
        where u.partition = w.partition and u.id = w.upstream offset 0) u
    where w.size <= 16777216
    union all
    select distinct w.item, null::text, null::bytea, null::text from weighed w where w.size > 16777216
    union all
    select a.item, null, null, null from asked a
    where a.looks > 20000 and exists (
        select from flowfabric.flow_edges e
        where e.flow = a.flow and e.downstream = a.id and e.partition + 0 = a.partition and e.pass_as is not null and e.state = 'succeeded'
        offset 0);
end $$;

-- What a member is handed, by name behind a place, and of the names given only. Stops at 8 MiB.
--
--   returns  a row each: the name, the bytes, and whether there is more behind the last one
create or replace function flowfabric.read_inputs(partition int, id uuid, names text[] default null, after_name text default '')
returns table (name text, result bytea, encoding text, more boolean)
language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
    return query
    with found as (
        select e.upstream, e.pass_as collate "C" as pass_as, octet_length(u.result) + 200 as bytes
        from (
            select g.flow from flowfabric.edge_groups g where g.partition = read_inputs.partition and g.downstream = read_inputs.id offset 0) g
        cross join lateral (
            select e.upstream, e.pass_as from flowfabric.flow_edges e
            where e.flow = g.flow and e.downstream = read_inputs.id and e.partition + 0 = read_inputs.partition and e.state = 'succeeded'
              and e.pass_as collate "C" > read_inputs.after_name and (read_inputs.names is null or e.pass_as = any (read_inputs.names))
            offset 0) e
        cross join lateral (
            select u.result from flowfabric.executions u
            where u.partition = read_inputs.partition and u.id = e.upstream and u.result is not null offset 0) u
    ), measured as materialized (
        select f.*, sum(f.bytes) over (order by f.pass_as) as size, row_number() over (order by f.pass_as) as place from found f
    ), page as (
        select m.*, exists (select from measured o where o.place > 1 and o.size > 8388608) as more
        from measured m where m.place = 1 or m.size <= 8388608
    )
    select p.pass_as, u.result, coalesce(u.result_encoding, 'json'), p.more from page p
    cross join lateral (
        select u.result, u.result_encoding from flowfabric.executions u
        where u.partition = read_inputs.partition and u.id = p.upstream offset 0) u
    order by p.place;
end $$;
