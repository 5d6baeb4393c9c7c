-- Inputs: results that upstreams pass to a member.

-- The results that upstreams pass to the executions of these tickets. An upstream that did not succeed, or has no
-- result, passes nothing. One call returns at most 16 MiB and reads at most 20,000 edges. A member gets all of its
-- inputs or none of them, and members with small inputs come first, so a member with a thousand upstreams does not
-- crowd out the others.
--
--   returns  the inputs of each ticket, in their order
create or replace function flowfabric._inputs_of(places tid[])
returns flowfabric.inputs[]
language plpgsql stable as $$
begin
    return array(
        with asked as materialized (
            select p.number, t.partition, t.id, t.flow, coalesce(g.total, 0) as total,
                   sum(g.total) over (order by g.total, p.number) as looks
            from unnest(_inputs_of.places) with ordinality as p (place, number)
            cross join lateral (
                select t.partition, t.id, t.flow from flowfabric.tickets t where t.ctid = p.place offset 0) t
            left join lateral (
                select g.total from flowfabric.edge_groups g
                where g.partition = t.partition and g.downstream = t.id offset 0) g on true
        ), found as (
            select a.number, a.partition, e.upstream, e.pass_as, u.bytes,
                   sum(u.bytes) over (partition by a.number) as weight
            from asked a
            cross join lateral (
                select e.upstream, e.pass_as from flowfabric.flow_edges e
                where e.flow = a.flow and e.downstream = a.id and e.partition + 0 = a.partition
                  and e.pass_as is not null and e.state = 'succeeded'
                offset 0) e
            cross join lateral (
                -- octet_length reads the length without reading the bytes.
                select octet_length(u.result) + 200 as bytes from flowfabric.executions u
                where u.partition = a.partition and u.id = e.upstream and u.result is not null offset 0) u
            where a.total > 0 and a.looks <= 20000
        ), weighed as materialized (
            select f.*, sum(f.bytes) over (order by f.weight, f.number) as size from found f
        ), passed as (
            select w.number, w.pass_as, u.result, u.encoding, w.upstream, false as more from weighed w
            cross join lateral (
                select u.result, coalesce(u.result_encoding, 'json') as encoding from flowfabric.executions u
                where u.partition = w.partition and u.id = w.upstream offset 0) u
            where w.size <= 16777216
            union all
            select w.number, null, null, null, null, true from weighed w where w.size > 16777216
            union all
            select a.number, null, null, null, null, a.looks > 20000 and exists (
                select from flowfabric.flow_edges e
                where e.flow = a.flow and e.downstream = a.id and e.partition + 0 = a.partition
                  and e.pass_as is not null and e.state = 'succeeded'
                offset 0)
            from asked a
        )
        select row(array_agg(p.pass_as) filter (where p.pass_as is not null),
                   array_agg(p.result) filter (where p.pass_as is not null),
                   array_agg(p.encoding) filter (where p.pass_as is not null),
                   array_agg(p.upstream) filter (where p.pass_as is not null), bool_or(p.more))::flowfabric.inputs
        from passed p group by p.number order by p.number);
end $$;

-- A page of the inputs of a member, ordered by name (keyset pagination after a name), optionally only the given names.
-- Stops at 8 MiB.
--
--   returns  one row per input: name, bytes, and whether more inputs follow this page
create or replace function flowfabric.read_inputs(
    partition int, id uuid, names text[] default null, after_name text default '')
returns table (name text, result bytea, encoding text, upstream uuid, more boolean)
language plpgsql stable as $$
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
    select p.pass_as, u.result, coalesce(u.result_encoding, 'json'), p.upstream, p.more from page p
    cross join lateral (
        select u.result, u.result_encoding from flowfabric.executions u
        where u.partition = read_inputs.partition and u.id = p.upstream offset 0) u
    order by p.place;
end $$;
