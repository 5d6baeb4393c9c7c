-- Stripes: the limits of a quota are divided among them, and a claim locks only the stripes it uses.
--
-- A stripe admits while it has less than its shares. The shares only change while all stripes are locked, and then they
-- add up to the limits. So the quota never admits more than its limits, although nobody else looks at all stripes.

-- Create the missing stripes of a quota and divide its limits among all of them: one stripe for every four executions
-- that the smaller limit admits, at most 16. The caller has locked the quota.
create or replace function flowfabric._make_stripes(partition int, quota uuid)
returns void
language plpgsql as $$
begin
    insert into flowfabric.quota_stripes (partition, quota, number)
    select q.partition, q.id, n.number from flowfabric.quotas q
    cross join generate_series(0, least(15, greatest(
        0, least(q.max_concurrent, q.max_requests_per_window) / 4 - 1))) n (number)
    where q.partition = _make_stripes.partition and q.id = _make_stripes.quota
      and not exists (select from flowfabric.quota_stripes s
                      where s.partition = q.partition and s.quota = q.id and s.number = n.number);
    perform flowfabric._divide(_make_stripes.partition, _make_stripes.quota);
end $$;

-- Divide what a quota admits now equally among its stripes. What a stripe has admitted stays its own. If there is more
-- than the limits allow, because they were lowered, no stripe admits anything until a claim divides again. The caller
-- has locked the quota.
--
--   locks    the stripes, in order
create or replace function flowfabric._divide(partition int, quota uuid)
returns void
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
begin
    perform from flowfabric.quota_stripes s
    where s.partition = _divide.partition and s.quota = _divide.quota order by s.number for update;
    perform flowfabric._count_again(s.ctid, now) from flowfabric.quota_stripes s
    where s.partition = _divide.partition and s.quota = _divide.quota;
    update flowfabric.quota_stripes s
    set slot_share = case when f.slots is null then 9007199254740991 when f.slots < 0 then 0
                          else s.slots + f.slots / f.amount + (s.number < f.slots % f.amount)::int end,
        entry_share = case when f.entries is null then 9007199254740991 when f.entries < 0 then 0
                           else s.entries + f.entries / f.amount + (s.number < f.entries % f.amount)::int end
    from (
        select q.max_concurrent - sum(s.slots)::bigint as slots,
               q.max_requests_per_window - sum(s.entries)::bigint as entries, count(*) as amount
        from flowfabric.quotas q
        join flowfabric.quota_stripes s on s.partition = q.partition and s.quota = q.id
        where q.partition = _divide.partition and q.id = _divide.quota
        group by q.max_concurrent, q.max_requests_per_window) f
    where s.partition = _divide.partition and s.quota = _divide.quota;
end $$;

-- How many more executions a stripe admits, counted from slots and entries.
create or replace function flowfabric._stripe_room(
    stripe flowfabric.quota_stripes, quota flowfabric.quotas, now timestamptz)
returns bigint
language plpgsql stable as $$
declare
    of_window bigint := stripe.entry_share;
begin
    if quota.max_requests_per_window is not null then
        of_window := stripe.entry_share
            - flowfabric._entries_of(_stripe_room.stripe, quota.window_seconds, _stripe_room.now, '-infinity');
    end if;
    if quota.max_concurrent is null or of_window <= 0 then
        return of_window;
    end if;
    return least(of_window, stripe.slot_share - (
        select count(*) from flowfabric._slots_of(_stripe_room.stripe, '-infinity') x where x.is_held));
end $$;

-- Count again what a stripe holds, and delete its slots that no execution holds any more. The caller has locked it. No
-- later entry may be older than the count, because what has left the window by then is not counted any more.
--
--   returns  the new ctid of the stripe, and how many more executions it admits
create or replace function flowfabric._count_again(inout place tid, now timestamptz, out room bigint)
language plpgsql as $$
declare
    stripe flowfabric.quota_stripes;
    quota flowfabric.quotas;
    slots record;
