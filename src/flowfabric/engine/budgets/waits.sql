-- Budget waits: act on an execution that exceeds a hard limit, and resume it automatically when it fits again.

-- Complete the answer to a hard breach, and apply the on_hard_limit action of the budget to the execution, if there is
-- one. The caller has stored the budget, and has locked the ticket and the budgets of its reservations.
--
--   moves    active → ended: failed, cancelled; or → suspended: waiting_for_budget; or stays active
--   emits    execution_failed, execution_cancelled
--   returns  the verdict with the action taken, and the members of its flow that ended with the execution, if any
create or replace function flowfabric._answer_breach(
    budget flowfabric.budgets, verdict jsonb, partition int, execution uuid, amounts jsonb, now timestamptz)
returns jsonb
language plpgsql as $$
declare
    ticket flowfabric.tickets;
    action text := case when _answer_breach.execution is null then 'refuse' else budget.on_hard_limit end;
    ended text[];
begin
    if action <> 'refuse' then
        select t.* into ticket from flowfabric.tickets t
        where t.partition = _answer_breach.partition and t.id = _answer_breach.execution;
    end if;
    if action in ('fail', 'cancel') then
        ended := (flowfabric._end(
            array[ticket.partition], array[ticket.id],
            case action when 'fail' then 'failed' else 'cancelled' end::flowfabric.outcome,
            failures => array[jsonb_build_object(
                'class', case action when 'fail' then 'permanent' else 'cancelled' end,
                'category', 'budget_exhausted', 'reason', 'budget_exhausted', 'budget', budget.name,
                'dimension', _answer_breach.verdict -> 'dimension')])).ended;
    elsif action = 'suspend' then
        insert into flowfabric.budget_waits (partition, execution, budget, amounts, asked_at)
        values (ticket.partition, ticket.id, budget.id, _answer_breach.amounts, _answer_breach.now);
        perform flowfabric._suspend_tickets(
            array[ticket.partition], array[ticket.id], array[gen_random_uuid()], null, _answer_breach.now);
    end if;
    return _answer_breach.verdict || jsonb_build_object('action', action)
        || case when ended is null then '{}' else jsonb_build_object('ended', ended) end;
end $$;

