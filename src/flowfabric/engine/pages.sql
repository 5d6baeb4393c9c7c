-- Pages: how much a list answers at once.

-- How many rows to read for a page: one more than it holds, which tells whether more follows.
--
--   refuses  invalid_limit
--   returns  the number; more than 1 000 is cut to that
create or replace function flowfabric._page(take int)
returns int
language plpgsql stable as $$
begin
    if take < 0 then
        perform flowfabric._refuse('invalid_limit', format('limit %s: a limit is 0 to 1 000', take));
    end if;
    return least(take, 1000) + 1;
end $$;
