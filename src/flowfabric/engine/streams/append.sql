-- Frames: append the output of running attempts to their streams.

-- Append frames, many in one call; those of one attempt keep their order. `fences_of` names the fence of each frame,
-- from 1; without it, each frame has its own. A numbered frame is appended once: its number must be above the last one
-- of its epoch. Ids grow even if the clock is set back. Without `wait`, frames of executions that another transaction
-- has locked are refused, so that the other frames do not wait for them.
--
--   locks    the tickets, in key order; without `wait`, skips locked ones
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found,
--            invalid_frame, payload_too_large, invalid_patch, row_locked
--   returns  per item 'appended' {frame_id, frame_count, summary_version}, 'duplicate', or its refusal
create or replace function flowfabric.append_frames(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], payloads bytea[],
    fences_of int[] default null, numbers bigint[] default null, kinds text[] default null, types text[] default null,
    encodings text[] default null, correlation_ids text[] default null, modes text[] default null,
    ttls_ms bigint[] default null, payload_limit int default 65536, document_limit int default 1048576,
    wait boolean default true)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz;
    faults jsonb[];
    judged record;
begin
    perform flowfabric._limit_waits(append_frames.wait);
    append_frames.fences_of := coalesce(append_frames.fences_of, array(
        select generate_series(1, cardinality(append_frames.payloads))));
    select array_agg(f.fault order by f.item) into faults
    from flowfabric._fenced(append_frames.partitions, append_frames.ids, append_frames.lease_ids, append_frames.epochs,
                            append_frames.attempts, array_fill(1, array[cardinality(append_frames.ids)]), 1,
                            append_frames.wait) f;
    now := flowfabric.clock();
    judged := flowfabric._judge_frames(
        append_frames.partitions, append_frames.ids, append_frames.epochs, append_frames.attempts, faults,
        append_frames.payloads, append_frames.fences_of, append_frames.numbers, append_frames.kinds,
        append_frames.types, append_frames.encodings, append_frames.correlation_ids, append_frames.modes,
        append_frames.ttls_ms, append_frames.payload_limit);
    faults := judged.faults;
    if judged.missing is not null then
        perform flowfabric._open_streams(append_frames.partitions, append_frames.ids, append_frames.attempts,
                                         judged.missing);
    end if;
    if judged.resumed is not null then
        perform flowfabric._void_frames(append_frames.partitions, append_frames.ids, append_frames.epochs,
                                        append_frames.attempts, judged.resumed, now);
    end if;
    if 'summary' = any (append_frames.modes) then
        faults := flowfabric._apply_patches(
            append_frames.partitions, append_frames.ids, append_frames.attempts, append_frames.payloads,
            append_frames.fences_of, append_frames.modes, faults, judged.repeats, append_frames.document_limit, now);
    end if;
    return query
    select w.* from flowfabric._write_frames(
        append_frames.partitions, append_frames.ids, append_frames.epochs, append_frames.attempts,
        append_frames.payloads, append_frames.fences_of, append_frames.numbers, append_frames.kinds,
        append_frames.types, append_frames.encodings, append_frames.correlation_ids, append_frames.modes,
        append_frames.ttls_ms, faults, judged.repeats, now) w
    union all
    select x.item::int, case when x.fault is null then 'duplicate' end, x.fault ->> 'code', (x.fault - 'code')::text
    from unnest(faults, judged.repeats) with ordinality as x (fault, is_repeat, item)
    where x.fault is not null or x.is_repeat;
end $$;

-- Check the frames of a call, whose fences the caller has checked, and find those that have been appended before.
--
--   refuses  fence_required, as a value
--   returns  per frame its fault, and whether it is a repeat; the fences whose streams do not exist yet, and those that
--            append for the first time to a stream of an earlier run
create or replace function flowfabric._judge_frames(
    partitions int[], ids uuid[], epochs bigint[], attempts int[], fence_faults jsonb[], payloads bytea[],
    fences_of int[], numbers bigint[], kinds text[], types text[], encodings text[], correlation_ids text[],
    modes text[], ttls_ms bigint[], payload_limit int, out faults jsonb[], out repeats boolean[], out missing int[],
    out resumed int[])
language plpgsql as $$
#variable_conflict use_column
declare
    known record;
