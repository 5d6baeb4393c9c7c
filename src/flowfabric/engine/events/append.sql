-- Events: one log entry per change, written in the transaction that makes the change.

-- Lock the log, shared, until the transaction ends: a separate statement before the first event id is taken. A reader
-- skips a gap in the ids once all transactions that held this lock have ended.
--
--   locks    the log, shared, until the transaction ends
create or replace function flowfabric._lock_log()
returns void
language sql as $$
    select pg_advisory_xact_lock_shared(17990, 1)
$$;

-- Append an event about something other than an execution: a lane, a worker, a key.
--
--   locks    the log, shared, until the transaction ends
--   emits    kind
create or replace function flowfabric._append(kind text, subject text, by text default null, detail jsonb default null)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
    perform flowfabric._lock_log();
    insert into flowfabric.events (at, kind, subject, by, detail)
    values (flowfabric.clock(), _append.kind, _append.subject, _append.by, jsonb_strip_nulls(_append.detail));
end $$;

-- Append one event per execution, in the order given. The caller has locked their tickets, or has just created or
-- removed them.
--
--   locks    the log, shared, until the transaction ends
--   emits    kind
create or replace function flowfabric._append_each(
    kind text, partitions smallint[], executions uuid[], routes int[], tags jsonb[] default null,
    details jsonb[] default null, by text default null, flows uuid[] default null)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    now constant timestamptz := flowfabric.clock();
begin
    perform flowfabric._lock_log();
    if cardinality(_append_each.executions) = 1 then
        insert into flowfabric.events (at, kind, partition, execution, route, tags, detail, by, flow)
        values (now, _append_each.kind, _append_each.partitions[1], _append_each.executions[1], _append_each.routes[1],
                _append_each.tags[1], _append_each.details[1], _append_each.by, _append_each.flows[1]);
        return;
    end if;
    insert into flowfabric.events (at, kind, partition, execution, route, tags, detail, by, flow)
    select now, _append_each.kind, x.partition, x.execution, x.route, x.tags, x.detail, _append_each.by, x.flow
    from unnest(_append_each.partitions, _append_each.executions, _append_each.routes, _append_each.tags,
                _append_each.details, _append_each.flows) as x (partition, execution, route, tags, detail, flow);
end $$;

-- Append an event about one execution, whatever its state.
--
--   locks    the log, shared, until the transaction ends
--   emits    kind
create or replace function flowfabric._append_about(
    kind text, partition int, execution uuid, by text default null, detail jsonb default null)
returns void
language sql as $$
    select flowfabric._append_each(
        _append_about.kind, array[e.partition], array[e.id], array[e.route], array[e.tags],
        array[jsonb_strip_nulls(_append_about.detail)], _append_about.by, array[e.flow])
    from flowfabric.executions e
    where e.partition = _append_about.partition and e.id = _append_about.execution
$$;
