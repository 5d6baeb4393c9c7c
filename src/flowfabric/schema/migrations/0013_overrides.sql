-- Who ended an execution by override, and why. Null for most executions, and null takes no space.
alter table flowfabric.executions add column overridden jsonb;