begin
    -- A stream that is only left to be removed belonged to a removed execution of the same id.
    select array_agg(case when s.epoch = x.epoch then s.number else 0 end order by x.fence) as numbers,
           array_agg(s.execution is not null order by x.fence) as exist,
           array_agg(s.epoch < x.epoch order by x.fence) as resume
    into known
    from unnest(_judge_frames.partitions, _judge_frames.ids, _judge_frames.attempts, _judge_frames.epochs)
         with ordinality as x (partition, id, attempt, epoch, fence)
    left join lateral (
        select s.execution, s.epoch, s.number from flowfabric.streams s
        where s.partition = x.partition and s.execution = x.id and s.attempt = x.attempt
          and s.trim_at is distinct from '-infinity' offset 0) s on true;
    with judged as materialized (
        select x.item, x.fence, x.number,
               case when x.fence is null or x.fence not between 1 and cardinality(_judge_frames.ids)
                    then flowfabric._fault('fence_required', 'the fence is missing; pass lease_id, epoch and attempt')
                    else coalesce(_judge_frames.fence_faults[x.fence], flowfabric._frame_fault(
                        x.kind, x.type, octet_length(x.payload), _judge_frames.payload_limit, x.encoding,
                        x.correlation_id, x.mode, x.ttl_ms, x.number),
                        case when x.mode = 'summary' then flowfabric._patch_fault(
                            (flowfabric._read_patch(x.payload)).cause) end) end as fault
        from unnest(_judge_frames.payloads, _judge_frames.fences_of, _judge_frames.numbers, _judge_frames.kinds,
                    _judge_frames.types, _judge_frames.encodings, _judge_frames.correlation_ids, _judge_frames.modes,
                    _judge_frames.ttls_ms)
             with ordinality as x (payload, fence, number, kind, type, encoding, correlation_id, mode, ttl_ms, item)
        where x.item <= cardinality(_judge_frames.payloads)
    )
    select array_agg(j.fault order by j.item), array_agg(j.is_repeat order by j.item),
           array_agg(distinct j.fence) filter (where j.fault is null and not known.exist[j.fence]),
           array_agg(distinct j.fence) filter (where j.fault is null and j.number > 0 and known.resume[j.fence])
    into faults, repeats, missing, resumed
    from (
        select j.*, j.fault is null and coalesce(j.number <= greatest(known.numbers[j.fence], max(
                        case when j.fault is null then j.number end) over (
                        partition by j.fence order by j.item rows between unbounded preceding and 1 preceding)), false)
                    as is_repeat
        from judged j) j;
end $$;

-- Check a frame, regardless of its stream.
--
--   refuses  invalid_frame, as a value
--   returns  the fault, or null if the frame is valid
create or replace function flowfabric._frame_fault(
    kind text, type text, bytes int, most int, encoding text, correlation_id text, mode text, ttl_ms bigint,
    number bigint)
returns jsonb
language sql stable as $$
    select case
        when _frame_fault.bytes > _frame_fault.most then
            flowfabric._oversize_fault('frame', _frame_fault.bytes, _frame_fault.most)
        when _frame_fault.bytes is null then
            flowfabric._fault('invalid_frame', 'the payload is missing; use bytes, which may be empty',
                              '{"field": "payload"}')
        when _frame_fault.kind not in ('stdout', 'stderr', 'event', 'blob') then
            flowfabric._fault('invalid_frame', format('kind %s is invalid; use stdout, stderr, event or blob',
                                                      flowfabric._shown(_frame_fault.kind)), '{"field": "kind"}')
        when _frame_fault.mode not in ('durable', 'summary', 'best_effort') then
            flowfabric._fault('invalid_frame', format('mode %s is invalid; use durable, summary or best_effort',
                                                      flowfabric._shown(_frame_fault.mode)), '{"field": "mode"}')
        when _frame_fault.ttl_ms not between 1 and 86400000 then
            flowfabric._fault('invalid_frame', format('ttl of %s ms is invalid; use 1 to 86,400,000 ms (a day)',
                                                      _frame_fault.ttl_ms), '{"field": "ttl_ms"}')
        when _frame_fault.ttl_ms is not null and _frame_fault.mode is distinct from 'best_effort' then
            flowfabric._fault('invalid_frame', 'a ttl is invalid for a frame that is kept; use mode best_effort',
                              '{"field": "ttl_ms"}')
        when _frame_fault.number < 1 then
            flowfabric._fault('invalid_frame', format('number %s is invalid; use a whole number from 1',
                                                      _frame_fault.number), '{"field": "number"}')
        when _frame_fault.type = 'superseded' then
            flowfabric._fault('invalid_frame', 'type superseded is reserved; use another one', '{"field": "type"}')
        when octet_length(_frame_fault.type) not between 1 and 128 then
            flowfabric._length_fault('invalid_frame', 'type', _frame_fault.type, 1, 128, 'type')
        when octet_length(_frame_fault.encoding) not between 1 and 64 then
            flowfabric._length_fault('invalid_frame', 'encoding', _frame_fault.encoding, 1, 64, 'encoding')
        when octet_length(_frame_fault.correlation_id) not between 1 and 256 then
            flowfabric._length_fault('invalid_frame', 'correlation_id', _frame_fault.correlation_id, 1, 256,
                                     'correlation_id')
    end
$$;

