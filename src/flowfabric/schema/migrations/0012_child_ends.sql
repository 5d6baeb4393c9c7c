-- From family to family through the ends of children, past those whose parent is locked.
create index child_ends_by_parent on flowfabric.child_ends (parent, at, execution) where parent is not null;