begin
    select s.* into stripe from flowfabric.quota_stripes s where s.ctid = _count_again.place;
    select q.* into quota from flowfabric.quotas q where q.partition = stripe.partition and q.id = stripe.quota;
    if quota.max_concurrent is not null then
        select array_agg(x.place) filter (where not x.is_held) as free, count(*) filter (where x.is_held) as held
        into slots from flowfabric._slots_of(stripe, '-infinity') x;
        delete from flowfabric.quota_slots s where s.ctid = any (slots.free);
        stripe.slots := slots.held;
    end if;
    if quota.max_requests_per_window is not null then
        stripe.entries := flowfabric._entries_of(stripe, quota.window_seconds, _count_again.now, '-infinity');
    end if;
    update flowfabric.quota_stripes s 
    set slots = stripe.slots, entries = stripe.entries, used_at = greatest(s.used_at, _count_again.now)
    where s.ctid = _count_again.place
    returning s.ctid, least(s.slot_share - s.slots, s.entry_share - s.entries) into place, room;
end $$;

-- Lock a stripe of a quota, other than those known, that had room for at least `wanted` executions when it was looked
-- for: one whose counters showed it, or a random one that was found to have it. A claim of one execution nearly always
-- needs no more than this, and claims that get different stripes do not wait for each other.
--
--   locks    the stripe, skipping locked ones
--   returns  the ctid of the stripe, and how many more executions it admits, perhaps none; null if it locked none
create or replace function flowfabric._lock_stripe(
    quota uuid, wanted bigint, known tid[], now timestamptz, out place tid, out room bigint)
language plpgsql as $$
declare
    home constant int := (select q.partition from flowfabric.quotas q where q.id = _lock_stripe.quota);
    stripe int;
begin
    -- By number, which never changes. With a condition on the counters, a stripe that has filled up meanwhile would be
    -- locked and not returned, and a claim that does not know of its lock could wait for another one: a deadlock.
    select s.ctid, least(s.slot_share - s.slots, s.entry_share - s.entries) into place, room
    from flowfabric.quota_stripes s
    where s.partition = home and s.quota = _lock_stripe.quota and s.number = any (array(
        select x.number from flowfabric.quota_stripes x
        where x.partition = home and x.quota = _lock_stripe.quota and x.slot_share - x.slots >= _lock_stripe.wanted
          and x.entry_share - x.entries >= _lock_stripe.wanted and x.ctid <> all (_lock_stripe.known)))
    order by random() limit 1 for update skip locked;
    if place is not null then
        return;
    end if;
    select (x.it).number into stripe from (
        select s as it, q from flowfabric.quota_stripes s
        join flowfabric.quotas q on q.partition = s.partition and q.id = s.quota
        where s.partition = home and s.quota = _lock_stripe.quota and s.slot_share >= _lock_stripe.wanted
          and s.entry_share >= _lock_stripe.wanted and s.ctid <> all (_lock_stripe.known)
        order by random() limit 1) x
    where flowfabric._stripe_room(x.it, x.q, _lock_stripe.now) >= _lock_stripe.wanted;
    select s.ctid into place from flowfabric.quota_stripes s
    where s.partition = home and s.quota = _lock_stripe.quota and s.number = stripe for update skip locked;
    if place is not null then
        select c.place, c.room into place, room from flowfabric._count_again(place, _lock_stripe.now) c;
    end if;
end $$;

-- Lock stripes of a quota that have room for `most` executions together: first those that `_lock_stripe` finds, then
-- all others whose slots or entries no longer count. If others have locked all stripes with room, it waits for one of
-- them, if it may. If no stripe has room but the quota has, its limits are divided again.
--
--   returns  the ctids of the stripes, and how many more executions they admit
create or replace function flowfabric._lock_stripes(
    quota uuid, most bigint, now timestamptz, may_wait boolean, out stripes tid[], out room bigint)
language plpgsql as $$
declare
    home constant int := (select q.partition from flowfabric.quotas q where q.id = _lock_stripes.quota);
    found record;
    is_free boolean;
begin
    stripes := '{}';
    room := 0;
    loop
        found := flowfabric._lock_stripe(_lock_stripes.quota, 1, stripes, _lock_stripes.now);
        exit when coalesce(found.room, 0) <= 0;
        stripes := stripes || found.place;
        room := room + found.room;
        if room >= _lock_stripes.most then
            return;
        end if;
    end loop;
    -- A claim that has locked a stripe, also one that turned out to be full, must not wait for another.
    is_free := _lock_stripes.may_wait and stripes = '{}' and found.place is null;
    found := flowfabric._lock_stale_stripes(home, _lock_stripes.quota, _lock_stripes.most - room, _lock_stripes.now,
                                            is_free, stripes);
    stripes := stripes || found.fresh;
    room := room + found.room;
    if stripes = '{}' and not found.has_room then
        select * into stripes, room
        from flowfabric._divide_again(home, _lock_stripes.quota, _lock_stripes.now, is_free);
    end if;
