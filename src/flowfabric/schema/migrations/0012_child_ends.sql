-- For a loose index scan over the parents of ended children, which skips parents that are locked.
create index child_ends_by_parent on flowfabric.child_ends (parent, at, execution) where parent is not null;