-- Create the streams of these attempts, whose tickets the caller has locked, and mark the tickets, so that the end of
-- the execution closes the streams. What is kept is decided by the policy of the execution, then by its lane. What is
-- left of a removed execution with the same id is deleted first. A summary begins with that of the attempt before, if
-- the journal has entries: the run does not repeat the patches that came before them.
create or replace function flowfabric._open_streams(partitions int[], ids uuid[], attempts int[], fences int[])
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    fresh record;
begin
    -- Several fences may be about the same attempt.
    select array_agg(x.partition) as partitions, array_agg(x.id) as ids, array_agg(x.attempt) as attempts into fresh
    from (select distinct _open_streams.partitions[f.fence]::smallint as partition, _open_streams.ids[f.fence] as id,
                          _open_streams.attempts[f.fence] as attempt
          from unnest(_open_streams.fences) as f (fence)) x;
    delete from flowfabric.frames f using unnest(fresh.partitions, fresh.ids) as x (partition, id)
    where f.partition = any (array[x.partition]) and f.execution between x.id and x.id
      and exists (select from flowfabric.streams s where s.partition = x.partition and s.execution = x.id
                  and s.trim_at = '-infinity');
    delete from flowfabric.streams s using unnest(fresh.partitions, fresh.ids) as x (partition, id)
    where s.partition = any (array[x.partition]) and s.execution between x.id and x.id and s.trim_at = '-infinity';
    insert into flowfabric.streams (partition, execution, attempt, max_frames, retention, summary, summary_first_at,
                                    summary_updated_at)
    select x.partition, x.id, x.attempt,
           coalesce((e.policy #>> '{stream,retention_maxlen}')::int, l.stream_retention_maxlen, 10000),
           coalesce((e.policy #>> '{stream,retention_ms}')::bigint * interval '1 ms', l.stream_retention),
           p.summary, p.summary_first_at, p.summary_updated_at
    from unnest(fresh.partitions, fresh.ids, fresh.attempts) as x (partition, id, attempt)
    cross join lateral (select e.policy from flowfabric.executions e where e.partition = x.partition and e.id = x.id
                        offset 0) e
    cross join lateral (select t.lane from flowfabric.tickets t where t.partition = x.partition and t.id = x.id
                        offset 0) t
    cross join lateral (select l.stream_retention_maxlen, l.stream_retention from flowfabric.lanes l
                        where l.name = t.lane offset 0) l
    left join lateral (
        select s.summary, s.summary_first_at, s.summary_updated_at from flowfabric.streams s
        where x.attempt > 1 and s.partition = x.partition and s.execution = x.id and s.attempt < x.attempt
          and s.summary is not null and exists (select from flowfabric._journal(x.partition, x.id))
        order by s.attempt desc limit 1) p on true;
    update flowfabric.tickets t set ties = true
    from unnest(fresh.partitions, fresh.ids) as x (partition, id)
    where t.partition = any (array[x.partition]) and t.id between x.id and x.id and t.ties is null;
end $$;

-- Append a frame of type `superseded` to streams in which a run has left frames after the last entry of the journal,
-- and did not end the attempt: its worker was stopped, for example. The run that appends next puts them out again.
-- The caller has locked the tickets.
create or replace function flowfabric._void_frames(
    partitions int[], ids uuid[], epochs bigint[], attempts int[], fences int[], now timestamptz)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    void record;
begin
    select array_agg(x.fence order by x.fence) as fences,
           array_agg(convert_to(json_build_object('last_id', v.ms || '-' || v.seq)::text, 'utf8')
                     order by x.fence) as payloads,
           count(*)::int as frames
    into void
    from unnest(_void_frames.fences) as x (fence)
    cross join lateral (
        select max(j.at) as at
        from flowfabric._journal(_void_frames.partitions[x.fence], _void_frames.ids[x.fence]) j offset 0) j
    left join lateral (
        select f.ms, f.seq from flowfabric.frames f
        where f.partition = _void_frames.partitions[x.fence] and f.execution = _void_frames.ids[x.fence]
          and f.attempt = _void_frames.attempts[x.fence] and f.at <= j.at
        order by f.ms desc, f.seq desc limit 1) v on true
    where exists (
        select from flowfabric.frames f
        where f.partition = _void_frames.partitions[x.fence] and f.execution = _void_frames.ids[x.fence]
          and f.attempt = _void_frames.attempts[x.fence] and (f.ms, f.seq) > (coalesce(v.ms, 0), coalesce(v.seq, -1))
          and f.mode <> 'summary');
    if void.frames > 0 then
        perform flowfabric._write_frames(
            _void_frames.partitions, _void_frames.ids, _void_frames.epochs, _void_frames.attempts, void.payloads,
            void.fences, null, null, array_fill('superseded'::text, array[void.frames]), null, null, null, null, null,
            array_fill(false, array[void.frames]), _void_frames.now);
    end if;
end $$;
