-- Events: one log entry per change, written in the transaction that makes the change.

-- Lock the log, shared, until the transaction ends: a separate statement before the first event id is taken. A reader
-- skips a gap in the ids once all transactions that held this lock have ended. Only sessions with the setting
-- flowfabric.direct take ids now; in the others _number_events takes them, and this lock, as the transaction commits.
--
--   locks    the log, shared, until the transaction ends; nothing in a session without flowfabric.direct
create or replace function flowfabric._lock_log()
returns void
language sql as $$
    select case when current_setting('flowfabric.direct', true) = 'on' then pg_advisory_xact_lock_shared(17990, 1) end
$$;

-- Give drafts their event ids as their transaction commits: the function of our only trigger. The transaction still has
-- all its row locks then, so the events of one execution are in the order of its changes. The first call moves up to
-- 1 000 drafts, of which other transactions see none; the calls for drafts that are already moved do nothing.
--
--   locks    the log, shared, until the transaction has committed
--   returns  null
create or replace function flowfabric._number_events()
returns trigger
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
begin
    if not exists (select from flowfabric.events_drafts d where d.id = new.id) then
        return null;
    end if;
    perform pg_advisory_xact_lock_shared(17990, 1);
    with moved as (
        delete from flowfabric.events_drafts d where d.id between new.id and new.id + 999 returning d.*
    )
    insert into flowfabric.events (id, at, route, partition, execution, flow, kind, subject, by, tags, detail)
    select nextval('flowfabric.event_ids'), m.at, m.route, m.partition, m.execution, m.flow, m.kind, m.subject, m.by,
           m.tags, m.detail
    from (select m.* from moved m order by m.id offset 0) m;
    return null;
end $$;

-- Deferred, so that it runs when the transaction commits or is prepared for two-phase commit; always, so that it also
-- runs in a session that replicates. A trigger needs its function, so it is created here and not in a migration.
do $$
begin
    if not exists (select from pg_trigger t where t.tgname = 'number_events'
                   and t.tgrelid = 'flowfabric.events_drafts'::regclass) then
        create constraint trigger number_events after insert on flowfabric.events_drafts
            deferrable initially deferred for each row execute function flowfabric._number_events();
        alter table flowfabric.events_drafts enable always trigger number_events;
    end if;
end $$;

-- Append an event about something other than an execution: a lane, a worker, a key.
--
--   locks    the log, as _lock_log does
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
--   locks    the log, as _lock_log does
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
--   locks    the log, as _lock_log does
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
