-- Closing and trimming: streams end with their attempts, and frames that are not kept are deleted in batches.

-- Close the streams of attempts that end, and note when their frames are to be deleted if that is before their
-- execution is removed. The caller has locked the tickets. The end of an execution whose lease has
-- expired for the last time replaces the reason that the end of that lease has given in the same transaction.
create or replace function flowfabric._close_streams(
    partitions smallint[], ids uuid[], attempts int[], reasons text[])
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
begin
    update flowfabric.streams s
    set closed_at = now, closed_reason = x.reason::flowfabric.closed_reason,
        trim_at = least(s.trim_at, now + s.retention)
    from unnest(_close_streams.partitions, _close_streams.ids, _close_streams.attempts, _close_streams.reasons)
         as x (partition, id, attempt, reason)
    where s.partition = any (array[x.partition]) and s.execution between x.id and x.id
      and s.attempt = any (array[x.attempt])
      and (s.closed_at is null or s.closed_reason = 'reclaimed' and x.reason = 'lease_expired');
end $$;

-- Name the reason why the stream of an attempt is closed that ends like this.
--
--   returns  the reason
create or replace function flowfabric._closed_reason(outcome flowfabric.outcome, failure jsonb)
returns text
language sql immutable as $$
    select case
        when _closed_reason.failure ->> 'reason' = 'suspension_timeout' then 'suspension_timeout'
        when _closed_reason.outcome = 'success' then 'attempt_success'
        when _closed_reason.outcome = 'cancelled' then 'attempt_cancelled'
        when _closed_reason.outcome = 'skipped' then 'dependency_impossible'
        when _closed_reason.outcome = 'expired' or starts_with(_closed_reason.failure ->> 'reason', 'attempt_timeout:')
            then 'expired'
        when _closed_reason.failure ->> 'reason' = 'max_reclaims_exceeded' then 'lease_expired'
        else 'attempt_failure' end
$$;

-- Sweep: delete the frames that streams do not keep: the oldest durable ones beyond the retention, summary frames
-- beyond the last 64, best-effort frames that have expired or are beyond their number, and all frames of streams whose
-- retention has passed since they were closed, and of removed executions. A pass deletes at most `take` frames, and an
-- append never waits for it.
--
--   locks    the frames it deletes and then their streams, skipping locked ones
--   returns  how many frames were deleted, and streams seen that had none to delete
create or replace function flowfabric.trim_frames(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    stream flowfabric.streams;
    done flowfabric.streams[] := '{}';
    idle uuid[] := '{}';
    trimmed int;
begin
    moved := 0;
    for stream in
        select s.* from flowfabric.streams s where s.trim_at <= now
        order by s.trim_at limit trim_frames.take offset trim_frames.passing
    loop
        exit when moved >= trim_frames.take;
        trimmed := flowfabric._trim_stream(stream, trim_frames.take - moved, now);
        done := case when trimmed < trim_frames.take - moved then done || stream else done end;
        idle := case when trimmed = 0 then idle || stream.execution else idle end;
        moved := moved + trimmed;
    end loop;
    -- Last, so that an append waits for no deletion.
    foreach stream in array done loop
        if flowfabric._note_trimmed(stream, now) and stream.execution = any (idle) then
            moved := moved + 1;
        end if;
    end loop;
end $$;

-- Delete the frames that a stream does not keep: all of them if its retention has passed or its execution was removed.
--
--   locks    the frames, skipping locked ones
--   returns  how many were deleted
create or replace function flowfabric._trim_stream(stream flowfabric.streams, most int, now timestamptz)
returns int
language plpgsql as $$
#variable_conflict use_column
declare
    trimmed int;
begin
    delete from flowfabric.frames f where f.ctid = any (array(
        select f.ctid from flowfabric.frames f
        where f.partition = stream.partition and f.execution = stream.execution and f.attempt = stream.attempt
          and (stream.trim_at = '-infinity' or stream.closed_at + stream.retention <= _trim_stream.now
               or f.expires_at <= _trim_stream.now or f.ordinal <= case f.mode
                   when 'durable' then stream.durable_count - stream.max_frames
                   when 'summary' then stream.summary_version - 64
                   else stream.best_effort_count - stream.best_effort_keep end)
        order by f.ms, f.seq limit _trim_stream.most for update skip locked));
    get diagnostics trimmed = row_count;
    return trimmed;
end $$;

-- Note that a stream is trimmed, and when the next of its frames has to go; or delete it if its execution was
-- removed. A stream that has become due again meanwhile is left as it is.
--
--   locks    the stream (skips a locked one)
--   returns  whether it was noted
create or replace function flowfabric._note_trimmed(stream flowfabric.streams, now timestamptz)
returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
    place tid;
begin
    select s.ctid into place from flowfabric.streams s
    where s.partition = stream.partition and s.execution = stream.execution and s.attempt = stream.attempt
      and s.trim_at = stream.trim_at
    for update skip locked;
    if stream.trim_at = '-infinity' then
        delete from flowfabric.streams s where s.ctid = place;
    else
        update flowfabric.streams s
        set trim_at = least(
            (select min(f.expires_at) from flowfabric.frames f
             where f.partition = stream.partition and f.execution = stream.execution and f.attempt = stream.attempt
               and f.mode = 'best_effort'),
            case when s.closed_at + s.retention > _note_trimmed.now then s.closed_at + s.retention end)
        where s.ctid = place;
    end if;
    return place is not null;
end $$;
