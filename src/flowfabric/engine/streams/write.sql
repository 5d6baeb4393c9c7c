-- Ids of frames: counted in one row per attempt, so that they grow without a gap for tails.

-- Write the valid frames of a call, and advance the counters of their streams. The caller has locked the tickets. The
-- id is the later of the clock and the stream's last millisecond, and a number within it.
--
--   returns  per frame 'appended' {frame_id, frame_count, summary_version}
create or replace function flowfabric._write_frames(
    partitions int[], ids uuid[], epochs bigint[], attempts int[], payloads bytea[], fences_of int[], numbers bigint[],
    kinds text[], types text[], encodings text[], correlation_ids text[], modes text[], ttls_ms bigint[],
    faults jsonb[], repeats boolean[], now timestamptz)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
#variable_conflict use_column
declare
    known record;
begin
    known := flowfabric._count_frames(
        _write_frames.partitions, _write_frames.ids, _write_frames.epochs, _write_frames.attempts,
        _write_frames.fences_of, _write_frames.numbers, _write_frames.modes, _write_frames.ttls_ms,
        _write_frames.faults, _write_frames.repeats, _write_frames.now);
    return query
    with good as materialized (
        select x.*, dense_rank() over (order by x.fence) as rank,
               row_number() over (partition by x.fence order by x.item) as place,
               row_number() over (partition by x.fence, x.mode order by x.item) as turn
        from (
            select x.item, x.fence, x.payload, coalesce(x.kind, 'event') as kind, x.type, x.encoding, x.correlation_id,
                   coalesce(x.mode, 'durable') as mode, x.ttl_ms
            from unnest(_write_frames.payloads, _write_frames.fences_of, _write_frames.kinds, _write_frames.types,
                        _write_frames.encodings, _write_frames.correlation_ids, _write_frames.modes,
                        _write_frames.ttls_ms, _write_frames.faults, _write_frames.repeats)
                 with ordinality as x (payload, fence, kind, type, encoding, correlation_id, mode, ttl_ms, fault,
                                       is_repeat, item)
            where x.fault is null and not x.is_repeat) x
    ), placed as materialized (
        select g.*, known.ms[g.rank] as ms, (known.seqs[g.rank] + g.place)::int as seq,
               g.turn + case g.mode when 'durable' then known.durable[g.rank] when 'summary' then known.summary[g.rank]
                                    else known.best_effort[g.rank] end as ordinal
        from good g
    ), written as (
        insert into flowfabric.frames (partition, execution, attempt, ms, seq, ordinal, at, expires_at, kind, mode,
                                       type, encoding, correlation_id, payload)
        select _write_frames.partitions[p.fence], _write_frames.ids[p.fence], _write_frames.attempts[p.fence], p.ms,
               p.seq, p.ordinal, _write_frames.now,
               case p.mode when 'best_effort'
                   then _write_frames.now + 2 * coalesce(p.ttl_ms, 30000) * interval '1 ms' end,
               p.kind::flowfabric.frame_kind, p.mode::flowfabric.frame_mode, nullif(p.type, p.kind),
               nullif(p.encoding, 'json'), p.correlation_id, p.payload
        from placed p
    )
    select p.item::int, 'appended', null,
           '{"frame_id":"' || p.ms || '-' || p.seq || '","frame_count":' || known.counts[p.rank] + p.place
           || case p.mode when 'summary' then ',"summary_version":' || p.ordinal else '' end || '}'
    from placed p;
end $$;

-- Advance the counters of streams by the valid frames of a call, and note when there is something to trim. The caller
-- has locked the tickets.
--
--   returns  arrays with one element per stream, in the order of the fences: the milliseconds of its new ids, and its
--            counters as they were before
create or replace function flowfabric._count_frames(
    partitions int[], ids uuid[], epochs bigint[], attempts int[], fences_of int[], numbers bigint[], modes text[],
    ttls_ms bigint[], faults jsonb[], repeats boolean[], now timestamptz, out ms bigint[], out seqs int[],
    out counts bigint[], out durable bigint[], out summary bigint[], out best_effort bigint[])
language plpgsql as $$
#variable_conflict use_column
declare
    now_ms bigint := floor(extract(epoch from _count_frames.now) * 1000);
