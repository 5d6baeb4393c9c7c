-- Usage reports: count used amounts in budgets, many reports in one call, each counted in full or not at all.

-- Count amounts in a budget if they fit, as used or as reserved. At a hard breach only the breach is counted, and at an
-- error nothing. The caller has locked the budget and stores it.
--
--   emits    budget_soft_breached, budget_hard_breached
--   returns  the budget, and the verdict: {outcome, …figures}, or the fault
create or replace function flowfabric._charge(
    inout budget flowfabric.budgets, amounts jsonb, reserving boolean, execution_id text, now timestamptz,
    out verdict jsonb)
language plpgsql as $$
begin
    verdict := flowfabric._judge_usage(budget, _charge.amounts, _charge.reserving);
    if verdict ? 'code' then
        return;
    elsif verdict ->> 'outcome' = 'hard_breach' then
        budget.breach_count := budget.breach_count + 1;
        budget.last_breach := verdict ->> 'dimension';
        budget.last_breach_at := _charge.now;
        perform flowfabric._append_budget('budget_hard_breached', budget, detail => jsonb_strip_nulls(
            (verdict - 'outcome')
            || jsonb_build_object('amounts', _charge.amounts, 'execution_id', _charge.execution_id)));
        return;
    end if;
    if _charge.reserving then
        budget.reserved := flowfabric._plus(budget.reserved, _charge.amounts);
    else
        budget.used := flowfabric._plus(budget.used, _charge.amounts);
    end if;
    if verdict ->> 'outcome' = 'soft_breach' then
        budget.soft_breach_count := budget.soft_breach_count + 1;
        if budget.on_soft_limit = 'ignore' then
            verdict := '{"outcome": "ok"}';
        else
            perform flowfabric._append_budget('budget_soft_breached', budget, detail => jsonb_strip_nulls(
                (verdict - 'outcome')
                || jsonb_build_object('amounts', _charge.amounts, 'execution_id', _charge.execution_id)));
        end if;
    end if;
end $$;

-- Check the step that a report or a settlement saves in the journal.
--
--   refuses  fence_required, as a value
--   returns  the fault, or null if the step is valid or missing
create or replace function flowfabric._spending_step_fault(execution uuid, step text, occurrence int)
returns jsonb
language sql stable as $$
    select case when num_nonnulls(_spending_step_fault.step, _spending_step_fault.occurrence) > 0 then coalesce(
        flowfabric._step_fault(_spending_step_fault.step, _spending_step_fault.occurrence, 0, 0),
        case when _spending_step_fault.execution is null then flowfabric._fault(
            'fence_required', format('step %s belongs to an execution; pass the fence of its lease',
                                     flowfabric._shown(_spending_step_fault.step))) end) end
$$;

-- Check the dedup key of a report or a reservation.
--
--   refuses  invalid_body, as a value
--   returns  the fault, or null if the key is valid
create or replace function flowfabric._dedup_key_fault(key text)
returns jsonb
language sql immutable as $$
    select case when octet_length(_dedup_key_fault.key) > 256 then flowfabric._fault(
        'invalid_body', format('dedup_key %s is invalid; use at most 256 bytes',
                               flowfabric._shown(_dedup_key_fault.key)),
        '{"field": "dedup_key"}') end
$$;

-- Count one report in a budget, unless it was counted before: its dedup key is remembered for a day, its step in the
-- journal as long as the execution is kept. The caller has locked the budget and stores it.
--
--   returns  the budget, and the verdict: {outcome, …figures}, or the fault
create or replace function flowfabric._report_one(
    inout budget flowfabric.budgets, amounts jsonb, partition int, execution uuid, key text, step text, occurrence int,
    now timestamptz, out verdict jsonb)
language plpgsql as $$
declare
    charged record;
begin
    if _report_one.key is not null and exists (
           select from flowfabric.usage_keys k
           where k.partition = budget.partition and k.budget = budget.id and k.key = _report_one.key
             and k.at > _report_one.now - interval '24 hours')
       or _report_one.step is not null and exists (
           select from flowfabric.steps s
           where s.partition = _report_one.partition and s.execution = _report_one.execution
             and s.name = _report_one.step and s.occurrence = _report_one.occurrence) then
        verdict := '{"outcome": "already_applied"}';
        return;
    elsif _report_one.step is not null and (
        select count(*) from flowfabric.steps s
        where s.partition = _report_one.partition and s.execution = _report_one.execution) >= 10000 then
        verdict := flowfabric._too_many_steps_fault();
        return;
    end if;
    charged := flowfabric._charge(
        budget, _report_one.amounts, false, flowfabric._id(_report_one.partition, _report_one.execution),
        _report_one.now);
    budget := charged.budget;
    verdict := charged.verdict;
    if (verdict ->> 'outcome' in ('ok', 'soft_breach')) is not true then
        return;
    end if;
    if _report_one.key is not null then
        insert into flowfabric.usage_keys (partition, budget, key, at)
        values (budget.partition, budget.id, _report_one.key, _report_one.now)
        on conflict on constraint usage_keys_pkey do update set at = excluded.at;
    end if;
    if _report_one.step is not null then
        insert into flowfabric.steps (partition, execution, name, occurrence, kind, at, result)
        values (_report_one.partition, _report_one.execution, _report_one.step, _report_one.occurrence, 'step',
                _report_one.now, convert_to(verdict::text, 'UTF8'));
    end if;
    if _report_one.execution is not null and _report_one.amounts <> '{}' then
        perform flowfabric._note_spending(_report_one.partition, _report_one.execution, budget, _report_one.amounts);
    end if;
