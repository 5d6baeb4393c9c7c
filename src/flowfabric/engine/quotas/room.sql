-- Room: how much a quota still admits. Counted from what is there, so that nothing has to be given back by hand.

-- Whether a ticket holds its slots: it runs, or is granted. Who reads may say that a lapsed grant holds nothing; who admits
-- may not, because somebody may be using that grant at this moment.
--
--   returns  true or false
create or replace function flowfabric._holds_slots(
    phase flowfabric.phase, eligibility flowfabric.eligibility, expires_at timestamptz, lapsed_at timestamptz)
returns boolean
language sql immutable as $$
    select _holds_slots.phase = 'active'
        or _holds_slots.phase = 'runnable' and _holds_slots.eligibility = 'granted' and _holds_slots.expires_at > _holds_slots.lapsed_at
$$;

-- How many tickets hold a slot of a quota.
--
--   returns  the number
create or replace function flowfabric._held_slots(quota flowfabric.quotas, lapsed_at timestamptz)
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
          and flowfabric._holds_slots(t.phase, t.eligibility, t.expires_at, _held_slots.lapsed_at));
end $$;

-- Whether the grant that an entry was made for is good.
--
--   returns  true or false
create or replace function flowfabric._is_granted(entry flowfabric.quota_entries, lapsed_at timestamptz)
returns boolean
language plpgsql stable as $$
#variable_conflict use_column
begin
    return exists (
        select from flowfabric.tickets t
        where t.partition = entry.execution_partition and t.id = entry.execution
          and t.phase = 'runnable' and t.eligibility = 'granted' and t.expires_at = entry.grant_expires_at
          and t.expires_at > _is_granted.lapsed_at);
end $$;

-- How many admissions are in the window of a quota: what lies between its oldest and its newest, without the grants among
-- them that were not used. However many there are, that is two looks at an index, and one per grant. Whoever calls this
-- has closed the ways that read more.
--
--   returns  the number
create or replace function flowfabric._entries_in_window(quota flowfabric.quotas, now timestamptz, lapsed_at timestamptz)
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
          and not flowfabric._is_granted(e, _entries_in_window.lapsed_at));
end $$;

-- How many more executions a quota admits now. Slots are first counted without looking at the tickets, some of which may no
-- longer hold theirs; if that leaves enough, nobody has to look.
--
--   returns  the number, at least 0; at least `enough` when there is as much, then maybe less than there is; null for a
--            quota that is not there
create or replace function flowfabric._quota_room(quota flowfabric.quotas, now timestamptz, lapsed_at timestamptz, enough int default null)
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
        of_window := greatest(quota.max_requests_per_window - flowfabric._entries_in_window(quota, now, lapsed_at), 0);
    end if;
    if quota.max_concurrent is null or of_window = 0 then
        return of_window;
    end if;
    if enough is not null then
        of_slots := quota.max_concurrent - (
            select count(*) from flowfabric.quota_slots s where s.partition = quota.partition and s.quota = quota.id);
    end if;
    if enough is null or of_slots < enough then
        of_slots := greatest(quota.max_concurrent - flowfabric._held_slots(quota, lapsed_at), 0);
    end if;
    return least(of_window, of_slots);
end $$;

-- How many more executions each of some quotas admits now, for a claim of so many: grants count until they are taken back.
--
--   returns  a number each, in the order given; 0 for a quota that is not there
create or replace function flowfabric._rooms(quotas uuid[], take int, now timestamptz)
returns bigint[]
language plpgsql stable as $$
#variable_conflict use_column
begin
    return array(
        select coalesce((select flowfabric._quota_room(q, _rooms.now, '-infinity', _rooms.take) from flowfabric.quotas q where q.id = x.id), 0)
        from unnest(_rooms.quotas) with ordinality as x (id, number)
        order by x.number);
end $$;

-- The first of some quotas, by id, that admits nothing now, for one that reads.
--
--   returns  the quota; null when all have room
create or replace function flowfabric._full_quota(quotas uuid[], now timestamptz)
returns flowfabric.quotas
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    quota flowfabric.quotas;
begin
    for quota in select q.* from flowfabric.quotas q where q.id = any (_full_quota.quotas) order by q.id loop
        if flowfabric._quota_room(quota, now, now, 1) = 0 then
            return quota;
        end if;
    end loop;
    return null;
end $$;

-- Whether some of these quotas admits nothing now. One that cannot be found admits nothing.
--
--   returns  true or false
create or replace function flowfabric._are_full(quotas uuid[], now timestamptz)
returns boolean
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
    return (flowfabric._full_quota(quotas, now)).id is not null
        or (select count(*) from flowfabric.quotas q where q.id = any (_are_full.quotas)) < cardinality(quotas);
end $$;

-- Why a quota admits nothing now, in words.
--
--   returns  the sentence
create or replace function flowfabric._explain_full(quota flowfabric.quotas, next_room_at timestamptz, now timestamptz)
returns text
language sql stable as $$
    select case
        when (quota).id is null then 'a quota of it cannot be found'
        when _explain_full.next_room_at is not null then format('quota %s admits %s per %s s; room at %s', (quota).name,
            (quota).max_requests_per_window, (quota).window_seconds, flowfabric._moment(_explain_full.next_room_at))
        else format('quota %s has %s of %s running', (quota).name, flowfabric._held_slots(quota, _explain_full.now), (quota).max_concurrent) end
$$;

-- When a quota whose window is full has room in it again: the moment when enough of its oldest admissions have left it.
--
--   returns  the moment; null while there is room, or while what lacks is a slot, which no clock gives back
create or replace function flowfabric._next_room_at(quota flowfabric.quotas, now timestamptz)
returns timestamptz
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    span interval := quota.window_seconds * interval '1 second';
    too_many bigint := flowfabric._entries_in_window(quota, now, now) - quota.max_requests_per_window;
begin
    if too_many is null or too_many < 0 or flowfabric._held_slots(quota, now) >= quota.max_concurrent then
        return null;
    end if;
    return (
        select e.at + span from flowfabric.quota_entries e
        where e.partition = quota.partition and e.quota = quota.id and e.at > _next_room_at.now - span
          and (e.grant_expires_at is null or flowfabric._is_granted(e, _next_room_at.now))
        order by e.at, e.number offset too_many limit 1);
end $$;
