-- Shortcuts: the admission of one execution.

-- Record that one execution was admitted to the quotas of these stripes, one stripe of each. The caller has locked
-- them.
create or replace function flowfabric._admit_one(
    partition smallint, execution uuid, epoch bigint, attempt int, stripes tid[], now timestamptz,
    grant_expires_at timestamptz)
returns void
language plpgsql as $$
begin
    with placed as (
        select s.*, not exists (
                   select from flowfabric.quota_entries e
                   where e.execution = _admit_one.execution and e.quota = s.quota and e.attempt = _admit_one.attempt
                     and e.at > s.stamp - s.span and e.grant_expires_at is null) as is_new
        from unnest(_admit_one.stripes) as x (place)
        cross join lateral (
            select s.ctid as place, s.partition, s.quota, s.number, s.newest,
                   greatest(_admit_one.now, s.used_at) as stamp, q.window_seconds * interval '1 second' as span
            from flowfabric.quota_stripes s
            join flowfabric.quotas q on q.partition = s.partition and q.id = s.quota
            where s.ctid = x.place offset 0) s
    ), slots as (
        insert into flowfabric.quota_slots (
            partition, quota, stripe, execution_partition, execution, epoch, grant_expires_at)
        select p.partition, p.quota, p.number, _admit_one.partition, _admit_one.execution, _admit_one.epoch,
               _admit_one.grant_expires_at
        from placed p
        on conflict (partition, quota, stripe, execution_partition, execution, epoch)
        do update set grant_expires_at = excluded.grant_expires_at
    ), entries as (
        insert into flowfabric.quota_entries (
            partition, quota, stripe, number, at, execution_partition, execution, attempt, grant_expires_at)
        select p.partition, p.quota, p.number, p.newest + 1, p.stamp, _admit_one.partition, _admit_one.execution,
               _admit_one.attempt, _admit_one.grant_expires_at
        from placed p where p.is_new
    )
    update flowfabric.quota_stripes s
    set slots = s.slots + 1, entries = s.entries + p.is_new::int, newest = s.newest + p.is_new::int, used_at = p.stamp
    from placed p where s.ctid = p.place;
end $$;
