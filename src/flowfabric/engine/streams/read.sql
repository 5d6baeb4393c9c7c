-- Reading: ranges of a stream, and what is new in many streams.

-- Read the frames of an attempt in a range of ids, both ends inclusive; of the current attempt unless it is given.
-- `kinds` restricts them. A page ends at `take` frames or 4 MiB. A stream without frames reads as empty.
--
--   refuses  execution_not_found, invalid_limit
--   returns  one row per frame, and whether more follow; one without a frame if the page is empty. Each row says
--            whether the stream is closed
create or replace function flowfabric.read_frames(
    partition int, id uuid, attempt int default null, from_ms bigint default 0, from_seq int default 0,
    to_ms bigint default 9223372036854775807, to_seq int default 2147483647, take int default 100,
    kinds text[] default null)
returns setof flowfabric.read_frame
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform flowfabric._check_take(read_frames.take);
    return query
    select t.* from flowfabric._frames_of(
        array[read_frames.partition], array[read_frames.id], array[read_frames.attempt], array[read_frames.from_ms],
        array[read_frames.from_seq], array[read_frames.to_ms], array[read_frames.to_seq], read_frames.take,
        read_frames.kinds, null, flowfabric.clock()) t
    where t.latest is not null;
    if not found then
        perform flowfabric._refuse_missing(read_frames.partition, read_frames.id);
    end if;
end $$;

-- Read what follows a cursor in each of many streams, for tails: the id `0-0` is before the first frame. Together the
-- pages have at most 4 MiB; `more` says that a stream has more now. Without `best_effort`, those frames are left out.
--
--   refuses  invalid_limit
--   returns  as read_frames, per item; `latest` is null if the execution does not exist
create or replace function flowfabric.tail_frames(
    partitions int[], ids uuid[], attempts int[], afters_ms bigint[], afters_seq int[], take int default 50,
    best_efforts boolean[] default null)
returns setof flowfabric.read_frame
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform flowfabric._check_take(tail_frames.take);
    return query
    select t.* from flowfabric._frames_of(
        tail_frames.partitions, tail_frames.ids, tail_frames.attempts, tail_frames.afters_ms,
        array(select a.seq + 1 from unnest(tail_frames.afters_seq) with ordinality as a (seq, item) order by a.item),
        null, null, tail_frames.take, null, tail_frames.best_efforts, flowfabric.clock()) t;
end $$;

-- Find what stays valid of attempts that others have followed: the last frame of each before the last entry of the
-- journal that was saved by its end. A later attempt does not repeat what comes before that entry. If this frame has
-- been deleted, the highest id that it can have had.
--
--   returns  a row per attempt whose stream is closed and has such a frame
create or replace function flowfabric.find_valid_frames(partition int, id uuid)
returns table (attempt int, frame_id text)
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
begin
    return query
    with saved as materialized (
        select j.at from flowfabric._journal(find_valid_frames.partition, find_valid_frames.id) j
    )
    select s.attempt, coalesce(f.ms || '-' || f.seq, floor(extract(epoch from j.at) * 1000) || '-2147483646')
    from flowfabric.streams s
    cross join lateral (select max(j.at) as at from saved j where j.at <= s.closed_at) j
    left join lateral (
        select f.ms, f.seq from flowfabric.frames f
        where f.partition = s.partition and f.execution = s.execution and f.attempt = s.attempt and f.at <= j.at
        order by f.ms desc, f.seq desc limit 1) f on true
    where s.partition = find_valid_frames.partition and s.execution = find_valid_frames.id
      and s.closed_at is not null and j.at is not null
      and (f.ms is not null or s.durable_count > s.max_frames or s.closed_at + s.retention <= flowfabric.clock());
end $$;

-- Check how many frames a page may have.
--
--   refuses  invalid_limit
create or replace function flowfabric._check_take(take int)
returns void
language plpgsql as $$
begin
    if _check_take.take is null or _check_take.take not between 1 and 10000 then
        perform flowfabric._refuse('invalid_limit', format('limit %s is invalid; use 1 to 10,000', _check_take.take));
    end if;
end $$;

-- Read ranges of frames of many streams, at most `take` of each and 4 MiB of all. Best-effort frames that have expired
-- are gone. If durable frames that are asked for have been deleted, the first one that is left says so.
--
--   returns  per item its frames, or one row without a frame
create or replace function flowfabric._frames_of(
    partitions int[], ids uuid[], attempts int[], froms_ms bigint[], froms_seq int[], tos_ms bigint[], tos_seq int[],
    take int, kinds text[], best_efforts boolean[], now timestamptz)
