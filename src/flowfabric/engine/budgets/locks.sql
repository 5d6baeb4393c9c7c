-- Holding budgets: the one way to lock them, and the one way to write what they have used.

-- A budget whose reset is due, as it is after that.
--
--   returns  the budget, not yet stored
create or replace function flowfabric._rolled(budget flowfabric.budgets, now timestamptz)
returns flowfabric.budgets
language plpgsql immutable as $$
begin
    if budget.next_reset_at <= now then
        budget.used := '{}';
        budget.period := budget.period + 1;
        budget.last_breach := null;
        budget.last_breach_at := null;
        budget.next_reset_at := budget.next_reset_at + make_interval(secs =>
            ((floor(extract(epoch from now - budget.next_reset_at) * 1000 / budget.reset_interval_ms) + 1) * budget.reset_interval_ms / 1000)::float8);
    end if;
    return budget;
end $$;

-- Add a line to the log about a budget.
--
--   locks    the log, shared, until the transaction ends
--   emits    kind
create or replace function flowfabric._append_budget(kind text, budget flowfabric.budgets, by text default null, detail jsonb default '{}')
returns void
language sql as $$
    select flowfabric._append(kind, (budget).name, by, jsonb_build_object('budget_id', (budget).id, 'namespace', (budget).namespace) || detail)
$$;

-- Write what a budget has used and set aside, and whether it closes its routes by that. The caller holds it.
create or replace function flowfabric._store_budget(budget flowfabric.budgets)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
    update flowfabric.budgets b
    set used = budget.used, reserved = budget.reserved, overrun = budget.overrun, period = budget.period,
        breach_count = budget.breach_count, soft_breach_count = budget.soft_breach_count, last_breach = budget.last_breach,
        last_breach_at = budget.last_breach_at, next_reset_at = budget.next_reset_at, first_expiry = budget.first_expiry,
        full_until = case when flowfabric._is_full(budget) then
            least(budget.next_reset_at, case when budget.reserved <> '{}' then budget.first_expiry end, 'infinity') end
    where b.partition = budget.partition and b.id = budget.id;
end $$;

-- The open reservations of a budget that lapse until a moment, the first ones first. In an order that only the right index has: in
-- an empty table all indexes of what is open look alike.
--
--   returns  a row each, with its place
create or replace function flowfabric._lapsed(budget uuid, until timestamptz, most int default null)
returns table (place tid, estimate jsonb, expires_at timestamptz)
language plpgsql stable rows 1 set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_column
begin
    return query
    select r.ctid, r.estimate, r.expires_at from flowfabric.reservations r
    where (r.budget, r.expires_at) >= (_lapsed.budget, '-infinity') and (r.budget, r.expires_at) <= (_lapsed.budget, _lapsed.until)
      and r.ended_at is null
    order by r.budget, r.expires_at limit _lapsed.most;
end $$;

-- End the reservations of a budget that have lapsed. The caller holds it and stores what comes back.
--
--   moves    reservation open → expired
--   emits    reservation_expired
--   returns  the budget without them, and how many there were
create or replace function flowfabric._lapse_reservations(inout budget flowfabric.budgets, now timestamptz, out lapsed_count int)
language plpgsql as $$
#variable_conflict use_column
declare
    lapsed record;
begin
    lapsed_count := 0;
    for lapsed in
        update flowfabric.reservations r set ended_at = now, ended_by = 'expired'
        where r.ctid = any (array(select o.place from flowfabric._lapsed(budget.id, now) o))
        returning r.id, r.estimate, r.execution_partition, r.execution
    loop
        budget.reserved := flowfabric._minus(budget.reserved, lapsed.estimate);
        lapsed_count := lapsed_count + 1;
        perform flowfabric._append_budget('reservation_expired', budget, detail => jsonb_build_object(
            'reservation_id', lapsed.id, 'estimate', lapsed.estimate,
            'execution_id', flowfabric._id(lapsed.execution_partition, lapsed.execution)));
    end loop;
    budget.first_expiry := (select min(o.expires_at) from flowfabric._lapsed(budget.id, 'infinity', 1) o);
end $$;

-- Lock budgets, and write what their time has brought: a reset that is due, reservations that have lapsed.
--
--   moves    reservation open → expired
--   locks    the budgets, in key order
--   emits    budget_reset, reservation_expired
--   returns  those that exist, as they are now
create or replace function flowfabric._lock_budgets(ids uuid[], now timestamptz)
returns flowfabric.budgets[]
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    held flowfabric.budgets[];
    budget flowfabric.budgets;
