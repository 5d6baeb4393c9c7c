-- Matching: executions by the beginning of their id.

-- Find the executions whose UUIDs are in a range, the newest first: one range of an index per partition of the cell.
--
--   returns  up to `take` of them
create or replace function flowfabric.match_executions(lowest uuid, highest uuid, take int default 6)
returns table (partition int, id uuid)
language plpgsql stable set plan_cache_mode = force_generic_plan as $$
begin
    return query
    select p.partition, m.id
    from flowfabric.deployment d
    cross join lateral generate_series(256 * d.cell, 256 * d.cell + 255) as p (partition)
    cross join lateral (
        select e.id from flowfabric.executions e
        where e.partition = p.partition
          and e.id >= match_executions.lowest and e.id <= match_executions.highest
        order by e.id desc limit match_executions.take) m
    order by m.id desc, p.partition limit match_executions.take;
end $$;
