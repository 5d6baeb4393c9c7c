-- Define budgets: create, change and read them.

-- Check the definition of a budget.
--
--   refuses  invalid_budget, as a value
--   returns  the fault, or null if the definition is valid
create or replace function flowfabric._budget_fault(budget flowfabric.budgets)
returns jsonb
language plpgsql immutable as $$
declare
    field text := case
        when not flowfabric._are_limits(budget.hard_limits) then 'hard_limits'
        when not flowfabric._are_limits(budget.soft_limits) then 'soft_limits'
        when exists (
            select from jsonb_each_text(budget.soft_limits) s
            where s.value::bigint > (budget.hard_limits ->> s.key)::bigint) then 'soft_limits'
        when (budget.mode in ('strict', 'observe')) is not true then 'mode'
        when (budget.on_hard_limit in ('refuse', 'fail', 'cancel', 'suspend')) is not true then 'on_hard_limit'
        when (budget.on_soft_limit in ('warn', 'ignore')) is not true then 'on_soft_limit'
        when budget.reset_interval_ms not between 1 and 315360000000 then 'reset_interval_ms'
        when octet_length(budget.scope_type) not between 1 and 256 then 'scope_type'
        when octet_length(budget.scope_id) not between 1 and 256 then 'scope_id' end;
begin
    if field is null then
        return null;
    end if;
    return flowfabric._fault('invalid_budget',
        format('%s %s is invalid; %s', field, flowfabric._shown(to_jsonb(_budget_fault.budget) ->> field), case field
            when 'hard_limits' then 'use up to 32 dimensions, each with a whole number from 1 to '
                                    '9,007,199,254,740,991; remove a dimension for no limit'
            when 'soft_limits' then 'use up to 32 dimensions, each with a whole number from 1 to its hard limit'
            when 'mode' then 'use strict or observe'
            when 'on_hard_limit' then 'use refuse, fail, cancel or suspend'
            when 'on_soft_limit' then 'use warn or ignore'
            when 'reset_interval_ms' then 'use 1 to 315,360,000,000 (ten years)'
            else 'use 1 to 256 bytes' end),
        jsonb_build_object('field', field));
end $$;

-- Whether a JSON value is valid as the limits of a budget. A limit of zero is invalid because it is ambiguous: it could
-- mean nothing or unlimited.
create or replace function flowfabric._are_limits(limits jsonb)
returns boolean
language sql immutable as $$
    select case when jsonb_typeof(_are_limits.limits) = 'object' then (
        select count(*) <= 32 and coalesce(bool_and(
                   flowfabric._is_dimension(l.key) and flowfabric._is_whole(l.value, 1, 9007199254740991)), true)
        from jsonb_each(_are_limits.limits) l) else false end
$$;

-- The definition of a budget as JSON, to compare and to show.
--
--   returns  {hard_limits, soft_limits, mode, on_hard_limit, on_soft_limit, reset_interval_ms?, scope_type?, scope_id?}
create or replace function flowfabric._definition(budget flowfabric.budgets)
returns jsonb
language sql immutable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'hard_limits', (_definition.budget).hard_limits, 'soft_limits', (_definition.budget).soft_limits,
        'mode', (_definition.budget).mode, 'on_hard_limit', (_definition.budget).on_hard_limit,
        'on_soft_limit', (_definition.budget).on_soft_limit,
        'reset_interval_ms', (_definition.budget).reset_interval_ms, 'scope_type', (_definition.budget).scope_type,
        'scope_id', (_definition.budget).scope_id))
$$;

-- Create a budget. Its id is derived from namespace and name.
--
--   moves    budget – → open, nothing used
--   emits    budget_created
--   refuses  invalid_budget, invalid_body, budget_already_exists
--   returns  'created', or 'exists' if a budget with this name and the same definition exists
create or replace function flowfabric.create_budget(
    partition int, id uuid, namespace text, name text, hard_limits text default '{}', soft_limits text default '{}',
    mode text default 'strict', on_hard_limit text default 'refuse', on_soft_limit text default 'warn',
    reset_interval_ms bigint default null, scope_type text default null, scope_id text default null,
    by text default null)
returns text
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    wanted flowfabric.budgets;
    known flowfabric.budgets;
begin
    perform flowfabric._check_by(create_budget.by);
    wanted.hard_limits := create_budget.hard_limits;
    wanted.soft_limits := create_budget.soft_limits;
    wanted.mode := create_budget.mode;
    wanted.on_hard_limit := create_budget.on_hard_limit;
    wanted.on_soft_limit := create_budget.on_soft_limit;
    wanted.reset_interval_ms := create_budget.reset_interval_ms;
    wanted.scope_type := create_budget.scope_type;
    wanted.scope_id := create_budget.scope_id;
    perform flowfabric._raise(flowfabric._budget_fault(wanted));

    -- Not if it exists: the insert would wait for a transaction that has locked the budget.
    insert into flowfabric.budgets (
        partition, id, namespace, name, created_at, next_reset_at, hard_limits, soft_limits, mode, on_hard_limit,
        on_soft_limit, reset_interval_ms, scope_type, scope_id)
    select create_budget.partition, create_budget.id, create_budget.namespace, create_budget.name, now,
           now + wanted.reset_interval_ms * interval '1 ms', flowfabric._plus('{}', wanted.hard_limits),
           flowfabric._plus('{}', wanted.soft_limits), wanted.mode, wanted.on_hard_limit, wanted.on_soft_limit,
           wanted.reset_interval_ms, wanted.scope_type, wanted.scope_id
    where not exists (select from flowfabric.budgets b
                      where b.partition = create_budget.partition and b.id = create_budget.id)
    on conflict do nothing;
    if found then
        select b.* into known from flowfabric.budgets b
        where b.partition = create_budget.partition and b.id = create_budget.id;
        perform flowfabric._append_budget('budget_created', known, create_budget.by, flowfabric._definition(known));
        return 'created';
    end if;
    select b.* into known from flowfabric.budgets b
    where b.partition = create_budget.partition and b.id = create_budget.id;
    if flowfabric._definition(known) <> flowfabric._definition(wanted) then
        perform flowfabric._refuse('budget_already_exists', format(
            'budget %s already exists in namespace %s with another definition: %s; use change_budget to change it',
            flowfabric._shown(create_budget.name), flowfabric._shown(create_budget.namespace),
            flowfabric._definition(known)));
    end if;
    return 'exists';
