-- Ids: the text form that APIs and people use.

-- Return the text form of an execution's or a flow's id.
--
--   returns  {fp:N}:<uuid>
create or replace function flowfabric._id(partition int, id uuid)
returns text
language sql immutable as $$
    select '{fp:' || _id.partition::text || '}:' || _id.id::text
$$;
