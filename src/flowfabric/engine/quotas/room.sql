-- Room: how many more executions a quota admits. It is counted from stored rows, so an execution never has to return
-- its slot explicitly. Each quota has stripes, and its room is that of all of them.

-- The slots of a stripe, and whether a ticket holds each: it is active with the epoch of the slot, or has its grant.
-- Epochs and grants do not repeat, so a slot that is not held never will be again. A reader may treat an expired grant
-- as holding nothing; an admission may not, because a worker may be using the grant at that moment.
--
--   returns  the ctids of the slots
create or replace function flowfabric._slots_of(stripe flowfabric.quota_stripes, valid_at timestamptz)
returns table (place tid, is_held boolean)
language plpgsql stable as $$
begin
    return query
    select s.ctid, coalesce((
        select case when s.grant_expires_at is null then t.phase = 'active' and t.epoch = s.epoch
                    else t.phase = 'runnable' and t.eligibility = 'granted' and t.expires_at = s.grant_expires_at
                         and t.expires_at > _slots_of.valid_at end
        from flowfabric.tickets t where t.partition = s.execution_partition and t.id = s.execution), false)
    from flowfabric.quota_slots s
    where s.partition = stripe.partition and s.quota = stripe.quota and s.stripe = stripe.number;
end $$;

-- The number of tickets that hold a slot of a quota.
create or replace function flowfabric._held_slots(quota flowfabric.quotas, valid_at timestamptz)
returns bigint
language plpgsql stable as $$
begin
    return (
        select count(*) from flowfabric.quota_stripes s
        cross join lateral flowfabric._slots_of(s, _held_slots.valid_at) x
        where s.partition = quota.partition and s.quota = quota.id and x.is_held);
end $$;

-- Whether the grant of a window entry is still valid.
create or replace function flowfabric._is_granted(entry flowfabric.quota_entries, valid_at timestamptz)
returns boolean
language plpgsql stable as $$
begin
    return exists (
        select from flowfabric.tickets t
        where t.partition = entry.execution_partition and t.id = entry.execution
          and t.phase = 'runnable' and t.eligibility = 'granted' and t.expires_at = entry.grant_expires_at
          and t.expires_at > _is_granted.valid_at);
end $$;

-- The number of admissions of a stripe in its window: the newest entry number minus the oldest plus one, minus unused
-- grants. Two index lookups, plus one per grant, however many entries there are. The calling function disables the
-- plans that would read more.
create or replace function flowfabric._entries_of(
    stripe flowfabric.quota_stripes, window_seconds int, now timestamptz, valid_at timestamptz)
returns bigint
language plpgsql stable as $$
declare
    behind timestamptz := _entries_of.now - _entries_of.window_seconds * interval '1 second';
    oldest bigint;
begin
    select e.number into oldest from flowfabric.quota_entries e
    where e.partition = stripe.partition and e.quota = stripe.quota and e.stripe = stripe.number and e.at > behind
    order by e.at, e.number limit 1;
    if oldest is null then
        return 0;
    end if;
    return stripe.newest - oldest + 1 - (
        select count(*) from flowfabric.quota_entries e
        where e.partition = stripe.partition and e.quota = stripe.quota and e.stripe = stripe.number and e.at > behind
          and e.grant_expires_at is not null and not flowfabric._is_granted(e, _entries_of.valid_at));
end $$;

-- The number of admissions in the window of a quota.
create or replace function flowfabric._entries_in_window(
    quota flowfabric.quotas, now timestamptz, valid_at timestamptz)
returns bigint
language plpgsql stable as $$
begin
    return (
        select coalesce(sum(flowfabric._entries_of(s, quota.window_seconds, _entries_in_window.now,
                                                   _entries_in_window.valid_at)), 0)
        from flowfabric.quota_stripes s where s.partition = quota.partition and s.quota = quota.id);
end $$;

-- How many more executions a quota admits now. If `enough` is given, the counters of its stripes answer, if they leave
-- at least that much; they may count what has ended or left the window. Otherwise slots and tickets are read.
--
--   returns  the number, at least 0; with `enough` possibly a lower bound that is at least `enough`; null for a quota
--            that does not exist
create or replace function flowfabric._quota_room(
    quota flowfabric.quotas, now timestamptz, valid_at timestamptz, enough int default null)
returns bigint
language plpgsql stable as $$
declare
    known bigint;
    of_window bigint := 9007199254740991;
begin
    if quota.id is null then
        return null;
    end if;
    if _quota_room.enough is not null then
        select sum(greatest(0, least(s.slot_share - s.slots, s.entry_share - s.entries))) into known
        from flowfabric.quota_stripes s where s.partition = quota.partition and s.quota = quota.id;
        if known >= _quota_room.enough then
            return known;
        end if;
    end if;
    if quota.max_requests_per_window is not null then
        of_window := greatest(0, quota.max_requests_per_window - flowfabric._entries_in_window(
            _quota_room.quota, _quota_room.now, _quota_room.valid_at));
    end if;
    if quota.max_concurrent is null or of_window = 0 then
        return of_window;
    end if;
    return least(of_window, greatest(
        0, quota.max_concurrent - flowfabric._held_slots(_quota_room.quota, _quota_room.valid_at)));
end $$;

-- Whether any of these quotas admits nothing now, for readers. A quota that does not exist admits nothing.
--
--   returns  true or false; the first of them, by id, that is full; null if one does not exist
create or replace function flowfabric._full_quota(
    quotas uuid[], now timestamptz, out is_full boolean, out quota flowfabric.quotas)
language plpgsql stable set enable_bitmapscan = off as $$
begin
    for quota in select q.* from flowfabric.quotas q where q.id = any (_full_quota.quotas) order by q.id loop
        if flowfabric._quota_room(quota, _full_quota.now, _full_quota.now, 1) = 0 then
            is_full := true;
            return;
        end if;
    end loop;
    quota := null;
    is_full := (select count(*) from flowfabric.quotas q where q.id = any (_full_quota.quotas))
               < cardinality(_full_quota.quotas);
end $$;

-- When a full window has room again: the moment when enough of its oldest admissions have left the window.
--
--   returns  the moment; null while there is room, or while a slot is missing, because slots are not freed by time
create or replace function flowfabric._next_room_at(quota flowfabric.quotas, now timestamptz)
returns timestamptz
language plpgsql stable set enable_bitmapscan = off as $$
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
        select x.at + span from flowfabric.quota_stripes s
        cross join lateral (
            select e.at, e.number from flowfabric.quota_entries e
            where e.partition = s.partition and e.quota = s.quota and e.stripe = s.number
              and e.at > _next_room_at.now - span
              and (e.grant_expires_at is null or flowfabric._is_granted(e, _next_room_at.now))
            order by e.at, e.number limit too_many + 1) x
        where s.partition = quota.partition and s.quota = quota.id
        order by x.at, s.number, x.number offset too_many limit 1);
end $$;
