-- Inputs: what the upstreams of a member hand on to it.

-- The results that upstreams pass to members which are claimed. One that did not succeed, or gave no result, passes nothing.
--
--   returns  a row each: for which item, under which name, and the bytes
create or replace function flowfabric._list_inputs(partitions int[], ids uuid[])
returns table (item int, name text, result bytea, encoding text)
language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
    return query
    select x.item::int, e.pass_as, u.result, coalesce(u.result_encoding, 'json')
    from unnest(_list_inputs.partitions, _list_inputs.ids) with ordinality as x (partition, id, item)
    cross join lateral (
        select e.upstream, e.pass_as from flowfabric.flow_edges e
        where e.partition = x.partition and e.downstream = x.id and e.pass_as is not null and e.state = 'succeeded' offset 0) e
    cross join lateral (
        select u.result, u.result_encoding from flowfabric.executions u
        where u.partition = x.partition and u.id = e.upstream and u.result is not null offset 0) u;
end $$;