returns setof flowfabric.read_frame
language sql stable as $$
    with asked as (
        select x.item, x.partition::smallint as partition, x.id, l.latest, l.has_ended,
               coalesce(x.attempt, l.latest) as attempt,
               x.from_ms, x.from_seq, coalesce(x.to_ms, 9223372036854775807) as to_ms,
               coalesce(x.to_seq, 2147483647) as to_seq, coalesce(x.best_effort, true) as best_effort
        from unnest(_frames_of.partitions, _frames_of.ids, _frames_of.attempts, _frames_of.froms_ms,
                    _frames_of.froms_seq, _frames_of.tos_ms, _frames_of.tos_seq, _frames_of.best_efforts)
             with ordinality as x (partition, id, attempt, from_ms, from_seq, to_ms, to_seq, best_effort, item)
        left join lateral (
            select coalesce(t.attempt, e.attempt, 0) as latest, t.id is null as has_ended
            from flowfabric.executions e left join flowfabric.tickets t on t.partition = e.partition and t.id = e.id
            where e.partition = x.partition and e.id = x.id offset 0) l on true
    ), found as (
        select a.*, s.closed_at, s.closed_reason, s.is_over, s.durable_count, s.max_frames, s.last_ms, s.last_seq,
               f.*,
               min(f.ordinal) filter (where f.mode = 'durable') over (partition by a.item) as first_ordinal,
               row_number() over (partition by a.item order by f.ms, f.seq) as place,
               sum(octet_length(f.payload) + 100) over (order by a.item, f.ms, f.seq) as bytes
        from asked a
        left join lateral (
            select s.closed_at, s.closed_reason, s.durable_count, s.max_frames, s.last_ms, s.last_seq,
                   coalesce(s.closed_at + s.retention <= _frames_of.now, false) as is_over
            from flowfabric.streams s
            where s.partition = a.partition and s.execution = a.id and s.attempt = a.attempt offset 0) s on true
        left join lateral (
            select f.ms, f.seq, f.at, f.kind, f.mode, f.type, f.encoding, f.correlation_id, f.payload, f.ordinal
            from flowfabric.frames f
            where f.partition = a.partition and f.execution = a.id and f.attempt = a.attempt
              and (f.ms, f.seq) >= (a.from_ms, a.from_seq) and (f.ms, f.seq) <= (a.to_ms, a.to_seq)
              and (f.expires_at is null or f.expires_at > _frames_of.now)
              and (f.mode <> 'best_effort' or a.best_effort)
              and (_frames_of.kinds is null or f.kind::text = any (_frames_of.kinds))
            order by f.ms, f.seq limit _frames_of.take + 1) f on true
    ), judged as (
        select f.*, bool_or(f.ms is not null and not f.fits) over (partition by f.item) as more
        from (select f.*, f.ms is not null and f.place <= _frames_of.take and f.bytes <= 4194304 as fits
              from found f) f
    )
    select j.item::int, j.latest, j.has_ended, j.attempt, j.closed_at, j.closed_reason::text,
           j.more,
           case when j.fits then j.ms || '-' || j.seq end, case when j.fits then j.kind::text end,
           case when j.fits then coalesce(j.type, j.kind::text) end, case when j.fits then j.at end,
           case when j.fits then j.payload end, case when j.fits then coalesce(j.encoding, 'json') end,
           case when j.fits then j.mode::text end, case when j.fits then j.correlation_id end,
           case when j.fits and j.mode = 'summary' then j.ordinal end,
           case when _frames_of.kinds is not null then null
                when j.ms is null and j.is_over and j.durable_count > 0
                     and (j.last_ms, j.last_seq) >= (j.from_ms, j.from_seq)
                    then j.last_ms || '-' || j.last_seq
                when j.fits and j.mode = 'durable' and j.ordinal = j.first_ordinal and j.ordinal > 1
                     and (j.is_over or j.durable_count > j.max_frames) and (b.ms, b.seq) >= (j.from_ms, j.from_seq)
                     and (select f.ms from flowfabric.frames f
                          where f.partition = j.partition and f.execution = j.id and f.attempt = j.attempt
                            and (f.ms, f.seq) < (j.ms, j.seq) and f.mode = 'durable'
                          order by f.ms desc, f.seq desc limit 1) is null
                    then b.ms || '-' || b.seq end
    from judged j
    -- The highest id before that of the frame.
    cross join lateral (select case j.seq when 0 then j.ms - 1 else j.ms end as ms,
                               case j.seq when 0 then 2147483646 else j.seq - 1 end as seq) b
    where j.fits or j.place = 1
    order by j.item, j.ms, j.seq
$$;
