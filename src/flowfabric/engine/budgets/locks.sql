-- Lock budgets: the only functions that lock budgets and store their used and reserved amounts.

-- Apply a due reset to a budget.
--
--   returns  the budget, not yet stored
create or replace function flowfabric._after_reset(budget flowfabric.budgets, now timestamptz)
returns flowfabric.budgets
language plpgsql immutable as $$
begin
    if budget.next_reset_at <= _after_reset.now then
        budget.used := '{}';
        budget.period := budget.period + 1;
        budget.last_breach := null;
        budget.last_breach_at := null;
        budget.next_reset_at := budget.next_reset_at + make_interval(secs => (
            (floor(extract(epoch from _after_reset.now - budget.next_reset_at) * 1000 / budget.reset_interval_ms) + 1)
            * budget.reset_interval_ms / 1000)::float8);
    end if;
    return _after_reset.budget;
end $$;

-- Append an event about a budget.
--
--   locks    the log, shared, until the transaction ends
--   emits    kind
create or replace function flowfabric._append_budget(
    kind text, budget flowfabric.budgets, by text default null, detail jsonb default '{}')
returns void
language sql as $$
    select flowfabric._append(_append_budget.kind, (_append_budget.budget).name, _append_budget.by,
        jsonb_build_object('budget_id', (_append_budget.budget).id, 'namespace', (_append_budget.budget).namespace)
        || _append_budget.detail)
$$;

-- Store the used and reserved amounts of a budget, and until when it closes its routes. The caller has locked the
-- budget.
create or replace function flowfabric._store_budget(budget flowfabric.budgets)
returns void
language plpgsql as $$
begin
    update flowfabric.budgets b
    set used = budget.used, reserved = budget.reserved, overrun = budget.overrun, period = budget.period,
        breach_count = budget.breach_count, soft_breach_count = budget.soft_breach_count,
        last_breach = budget.last_breach, last_breach_at = budget.last_breach_at,
        next_reset_at = budget.next_reset_at, first_expiry = budget.first_expiry,
        full_until = case when flowfabric._is_full(_store_budget.budget) then
            least(budget.next_reset_at, case when budget.reserved <> '{}' then budget.first_expiry end, 'infinity') end
    where b.partition = budget.partition and b.id = budget.id;
end $$;

-- The open reservations of a budget that expire by a moment, the earliest first. The row comparison and the order match
-- one index only, because the planner cannot tell the partial indexes apart while the table is empty.
--
--   returns  one row per reservation, with its ctid
create or replace function flowfabric._expired_reservations(budget uuid, until timestamptz, most int default null)
returns table (place tid, estimate jsonb, expires_at timestamptz)
language plpgsql stable rows 1 set enable_sort = off as $$
begin
    return query
    select r.ctid, r.estimate, r.expires_at from flowfabric.reservations r
    where (r.budget, r.expires_at) >= (_expired_reservations.budget, '-infinity')
      and (r.budget, r.expires_at) <= (_expired_reservations.budget, _expired_reservations.until)
      and r.ended_at is null
    order by r.budget, r.expires_at limit _expired_reservations.most;
end $$;

-- End the expired reservations of a budget. The caller has locked the budget and stores the returned one.
--
--   moves    reservation open → expired
--   emits    reservation_expired
--   returns  the budget without these reservations, and their number
create or replace function flowfabric._expire_reservations(
    inout budget flowfabric.budgets, now timestamptz, out expired_count int)
language plpgsql as $$
declare
    expired record;
begin
    expired_count := 0;
    for expired in
        update flowfabric.reservations r set ended_at = _expire_reservations.now, ended_by = 'expired'
        where r.ctid = any (array(
            select o.place from flowfabric._expired_reservations(budget.id, _expire_reservations.now) o))
        returning r.id, r.estimate, r.execution_partition, r.execution
    loop
        budget.reserved := flowfabric._minus(budget.reserved, expired.estimate);
        expired_count := expired_count + 1;
        perform flowfabric._append_budget('reservation_expired', budget, detail => jsonb_build_object(
            'reservation_id', expired.id, 'estimate', expired.estimate,
            'execution_id', flowfabric._id(expired.execution_partition, expired.execution)));
    end loop;
    budget.first_expiry := (select min(o.expires_at) from flowfabric._expired_reservations(budget.id, 'infinity', 1) o);
end $$;

-- Lock budgets, and store the changes that are due: resets and expired reservations.
--
--   moves    reservation open → expired
--   locks    the budgets, in key order
--   emits    budget_reset
--   returns  the budgets that exist, up to date
create or replace function flowfabric._lock_budgets(ids uuid[], now timestamptz)
returns flowfabric.budgets[]
language plpgsql as $$
declare
    held flowfabric.budgets[];
    budget flowfabric.budgets;
