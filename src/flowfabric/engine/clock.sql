-- The only clock: leases, delays, deadlines and windows are all judged by it.

-- What time it is. Read once per function into a variable, so that every row of one call is judged alike.
--
--   returns  the database's time; `flowfabric.testing` replaces this body by one that can be moved
create or replace function flowfabric.clock()
returns timestamptz
language plpgsql stable as $$
begin
    return clock_timestamp();
end $$;
