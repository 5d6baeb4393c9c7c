-- What few tickets have, so that claims and ends need not look for it elsewhere. Null with most of them, and null takes no room.

-- True where something may have to be closed when the execution ends: a wait, a waitpoint, something set aside of a budget.
-- Never taken back.
alter table flowfabric.tickets add column ties boolean default true; -- those that are there already may have something
alter table flowfabric.tickets alter column ties drop default;

-- The length of a payload above 16 KiB. A claim takes at most 1 000, so without such a one it stays below 16 MiB.
alter table flowfabric.tickets add column bytes int;
update flowfabric.tickets t set bytes = octet_length(e.payload) from flowfabric.executions e
where e.partition = t.partition and e.id = t.id and octet_length(e.payload) > 16384;
