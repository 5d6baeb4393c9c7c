-- Reservations: reserve an estimated amount of a budget, to be settled when the actual amount is known.

-- Release the open reservations of executions whose attempts are over. The caller has locked the tickets.
--
--   moves    reservation open → released
--   locks    the budgets of the reservations, in key order
--   emits    reservation_released
create or replace function flowfabric._return_reservations(partitions smallint[], ids uuid[])
returns void
language plpgsql set enable_sort = off as $$
declare
    now timestamptz := flowfabric.clock();
    budget_ids uuid[] := flowfabric._budgets_to_lock('{}', _return_reservations.partitions, _return_reservations.ids);
    budget flowfabric.budgets;
    returned record;
begin
    if budget_ids = '{}' then
        return;
    end if;
    for budget in
        select b.* from flowfabric.budgets b where b.id = any (budget_ids) order by b.partition + 0, b.id for update
    loop
        for returned in
            update flowfabric.reservations r set ended_at = now, ended_by = 'attempt'
            from (
                select o.place
                from unnest(_return_reservations.partitions, _return_reservations.ids) as x (partition, id)
                cross join lateral (
                    -- The row comparison and the order match one index only, as in _expired_reservations.
                    select o.ctid as place, o.budget from flowfabric.reservations o
                    where (o.execution_partition, o.execution) >= (x.partition::smallint, x.id)
                      and (o.execution_partition, o.execution) <= (x.partition::smallint, x.id) and o.ended_at is null
                    order by o.execution_partition, o.execution offset 0) o
                where o.budget = budget.id) x
            where r.ctid = x.place
            returning r.id, r.estimate, r.execution_partition, r.execution
        loop
            budget.reserved := flowfabric._minus(budget.reserved, returned.estimate);
            perform flowfabric._append_budget('reservation_released', budget, detail => jsonb_build_object(
                'reservation_id', returned.id, 'estimate', returned.estimate, 'cause', 'attempt_ended',
                'execution_id', flowfabric._id(returned.execution_partition, returned.execution)));
        end loop;
        perform flowfabric._store_budget(budget);
    end loop;
end $$;

-- Find the open reservation of a budget by its dedup key. The row comparison and the order match one index only, as in
-- _expired_reservations.
--
--   returns  the reservation, or null if there is none
create or replace function flowfabric._known_reservation(budget flowfabric.budgets, dedup_key text)
returns flowfabric.reservations
language plpgsql stable set enable_sort = off set enable_incremental_sort = off as $$
declare
    known flowfabric.reservations;
begin
    select r.* into known from flowfabric.reservations r
    where (r.partition, r.budget, r.dedup_key) >= (budget.partition, budget.id, _known_reservation.dedup_key)
      and (r.partition, r.budget, r.dedup_key) <= (budget.partition, budget.id, _known_reservation.dedup_key)
      and r.dedup_key is not null and r.ended_at is null
    order by r.partition, r.budget, r.dedup_key;
    return known;
end $$;

-- Reserve an estimated amount of a budget.
--
--   moves    reservation – → open; at a hard breach active → ended: failed, cancelled; or → suspended:
--            waiting_for_budget
--   locks    the ticket; then the budgets, in key order
--   emits    reservation_made, budget_soft_breached, budget_hard_breached, execution_failed, execution_cancelled,
--            execution_suspended, waitpoint_closed, budget_reset, reservation_expired, reservation_released,
--            edge_group_impossible, edge_group_satisfied, execution_skipped
--   refuses  budget_not_found, invalid_usage, invalid_time, invalid_body, fence_required, partial_fence, lease_lost,
--            execution_not_active, execution_not_found
--   returns  {outcome: reserved, soft_breach or already_applied, reservation_id, expires_at, …figures}, or {outcome:
--            hard_breach, …figures, action, ended}
create or replace function flowfabric.reserve(
    budget uuid, estimate text, reservation_id uuid, ttl_ms bigint default 3600000, dedup_key text default null,
    partition int default null, id uuid default null, lease_id uuid default null, epoch bigint default null,
    attempt int default null)
