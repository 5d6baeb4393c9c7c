-- The clock: the database's time, used for every lease, delay, deadline and window.

-- Return the current time. Functions read it once into a variable, so that all rows of a call use the same time.
--
--   returns  the database's time; `flowfabric.testing` replaces this body with one that tests can move
create or replace function flowfabric.clock()
returns timestamptz
language plpgsql stable as $$
begin
    return clock_timestamp();
end $$;
