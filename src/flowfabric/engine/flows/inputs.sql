-- Inputs: results that upstreams pass to a member.

-- The results that upstreams pass to claimed members. An upstream that did not succeed, or has no result, passes
-- nothing. One call returns at most 16 MiB and reads at most 20,000 edges. A member gets all of its inputs or none of
-- them, and members with small inputs come first, so a member with a thousand upstreams does not crowd out the others.
--
--   returns  one row per input: item, name and bytes; a row without a name for an item whose inputs did not fit
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
            select g.total, g.flow from flowfabric.edge_groups g
            where g.partition = x.partition and g.downstream = x.id offset 0) g
    ), found as (
        select a.item, a.partition, e.upstream, e.pass_as, u.bytes, sum(u.bytes) over (partition by a.item) as weight
        from asked a
        cross join lateral (
            select e.upstream, e.pass_as from flowfabric.flow_edges e
            where e.flow = a.flow and e.downstream = a.id and e.partition + 0 = a.partition and e.pass_as is not null
              and e.state = 'succeeded'
            offset 0) e
        cross join lateral (
            -- octet_length reads the length without reading the bytes.
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
        where e.flow = a.flow and e.downstream = a.id and e.partition + 0 = a.partition and e.pass_as is not null
          and e.state = 'succeeded'
        offset 0);
end $$;

-- A page of the inputs of a member, ordered by name (keyset pagination after a name), optionally only the given names.
-- Stops at 8 MiB.
--
--   returns  one row per input: name, bytes, and whether more inputs follow this page
create or replace function flowfabric.read_inputs(
    partition int, id uuid, names text[] default null, after_name text default '')
returns table (name text, result bytea, encoding text, more boolean)
language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
    return query
    with found as (
        select e.upstream, e.pass_as collate "C" as pass_as, octet_length(u.result) + 200 as bytes
        from (
            select g.flow from flowfabric.edge_groups g
            where g.partition = read_inputs.partition and g.downstream = read_inputs.id offset 0) g
        cross join lateral (
            select e.upstream, e.pass_as from flowfabric.flow_edges e
            where e.flow = g.flow and e.downstream = read_inputs.id and e.partition + 0 = read_inputs.partition
              and e.state = 'succeeded'
              and e.pass_as collate "C" > read_inputs.after_name
              and (read_inputs.names is null or e.pass_as = any (read_inputs.names))
            offset 0) e
        cross join lateral (
            select u.result from flowfabric.executions u
            where u.partition = read_inputs.partition and u.id = e.upstream and u.result is not null offset 0) u
    ), measured as materialized (
        select f.*, sum(f.bytes) over (order by f.pass_as) as size, row_number() over (order by f.pass_as) as place
        from found f
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
