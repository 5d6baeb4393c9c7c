-- Locks: how long a call waits for other transactions.

-- Limit how long the transaction waits for a lock, if the caller does not want to wait: a user's transaction may keep a
-- row locked for minutes, and the other items of a batch must not wait for it. The statement fails with
-- lock_not_available after 100 ms, so that short locks of other calls do not disturb it. The limit holds until the
-- transaction ends.
create or replace function flowfabric._limit_waits(wait boolean)
returns void
language plpgsql as $$
begin
    if not _limit_waits.wait then
        perform set_config('lock_timeout', '100ms', true);
    end if;
end $$;
