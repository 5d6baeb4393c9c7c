-- Listing attempts: the ended ones and the current one.

-- Read from a record the attempt that ended with the execution.
--
--   returns  the attempt; no row if the execution has not ended, or ended while no attempt was running or suspended
create or replace function flowfabric._last_attempt(ended flowfabric.executions)
returns setof flowfabric.attempts
language sql immutable as $$
    select e.partition, e.attempt, e.attempt_epoch, e.epoch, e.attempt_started_at, e.ended_at, e.attempt_type,
           case e.outcome when 'success' then 'ended_success' when 'cancelled' then 'ended_cancelled'
                          when 'skipped' then 'ended_cancelled' else 'ended_failure' end::flowfabric.lifecycle,
           e.id, e.worker, e.instance,
           e.failure || case when e.traceback is null then '{}' else jsonb_build_object('traceback', e.traceback) end
    from (select (_last_attempt.ended).*) e
    where e.outcome is not null and e.attempt_epoch is not null
$$;

-- List the attempts of an execution, by number. Keyset pagination.
--
--   refuses  execution_not_found, invalid_limit
--   returns  one row per attempt; the current one is `started`, or `suspended` while it waits
create or replace function flowfabric.list_attempts(partition int, id uuid, after int default 0, take int default 50)
returns table (number int, type text, lifecycle text, worker text, instance text, first_epoch bigint, last_epoch bigint,
               started_at timestamptz, ended_at timestamptz, failure text)
language plpgsql stable as $$
begin
    perform flowfabric._refuse_missing(list_attempts.partition, list_attempts.id)
    where not exists (select from flowfabric.executions e
                      where e.partition = list_attempts.partition and e.id = list_attempts.id);
    return query
    select a.number, a.type::text, a.lifecycle::text, a.worker, a.instance, a.first_epoch, a.last_epoch, a.started_at,
           a.ended_at, a.failure::text
    from (
        select a.* from flowfabric.attempts a
        where a.partition = list_attempts.partition and a.execution = list_attempts.id
        union all
        select a.* from flowfabric.executions e cross join lateral flowfabric._last_attempt(e) a
        where e.partition = list_attempts.partition and e.id = list_attempts.id) a
    where a.number > list_attempts.after
    union all
    select t.attempt, t.attempt_type::text, case when t.phase = 'active' then 'started' else 'suspended' end, t.worker,
           t.instance, t.attempt_epoch, t.epoch, t.attempt_started_at, null, null
    from flowfabric.tickets t
    where t.partition = list_attempts.partition and t.id = list_attempts.id and t.attempt > list_attempts.after
      and t.attempt_state in ('running_attempt', 'attempt_interrupted')
    order by 1
    limit flowfabric._page(list_attempts.take);
end $$;
