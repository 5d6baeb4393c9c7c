-- Ids as people and programs see them.

-- An execution's or flow's id on the wire.
--
--   returns  {fp:N}:<uuid>
create or replace function flowfabric._id(partition int, id uuid)
returns text
language sql immutable as $$
    select '{fp:' || _id.partition::text || '}:' || _id.id::text
$$;