end $$;

-- Report usage, many reports in one call, counted one after the other. A report is counted in all its dimensions or in
-- none. Under a lease it is added to the ledger of the execution, and a hard breach applies the action of the budget to
-- the execution.
--
--   moves    at a hard breach active → ended: failed, cancelled; or → suspended: waiting_for_budget; reservation open →
--            expired
--   locks    the flows of executions that a breach may end, in key order; the tickets, in key order; then the budgets,
--            in key order
--   emits    budget_soft_breached, budget_hard_breached, execution_failed, execution_cancelled, execution_suspended,
--            waitpoint_closed, budget_reset, reservation_expired, reservation_released, edge_group_impossible,
--            edge_group_satisfied, execution_skipped
--   refuses  invalid_limit over 1,000 items; per item budget_not_found, invalid_usage, invalid_body, invalid_name,
--            fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, too_many_steps
--   returns  per item 'ok', 'soft_breach' {dimension, used, reserved, soft_limit}, 'hard_breach' {dimension, used,
--            reserved, hard_limit, action, ended}, 'already_applied', or its refusal
create or replace function flowfabric.report_usage(
    budgets uuid[], amounts text[], partitions int[] default null, ids uuid[] default null,
    lease_ids uuid[] default null, epochs bigint[] default null, attempts int[] default null,
    dedup_keys text[] default null, step_names text[] default null, step_occurrences int[] default null,
    wait boolean default true)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    now timestamptz;
    rounds int[]; -- 0 for items without a fence
    faults jsonb[];
    held flowfabric.budgets[];
    held_ids uuid[];
    changed uuid[] := '{}';
    acted uuid[] := '{}';
    it record;
    place int;
    reported record;
    verdict jsonb;
begin
    perform flowfabric._limit_waits(report_usage.wait);
    if cardinality(report_usage.budgets) > 1000 then
        perform flowfabric._refuse('invalid_limit',
            format('the call has %s items; use at most 1,000',
                   flowfabric._number(cardinality(report_usage.budgets))));
    end if;
    perform flowfabric._lock_flows_for_breach(report_usage.budgets, report_usage.partitions, report_usage.ids);
    rounds := array(select (x.id is not null)::int from unnest(report_usage.ids) with ordinality as x (id, item)
                    order by x.item);
    if 1 = any (rounds) then
        for it in
            select f.item, f.fault
            from flowfabric._fenced(report_usage.partitions, report_usage.ids, report_usage.lease_ids,
                                    report_usage.epochs, report_usage.attempts, rounds, 1) f
            where f.fault is not null
        loop
            faults[it.item] := it.fault;
        end loop;
    end if;
    now := flowfabric.clock();
    held := flowfabric._lock_budgets(
        flowfabric._budgets_to_lock(report_usage.budgets, report_usage.partitions, report_usage.ids), now);
    held_ids := array(select h.id from unnest(held) h);
    for it in
        select x.*, x.amounts::jsonb as given, nullif(x.dedup_key, '') as key
        from unnest(report_usage.budgets, report_usage.amounts, report_usage.partitions, report_usage.ids,
                    report_usage.dedup_keys, report_usage.step_names, report_usage.step_occurrences)
             with ordinality as x (budget, amounts, partition, execution, dedup_key, step, occurrence, item)
    loop
        place := array_position(held_ids, it.budget);
        verdict := coalesce(
            faults[it.item],
            case when it.execution = any (acted) then (flowfabric._lock_fenced(
                it.partition, it.execution, report_usage.lease_ids[it.item], report_usage.epochs[it.item],
                report_usage.attempts[it.item])).fault end,
            flowfabric._amounts_fault(it.given, 1), flowfabric._dedup_key_fault(it.key),
            flowfabric._spending_step_fault(it.execution, it.step, it.occurrence),
            case when place is null then flowfabric._no_budget_fault(it.budget) end);
        if verdict is null then
            reported := flowfabric._report_one(
                held[place], flowfabric._amounts_counted(it.given), it.partition, it.execution, it.key, it.step,
                it.occurrence, now);
            held[place] := reported.budget;
            verdict := reported.verdict;
            changed := case when it.budget = any (changed) then changed else changed || it.budget end;
        end if;
        if verdict ->> 'outcome' = 'hard_breach' then
            if it.execution is not null and held[place].on_hard_limit <> 'refuse' then
                perform flowfabric._store_budget(h) from unnest(held) h where h.id = any (changed);
            end if;
            verdict := flowfabric._answer_breach(
                held[place], verdict, it.partition, it.execution, flowfabric._amounts_counted(it.given), now);
            if verdict ->> 'action' <> 'refuse' then
                -- If the action ended the execution, its reservations were released: read the budgets again.
                held := flowfabric._lock_budgets(held_ids, now);
                acted := acted || it.execution;
            end if;
        end if;
        return query
        select it.item::int, verdict ->> 'outcome', verdict ->> 'code',
               nullif(verdict - 'outcome' - 'code', '{}')::text;
    end loop;
    perform flowfabric._store_budget(h) from unnest(held) h where h.id = any (changed);
end $$;