begin
    select array_agg(x.budget) into held from (
        -- + 0: so that they are looked up by id and sorted, instead of picked out of all in their order.
        select b as budget from flowfabric.budgets b where b.id = any (_lock_budgets.ids)
        order by b.partition + 0, b.id for update) x;
    for place in 1 .. coalesce(cardinality(held), 0) loop
        budget := held[place];
        continue when (budget.next_reset_at <= now or budget.first_expiry <= now) is not true;
        if budget.first_expiry <= now then
            budget := (flowfabric._lapse_reservations(budget, now)).budget;
        end if;
        if budget.next_reset_at <= now then
            budget := flowfabric._rolled(budget, now);
            perform flowfabric._append_budget('budget_reset', budget, detail => jsonb_build_object(
                'used', held[place].used, 'next_reset_at', budget.next_reset_at));
        end if;
        perform flowfabric._store_budget(budget);
        held[place] := budget;
    end loop;
    return held;
end $$;

-- Lock one budget.
--
--   moves    reservation open → expired
--   locks    the budget
--   emits    budget_reset, reservation_expired
--   refuses  budget_not_found
--   returns  the budget
create or replace function flowfabric._lock_budget(id uuid, now timestamptz)
returns flowfabric.budgets
language plpgsql as $$
declare
    held flowfabric.budgets[] := flowfabric._lock_budgets(array[_lock_budget.id], _lock_budget.now);
begin
    if held is null then
        perform flowfabric._raise(flowfabric._no_budget_fault(_lock_budget.id));
    end if;
    return held[1];
end $$;

-- The budget that is meant by a word: a text that is a UUID is its id, any other its name.
--
--   returns  its id, or null when there is none
create or replace function flowfabric._find_budget(namespace text, word text)
returns uuid
language plpgsql stable as $$
#variable_conflict use_column
begin
    if word ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        return (select b.id from flowfabric.budgets b where b.id = _find_budget.word::uuid);
    end if;
    return (select b.id from flowfabric.budgets b where b.namespace = _find_budget.namespace and b.name = _find_budget.word);
end $$;

-- The refusal of a budget that is not there.
--
--   refuses  budget_not_found, as a value
--   returns  the fault
create or replace function flowfabric._no_budget_fault(id uuid)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('budget_not_found', format('no budget with id %s; make it with create_budget, or look at its name and namespace', _no_budget_fault.id))
$$;

-- Which budgets a call under leases may have to lock: those it names, and those in which these executions have something set
-- aside, which goes back when the call ends them.
--
--   returns  their ids
create or replace function flowfabric._budgets_at_stake(named uuid[], partitions int[], executions uuid[])
returns uuid[]
language plpgsql stable set enable_sort = off as $$
#variable_conflict use_column
begin
    return named || array(
        select r.budget from unnest(_budgets_at_stake.partitions, _budgets_at_stake.executions) as x (partition, id)
        cross join lateral (
            -- In an order that only the right index has: in an empty table all indexes of what is open look alike.
            select o.budget from flowfabric.reservations o
            where (o.execution_partition, o.execution) >= (x.partition::smallint, x.id)
              and (o.execution_partition, o.execution) <= (x.partition::smallint, x.id) and o.ended_at is null
            order by o.execution_partition, o.execution offset 0) r);
end $$;

-- Lock the budgets in which some executions have something set aside, for a call that ends those in several steps.
--
--   locks    the budgets, in key order
create or replace function flowfabric._lock_at_stake(partitions int[], executions uuid[])
returns void
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    at_stake uuid[] := flowfabric._budgets_at_stake('{}', _lock_at_stake.partitions, _lock_at_stake.executions);
begin
    perform from flowfabric.budgets b where b.id = any (at_stake) order by b.partition + 0, b.id for update;
end $$;

-- The lanes that may have work again because a budget has room: those of its routes.
--
--   returns  their names, or null when the budget closed nothing before, or still does
create or replace function flowfabric._opened_lanes(before flowfabric.budgets, after flowfabric.budgets)
returns text[]
language plpgsql stable as $$
#variable_conflict use_column
begin
    if before.full_until is null or flowfabric._is_full(after) then
        return null;
    end if;
    return array(select distinct r.lane from flowfabric.routes r where r.budgets @> array[after.id] order by 1);
end $$;
