-- Settle reservations: count the actual amount, or release the reservation.

-- Find a reservation, check the fence of the caller that ends it, and lock its budget.
--
--   moves    reservation open → expired
--   refuses  fence_required
--   returns  the current reservation, and its budget
create or replace function flowfabric._lock_reservation(
    reservation_id uuid, partition int, id uuid, lease_id uuid, epoch bigint, attempt int, now timestamptz,
    out reservation flowfabric.reservations, out budget flowfabric.budgets)
language plpgsql as $$
begin
    select r.* into reservation from flowfabric.reservations r where r.id = _lock_reservation.reservation_id;
    if not found
       or (reservation.execution_partition, reservation.execution)
          <> (_lock_reservation.partition, _lock_reservation.id) then
        perform flowfabric._raise(flowfabric._no_reservation_fault(_lock_reservation.reservation_id, null));
    end if;
    if reservation.execution is not null and _lock_reservation.id is null then
        perform flowfabric._refuse('fence_required',
            format('reservation %s belongs to an execution; pass the fence of its lease', reservation.id));
    end if;
    budget := flowfabric._lock_for_call(
        reservation.budget, _lock_reservation.partition, _lock_reservation.id, _lock_reservation.lease_id,
        _lock_reservation.epoch, _lock_reservation.attempt, _lock_reservation.now);
    -- Re-check under the lock: only the session that has locked the budget can end its reservations.
    select r.* into reservation from flowfabric.reservations r where r.id = _lock_reservation.reservation_id;
    if not found then
        perform flowfabric._raise(flowfabric._no_reservation_fault(_lock_reservation.reservation_id, null));
    end if;
end $$;

-- Build the error for a reservation that does not exist or is no longer open.
--
--   refuses  reservation_not_found, as a value
create or replace function flowfabric._no_reservation_fault(id uuid, ended_by text)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('reservation_not_found',
        format('reservation %s %s; use report_usage to report the amount spent', _no_reservation_fault.id,
               case _no_reservation_fault.ended_by when 'expired' then 'has expired'
                   when 'attempt' then 'ended with its attempt' when 'release' then 'was released'
                   else 'does not exist, or belongs to another execution' end))
$$;

-- Settle a reservation with the actual amounts. If they fit, they count as used; otherwise the estimate counts as used
-- and the rest as overrun. With a step, the journal of the execution saves it in the same transaction, whatever the
-- outcome: a handler that runs again must not spend again.
--
--   moves    reservation open → settled; suspended → runnable, for executions that waited for the budget and fit now;
--            at a hard breach active → ended: failed, cancelled; or → suspended: waiting_for_budget
--   locks    the ticket; then the budgets, in key order; then the tickets it moves, skipping locked ones
--   emits    reservation_settled, budget_soft_breached, budget_hard_breached, execution_failed, execution_cancelled,
--            execution_suspended, execution_resumed, waitpoint_closed, budget_reset, reservation_expired,
--            reservation_released, edge_group_impossible, edge_group_satisfied, execution_skipped
--   refuses  reservation_not_found, invalid_usage, invalid_name, fence_required, partial_fence, lease_lost,
--            execution_not_active, execution_not_found, budget_not_found, too_many_steps
--   returns  {outcome: settled, soft_breach, hard_breach or already_applied with the first answer, …figures, lanes,
--            ended}
create or replace function flowfabric.settle(
    reservation_id uuid, actual text, partition int default null, id uuid default null, lease_id uuid default null,
    epoch bigint default null, attempt int default null, step_name text default null,
    step_occurrence int default null)
returns text
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    held record;
    settled record;
    after flowfabric.budgets;
    amounts jsonb;
    verdict jsonb;
    lanes text[];
