-- Children: executions that another one submitted; and waits that a run asks for side by side.

-- Whose child an execution is, and whether it has any of its own. Null and false for most, which costs them nothing.
alter table flowfabric.executions add column parent_partition smallint, add column parent uuid, add column on_parent_end text,
    add column has_children boolean not null default false;

create index executions_by_parent on flowfabric.executions (parent_partition, parent, partition, id) where parent is not null;

-- Ends that concern another execution: a child's, which its parent may wait for, and a parent's, whose children may have to
-- go. Written with the end and read after it, so that no transaction holds two of a family. `after_…` is how far the
-- children of an ended parent have been dealt with.
create table flowfabric.child_ends (
    partition        smallint not null,
    parent_partition smallint,
    after_partition  smallint,
    at               timestamptz not null,
    execution        uuid not null,
    parent           uuid, -- null where the parent itself has ended
    after_id         uuid
);

create index child_ends_of_children on flowfabric.child_ends (at, execution) where parent is not null;
create index child_ends_of_parents on flowfabric.child_ends (at, execution) where parent is null;

-- A wait among several of one suspension is a row of its own, `within` the one that its ticket is in. Those with the same
-- `choice` are alternatives: the first that is over takes the others out. A sleep has no waitpoint, and neither has a wait
-- for a child.
alter table flowfabric.suspensions add column within uuid, add column choice int, add column is_sleep boolean not null default false,
    add column child_partition smallint, add column child uuid;

drop index flowfabric.suspensions_open, flowfabric.suspensions_oldest;
create unique index suspensions_open on flowfabric.suspensions (partition, execution) where ended_at is null and within is null;
create index suspensions_oldest on flowfabric.suspensions (suspended_at, partition, execution) where ended_at is null and within is null;
create index suspensions_within on flowfabric.suspensions (partition, execution) where ended_at is null and within is not null;
create unique index suspensions_by_place on flowfabric.suspensions (partition, execution, name, occurrence)
    where within is not null and name is not null;
create index suspensions_of_child on flowfabric.suspensions (child) where child is not null and ended_at is null;