begin
    select array_agg(x.budget) into held from (
        -- + 0 makes the planner look the budgets up by id and sort them, instead of scanning all budgets in key order.
        select b as budget from flowfabric.budgets b where b.id = any (_lock_budgets.ids)
        order by b.partition + 0, b.id for update) x;
    for place in 1 .. coalesce(cardinality(held), 0) loop
        budget := held[place];
        continue when (
            budget.next_reset_at <= _lock_budgets.now or budget.first_expiry <= _lock_budgets.now) is not true;
        if budget.first_expiry <= _lock_budgets.now then
            budget := (flowfabric._expire_reservations(budget, _lock_budgets.now)).budget;
        end if;
        if budget.next_reset_at <= _lock_budgets.now then
            budget := flowfabric._after_reset(budget, _lock_budgets.now);
            perform flowfabric._append_budget('budget_reset', budget, detail => jsonb_build_object(
                'used', held[place].used, 'next_reset_at', budget.next_reset_at));
        end if;
        perform flowfabric._store_budget(budget);
        held[place] := budget;
    end loop;
    return held;
end $$;

-- Lock one budget, with others that the call may have to lock.
--
--   moves    reservation open → expired
create or replace function flowfabric._lock_budget(id uuid, now timestamptz, others uuid[] default '{}')
returns flowfabric.budgets
language plpgsql as $$
declare
    held flowfabric.budgets;
begin
    select h.* into held
    from unnest(flowfabric._lock_budgets(_lock_budget.id || _lock_budget.others, _lock_budget.now)) h
    where h.id = _lock_budget.id;
    if not found then
        perform flowfabric._raise(flowfabric._no_budget_fault(_lock_budget.id));
    end if;
    return held;
end $$;

-- Find a budget of a namespace by a text: a UUID is taken as its id, any other text as its name.
--
--   returns  the id, or null if the budget does not exist
create or replace function flowfabric._find_budget(namespace text, word text)
returns uuid
language plpgsql stable as $$
begin
    if _find_budget.word ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        return (select b.id from flowfabric.budgets b
                where b.id = _find_budget.word::uuid and b.namespace = _find_budget.namespace);
    end if;
    return (
        select b.id from flowfabric.budgets b
        where b.namespace = _find_budget.namespace and b.name = _find_budget.word);
end $$;

-- Build the error for a budget that does not exist.
--
--   refuses  budget_not_found, as a value
create or replace function flowfabric._no_budget_fault(id uuid)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('budget_not_found',
        format('budget %s does not exist; check its name and namespace, or use create_budget to create it',
               _no_budget_fault.id))
$$;

-- The budgets that a call under leases may have to lock: the budgets that it names, and the budgets in which its
-- executions have open reservations, because the end of an execution releases its reservations.
create or replace function flowfabric._budgets_to_lock(named uuid[], partitions int[], executions uuid[])
returns uuid[]
language plpgsql stable set enable_sort = off as $$
begin
    return _budgets_to_lock.named || array(
        select r.budget from unnest(_budgets_to_lock.partitions, _budgets_to_lock.executions) as x (partition, id)
        cross join lateral (
            -- The row comparison and the order match one index only, as in _expired_reservations.
            select o.budget from flowfabric.reservations o
            where (o.execution_partition, o.execution) >= (x.partition::smallint, x.id)
              and (o.execution_partition, o.execution) <= (x.partition::smallint, x.id) and o.ended_at is null
            order by o.execution_partition, o.execution offset 0) r);
end $$;

-- Lock the budgets in which executions have open reservations, for a call that ends the executions in several steps.
-- The budgets that the call names are locked with them: in two steps, two calls could lock the same budgets crosswise.
--
--   locks    the budgets, in key order
create or replace function flowfabric._lock_reserved_budgets(
    partitions int[], executions uuid[], named uuid[] default '{}')
returns void
language plpgsql as $$
declare
    budget_ids uuid[] := flowfabric._budgets_to_lock(
        _lock_reserved_budgets.named, _lock_reserved_budgets.partitions, _lock_reserved_budgets.executions);
begin
    perform from flowfabric.budgets b where b.id = any (budget_ids) order by b.partition + 0, b.id for update;
end $$;

-- Lock budgets for a sweep, which must not wait for long: it waits for all of them as long as its lock_timeout allows,
-- then takes those that are free at that moment.
--
--   locks    the budgets, in key order; after the time limit, skips locked ones
--   returns  the ids of those that are locked by this transaction now, and of those that do not exist
create or replace function flowfabric._try_budgets(ids uuid[])
returns uuid[]
language plpgsql as $$
begin
    perform from flowfabric.budgets b where b.id = any (_try_budgets.ids) order by b.partition + 0, b.id for update;
    return _try_budgets.ids;
exception when lock_not_available then
    return array(
        select x.id from unnest(_try_budgets.ids) as x (id)
        left join lateral (
            select true as is_ours from flowfabric.budgets b where b.id = x.id for update skip locked) b on true
        where b.is_ours or not exists (select from flowfabric.budgets b where b.id = x.id));
end $$;
