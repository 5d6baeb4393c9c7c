-- Shortcuts: simple conditions are checked and evaluated without the code for all conditions.

-- Whether this signal alone satisfies a condition that does not hold yet, if one matching signal is enough.
--
--   returns  true or false; null if the answer depends on other signals
create or replace function flowfabric._is_met(condition jsonb, key text, name text, source_type text)
returns boolean
language plpgsql immutable as $$
declare
    met boolean := false;
    alone boolean;
begin
    if _is_met.condition ->> 'kind' = 'single'
       or _is_met.condition ->> 'kind' = 'count' and _is_met.condition -> 'n' = '1' then
        return coalesce(_is_met.condition -> 'waitpoints', _is_met.condition -> 'waitpoint') ? _is_met.key
           and coalesce(_is_met.condition ->> 'name' = _is_met.name, true)
           and coalesce(_is_met.condition ->> 'source_type' = _is_met.source_type, true);
    end if;
    if _is_met.condition ->> 'kind' is distinct from 'any_of' then
        return null;
    end if;
    for place in 0 .. jsonb_array_length(_is_met.condition -> 'members') - 1 loop
        alone := flowfabric._is_met(
            _is_met.condition -> 'members' -> place, _is_met.key, _is_met.name, _is_met.source_type);
        if alone is null then
            return null;
        end if;
        met := met or alone;
    end loop;
    return met;
end $$;

-- Whether a condition over one waitpoint is certainly valid, if it is a leaf or has at most eight leaves as
-- members. In all other cases `_condition_cause` finds out, and names the cause.
--
--   returns  true if it is valid
create or replace function flowfabric._is_simple_condition(node jsonb, key text, may_nest boolean default true)
returns boolean
language plpgsql immutable as $$
begin
    if _is_simple_condition.node ->> 'kind' is null then
        return false;
    end if;
    if _is_simple_condition.node ->> 'kind' in ('all_of', 'any_of') then
        if not _is_simple_condition.may_nest
           or jsonb_typeof(_is_simple_condition.node -> 'members') is distinct from 'array'
           or _is_simple_condition.node - '{kind,members}'::text[] <> '{}'
           or jsonb_array_length(_is_simple_condition.node -> 'members') not between 1 and 8 then
            return false;
        end if;
        for place in 0 .. jsonb_array_length(_is_simple_condition.node -> 'members') - 1 loop
            if not flowfabric._is_simple_condition(
                _is_simple_condition.node -> 'members' -> place, _is_simple_condition.key, false) then
                return false;
            end if;
        end loop;
        return true;
    end if;
    if _is_simple_condition.node ? 'name'
       and (jsonb_typeof(_is_simple_condition.node -> 'name') <> 'string'
            or octet_length(_is_simple_condition.node ->> 'name') not between 1 and 128)
       or _is_simple_condition.node ? 'source_type'
       and (jsonb_typeof(_is_simple_condition.node -> 'source_type') <> 'string'
            or octet_length(_is_simple_condition.node ->> 'source_type') not between 1 and 64) then
        return false;
    end if;
    if _is_simple_condition.node ->> 'kind' = 'single' then
        return coalesce(_is_simple_condition.node -> 'waitpoint' = to_jsonb(_is_simple_condition.key), false)
           and _is_simple_condition.node - '{kind,waitpoint,name,source_type}'::text[] = '{}';
    end if;
    return _is_simple_condition.node ->> 'kind' = 'count'
       and _is_simple_condition.node - '{kind,n,of,name,source_type,waitpoints}'::text[] = '{}'
       and coalesce(_is_simple_condition.node -> 'waitpoints' = jsonb_build_array(_is_simple_condition.key)
                    and jsonb_typeof(_is_simple_condition.node -> 'n') = 'number'
                    and (_is_simple_condition.node ->> 'of' in ('distinct_signals', 'distinct_sources')
                         and _is_simple_condition.node ->> 'n' ~ '^[1-9][0-9]{0,3}$'
                         or _is_simple_condition.node ->> 'of' = 'distinct_waitpoints'
                         and _is_simple_condition.node ->> 'n' = '1'), false);
end $$;
