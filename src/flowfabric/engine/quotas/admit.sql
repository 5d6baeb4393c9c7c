-- Admit executions: take slots and record admissions in the windows of quotas.

-- Delete slots that no execution holds any more, up to `most` per quota. The caller has locked the quotas, so that no
-- claim takes a slot at the same time.
--
--   returns  how many slots were deleted
create or replace function flowfabric._drop_slots(quotas uuid[], most int default null)
returns int
language plpgsql as $$
#variable_conflict use_column
declare
    dropped int;
begin
    delete from flowfabric.quota_slots s where s.ctid = any (array(
        select s.place from unnest(_drop_slots.quotas) x (id)
        cross join lateral (select q.partition from flowfabric.quotas q where q.id = x.id offset 0) q
        cross join lateral (
            select s.ctid as place from flowfabric.quota_slots s
            where s.partition = q.partition and s.quota = x.id and (
                select flowfabric._holds_slots(t.phase, t.eligibility, t.expires_at, '-infinity')
                from flowfabric.tickets t
                where t.partition = s.execution_partition and t.id = s.execution) is not true
            limit _drop_slots.most) s));
    get diagnostics dropped = row_count;
    return dropped;
end $$;

-- Record that executions were admitted: a slot in each quota of their routes, and an entry in its window for attempts
-- that have none. The caller has locked the quotas. Timestamps never decrease, even if the clock goes back. Many
-- executions may share a quota, so lookups are memoized.
create or replace function flowfabric._admit(
    partitions smallint[], executions uuid[], attempts int[], routes int[], now timestamptz,
    grant_expires_at timestamptz default null)
returns void
language plpgsql set enable_bitmapscan = off set enable_memoize = on as $$
#variable_conflict use_column
begin
    with admitted as (
        select q.place, q.partition, q.id, q.stamp, q.span,
               x.partition as execution_partition, x.execution, x.attempt, x.turn
        from unnest(_admit.partitions, _admit.executions, _admit.attempts, _admit.routes)
             with ordinality as x (partition, execution, attempt, route, turn)
        cross join lateral (select r.quotas from flowfabric.routes r where r.id = x.route offset 0) r
        cross join lateral unnest(r.quotas) u (id)
        cross join lateral (
            select q.ctid as place, q.partition, q.id, greatest(_admit.now, q.used_at) as stamp,
                   q.window_seconds * interval '1 second' as span
            from flowfabric.quotas q where q.id = u.id offset 0) q
    ), slots as (
        insert into flowfabric.quota_slots (partition, quota, execution_partition, execution)
        select a.partition, a.id, a.execution_partition, a.execution from admitted a
        on conflict do nothing
    ), entries as (
        insert into flowfabric.quota_entries (
            partition, quota, number, at, execution_partition, execution, attempt, grant_expires_at)
        select a.partition, a.id, coalesce(n.newest, 0) + row_number() over (partition by a.id order by a.turn),
               a.stamp, a.execution_partition, a.execution, a.attempt, _admit.grant_expires_at
        from admitted a cross join lateral (
            select (select e.number from flowfabric.quota_entries e
                    where e.partition = a.partition and e.quota = a.id
                    order by e.at desc, e.number desc limit 1) as newest,
                   exists (select from flowfabric.quota_entries e
                           where e.execution = a.execution and e.quota = a.id and e.attempt = a.attempt
                             and e.at > a.stamp - a.span and e.grant_expires_at is null) as is_counted offset 0) n
        where not n.is_counted
    )
    update flowfabric.quotas q set used_at = greatest(_admit.now, q.used_at)
    where q.ctid = any (array(select distinct a.place from admitted a));
end $$;

-- Make the window entries of a grant permanent, because the grant was used.
create or replace function flowfabric._use_entries(execution uuid, grant_expires_at timestamptz)
returns void
language sql as $$
    update flowfabric.quota_entries e set grant_expires_at = null
    where e.execution = _use_entries.execution and e.grant_expires_at = _use_entries.grant_expires_at
$$;
