-- Rare properties of tickets, stored there so that claims and ends need no other table. Null for most tickets, and null
-- takes no space.

-- True if the end of the execution may have to close something: a wait, a waitpoint, a budget reservation. Never reset.
alter table flowfabric.tickets add column ties boolean default true; -- existing tickets may have something to close
alter table flowfabric.tickets alter column ties drop default;

-- The length of a payload above 16 KiB. A claim takes at most 1 000 executions, so smaller payloads stay below 16 MiB.
alter table flowfabric.tickets add column bytes int;
update flowfabric.tickets t set bytes = octet_length(e.payload) from flowfabric.executions e
where e.partition = t.partition and e.id = t.id and octet_length(e.payload) > 16384;
