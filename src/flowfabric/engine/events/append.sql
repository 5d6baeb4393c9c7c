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

-- Give a draft its event id as its transaction commits: the function of our only trigger. The transaction still has all
-- its row locks then, so the events of one execution are in the order of its changes. It moves up to 1 000 drafts at
-- once, and the setting flowfabric.numbered says, within the transaction, up to which draft it has moved them.
--
--   locks    the log, shared, until the transaction has committed
--   returns  null
create or replace function flowfabric._number_events()
returns trigger
language plpgsql as $$
begin
    if new.id <= coalesce(nullif(current_setting('flowfabric.numbered', true), ''), '0')::bigint then
        return null;
    end if;
    perform pg_advisory_xact_lock_shared(17990, 1);
    perform set_config('flowfabric.numbered', flowfabric._move_drafts(new.id)::text, true);
    return null;
end $$;

-- Move the drafts of this transaction, from one on, into the log; at most 1 000. Other transactions see none of them.
-- The caller has locked the log.
--
--   returns  the last draft that was moved
create or replace function flowfabric._move_drafts(first_id bigint)
returns bigint
language plpgsql set enable_seqscan = off as $$
declare
    last_id bigint;
begin
    with moved as (
        delete from flowfabric.events_drafts d
        where d.id between _move_drafts.first_id and _move_drafts.first_id + 999 returning d.*
    ), numbered as (
        insert into flowfabric.events (id, at, route, partition, execution, flow, kind, subject, by, tags, detail,
                                       epoch, attempt, attempt_type, resumed, lease_id, worker, instance)
        select nextval('flowfabric.event_ids'), m.at, m.route, m.partition, m.execution, m.flow, m.kind, m.subject,
               m.by, m.tags, m.detail, m.epoch, m.attempt, m.attempt_type, m.resumed, m.lease_id, m.worker, m.instance
        from (select m.* from moved m order by m.id offset 0) m
    )
    select max(m.id) into last_id from moved m;
    return last_id;
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
begin
    perform flowfabric._lock_log();
    insert into flowfabric.events (at, kind, subject, by, detail)
    values (flowfabric.clock(), _append.kind, _append.subject, _append.by, jsonb_strip_nulls(_append.detail));
end $$;

-- Append one event for each of these executions, in the order given, whatever their states; nothing for null.
--
--   locks    the log, as _lock_log does
--   emits    kind
create or replace function flowfabric._append_all(
    kind text, partitions smallint[], executions uuid[], details jsonb[] default null, by text default null)
returns void
language plpgsql as $$
declare
    now constant timestamptz := flowfabric.clock();
begin
    perform flowfabric._lock_log();
    insert into flowfabric.events (at, kind, partition, execution, route, tags, detail, by, flow)
    select now, _append_all.kind, x.partition, x.execution, e.route, e.tags, x.detail, _append_all.by, e.flow
    from unnest(_append_all.partitions, _append_all.executions, _append_all.details)
         as x (partition, execution, detail)
    cross join lateral (select e.route, e.tags, e.flow from flowfabric.executions e
                        where e.partition = x.partition and e.id = x.execution offset 0) e;
end $$;

-- Append an event about one execution, whatever its state.
--
--   locks    the log, as _lock_log does
--   emits    kind
create or replace function flowfabric._append_about(
    kind text, partition int, execution uuid, by text default null, detail jsonb default null)
returns void
language sql as $$
    select flowfabric._append_all(
        _append_about.kind, array[_append_about.partition]::smallint[], array[_append_about.execution],
        array[jsonb_strip_nulls(_append_about.detail)], _append_about.by)
$$;