begin
    perform flowfabric._raise(coalesce(
        flowfabric._amounts_fault(settle.actual::jsonb, 0),
        flowfabric._spending_step_fault(settle.id, settle.step_name, settle.step_occurrence)));
    held := flowfabric._lock_reservation(
        settle.reservation_id, settle.partition, settle.id, settle.lease_id, settle.epoch, settle.attempt, now);
    if settle.step_name is not null then
        insert into flowfabric.steps (partition, execution, name, occurrence, kind, at, result)
        values (settle.partition, settle.id, settle.step_name, settle.step_occurrence, 'step', now, 'true')
        on conflict do nothing;
        if found and 10000 < (select count(*) from flowfabric.steps s
                              where s.partition = settle.partition and s.execution = settle.id) then
            perform flowfabric._raise(flowfabric._too_many_steps_fault());
        end if;
    end if;
    if (held.reservation).ended_by = 'settle' then
        return (held.reservation).answer || jsonb_build_object(
            'outcome', 'already_applied', 'first', (held.reservation).answer -> 'outcome');
    elsif (held.reservation).ended_at is not null then
        perform flowfabric._raise(flowfabric._no_reservation_fault(settle.reservation_id, (held.reservation).ended_by));
    end if;
    amounts := flowfabric._amounts_counted(settle.actual::jsonb);
    settled := flowfabric._settled(held.budget, held.reservation, amounts, settle.partition, settle.id, now);
    after := settled.budget;
    verdict := settled.verdict;
    if verdict ->> 'outcome' = 'hard_breach' then
        verdict := flowfabric._answer_breach(after, verdict, settle.partition, settle.id, verdict -> 'overrun', now);
        -- If the action ended the execution, its other reservations were released: read the budget again.
        select b.* into after from flowfabric.budgets b where b.partition = after.partition and b.id = after.id;
    end if;
    update flowfabric.reservations r set answer = verdict - 'ended'
    where r.partition = (held.reservation).partition and r.id = (held.reservation).id;
    lanes := flowfabric._resume_waiting_for_budget(held.budget, after);
    return verdict || jsonb_build_object('lanes', lanes);
end $$;

-- Count the actual amounts of a reservation in its budget, store the budget and close the reservation. The caller has
-- locked the budget.
--
--   moves    reservation open → settled
--   emits    reservation_settled
--   returns  the budget, and the verdict: {outcome, …figures}
create or replace function flowfabric._settled(
    inout budget flowfabric.budgets, reservation flowfabric.reservations, actual jsonb, partition int, execution uuid,
    now timestamptz, out verdict jsonb)
language plpgsql as $$
declare
    charged record;
    limits jsonb := budget.hard_limits;
    counted jsonb := _settled.actual;
    overrun jsonb := flowfabric._minus(flowfabric._plus('{}', _settled.actual), reservation.estimate);
    execution_id text := flowfabric._id(_settled.partition, _settled.execution);
begin
    budget.reserved := flowfabric._minus(budget.reserved, reservation.estimate);
    if overrun = '{}' and budget.mode = 'strict' then
        -- The whole amount was reserved, so it fits even if the limit has been lowered since.
        budget.hard_limits := '{}';
    end if;
    charged := flowfabric._charge(budget, _settled.actual, false, execution_id, _settled.now);
    budget := charged.budget;
    budget.hard_limits := limits;
    verdict := charged.verdict;
    perform flowfabric._raise(case when verdict ? 'code' then verdict end);
    if verdict ->> 'outcome' = 'hard_breach' then
        counted := flowfabric._minus(_settled.actual, overrun);
        budget.used := flowfabric._plus(budget.used, counted);
        -- Never refused, because the money is spent: a sum beyond 2^53 - 1 stays there.
        budget.overrun := (
            select jsonb_object_agg(o.key, least(o.value::bigint, 9007199254740991))
            from jsonb_each_text(flowfabric._plus(budget.overrun, overrun)) o);
        verdict := verdict || jsonb_build_object('overrun', overrun);
    else
        overrun := '{}';
        verdict := case when verdict ->> 'outcome' = 'ok' then '{"outcome": "settled"}' else verdict end;
    end if;
    perform flowfabric._store_budget(budget);
    if _settled.execution is not null and counted <> '{}' then
        perform flowfabric._note_spending(_settled.partition, _settled.execution, budget, counted);
    end if;
    update flowfabric.reservations r set ended_at = _settled.now, ended_by = 'settle'
    where r.partition = reservation.partition and r.id = reservation.id;
    perform flowfabric._append_budget('reservation_settled', budget, detail => jsonb_strip_nulls(jsonb_build_object(
        'reservation_id', reservation.id, 'estimate', reservation.estimate, 'actual', _settled.actual,
        'overrun', nullif(overrun, '{}'), 'execution_id', execution_id)));
