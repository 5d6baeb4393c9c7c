-- Trim quotas: delete admissions outside their window, and slots without a holder.

-- Sweep: delete rows that quotas no longer count: entries outside their window, and slots of executions that are
-- neither active nor granted. Stripes without such rows are not locked; the next pass handles stripes that a claim has
-- locked.
--
--   locks    the stripes it trims, skipping locked ones
--   returns  how many entries and slots were deleted
create or replace function flowfabric.trim_windows(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    due record;
    held flowfabric.quota_stripes;
    span int;
    removed int;
    freed int;
begin
    moved := 0;
    for due in
        select s.partition, s.quota, s.number
        from flowfabric.quotas q
        join flowfabric.quota_stripes s on s.partition = q.partition and s.quota = q.id
        where exists (select from flowfabric.quota_entries e
                      where e.partition = s.partition and e.quota = s.quota and e.stripe = s.number
                        and e.at <= now - q.window_seconds * interval '1 second')
           or s.slots > 0 and exists (select from flowfabric._slots_of(s, '-infinity') x where not x.is_held)
        order by s.quota, s.number offset trim_windows.passing
    loop
        exit when moved >= trim_windows.take;
        select s.* into held from flowfabric.quota_stripes s
        where s.partition = due.partition and s.quota = due.quota and s.number = due.number for update skip locked;
        continue when not found;
        span := (select q.window_seconds from flowfabric.quotas q
                 where q.partition = held.partition and q.id = held.quota);
        delete from flowfabric.quota_entries e where e.ctid = any (array(
            select e.ctid from flowfabric.quota_entries e
            where e.partition = held.partition and e.quota = held.quota and e.stripe = held.number
              and e.at <= now - span * interval '1 second'
            order by e.at, e.number limit trim_windows.take - moved));
        get diagnostics removed = row_count;
        delete from flowfabric.quota_slots s where s.ctid = any (array(
            select x.place from flowfabric._slots_of(held, '-infinity') x
            where not x.is_held limit trim_windows.take - moved - removed));
        get diagnostics freed = row_count;
        update flowfabric.quota_stripes s
        set slots = greatest(0, s.slots - freed), used_at = greatest(s.used_at, now),
            entries = flowfabric._entries_of(held, span, now, '-infinity')
        where s.partition = held.partition and s.quota = held.quota and s.number = held.number;
        moved := moved + removed + freed;
    end loop;
end $$;