end $$;

-- Lock stripes of a quota that have room although their counters do not show it, and count them again. With `may_wait`,
-- it waits for one of them if others have locked all; then the claim must not have locked any stripe of the quota.
--
--   locks    those stripes, skipping locked ones; one of them if it may wait
--   returns  the ctids of the stripes, how many more executions they admit, and whether there is such a stripe at all
create or replace function flowfabric._lock_stale_stripes(
    partition int, quota uuid, most bigint, now timestamptz, may_wait boolean, known tid[],
    out fresh tid[], out room bigint, out has_room boolean)
language plpgsql as $$
declare
    numbers int[];
    stripe int;
    counted record;
    passes boolean := true;
begin
    fresh := '{}';
    room := 0;
    numbers := array(
        select s.number from flowfabric.quota_stripes s
        join flowfabric.quotas q on q.partition = s.partition and q.id = s.quota
        where s.partition = _lock_stale_stripes.partition and s.quota = _lock_stale_stripes.quota
          and s.ctid <> all (_lock_stale_stripes.known) and s.slot_share > 0 and s.entry_share > 0
          and flowfabric._stripe_room(s, q, _lock_stale_stripes.now) > 0
        order by random());
    has_room := numbers <> '{}';
    foreach stripe in array numbers loop
        exit when room >= _lock_stale_stripes.most;
        select s.ctid as place into counted from flowfabric.quota_stripes s
        where s.partition = _lock_stale_stripes.partition and s.quota = _lock_stale_stripes.quota and s.number = stripe
        for update skip locked;
        continue when counted.place is null;
        passes := false;
        counted := flowfabric._count_again(counted.place, _lock_stale_stripes.now);
        if counted.room > 0 then
            fresh := fresh || counted.place;
            room := room + counted.room;
        end if;
    end loop;
    if passes and has_room and _lock_stale_stripes.may_wait then
        select s.ctid as place into counted from flowfabric.quota_stripes s
        where s.partition = _lock_stale_stripes.partition and s.quota = _lock_stale_stripes.quota
          and s.number = numbers[1]
        for update;
        counted := flowfabric._count_again(counted.place, _lock_stale_stripes.now);
        if counted.room > 0 then
            fresh := array[counted.place];
            room := counted.room;
        end if;
    end if;
end $$;

-- Divide the limits of a quota again, if it has room although none of its stripes has: its limits were lowered, or the
-- stripes with free slots have no room in their window. If it may not wait, it does nothing unless it gets all stripes.
--
--   locks    the quota, then its stripes in order
--   returns  the ctids of the stripes with room, and how many more executions they admit
create or replace function flowfabric._divide_again(
    partition int, quota uuid, now timestamptz, may_wait boolean, out stripes tid[], out room bigint)
language plpgsql as $$
declare
    known flowfabric.quotas;
    is_complete boolean;
begin
    stripes := '{}';
    room := 0;
    select q.* into known from flowfabric.quotas q
    where q.partition = _divide_again.partition and q.id = _divide_again.quota;
    if flowfabric._quota_room(known, _divide_again.now, '-infinity') is not distinct from 0 then
        return;
    end if;
    if _divide_again.may_wait then
        perform from flowfabric.quotas q
        where q.partition = _divide_again.partition and q.id = _divide_again.quota for update;
    else
        perform from flowfabric.quotas q
        where q.partition = _divide_again.partition and q.id = _divide_again.quota for update skip locked;
        if not found then
            return;
        end if;
        with held as (
            select s.ctid from flowfabric.quota_stripes s
            where s.partition = _divide_again.partition and s.quota = _divide_again.quota for update skip locked
        )
        select count(*) = (select count(*) from flowfabric.quota_stripes s
                           where s.partition = _divide_again.partition and s.quota = _divide_again.quota)
        into is_complete from held h;
        if not is_complete then
            return;
        end if;
    end if;
    perform flowfabric._divide(_divide_again.partition, _divide_again.quota);
    select coalesce(array_agg(s.ctid order by s.number), '{}'),
           coalesce(sum(least(s.slot_share - s.slots, s.entry_share - s.entries)), 0)
    into stripes, room from flowfabric.quota_stripes s
    where s.partition = _divide_again.partition and s.quota = _divide_again.quota and s.slots < s.slot_share
      and s.entries < s.entry_share;
end $$;
