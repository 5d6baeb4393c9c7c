-- Shortcuts: the simplest submission skips the code for many items.

-- Insert record, ticket and event of a call with one item that has no tags, key, delay or deadline, in one statement:
-- the fast path for most calls.
--
--   moves    – → runnable
--   emits    execution_submitted
--   returns  true, or false if the id already exists
create or replace function flowfabric._write_plain(
    options flowfabric.options, partition int, id uuid, payload bytea, priority int, created_at timestamptz)
returns boolean
language plpgsql as $$
begin
    perform flowfabric._lock_log();
    with recorded as (
        insert into flowfabric.executions (partition, id, route, task, payload, encoding, creator, policy, created_at)
        values (_write_plain.partition, _write_plain.id, (options.route).id, options.task, _write_plain.payload,
                options.encoding, options.creator, options.policy, _write_plain.created_at)
        on conflict do nothing
        returning 1
    ), ticketed as (
        insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, bytes, eligibility, reason)
        select _write_plain.partition, _write_plain.id, (options.route).id, (options.route).lane,
               coalesce(_write_plain.priority, 0), _write_plain.created_at,
               flowfabric._large(octet_length(_write_plain.payload)), 'eligible_now', 'waiting_for_worker'
        from recorded
    )
    insert into flowfabric.events (at, kind, partition, execution, route, detail)
    select flowfabric.clock(), 'execution_submitted', _write_plain.partition, _write_plain.id, (options.route).id,
           jsonb_build_object('task', options.task) from recorded;
    return found;
end $$;
