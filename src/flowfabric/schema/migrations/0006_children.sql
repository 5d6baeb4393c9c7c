-- Children: executions submitted by another execution; and concurrent waits of one handler.

-- The parent of an execution, and whether it has children. Null and false for most executions, which costs no space.
alter table flowfabric.executions add column parent_partition smallint, add column parent uuid,
    add column on_parent_end text,
    add column has_children boolean not null default false;

create index executions_by_parent on flowfabric.executions (parent_partition, parent, partition, id)
    where parent is not null;

-- Ends that affect another execution: of a child, whose parent may wait for it, and of a parent, whose children may
-- have to be cancelled. Written with the end and processed later, so that no transaction locks two executions of a
-- family. `after_…` is the last child of an ended parent that has been processed.
create table flowfabric.child_ends (
    partition        smallint not null,
    parent_partition smallint,
    after_partition  smallint,
    at               timestamptz not null,
    retry_at         timestamptz, -- when to try again, if children of an ended parent were locked
    execution        uuid not null,
    parent           uuid, -- null if the parent itself has ended
    after_id         uuid
);

alter table flowfabric.child_ends replica identity full; -- as removals

create index child_ends_of_children on flowfabric.child_ends (at, execution) where parent is not null;
create index child_ends_of_parents on flowfabric.child_ends (at, execution) where parent is null;

-- Each of several waits of one suspension is a separate row, `within` the suspension of the ticket. Waits with the same
-- `choice` are alternatives: the first to complete cancels the others. A sleep and a wait for a child have no
-- waitpoint.
alter table flowfabric.suspensions add column within uuid, add column choice int,
    add column is_sleep boolean not null default false,
    add column child_partition smallint, add column child uuid;

drop index flowfabric.suspensions_open, flowfabric.suspensions_oldest;
create unique index suspensions_open on flowfabric.suspensions (partition, execution)
    where ended_at is null and within is null;
create index suspensions_oldest on flowfabric.suspensions (suspended_at, partition, execution)
    where ended_at is null and within is null;
create index suspensions_within on flowfabric.suspensions (partition, execution)
    where ended_at is null and within is not null;
create unique index suspensions_by_place on flowfabric.suspensions (partition, execution, name, occurrence)
    where within is not null and name is not null;
create index suspensions_of_child on flowfabric.suspensions (child) where child is not null and ended_at is null;
