-- A clock that tests can move. Only flowfabric.testing installs it; no migration and no upgrade ever runs this file.

create table if not exists flowfabric.clock_offset (
    only_row boolean primary key default true check (only_row),
    amount   interval not null default '0'
);

insert into flowfabric.clock_offset default values on conflict do nothing;

create or replace function flowfabric.clock()
returns timestamptz
language plpgsql stable as $$
begin
    return clock_timestamp() + (select c.amount from flowfabric.clock_offset c);
end $$;

-- Move the clock and nothing else, as if no worker had renewed its leases meanwhile.
--
--   returns  the new time
create or replace function flowfabric.move_clock(span interval)
returns timestamptz
language plpgsql as $$
begin
    update flowfabric.clock_offset c set amount = c.amount + move_clock.span;
    return flowfabric.clock();
end $$;

-- Move the clock as if the workers were alive meanwhile: leases and registrations have as much time left as before.
--
--   locks    the tickets with a lease
--   returns  the new time
create or replace function flowfabric.pass_time(span interval)
returns timestamptz
language plpgsql as $$
begin
    perform from flowfabric.tickets t where t.phase = 'active' order by t.partition, t.id for update;
    update flowfabric.tickets t set expires_at = t.expires_at + pass_time.span where t.phase = 'active';
    update flowfabric.workers w set beat_at = w.beat_at + pass_time.span, expires_at = w.expires_at + pass_time.span;
    return flowfabric.move_clock(pass_time.span);
end $$;

-- Find the next due time. With waits => false, only the times at which an execution resumes: the ends of sleeps, delays
-- and pauses before retries; no timeouts of unanswered waits, deadlines, schedules or resets of budgets.
--
--   returns  the due time, or null if nothing is due later
create or replace function flowfabric.next_due(waits boolean default true)
returns timestamptz
language plpgsql stable as $$
declare
    now timestamptz := flowfabric.clock();
begin
    return least(
        (select min(t.due_at) from flowfabric.tickets t
         where t.phase = 'runnable' and t.eligibility = 'not_eligible_until_time' and t.due_at > now),
        (select min(w.timeout_at) from flowfabric.waits w
         where w.timeout_at > now and (w.is_sleep or next_due.waits)),
        (select min(t.deadline_at) from flowfabric.tickets t where t.deadline_at > now and next_due.waits),
        (select min(s.due_at) from flowfabric.schedules s where s.due_at > now and next_due.waits),
        (select min(b.next_reset_at) from flowfabric.budgets b where b.next_reset_at > now and next_due.waits));
end $$;

-- Find the open waitpoint of a key and its token, which otherwise only the execution knows, so that a test can answer.
--
--   returns  its id and token, or nothing when no waitpoint of that key is open
create or replace function flowfabric.open_waitpoint(partition int, id uuid, key text)
returns table (waitpoint_id uuid, token text)
language sql stable as $$
    select w.id, flowfabric._waitpoint_token(w.partition, w.execution, w.id, w.kid) from flowfabric.waitpoints w
    where w.partition = open_waitpoint.partition and w.execution = open_waitpoint.id and w.key = open_waitpoint.key
      and w.state <> 'closed'
$$;
