-- Room: how many more executions a quota admits. It is counted from stored rows, so an execution never has to return
-- its slot explicitly.

-- Whether a ticket holds its slots: it is active or granted. A reader may treat an expired grant as holding nothing; an
-- admission may not, because a worker may be using the grant at that moment.
--
--   returns  true or false
create or replace function flowfabric._holds_slots(
    phase flowfabric.phase, eligibility flowfabric.eligibility, expires_at timestamptz, valid_at timestamptz)
returns boolean
language sql immutable as $$
    select _holds_slots.phase = 'active'
        or _holds_slots.phase = 'runnable' and _holds_slots.eligibility = 'granted'
        and _holds_slots.expires_at > _holds_slots.valid_at
$$;

-- The number of tickets that hold a slot of a quota.
--
--   returns  the number
create or replace function flowfabric._held_slots(quota flowfabric.quotas, valid_at timestamptz)
returns bigint
language plpgsql stable as $$
#variable_conflict use_column
begin
    return (
        select count(*) from flowfabric.quota_slots s
        cross join lateral (
            select t.phase, t.eligibility, t.expires_at from flowfabric.tickets t
            where t.partition = s.execution_partition and t.id = s.execution offset 0) t
        where s.partition = quota.partition and s.quota = quota.id
          and flowfabric._holds_slots(t.phase, t.eligibility, t.expires_at, _held_slots.valid_at));
end $$;

-- Whether the grant of a window entry is still valid.
--
--   returns  true or false
create or replace function flowfabric._is_granted(entry flowfabric.quota_entries, valid_at timestamptz)
returns boolean
language plpgsql stable as $$
#variable_conflict use_column
begin
    return exists (
        select from flowfabric.tickets t
        where t.partition = entry.execution_partition and t.id = entry.execution
          and t.phase = 'runnable' and t.eligibility = 'granted' and t.expires_at = entry.grant_expires_at
          and t.expires_at > _is_granted.valid_at);
end $$;

-- The number of admissions in the window of a quota: the newest entry number minus the oldest plus one, minus unused
-- grants. Two index lookups, plus one per grant, however many entries there are. The calling function disables the
-- plans that would read more.
--
--   returns  the number
create or replace function flowfabric._entries_in_window(
    quota flowfabric.quotas, now timestamptz, valid_at timestamptz)
returns bigint
language plpgsql stable as $$
#variable_conflict use_column
declare
    behind timestamptz := _entries_in_window.now - quota.window_seconds * interval '1 second';
    oldest bigint;
    newest bigint;
begin
    select e.number into oldest from flowfabric.quota_entries e
    where e.partition = quota.partition and e.quota = quota.id and e.at > behind order by e.at, e.number limit 1;
    if oldest is null then
        return 0;
    end if;
    select e.number into newest from flowfabric.quota_entries e
    where e.partition = quota.partition and e.quota = quota.id order by e.at desc, e.number desc limit 1;
    return newest - oldest + 1 - (
        select count(*) from flowfabric.quota_entries e
        where e.partition = quota.partition and e.quota = quota.id and e.at > behind and e.grant_expires_at is not null
          and not flowfabric._is_granted(e, _entries_in_window.valid_at));
end $$;

-- How many more executions a quota admits now. If `enough` is given, slots are first counted without their tickets,
-- some of which may no longer hold their slots; the tickets are read only if that count leaves less than `enough`.
--
--   returns  the number, at least 0; with `enough` possibly a lower bound that is at least `enough`; null for a quota
--            that does not exist
create or replace function flowfabric._quota_room(
    quota flowfabric.quotas, now timestamptz, valid_at timestamptz, enough int default null)
returns bigint
language plpgsql stable as $$
#variable_conflict use_column
declare
    of_window bigint := 9007199254740991;
    of_slots bigint;
