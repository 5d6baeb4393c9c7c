-- Turns: a sweep that pauses between its passes runs in one process at a time.

-- Take or extend a turn: the right to run this sweep until another process may take over. If the process of a turn
-- dies, the next process that asks continues the turn, so `since` is the start of the first one. A turn that would last
-- more than twice as long was taken before the clock was moved back, and is over.
--
--   locks    the turn, skipping it if it is locked
--   returns  whether the holder has the turn now; false if another process has it
create or replace function flowfabric.take_turn(sweep text, holder uuid, turn_ms bigint)
returns boolean
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    next_at timestamptz := now + take_turn.turn_ms * interval '1 ms';
begin
    update flowfabric.turns t
    set holder = take_turn.holder, ends_at = next_at,
        since = case when t.ends_at > now - interval '10 minutes' then t.since else now end
    where t.ctid = any (array(
        select t.ctid from flowfabric.turns t
        where t.sweep = take_turn.sweep
          and (t.holder = take_turn.holder or t.ends_at <= now or t.ends_at > next_at + (next_at - now))
        for update skip locked));
    if found or exists (select from flowfabric.turns t where t.sweep = take_turn.sweep) then
        return found;
    end if;
    insert into flowfabric.turns (sweep, holder, since, ends_at)
    values (take_turn.sweep, take_turn.holder, now, next_at)
    on conflict do nothing;
    return found;
end $$;

-- End a turn, because the sweep found no more rows. Does nothing if another process has taken over.
--
--   returns  nothing
create or replace function flowfabric.end_turn(sweep text, holder uuid)
returns void
language plpgsql as $$
begin
    delete from flowfabric.turns t where t.sweep = end_turn.sweep and t.holder = end_turn.holder;
end $$;