returns text
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    expires_at timestamptz := now + least(greatest(reserve.ttl_ms, 1), 86400000) * interval '1 ms';
    held flowfabric.budgets;
    known flowfabric.reservations;
    amounts jsonb;
    charged record;
    verdict jsonb;
begin
    perform flowfabric._raise(coalesce(
        flowfabric._amounts_fault(reserve.estimate::jsonb, 1), flowfabric._dedup_key_fault(reserve.dedup_key),
        case when (reserve.ttl_ms between 1 and 86400000) is not true then flowfabric._fault(
            'invalid_time', format('ttl of %s ms is invalid; use 1 to 86,400,000 ms (24 hours)', reserve.ttl_ms)) end));
    held := flowfabric._lock_for_call(
        reserve.budget, reserve.partition, reserve.id, reserve.lease_id, reserve.epoch, reserve.attempt, now);
    if reserve.dedup_key <> '' then
        known := flowfabric._known_reservation(held, reserve.dedup_key);
    end if;
    if known.id is not null then
        return jsonb_build_object(
            'outcome', 'already_applied', 'reservation_id', known.id, 'expires_at', known.expires_at);
    end if;

    amounts := flowfabric._amounts_counted(reserve.estimate::jsonb);
    charged := flowfabric._charge(held, amounts, true, flowfabric._id(reserve.partition, reserve.id), now);
    held := charged.budget;
    verdict := charged.verdict;
    perform flowfabric._raise(case when verdict ? 'code' then verdict end);
    if verdict ->> 'outcome' = 'hard_breach' then
        perform flowfabric._store_budget(held);
        return flowfabric._answer_breach(held, verdict, reserve.partition, reserve.id, amounts, now);
    end if;
    insert into flowfabric.reservations (
        partition, id, budget, estimate, created_at, expires_at, execution_partition, execution, attempt, dedup_key)
    values (held.partition, reserve.reservation_id, held.id, amounts, now, expires_at, reserve.partition, reserve.id,
            reserve.attempt, nullif(reserve.dedup_key, ''));
    if reserve.id is not null then
        perform flowfabric._mark_for_closing(reserve.partition, reserve.id);
    end if;
    held.first_expiry := least(held.first_expiry, expires_at);
    perform flowfabric._store_budget(held);
    perform flowfabric._append_budget('reservation_made', held, detail => jsonb_strip_nulls(jsonb_build_object(
        'reservation_id', reserve.reservation_id, 'estimate', amounts, 'expires_at', expires_at,
        'execution_id', flowfabric._id(reserve.partition, reserve.id))));
    return verdict || jsonb_build_object('reservation_id', reserve.reservation_id, 'expires_at', expires_at)
        || case when verdict ->> 'outcome' = 'ok' then '{"outcome": "reserved"}'::jsonb else '{}' end;
end $$;

-- Check the fence of a call, if it has one, and lock the budget together with everything else the call may have to
-- lock.
--
--   moves    reservation open → expired
create or replace function flowfabric._lock_for_call(
    budget uuid, partition int, id uuid, lease_id uuid, epoch bigint, attempt int, now timestamptz)
returns flowfabric.budgets
language plpgsql as $$
begin
    if _lock_for_call.id is not null then
        perform flowfabric._lock_flows_for_breach(
            array[_lock_for_call.budget], array[_lock_for_call.partition], array[_lock_for_call.id]);
        perform flowfabric._raise((flowfabric._lock_fenced(
            _lock_for_call.partition, _lock_for_call.id, _lock_for_call.lease_id, _lock_for_call.epoch,
            _lock_for_call.attempt)).fault);
    end if;
    return flowfabric._lock_budget(_lock_for_call.budget, _lock_for_call.now, flowfabric._budgets_to_lock(
        '{}', array[_lock_for_call.partition], array[_lock_for_call.id]));
end $$;
