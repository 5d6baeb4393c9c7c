-- Resets: start a new period of a budget, on schedule or by an operator.

-- Start a new period: the used amounts and the last breach are cleared. Counters and reservations are kept.
--
--   moves    suspended → runnable, for executions that waited for the budget and fit now; reservation open → expired
--   locks    the budget; the tickets it moves, skipping locked ones
--   emits    budget_reset, execution_resumed, waitpoint_closed, reservation_expired
--   refuses  budget_not_found, invalid_body
--   returns  the time of the next automatic reset, and the lanes that may have claimable work again
create or replace function flowfabric.reset_budget(id uuid, by text, out next_reset_at timestamptz, out lanes text[])
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    before flowfabric.budgets;
    after flowfabric.budgets;
begin
    perform flowfabric._check_by(reset_budget.by);
    before := flowfabric._lock_budget(reset_budget.id, now);
    after := before;
    after.used := '{}';
    after.period := before.period + 1;
    after.last_breach := null;
    after.last_breach_at := null;
    after.next_reset_at := now + before.reset_interval_ms * interval '1 ms';
    perform flowfabric._store_budget(after);
    perform flowfabric._append_budget('budget_reset', after, reset_budget.by, jsonb_build_object(
        'used', before.used, 'next_reset_at', after.next_reset_at));
    lanes := flowfabric._resume_waiting_for_budget(before, after);
    next_reset_at := after.next_reset_at;
end $$;

-- Sweep: store the resets that are due. Resets take effect at their due time, stored or not.
--
--   moves    suspended → runnable, for executions that waited for the budget and fit now; reservation open → expired
--   locks    the budgets, skipping locked ones; the tickets it moves, skipping locked ones
--   emits    budget_reset, execution_resumed, waitpoint_closed, reservation_expired
--   returns  how many budgets were reset, and the lanes that may have claimable work again
create or replace function flowfabric.reset_budgets(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
declare
    now timestamptz := flowfabric.clock();
    due flowfabric.budgets[];
    held flowfabric.budgets[];
begin
    select array_agg(x.budget) into due from (
        select b as budget from flowfabric.budgets b where b.next_reset_at <= now
        order by b.next_reset_at, b.partition, b.id limit reset_budgets.take offset reset_budgets.passing
        for update skip locked) x;
    moved := coalesce(cardinality(due), 0);
    for place in 1 .. moved loop
        held := flowfabric._lock_budgets(array[due[place].id], now);
        lanes := array(
            select distinct l from unnest(lanes || flowfabric._resume_waiting_for_budget(due[place], held[1])) l
            order by 1);
    end loop;
end $$;