-- Explain how much of a budget an execution waits for that the budget has suspended.
create or replace function flowfabric._explain_budget_wait(wait flowfabric.budget_waits, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    budget flowfabric.budgets;
    short record;
begin
    select b.* into budget from flowfabric.budgets b where b.id = wait.budget;
    budget := flowfabric._current_budget(budget, _explain_budget_wait.now);
    select a.key as dimension, a.value::bigint as wanted, (r.room ->> a.key)::bigint as room into short
    from jsonb_each_text(wait.amounts) a cross join (select flowfabric._room(budget)) r (room)
    where (r.room ->> a.key)::bigint < a.value::bigint order by a.key collate "C" limit 1;
    return flowfabric._explanation(
        case when short.dimension is null then format('budget %s has room again; a sweep will resume it', budget.name)
             else format('needs %s %s of budget %s, which has %s left; %s', flowfabric._number(short.wanted),
                         short.dimension, budget.name, flowfabric._number(greatest(short.room, 0)),
                         coalesce('it resets at ' || flowfabric._moment(budget.next_reset_at), 'raise or reset it'))
        end,
        'budget', wait.asked_at, case when budget.next_reset_at is null then 'change_budget' else 'time' end,
        budget.next_reset_at);
end $$;

-- Resume executions that wait for a budget, the oldest first, as many as fit one after the other into the remaining
-- amounts. An execution that does not fit does not block the ones behind it. At most `most` waiting executions are
-- examined; all if it is null.
--
--   moves    suspended → runnable
--   locks    the tickets it moves, skipping locked ones
--   returns  how many were resumed, how many were skipped because of `passing`, and the lanes with claimable work
create or replace function flowfabric._resume_waiting(
    budget flowfabric.budgets, take int, passing int default 0, most int default null,
    out resumed int, out passed int, out lanes text[])
language plpgsql set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off
set enable_sort = off as $$
declare
    room jsonb := flowfabric._room(_resume_waiting.budget);
    waiting record;
    partitions smallint[] := '{}';
    executions uuid[] := '{}';
begin
    passed := 0;
    for waiting in
        select w.partition, w.execution, w.amounts, t.lane
        from (
            select w.* from flowfabric.budget_waits w where w.budget = budget.id
            order by w.asked_at, w.partition, w.execution limit _resume_waiting.most) w
        cross join lateral (
            select t.lane from flowfabric.tickets t
            where t.partition = w.partition and t.id = w.execution and t.reason = 'waiting_for_budget'
              and flowfabric._fits(w.amounts, room)
            for update skip locked) t
        limit _resume_waiting.take + _resume_waiting.passing
    loop
        exit when cardinality(executions) = _resume_waiting.take;
        continue when not flowfabric._fits(waiting.amounts, room);
        if passed < _resume_waiting.passing then
            passed := passed + 1;
            continue;
        end if;
        budget.reserved := flowfabric._plus(budget.reserved, waiting.amounts);
        room := flowfabric._room(_resume_waiting.budget);
        partitions := partitions || waiting.partition;
        executions := executions || waiting.execution;
        lanes := case when waiting.lane = any (lanes) then lanes else lanes || waiting.lane end;
    end loop;
    resumed := cardinality(executions);
    if resumed > 0 then
        perform flowfabric._resume(partitions, executions, 'budget');
    end if;
end $$;

-- Resume waiting executions that fit now. The caller has locked and stored the budget.
--
--   moves    suspended → runnable, for executions that waited for the budget and fit now
--   returns  the lanes that may have claimable work again: theirs, and those of the budget's routes if it opened them
create or replace function flowfabric._resume_waiting_for_budget(before flowfabric.budgets, after flowfabric.budgets)
returns text[]
language plpgsql as $$
declare
    opened text[];
begin
    if before.full_until is not null and not flowfabric._is_full(_resume_waiting_for_budget.after) then
        opened := array(select r.lane from flowfabric.routes r where r.budgets @> array[after.id]);
    end if;
    -- A bounded number, because the budget stays locked during this call; the sweep resumes the rest.
    return array(
        select distinct l
        from unnest(opened || (flowfabric._resume_waiting(_resume_waiting_for_budget.after, 100, most => 100)).lanes) l
        order by 1);
end $$;

-- Sweep: resume executions that a budget suspended and that fit again. A call that frees amounts resumes the first of
-- them itself; this sweep resumes the others. Finds the budgets by a loose index scan over the waits.
--
--   moves    suspended → runnable
--   locks    the tickets it moves, skipping locked ones
--   emits    execution_resumed, waitpoint_closed
--   returns  how many were resumed, and the lanes with claimable work
create or replace function flowfabric.resume_budget_waits(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set enable_bitmapscan = off set enable_sort = off set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    budget flowfabric.budgets;
    pass record;
    to_pass int := resume_budget_waits.passing;
begin
    moved := 0;
    for budget in
        with recursive ids as (
            (select w.budget as id from flowfabric.budget_waits w order by w.budget limit 1)
            union all
            select n.id from ids i cross join lateral (
                select w.budget as id from flowfabric.budget_waits w where w.budget > i.id
                order by w.budget limit 1) n
        )
        select b.* from ids i
        cross join lateral (select b.* from flowfabric.budgets b where b.id = i.id offset 0) b
    loop
        exit when moved >= resume_budget_waits.take;
        pass := flowfabric._resume_waiting(
            flowfabric._current_budget(budget, now), resume_budget_waits.take - moved, to_pass);
        moved := moved + pass.resumed;
        to_pass := to_pass - pass.passed;
        lanes := array(select distinct l from unnest(lanes || pass.lanes) l order by 1);
    end loop;
end $$;
