-- Amounts: {dimension: whole number}, at most 2^53 - 1, beyond which JSON numbers are not exact. These functions use
-- loops because every usage report calls all of them, and a query would be several times slower.

-- Check amounts.
--
--   refuses  invalid_usage, as a value
--   returns  the fault, or null if the amounts are valid
create or replace function flowfabric._amounts_fault(amounts jsonb, least_count int)
returns jsonb
language plpgsql immutable as $$
declare
    given record;
    number int := 0;
begin
    if jsonb_typeof(_amounts_fault.amounts) is distinct from 'object' then
        return flowfabric._fault('invalid_usage',
            format('amounts %s are invalid; use an object with a whole number per dimension',
                   flowfabric._shown(_amounts_fault.amounts::text)));
    end if;
    for given in select a.key as dimension, a.value from jsonb_each(_amounts_fault.amounts) a loop
        number := number + 1;
        if not flowfabric._is_dimension(given.dimension) then
            return flowfabric._fault('invalid_usage',
                format('dimension %s is invalid; use 1 to 64 lowercase letters, digits and underscores, starting with '
                       'a letter', flowfabric._shown(given.dimension)),
                jsonb_build_object('dimension', left(given.dimension, 64)));
        elsif not flowfabric._is_whole(given.value, 0, 9007199254740991) then
            return flowfabric._fault('invalid_usage',
                format('amount %s of dimension %s is invalid; use a whole number from 0 to 9,007,199,254,740,991',
                       flowfabric._shown(given.value::text), given.dimension),
                jsonb_build_object('dimension', given.dimension));
        end if;
    end loop;
    return case
        when number not between _amounts_fault.least_count and 32 then
            flowfabric._fault('invalid_usage',
                format('there are %s dimensions; use %s to 32', number, _amounts_fault.least_count))
        when (flowfabric._amounts_counted(_amounts_fault.amounts) ->> 'tokens')::bigint > 9007199254740991 then
            flowfabric._fault('invalid_usage',
                'the sum of input_tokens and output_tokens is invalid; use at most 9,007,199,254,740,991',
                '{"dimension": "tokens"}')
    end;
end $$;

-- Whether a text is a valid dimension name.
create or replace function flowfabric._is_dimension(word text)
returns boolean
language sql immutable as $$
    select _is_dimension.word ~ '^[a-z][a-z0-9_]{0,63}$'
$$;

-- Amounts as they are counted: input_tokens and output_tokens also count as tokens.
create or replace function flowfabric._amounts_counted(amounts jsonb)
returns jsonb
language plpgsql immutable as $$
begin
    if _amounts_counted.amounts ? 'tokens'
       or not _amounts_counted.amounts ?| array['input_tokens', 'output_tokens'] then
        return _amounts_counted.amounts;
    end if;
    return _amounts_counted.amounts || jsonb_build_object(
        'tokens', coalesce((_amounts_counted.amounts ->> 'input_tokens')::bigint, 0)
                  + coalesce((_amounts_counted.amounts ->> 'output_tokens')::bigint, 0));
end $$;

-- The sum of two amounts, without zeros.
create or replace function flowfabric._plus(one jsonb, other jsonb)
returns jsonb
language plpgsql immutable as $$
declare
    more record;
begin
    for more in select a.key, a.value::bigint as amount from jsonb_each_text(_plus.other) a loop
        if more.amount <> 0 then
            _plus.one := _plus.one
                || jsonb_build_object(more.key, more.amount + coalesce((_plus.one ->> more.key)::bigint, 0));
        end if;
    end loop;
    return _plus.one;
end $$;

-- The difference of two amounts, at least zero per dimension, without zeros.
create or replace function flowfabric._minus(one jsonb, other jsonb)
returns jsonb
language plpgsql immutable as $$
declare
    less record;
    rest bigint;
begin
    for less in select a.key, a.value::bigint as amount from jsonb_each_text(_minus.other) a loop
        rest := coalesce((_minus.one ->> less.key)::bigint, 0) - less.amount;
        _minus.one := case
            when rest > 0 then _minus.one || jsonb_build_object(less.key, rest) else _minus.one - less.key end;
    end loop;
    return _minus.one;
end $$;

