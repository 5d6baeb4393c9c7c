-- Shortcuts: what is simple and common is done without the code for all cases.

-- Whether this signal alone satisfies a condition that does not hold yet, if one matching signal is enough.
--
--   returns  true or false; null if the answer depends on other signals
create or replace function flowfabric._is_met(condition jsonb, key text, name text, source_type text)
returns boolean
language plpgsql immutable as $$
declare
    met boolean := false;
    alone boolean;
begin
    if _is_met.condition ->> 'kind' = 'single'
       or _is_met.condition ->> 'kind' = 'count' and _is_met.condition -> 'n' = '1' then
        return flowfabric._matches(_is_met.condition, _is_met.key, _is_met.name, _is_met.source_type);
    end if;
    if _is_met.condition ->> 'kind' is distinct from 'any_of' then
        return null;
    end if;
    for place in 0 .. jsonb_array_length(_is_met.condition -> 'members') - 1 loop
        alone := flowfabric._is_met(
            _is_met.condition -> 'members' -> place, _is_met.key, _is_met.name, _is_met.source_type);
        if alone is null then
            return null;
        end if;
        met := met or alone;
    end loop;
    return met;
end $$;

-- Suspend one execution for one wait on a new waitpoint, if no other wait is open and the run has not requested this
-- one before. The caller has locked the ticket and checked the fence.
--
--   moves    active → suspended: attempt_interrupted; waitpoint – → active
--   returns  the detail of the answer; null if `_suspend` must do it, with nothing changed
create or replace function flowfabric._suspend_for_one(partition smallint, id uuid, wishes jsonb, now timestamptz)
returns text
language plpgsql as $$
declare
    wish jsonb := _suspend_for_one.wishes -> 0;
    point_key text := wish -> 'points' -> 0 ->> 'key';
    suspension uuid := gen_random_uuid();
    point uuid := gen_random_uuid();
    asked record;
    token text;
begin
    if jsonb_array_length(_suspend_for_one.wishes) <> 1
       or jsonb_array_length(wish -> 'points') is distinct from 1 or wish -> 'points' -> 0 ? 'waitpoint_id'
       or wish ?| '{child,is_sleep}' then
        return null;
    end if;
    select flowfabric._requested_wait(
               e.partition, e.id, suspension, suspension, jsonb_build_array(point), wish, e.policy -> 'suspension',
               _suspend_for_one.now) as wait,
           (wish ->> 'resume_delay_ms')::bigint as delay_ms,
           (select k from flowfabric.keys k where k.expires_at is null) as signer,
           newest.created_at,
           coalesce(newest.state = 'closed', true)
           and not exists (select from flowfabric.waits w
                           where w.partition = e.partition and w.execution = e.id and w.ended_at is null)
           and not exists (select from flowfabric.waits w
                           where w.partition = e.partition and w.execution = e.id and w.name = wish ->> 'name'
                             and w.occurrence = (wish ->> 'occurrence')::int) as is_new
    into asked
    from flowfabric.executions e
    left join lateral (
        select p.state, p.created_at from flowfabric.waitpoints p
        where p.partition = e.partition and p.execution = e.id and p.key = point_key
        order by p.partition, p.execution, p.key, p.created_at desc, p.id desc limit 1) newest on true
    where e.partition = _suspend_for_one.partition and e.id = _suspend_for_one.id;
    if not asked.is_new or asked.signer is null or flowfabric._wait_fault(
           asked.wait, array[point_key], (wish ->> 'timeout_ms')::bigint, asked.delay_ms,
           _suspend_for_one.now) is not null then
        return null;
    end if;
    insert into flowfabric.waits select (asked.wait).*;
    token := (flowfabric._create_waitpoints(
        asked.signer, array[_suspend_for_one.partition], array[_suspend_for_one.id], array[point_key], array[point],
        array[suspension], array[greatest(_suspend_for_one.now, asked.created_at + interval '1 us')], null,
        _suspend_for_one.now))[1];
    perform flowfabric._suspend_tickets(
        array[_suspend_for_one.partition], array[_suspend_for_one.id], array[suspension],
        array[asked.delay_ms * interval '1 ms'], _suspend_for_one.now);
    return flowfabric._suspension_text(
        suspension, jsonb_build_array(jsonb_build_object('id', point, 'key', point_key, 'token', token)), null);
end $$;