end $$;

-- Change the definition of a budget: omitted fields keep their values, new limits replace all previous limits, and an
-- interval of 0 ends the resets. A raised limit opens its routes immediately, a lowered limit closes them. The only
-- executions written are those that wait for this budget and fit now.
--
--   moves    suspended → runnable, for executions that waited for the budget and fit now; reservation open → expired
--   locks    the budget; the tickets it moves, skipping locked ones
--   emits    budget_changed, execution_resumed, waitpoint_closed, budget_reset, reservation_expired
--   refuses  budget_not_found, invalid_budget, invalid_body
--   returns  the lanes that may have claimable work again
create or replace function flowfabric.change_budget(id uuid, changes text, by text, out lanes text[])
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    -- Only omitted fields keep their values: a limit of null is no number, and is refused.
    given jsonb := (select coalesce(jsonb_object_agg(c.field, c.value), '{}')
                    from jsonb_each(change_budget.changes::jsonb) c (field, value)
                    where c.value <> 'null' and c.field in (
                        'hard_limits', 'soft_limits', 'mode', 'on_hard_limit', 'on_soft_limit', 'reset_interval_ms',
                        'scope_type', 'scope_id'));
    before flowfabric.budgets;
    budget flowfabric.budgets;
begin
    perform flowfabric._check_by(change_budget.by);
    before := flowfabric._lock_budget(change_budget.id, now);
    budget := jsonb_populate_record(before, given);
    budget.reset_interval_ms := nullif(budget.reset_interval_ms, 0);
    perform flowfabric._raise(flowfabric._budget_fault(budget));
    budget.hard_limits := flowfabric._plus('{}', budget.hard_limits);
    budget.soft_limits := flowfabric._plus('{}', budget.soft_limits);
    if budget.reset_interval_ms is distinct from before.reset_interval_ms then
        budget.next_reset_at := now + budget.reset_interval_ms * interval '1 ms';
    end if;

    update flowfabric.budgets b
    set hard_limits = budget.hard_limits, soft_limits = budget.soft_limits, mode = budget.mode,
        on_hard_limit = budget.on_hard_limit, on_soft_limit = budget.on_soft_limit,
        reset_interval_ms = budget.reset_interval_ms, scope_type = budget.scope_type, scope_id = budget.scope_id
    where b.partition = budget.partition and b.id = budget.id;
    perform flowfabric._store_budget(budget);
    perform flowfabric._append_budget('budget_changed', budget, change_budget.by, given);
    lanes := flowfabric._resume_waiting_for_budget(before, budget);
end $$;

-- The description of a budget, in its effective state.
--
--   returns  the definition, the figures and the number of waiting executions
create or replace function flowfabric._budget_text(budget flowfabric.budgets, now timestamptz)
returns jsonb
language plpgsql stable as $$
declare
    effective flowfabric.budgets := flowfabric._current_budget(_budget_text.budget, _budget_text.now);
begin
    return flowfabric._definition(effective) || jsonb_strip_nulls(jsonb_build_object(
        'budget_id', effective.id, 'namespace', effective.namespace, 'name', effective.name,
        'created_at', effective.created_at, 'used', effective.used, 'reserved', effective.reserved,
        'overrun', effective.overrun, 'is_full', flowfabric._is_full(effective),
        'breach_count', effective.breach_count, 'soft_breach_count', effective.soft_breach_count,
        'last_breach', case when effective.last_breach is not null then
            jsonb_build_object('at', effective.last_breach_at, 'dimension', effective.last_breach) end,
        'next_reset_at', effective.next_reset_at,
        'waiting_count', (select count(*) from (
            select from flowfabric.budget_waits w where w.budget = effective.id order by w.asked_at limit 10001) w)));
end $$;

-- Describe a budget.
--
--   refuses  budget_not_found
--   returns  the budget as JSON
create or replace function flowfabric.describe_budget(id uuid)
returns text
language plpgsql stable as $$
declare
    budget flowfabric.budgets;
begin
    select b.* into budget from flowfabric.budgets b where b.id = describe_budget.id;
    if not found then
        perform flowfabric._raise(flowfabric._no_budget_fault(describe_budget.id));
    end if;
    return flowfabric._budget_text(budget, flowfabric.clock());
end $$;

-- List the budgets of a namespace by name (keyset pagination).
--
--   refuses  invalid_limit
--   returns  one budget as JSON per row, and one more row than asked for if more follow
create or replace function flowfabric.list_budgets(
    namespace text default 'default', after text default '', take int default 50)
returns table (budget text)
language plpgsql stable as $$
begin
    return query
    select flowfabric._budget_text(b, flowfabric.clock())::text from flowfabric.budgets b
    where b.namespace = list_budgets.namespace and b.name > list_budgets.after
    order by b.name limit flowfabric._page(list_budgets.take);
end $$;
