-- Admit executions: take slots and record admissions in the windows of quotas.

-- Record that executions were admitted: a slot in each quota of their routes, and an entry in its window for attempts
-- that have none. They fill the given stripes, which the caller has locked, in that order; if these have not enough
-- room, the call fails. Timestamps never decrease within a stripe, even if the clock goes back. Many executions may
-- share a quota, so lookups are memoized.
create or replace function flowfabric._admit(
    partitions smallint[], executions uuid[], epochs bigint[], attempts int[], routes int[], stripes tid[],
    now timestamptz, grant_expires_at timestamptz default null)
returns void
language plpgsql set enable_bitmapscan = off set enable_memoize = on as $$
begin
    if cardinality(_admit.executions) = 1 and cardinality(_admit.stripes) = (
           select cardinality(r.quotas) from flowfabric.routes r where r.id = _admit.routes[1]) then
        perform flowfabric._admit_one(_admit.partitions[1], _admit.executions[1], _admit.epochs[1], _admit.attempts[1],
                                      _admit.stripes, _admit.now, _admit.grant_expires_at);
        return;
    end if;
    with held as (
        select s.*, x.place, x.turn, sum(s.room) over (partition by s.quota order by x.turn) as upto
        from unnest(_admit.stripes) with ordinality as x (place, turn)
        cross join lateral (
            select s.partition, s.quota, s.number, s.newest, greatest(_admit.now, s.used_at) as stamp,
                   least(s.slot_share - s.slots, s.entry_share - s.entries) as room
            from flowfabric.quota_stripes s where s.ctid = x.place offset 0) s
    ), admitted as (
        select u.id as quota, x.partition as execution_partition, x.execution, x.epoch, x.attempt,
               row_number() over (partition by u.id order by x.turn) as turn
        from unnest(_admit.partitions, _admit.executions, _admit.epochs, _admit.attempts, _admit.routes)
             with ordinality as x (partition, execution, epoch, attempt, route, turn)
        cross join lateral (select r.quotas from flowfabric.routes r where r.id = x.route offset 0) r
        cross join lateral unnest(r.quotas) u (id)
    ), placed as (
        select s.*, a.execution_partition, a.execution, a.epoch, a.attempt, a.turn as place_in_quota,
               not exists (
                   select from flowfabric.quota_entries e
                   where e.execution = a.execution and e.quota = a.quota and e.attempt = a.attempt
                     and e.at > s.stamp - q.span and e.grant_expires_at is null) as is_new
        from admitted a
        left join held s on s.quota = a.quota and a.turn <= s.upto and a.turn > s.upto - s.room
        left join lateral (select q.window_seconds * interval '1 second' as span from flowfabric.quotas q
                           where q.partition = s.partition and q.id = s.quota offset 0) q on true
    ), slots as (
        insert into flowfabric.quota_slots as s (
            partition, quota, stripe, execution_partition, execution, epoch, grant_expires_at)
        select p.partition, p.quota, p.number, p.execution_partition, p.execution, p.epoch, _admit.grant_expires_at
        from placed p
        on conflict (partition, quota, stripe, execution_partition, execution, epoch)
        do update set grant_expires_at = excluded.grant_expires_at
    ), entries as (
        insert into flowfabric.quota_entries (
            partition, quota, stripe, number, at, execution_partition, execution, attempt, grant_expires_at)
        select p.partition, p.quota, p.number,
               p.newest + row_number() over (partition by p.place order by p.place_in_quota), p.stamp,
               p.execution_partition, p.execution, p.attempt, _admit.grant_expires_at
        from placed p where p.is_new
    )
    update flowfabric.quota_stripes s
    set slots = s.slots + f.slots, entries = s.entries + f.entries, newest = s.newest + f.entries, used_at = f.stamp
    from (
        select p.place, p.stamp, count(*) as slots, count(*) filter (where p.is_new) as entries
        from placed p group by p.place, p.stamp) f
    where s.ctid = f.place;
end $$;

-- Make the slots and window entries of a grant permanent, because the grant was used.
create or replace function flowfabric._use_entries(ticket flowfabric.tickets)
returns void
language plpgsql as $$
begin
    update flowfabric.quota_entries e set grant_expires_at = null
    where e.execution = ticket.id and e.grant_expires_at = ticket.expires_at;
    update flowfabric.quota_slots s set grant_expires_at = null
    from flowfabric.routes r
    cross join lateral unnest(r.quotas) u (id)
    cross join lateral (select t.partition, t.number from flowfabric.quotas q
                        join flowfabric.quota_stripes t on t.partition = q.partition and t.quota = q.id
                        where q.id = u.id offset 0) t
    where r.id = ticket.route and s.partition = t.partition and s.quota = u.id and s.stripe = t.number
      and s.execution_partition = ticket.partition and s.execution = ticket.id
      and s.grant_expires_at = ticket.expires_at;
end $$;
