-- Trim quotas: delete admissions outside their window, and slots without a holder.

-- Sweep: delete rows that quotas no longer count: entries outside their window, and slots of executions that are
-- neither active nor granted. Quotas without such rows are not locked; the next pass handles quotas that a claim has
-- locked.
--
--   locks    the quotas it trims, skipping locked ones
--   returns  how many entries and slots were deleted
create or replace function flowfabric.trim_windows(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    quota flowfabric.quotas;
    removed int;
begin
    moved := 0;
    for quota in
        select q.* from flowfabric.quotas q
        where exists (select from flowfabric.quota_slots s
                      where s.partition = q.partition and s.quota = q.id and (
                          select flowfabric._holds_slots(t.phase, t.eligibility, t.expires_at, '-infinity')
                          from flowfabric.tickets t
                          where t.partition = s.execution_partition and t.id = s.execution) is not true)
           or exists (select from flowfabric.quota_entries e
                      where e.partition = q.partition and e.quota = q.id
                        and e.at <= now - q.window_seconds * interval '1 second')
        order by q.id offset trim_windows.passing
        for update skip locked
    loop
        delete from flowfabric.quota_entries e where e.ctid = any (array(
            select e.ctid from flowfabric.quota_entries e
            where e.partition = quota.partition and e.quota = quota.id
              and e.at <= now - quota.window_seconds * interval '1 second'
            order by e.at, e.number limit trim_windows.take - moved));
        get diagnostics removed = row_count;
        moved := moved + removed;
        moved := moved + flowfabric._drop_slots(array[quota.id], trim_windows.take - moved);
        exit when moved >= trim_windows.take;
    end loop;
end $$;
