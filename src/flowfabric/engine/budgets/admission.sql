-- Admission by budgets: whether an exhausted budget blocks a route.

-- The effective state of a budget at a moment: a due reset is applied and expired reservations are subtracted, whether
-- or not they have been stored.
--
--   returns  the budget, not stored
create or replace function flowfabric._current_budget(budget flowfabric.budgets, now timestamptz)
returns flowfabric.budgets
language plpgsql stable as $$
declare
    expired record;
begin
    if budget.first_expiry <= _current_budget.now then
        for expired in select r.estimate from flowfabric._expired_reservations(budget.id, _current_budget.now) r loop
            budget.reserved := flowfabric._minus(budget.reserved, expired.estimate);
        end loop;
    end if;
    return flowfabric._after_reset(_current_budget.budget, _current_budget.now);
end $$;

-- Whether any of these strict budgets is exhausted. A budget that does not exist counts as exhausted.
create or replace function flowfabric._budgets_closed(budgets uuid[], now timestamptz)
returns boolean
language plpgsql stable as $$
declare
    wanted uuid;
    full_until timestamptz;
begin
    foreach wanted in array _budgets_closed.budgets loop
        select b.full_until into full_until from flowfabric.budgets b where b.id = wanted;
        if not found or full_until > _budgets_closed.now
           or full_until is not null and (select flowfabric._is_full(flowfabric._current_budget(b, _budgets_closed.now))
                                          from flowfabric.budgets b where b.id = wanted) then
            return true;
        end if;
    end loop;
    return false;
end $$;

-- The first of these budgets that is exhausted, with its figures.
--
--   returns  {name, dimension, used, reserved, hard_limit, next_reset_at?}, or null if none is exhausted
create or replace function flowfabric._budget_words(budgets uuid[], now timestamptz)
returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'name', s.name, 'dimension', h.key, 'used', coalesce((s.used ->> h.key)::bigint, 0),
        'reserved', coalesce((s.reserved ->> h.key)::bigint, 0), 'hard_limit', h.value::bigint,
        'next_reset_at', s.next_reset_at))
    from unnest(_budget_words.budgets) with ordinality as x (id, place)
    cross join lateral (select b as budget from flowfabric.budgets b where b.id = x.id offset 0) b
    cross join lateral flowfabric._current_budget(b.budget, _budget_words.now) s
    cross join lateral jsonb_each_text(s.hard_limits) h
    where s.mode = 'strict'
      and coalesce((s.used ->> h.key)::bigint, 0) + coalesce((s.reserved ->> h.key)::bigint, 0) >= h.value::bigint
    order by x.place, h.key collate "C" limit 1
$$;
