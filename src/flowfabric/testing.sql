-- A clock that tests move. Installed by flowfabric.testing only; no migration and no upgrade ever runs this file.

create table if not exists flowfabric.clock_offset (
    only_row boolean primary key default true check (only_row),
    amount   interval not null default '0'
);

insert into flowfabric.clock_offset default values on conflict do nothing;

create or replace function flowfabric.clock()
returns timestamptz
language plpgsql stable as $$
begin
    return clock_timestamp() + (select c.amount from flowfabric.clock_offset c);
end $$;

create or replace function flowfabric.move_clock(span interval)
returns timestamptz
language plpgsql as $$
begin
    update flowfabric.clock_offset c set amount = c.amount + move_clock.span;
    return flowfabric.clock();
end $$;