begin
    if quota.id is null then
        return null;
    end if;
    if quota.max_requests_per_window is not null then
        of_window := greatest(0, quota.max_requests_per_window - flowfabric._entries_in_window(
            _quota_room.quota, _quota_room.now, _quota_room.valid_at));
    end if;
    if quota.max_concurrent is null or of_window = 0 then
        return of_window;
    end if;
    if _quota_room.enough is not null then
        of_slots := quota.max_concurrent - (
            select count(*) from flowfabric.quota_slots s where s.partition = quota.partition and s.quota = quota.id);
    end if;
    if _quota_room.enough is null or of_slots < _quota_room.enough then
        of_slots := greatest(
            0, quota.max_concurrent - flowfabric._held_slots(_quota_room.quota, _quota_room.valid_at));
    end if;
    return least(of_window, of_slots);
end $$;

-- How many more executions each quota admits now, for a claim of `take` executions. Grants count until a sweep or a
-- claim expires them.
--
--   returns  one number per quota, in the given order; 0 for a quota that does not exist
create or replace function flowfabric._rooms(quotas uuid[], take int, now timestamptz)
returns bigint[]
language plpgsql stable as $$
#variable_conflict use_column
begin
    return array(
        select coalesce((
            select flowfabric._quota_room(q, _rooms.now, '-infinity', _rooms.take) from flowfabric.quotas q
            where q.id = x.id), 0)
        from unnest(_rooms.quotas) with ordinality as x (id, number)
        order by x.number);
end $$;

-- The first of these quotas, by id, that admits nothing now, for readers.
--
--   returns  the quota; null if all have room
create or replace function flowfabric._full_quota(quotas uuid[], now timestamptz)
returns flowfabric.quotas
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    quota flowfabric.quotas;
begin
    for quota in select q.* from flowfabric.quotas q where q.id = any (_full_quota.quotas) order by q.id loop
        if flowfabric._quota_room(quota, _full_quota.now, _full_quota.now, 1) = 0 then
            return quota;
        end if;
    end loop;
    return null;
end $$;

-- Whether any of these quotas admits nothing now. A quota that does not exist admits nothing.
--
--   returns  true or false
create or replace function flowfabric._are_full(quotas uuid[], now timestamptz)
returns boolean
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
    return (flowfabric._full_quota(_are_full.quotas, _are_full.now)).id is not null
        or (select count(*) from flowfabric.quotas q where q.id = any (_are_full.quotas))
           < cardinality(_are_full.quotas);
end $$;

-- Explain why a quota admits nothing now.
--
--   returns  the sentence
create or replace function flowfabric._explain_full(quota flowfabric.quotas, next_room_at timestamptz, now timestamptz)
returns text
language sql stable as $$
    select case
        when (_explain_full.quota).id is null then 'one of its quotas does not exist; use create_quota to create it'
        when _explain_full.next_room_at is not null then
            format('quota %s admits %s per %s s; it has room again at %s', (_explain_full.quota).name,
                   flowfabric._number((_explain_full.quota).max_requests_per_window),
                   flowfabric._number((_explain_full.quota).window_seconds),
                   flowfabric._moment(_explain_full.next_room_at))
        else format('quota %s has %s of %s running; it has room again when one of them ends',
                    (_explain_full.quota).name,
                    flowfabric._number(flowfabric._held_slots(_explain_full.quota, _explain_full.now)),
                    flowfabric._number((_explain_full.quota).max_concurrent)) end
$$;

-- When a full window has room again: the moment when enough of its oldest admissions have left the window.
--
--   returns  the moment; null while there is room, or while a slot is missing, because slots are not freed by time
create or replace function flowfabric._next_room_at(quota flowfabric.quotas, now timestamptz)
returns timestamptz
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    span interval := quota.window_seconds * interval '1 second';
    too_many bigint := flowfabric._entries_in_window(_next_room_at.quota, _next_room_at.now, _next_room_at.now)
        - quota.max_requests_per_window;
begin
    if too_many is null or too_many < 0
       or flowfabric._held_slots(_next_room_at.quota, _next_room_at.now) >= quota.max_concurrent then
        return null;
    end if;
    return (
        select e.at + span from flowfabric.quota_entries e
        where e.partition = quota.partition and e.quota = quota.id and e.at > _next_room_at.now - span
          and (e.grant_expires_at is null or flowfabric._is_granted(e, _next_room_at.now))
        order by e.at, e.number offset too_many limit 1);
end $$;