end $$;

-- Release a reservation.
--
--   moves    reservation open → released; suspended → runnable, for executions that waited for the budget and fit now
--   locks    the ticket; then the budgets, in key order; then the tickets it moves, skipping locked ones
--   emits    reservation_released, execution_resumed, waitpoint_closed, budget_reset, reservation_expired
--   refuses  reservation_not_found, fence_required, partial_fence, lease_lost, execution_not_active,
--            execution_not_found, budget_not_found
--   returns  'released' with the amounts, or 'noop' if the reservation has already ended; and the lanes that may have
--            claimable work again
create or replace function flowfabric.release(
    reservation_id uuid, partition int default null, id uuid default null, lease_id uuid default null,
    epoch bigint default null, attempt int default null, out outcome text, out amounts text, out lanes text[])
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    held record;
    after flowfabric.budgets;
begin
    held := flowfabric._lock_reservation(
        release.reservation_id, release.partition, release.id, release.lease_id, release.epoch, release.attempt, now);
    if (held.reservation).ended_at is not null then
        outcome := 'noop';
        amounts := '{}';
        return;
    end if;
    outcome := 'released';
    amounts := (held.reservation).estimate;
    after := held.budget;
    after.reserved := flowfabric._minus(after.reserved, (held.reservation).estimate);
    perform flowfabric._store_budget(after);
    update flowfabric.reservations r set ended_at = now, ended_by = 'release'
    where r.partition = (held.reservation).partition and r.id = (held.reservation).id;
    perform flowfabric._append_budget('reservation_released', after, detail => jsonb_strip_nulls(jsonb_build_object(
        'reservation_id', release.reservation_id, 'estimate', (held.reservation).estimate,
        'execution_id', flowfabric._id(release.partition, release.id))));
    lanes := flowfabric._resume_waiting_for_budget(held.budget, after);
end $$;

-- Sweep: end expired reservations, and delete reservations that ended a day ago. A reservation stops counting when it
-- expires, even before the sweep.
--
--   moves    reservation open → expired; suspended → runnable, for executions that waited for the budget and fit now
--   locks    the budgets, skipping locked ones; the tickets it moves and the reservations it deletes, skipping locked
--            ones
--   emits    reservation_expired, execution_resumed, waitpoint_closed
--   returns  how many reservations ended or were deleted and how many could not, and the lanes that may have
--            claimable work again
create or replace function flowfabric.expire_reservations(
    take int default 500, passing int default 0, out moved int, out locked int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    budget_ids uuid[];
    held uuid[] := '{}';
    before flowfabric.budgets;
    expired record;
begin
    moved := 0;
    budget_ids := array(
        select r.budget from flowfabric.reservations r where r.ended_at is null and r.expires_at <= now
        order by r.expires_at, r.partition, r.id limit expire_reservations.take offset expire_reservations.passing);
    for before in
        select b.* from flowfabric.budgets b where b.id = any (budget_ids) order by b.partition + 0, b.id
        for update skip locked
    loop
        held := held || before.id;
        expired := flowfabric._expire_reservations(before, now);
        perform flowfabric._store_budget(expired.budget);
        moved := moved + expired.expired_count;
        lanes := array(
            select distinct l from unnest(lanes || flowfabric._resume_waiting_for_budget(before, expired.budget)) l
            order by 1);
    end loop;
    locked := (select count(*) from unnest(budget_ids) b where b <> all (held));
    with gone as (
        delete from flowfabric.reservations r where r.ctid = any (array(
            select o.ctid from flowfabric.reservations o where o.ended_at <= now - interval '24 hours'
            order by o.ended_at limit greatest(expire_reservations.take - moved, 0) for update skip locked))
        returning 1
    )
    select moved + count(*) into moved from gone;
end $$;
