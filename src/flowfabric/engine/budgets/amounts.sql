-- Amounts: {dimension: whole number}, judged, added up and held against limits. Loops, because a report goes through all of
-- these and a query would cost several times as much.

-- What is wrong with amounts.
--
--   refuses  invalid_usage, as a value
--   returns  the fault, or null when they are good
create or replace function flowfabric._amounts_fault(amounts jsonb, least_count int)
returns jsonb
language plpgsql immutable as $$
declare
    given record;
    number int := 0;
begin
    if jsonb_typeof(amounts) is distinct from 'object' then
        return flowfabric._fault('invalid_usage', format('amounts %s: give a whole number per dimension', flowfabric._shown(amounts::text)));
    end if;
    for given in select a.key as dimension, a.value from jsonb_each(amounts) a loop
        number := number + 1;
        if not flowfabric._is_dimension(given.dimension) then
            return flowfabric._fault('invalid_usage',
                format('dimension %s: give 1 to 64 lower-case letters, digits and underscores, a letter first', flowfabric._shown(given.dimension)),
                jsonb_build_object('dimension', left(given.dimension, 64)));
        elsif not flowfabric._is_amount(given.value, 0) then
            return flowfabric._fault('invalid_usage',
                format('%s %s: give a whole number from 0 to 9 007 199 254 740 991', given.dimension, flowfabric._shown(given.value::text)),
                jsonb_build_object('dimension', given.dimension));
        end if;
    end loop;
    return case
        when number not between least_count and 32 then
            flowfabric._fault('invalid_usage', format('%s dimensions: give %s to 32', number, least_count))
        when (flowfabric._amounts_counted(amounts) ->> 'tokens')::bigint > 9007199254740991 then
            flowfabric._fault('invalid_usage', 'input_tokens and output_tokens: together they pass 9 007 199 254 740 991', '{"dimension": "tokens"}')
    end;
end $$;

-- Whether a word can be a dimension.
--
--   returns  true or false
create or replace function flowfabric._is_dimension(word text)
returns boolean
language sql immutable as $$
    select word ~ '^[a-z][a-z0-9_]{0,63}$'
$$;

-- Whether a JSON value is a whole number from `smallest` to 2^53 - 1, beyond which JSON numbers are not exact.
--
--   returns  true or false
create or replace function flowfabric._is_amount(value jsonb, smallest int)
returns boolean
language sql immutable as $$
    select case when jsonb_typeof(value) = 'number'
        then value::numeric between smallest and 9007199254740991 and scale(value::numeric) = 0 else false end
$$;

-- Amounts as they are counted: with the tokens that input and output tokens add up to.
--
--   returns  the amounts
create or replace function flowfabric._amounts_counted(amounts jsonb)
returns jsonb
language plpgsql immutable as $$
begin
    if amounts ? 'tokens' or not amounts ?| array['input_tokens', 'output_tokens'] then
        return amounts;
    end if;
    return amounts || jsonb_build_object('tokens',
        coalesce((amounts ->> 'input_tokens')::bigint, 0) + coalesce((amounts ->> 'output_tokens')::bigint, 0));
end $$;

-- The sum of two amounts. What is zero is left out.
--
--   returns  the amounts
create or replace function flowfabric._plus(one jsonb, other jsonb)
returns jsonb
language plpgsql immutable as $$
declare
    more record;
begin
    for more in select a.key, a.value::bigint as amount from jsonb_each_text(other) a loop
        if more.amount <> 0 then
            one := one || jsonb_build_object(more.key, more.amount + coalesce((one ->> more.key)::bigint, 0));
        end if;
    end loop;
    return one;
end $$;

-- What is left of amounts when others are taken away. What is zero is left out, and nothing is less than that.
--
--   returns  the amounts
create or replace function flowfabric._minus(one jsonb, other jsonb)
returns jsonb
language plpgsql immutable as $$
declare
    less record;
    rest bigint;
begin
    for less in select a.key, a.value::bigint as amount from jsonb_each_text(other) a loop
        rest := coalesce((one ->> less.key)::bigint, 0) - less.amount;
        one := case when rest > 0 then one || jsonb_build_object(less.key, rest) else one - less.key end;
    end loop;
    return one;
end $$;

-- Whether a budget closes its routes: it is strict, and some limited dimension has nothing left.
--
--   returns  true or false
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
        if coalesce((budget.used ->> hard.dimension)::bigint, 0) + coalesce((budget.reserved ->> hard.dimension)::bigint, 0) >= hard.most then
            return true;
        end if;
    end loop;
    return false;
end $$;

-- How much of each limited dimension is left.
--
--   returns  {dimension: whole number}, below zero where a limit was lowered; nothing for a budget that only observes
create or replace function flowfabric._room(budget flowfabric.budgets)
returns jsonb
language sql immutable as $$
    select coalesce(jsonb_object_agg(h.key, h.value::bigint - coalesce(((budget).used ->> h.key)::bigint, 0)
                                                            - coalesce(((budget).reserved ->> h.key)::bigint, 0)), '{}')
    from jsonb_each_text((budget).hard_limits) h where (budget).mode = 'strict'
$$;

-- Whether amounts fit into what is left.
--
--   returns  true or false
create or replace function flowfabric._fits(amounts jsonb, room jsonb)
returns boolean
language plpgsql immutable as $$
declare
    wanted record;
begin
    for wanted in select a.key, a.value::bigint as amount from jsonb_each_text(amounts) a loop
        if (room ->> wanted.key)::bigint < wanted.amount then
            return false;
        end if;
    end loop;
    return true;
end $$;

-- Hold amounts that are to be counted against the limits of a budget. Only the dimensions given are looked at, by name.
--
--   refuses  invalid_usage, as a value, when a sum would pass 2^53 - 1
--   returns  {outcome: ok, soft_breach or hard_breach, dimension, used, reserved, hard_limit or soft_limit}, with the figures
--            before a hard breach and after a soft one; or the fault
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
    for more in select a.key as dimension, a.value::bigint as amount from jsonb_each_text(amounts) a order by a.key collate "C" loop
        used := coalesce((budget.used ->> more.dimension)::bigint, 0);
        reserved := coalesce((budget.reserved ->> more.dimension)::bigint, 0);
        hard := (budget.hard_limits ->> more.dimension)::bigint;
        soft := (budget.soft_limits ->> more.dimension)::bigint;
        if used + reserved + more.amount > coalesce(case when is_strict then hard end, 9007199254740991) then
            if not is_strict or hard is null then
                return flowfabric._fault('invalid_usage',
                    format('%s: %s more would pass 9 007 199 254 740 991; reset the budget', more.dimension, more.amount),
                    jsonb_build_object('dimension', more.dimension));
            end if;
            hard_breach := coalesce(hard_breach, jsonb_build_object(
                'outcome', 'hard_breach', 'dimension', more.dimension, 'used', used, 'reserved', reserved, 'hard_limit', hard));
        elsif used + reserved + more.amount > least(hard, soft) then
            used := used + case when reserving then 0 else more.amount end;
            reserved := reserved + case when reserving then more.amount else 0 end;
            soft_breach := coalesce(soft_breach, jsonb_build_object(
                'outcome', 'soft_breach', 'dimension', more.dimension, 'used', used, 'reserved', reserved)
                || case when used + reserved > hard then jsonb_build_object('hard_limit', hard) else jsonb_build_object('soft_limit', soft) end);
        end if;
    end loop;
    return coalesce(hard_breach, soft_breach, '{"outcome": "ok"}');
end $$;