begin
    with totals as (
        select x.fence, count(*)::int as frames, max(x.number) as number,
               count(*) filter (where x.mode is null or x.mode = 'durable') as durable,
               count(*) filter (where x.mode = 'summary') as summary,
               count(*) filter (where x.mode = 'best_effort') as best_effort,
               coalesce(max(x.ttl_ms), 30000) as ttl_ms
        from unnest(_count_frames.fences_of, _count_frames.numbers, _count_frames.modes, _count_frames.ttls_ms,
                    _count_frames.faults, _count_frames.repeats) as x (fence, number, mode, ttl_ms, fault, is_repeat)
        where x.fault is null and not x.is_repeat
        group by x.fence
    ), counted as (
        update flowfabric.streams s
        set last_ms = greatest(s.last_ms, now_ms),
            last_seq = t.frames + case when s.last_ms >= now_ms then s.last_seq else -1 end,
            epoch = case when t.number is null then s.epoch else _count_frames.epochs[t.fence] end,
            number = coalesce(t.number, s.number),
            frame_count = s.frame_count + t.frames, durable_count = s.durable_count + t.durable,
            summary_version = s.summary_version + t.summary, best_effort_count = s.best_effort_count + t.best_effort,
            best_effort_at = case when t.best_effort > 0 then _count_frames.now else s.best_effort_at end,
            best_effort_rate = b.rate, best_effort_keep = b.keep,
            trim_at = case
                when flowfabric._must_trim(s.durable_count, t.durable, s.max_frames)
                     or flowfabric._must_trim(s.summary_version, t.summary, 64)
                     or flowfabric._must_trim(s.best_effort_count, t.best_effort, b.keep)
                    then least(s.trim_at, _count_frames.now)
                when t.best_effort > 0
                    then least(s.trim_at, _count_frames.now + 2 * t.ttl_ms * interval '1 ms')
                else s.trim_at end
        from totals t
        cross join lateral (
            select s.best_effort_rate, s.best_effort_keep, s.best_effort_at from flowfabric.streams s
            where s.partition = _count_frames.partitions[t.fence] and s.execution = _count_frames.ids[t.fence]
              and s.attempt = _count_frames.attempts[t.fence] offset 0) o
        cross join lateral (
            select r.rate, case when t.best_effort > 0 then flowfabric._best_effort_keep(r.rate, t.ttl_ms)
                                else o.best_effort_keep end as keep
            from (select case when t.best_effort > 0 then flowfabric._best_effort_rate(
                                  o.best_effort_rate, o.best_effort_at, t.best_effort, _count_frames.now)
                              else o.best_effort_rate end as rate) r) b
        where s.partition = any (array[_count_frames.partitions[t.fence]::smallint])
          and s.execution between _count_frames.ids[t.fence] and _count_frames.ids[t.fence]
          and s.attempt = any (array[_count_frames.attempts[t.fence]])
        returning t.fence, t.frames, t.durable as new_durable, t.summary as new_summary,
                  t.best_effort as new_best_effort, s.last_ms, s.last_seq, s.frame_count, s.durable_count,
                  s.summary_version, s.best_effort_count
    )
    select array_agg(c.last_ms order by c.fence), array_agg(c.last_seq - c.frames order by c.fence),
           array_agg(c.frame_count - c.frames order by c.fence),
           array_agg(c.durable_count - c.new_durable order by c.fence),
           array_agg(c.summary_version - c.new_summary order by c.fence),
           array_agg(c.best_effort_count - c.new_best_effort order by c.fence)
    into ms, seqs, counts, durable, summary, best_effort from counted c;
end $$;

-- Compute the rate of best-effort frames of a stream after a call that appends some: a moving average.
--
--   returns  frames per second; 0 after the first call, which has no sample
create or replace function flowfabric._best_effort_rate(
    rate double precision, last_at timestamptz, frames bigint, now timestamptz)
returns double precision
language sql immutable as $$
    select case when _best_effort_rate.last_at is null then 0
        else 0.2 * _best_effort_rate.frames * 1000
                 / greatest(extract(epoch from _best_effort_rate.now - _best_effort_rate.last_at) * 1000, 1)
             + 0.8 * _best_effort_rate.rate end
$$;

-- Compute how many best-effort frames a stream keeps: twice what arrives at this rate while one lives.
--
--   returns  64 to 16,384
create or replace function flowfabric._best_effort_keep(rate double precision, ttl_ms bigint)
returns int
language sql immutable as $$
    select least(greatest(ceil(round((_best_effort_keep.rate * _best_effort_keep.ttl_ms / 500)::numeric, 6)), 64),
                 16384)::int
$$;

-- Whether these new frames make a stream exceed what it keeps by another quarter. Not with every frame, because it
-- costs an index entry, and a pass that trims reads the whole stream.
--
--   returns  true or false
create or replace function flowfabric._must_trim(before bigint, added bigint, keep int)
returns boolean
language sql immutable as $$
    select _must_trim.added > 0
       and (_must_trim.before + _must_trim.added - _must_trim.keep) / greatest(_must_trim.keep / 4, 64)
           > greatest(_must_trim.before - _must_trim.keep, 0) / greatest(_must_trim.keep / 4, 64)
$$;
