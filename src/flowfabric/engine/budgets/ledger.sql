-- The ledger: the amounts that each execution has spent of each budget in each period, and how to undo them.

-- Add amounts to the spending of an execution. The caller has locked the budget.
create or replace function flowfabric._note_spending(
    partition int, execution uuid, budget flowfabric.budgets, amounts jsonb)
returns void
language plpgsql as $$
begin
    insert into flowfabric.spending (partition, execution, budget, period, spent)
    values (_note_spending.partition, _note_spending.execution, budget.id, budget.period, _note_spending.amounts)
    on conflict on constraint spending_pkey do update set spent = flowfabric._plus(spending.spent, excluded.spent);
end $$;

-- Undo the spending of an execution from a budget in the current period.
--
--   moves    suspended → runnable, for executions that waited for the budget and fit now; reservation open → expired
--   locks    the budget; the tickets it moves, skipping locked ones
--   emits    usage_released, execution_resumed, waitpoint_closed, budget_reset, reservation_expired
--   refuses  budget_not_found, invalid_body
--   returns  'released' with the amounts, or 'noop' if nothing was spent; and the lanes that may have claimable work
--            again
create or replace function flowfabric.release_usage(
    budget uuid, partition int, id uuid, by text, out outcome text, out amounts text, out lanes text[])
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    before flowfabric.budgets;
    after flowfabric.budgets;
    spent jsonb;
begin
    perform flowfabric._check_by(release_usage.by);
    before := flowfabric._lock_budget(release_usage.budget, now);
    delete from flowfabric.spending s
    where s.partition = release_usage.partition and s.execution = release_usage.id and s.budget = before.id
      and s.period = before.period
    returning s.spent into spent;
    outcome := case when found then 'released' else 'noop' end;
    amounts := coalesce(spent, '{}');
    if spent is null then
        return;
    end if;
    after := before;
    after.used := flowfabric._minus(before.used, spent);
    perform flowfabric._store_budget(after);
    perform flowfabric._append_budget('usage_released', after, release_usage.by, jsonb_build_object(
        'execution_id', flowfabric._id(release_usage.partition, release_usage.id), 'amounts', spent));
    lanes := flowfabric._resume_waiting_for_budget(before, after);
end $$;

-- List the amounts that an execution has spent, by budget and period.
--
--   refuses  execution_not_found
--   returns  one row per budget and period: the budget, its name, the period and the amounts
create or replace function flowfabric.list_spending(partition int, id uuid)
returns table (budget_id uuid, name text, period int, spent text)
language plpgsql stable as $$
begin
    perform flowfabric._refuse_missing(list_spending.partition, list_spending.id)
    where not exists (select from flowfabric.executions e
                      where e.partition = list_spending.partition and e.id = list_spending.id);
    return query
    select s.budget, b.name, s.period, s.spent::text
    from flowfabric.spending s
    cross join lateral (select b.name from flowfabric.budgets b where b.id = s.budget offset 0) b
    where s.partition = list_spending.partition and s.execution = list_spending.id
    order by b.name, s.budget, s.period;
end $$;
