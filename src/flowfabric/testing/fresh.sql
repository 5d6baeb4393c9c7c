-- Remove the events of the migration itself, so that a test starts with an empty log.

truncate flowfabric.events;
select setval('flowfabric.event_ids', 1, false);