-- Whether a budget closes its routes: it is strict, and a limited dimension is exhausted.
create or replace function flowfabric._is_full(budget flowfabric.budgets)
returns boolean
language plpgsql immutable as $$
declare
    hard record;
begin
    if budget.mode <> 'strict' then
        return false;
    end if;
    for hard in select h.key as dimension, h.value::bigint as most from jsonb_each_text(budget.hard_limits) h loop
        if coalesce((budget.used ->> hard.dimension)::bigint, 0)
           + coalesce((budget.reserved ->> hard.dimension)::bigint, 0) >= hard.most then
            return true;
        end if;
    end loop;
    return false;
end $$;

-- The remaining amount of each limited dimension.
--
--   returns  {dimension: whole number}, negative after a limit was lowered; empty in observe mode
create or replace function flowfabric._room(budget flowfabric.budgets)
returns jsonb
language sql immutable as $$
    select coalesce(jsonb_object_agg(
        h.key, h.value::bigint - coalesce(((_room.budget).used ->> h.key)::bigint, 0)
                               - coalesce(((_room.budget).reserved ->> h.key)::bigint, 0)), '{}')
    from jsonb_each_text((_room.budget).hard_limits) h where (_room.budget).mode = 'strict'
$$;

-- Whether amounts fit into the remaining amounts.
create or replace function flowfabric._fits(amounts jsonb, room jsonb)
returns boolean
language plpgsql immutable as $$
declare
    wanted record;
begin
    for wanted in select a.key, a.value::bigint as amount from jsonb_each_text(_fits.amounts) a loop
        if (_fits.room ->> wanted.key)::bigint < wanted.amount then
            return false;
        end if;
    end loop;
    return true;
end $$;

-- Compare amounts with the limits of a budget. Only the given dimensions are checked, in name order.
--
--   refuses  invalid_usage, as a value, when a sum would exceed 2^53 - 1
--   returns  {outcome: ok, soft_breach or hard_breach, dimension, used, reserved, hard_limit or soft_limit}, with the
--            figures before a hard breach and after a soft breach; or the fault
create or replace function flowfabric._judge_usage(budget flowfabric.budgets, amounts jsonb, reserving boolean)
returns jsonb
language plpgsql immutable as $$
declare
    is_strict boolean := budget.mode = 'strict';
    more record;
    used bigint;
    reserved bigint;
    hard bigint;
    soft bigint;
    hard_breach jsonb;
    soft_breach jsonb;
begin
    for more in
        select a.key as dimension, a.value::bigint as amount from jsonb_each_text(_judge_usage.amounts) a
        order by a.key collate "C"
    loop
        used := coalesce((budget.used ->> more.dimension)::bigint, 0);
        reserved := coalesce((budget.reserved ->> more.dimension)::bigint, 0);
        hard := (budget.hard_limits ->> more.dimension)::bigint;
        soft := (budget.soft_limits ->> more.dimension)::bigint;
        if used + reserved + more.amount > coalesce(case when is_strict then hard end, 9007199254740991) then
            if not is_strict or hard is null then
                return flowfabric._fault('invalid_usage',
                    format('%s more %s would exceed 9,007,199,254,740,991; use reset_budget to reset the budget',
                           flowfabric._number(more.amount), more.dimension),
                    jsonb_build_object('dimension', more.dimension));
            end if;
            hard_breach := coalesce(hard_breach, jsonb_build_object(
                'outcome', 'hard_breach', 'dimension', more.dimension, 'used', used, 'reserved', reserved,
                'hard_limit', hard));
        elsif used + reserved + more.amount > least(hard, soft) then
            used := used + case when _judge_usage.reserving then 0 else more.amount end;
            reserved := reserved + case when _judge_usage.reserving then more.amount else 0 end;
            soft_breach := coalesce(soft_breach, jsonb_build_object(
                'outcome', 'soft_breach', 'dimension', more.dimension, 'used', used, 'reserved', reserved)
                || case when used + reserved > hard then jsonb_build_object('hard_limit', hard)
                        else jsonb_build_object('soft_limit', soft) end);
        end if;
    end loop;
    return coalesce(hard_breach, soft_breach, '{"outcome": "ok"}');
end $$;
