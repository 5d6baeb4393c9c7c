-- Pages: how many rows a list returns at once.

-- Return how many rows to read for a page: one more than the page holds, to know whether another page follows.
--
--   refuses  invalid_limit
--   returns  the number; limits above 1 000 are reduced to 1 000
create or replace function flowfabric._page(take int)
returns int
language plpgsql stable as $$
begin
    if _page.take < 0 then
        perform flowfabric._refuse('invalid_limit', format('limit %s is invalid; use 0 to 1 000', _page.take));
    end if;
    return least(_page.take, 1000) + 1;
end $$;
