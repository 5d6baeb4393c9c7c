-- Matching: flows by the beginning of their id.

-- Find the flows whose UUIDs are in a range, the newest first: one range of an index per partition of the cell.
--
--   returns  up to `take` of them
create or replace function flowfabric.match_flows(lowest uuid, highest uuid, take int default 6)
returns table (partition int, id uuid)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return query
    select p.partition, m.id
    from flowfabric.deployment d
    cross join lateral generate_series(256 * d.cell, 256 * d.cell + 255) as p (partition)
    cross join lateral (
        select f.id from flowfabric.flows f
        where f.partition = p.partition and f.id >= match_flows.lowest and f.id <= match_flows.highest
        order by f.id desc limit match_flows.take) m
    order by m.id desc, p.partition limit match_flows.take;
end $$;
