-- Policy: an execution's retries, timeouts and limits, fixed when it is submitted. Unknown fields are refused.

-- Check whether a JSON value is an integer within bounds. 3.0 is not accepted: it could not be cast to an integer
-- later.
create or replace function flowfabric._is_whole(value jsonb, low numeric, high numeric)
returns boolean
language sql immutable as $$
    select case when jsonb_typeof(_is_whole.value) = 'number'
        then scale(_is_whole.value::numeric) = 0
             and _is_whole.value::numeric between _is_whole.low and _is_whole.high
        else false end
$$;

-- Check a policy. A backoff may only have the fields of its type.
--
--   refuses  invalid_policy, as a value
--   returns  the fault with the field's path, or null if the policy is valid
create or replace function flowfabric._policy_fault(policy jsonb)
returns jsonb
language sql immutable as $$
    select case when jsonb_typeof(_policy_fault.policy) <> 'object'
        then flowfabric._fault('invalid_policy',
            format('policy %s is invalid; use an object', flowfabric._shown(_policy_fault.policy::text)),
            '{"field": "policy"}')
        else (
            select flowfabric._fault('invalid_policy',
                format('policy.%s%s %s', w.field,
                       ' ' || flowfabric._shown((_policy_fault.policy #> string_to_array(w.field, '.'))::text),
                       w.remedy),
                jsonb_build_object('field', w.field))
            from (
                select array_to_string(o.path, '.'), 'is invalid; use an object'
                from (values ('{retry}'::text[]), ('{retry,backoff}'), ('{suspension}'), ('{stream}')) o (path)
                where jsonb_typeof(_policy_fault.policy #> o.path) <> 'object'
                union all
                select 'retry.backoff.type', 'is invalid; use fixed or exponential'
                where _policy_fault.policy #> '{retry,backoff}' is not null
                  and coalesce(_policy_fault.policy #>> '{retry,backoff,type}', '') not in ('fixed', 'exponential')
                union all
                select o.prefix || f.name, 'is unknown; remove it'
                from (values
                    ('', _policy_fault.policy, '{retry,attempt_timeout_ms,max_reclaim_count,max_replay_count,'
                                               'dedup_window_ms,retention_ms,suspension,max_signals,stream}'::text[]),
                    ('stream.', _policy_fault.policy -> 'stream', '{retention_maxlen,retention_ms}'),
                    ('suspension.', _policy_fault.policy -> 'suspension', '{default_timeout_ms,timeout_behavior}'),
                    ('retry.', _policy_fault.policy -> 'retry', '{max_retries,backoff,retryable}'),
                    ('retry.backoff.', _policy_fault.policy #> '{retry,backoff}',
                     case _policy_fault.policy #>> '{retry,backoff,type}'
                         when 'fixed' then '{type,jitter,delay_ms}'::text[]
                         when 'exponential' then '{type,jitter,initial_delay_ms,max_delay_ms,multiplier}'
                         else '{type,jitter}' end)) o (prefix, part, fields)
                cross join lateral jsonb_object_keys(
                    case when jsonb_typeof(o.part) = 'object' then o.part else '{}' end) f (name)
                where f.name <> all (o.fields)
                union all
                select array_to_string(n.path, '.'), format('is invalid; use a whole number from %s to %s',
                                                        n.low, flowfabric._number(n.high))
                from (values
                    ('{attempt_timeout_ms}'::text[], 1, 315360000000), ('{max_reclaim_count}', 0, 10000),
                    ('{max_replay_count}', 0, 10000), ('{dedup_window_ms}', 0, 2592000000),
                    ('{retention_ms}', 0, 315360000000), ('{max_signals}', 1, 10000),
                    ('{stream,retention_maxlen}', 1, 100000), ('{stream,retention_ms}', 1, 315360000000),
                    ('{suspension,default_timeout_ms}', 1, 315360000000), ('{retry,max_retries}', 0, 1000),
                    ('{retry,backoff,delay_ms}', 0, 2592000000), ('{retry,backoff,initial_delay_ms}', 0, 2592000000),
                    ('{retry,backoff,max_delay_ms}', 0, 2592000000)
                ) n (path, low, high)
                where _policy_fault.policy #> n.path is not null
                  and not flowfabric._is_whole(_policy_fault.policy #> n.path, n.low, n.high)
                union all
                select 'retry.backoff.multiplier', 'is invalid; use a number from 1 to 10'
                where case when jsonb_typeof(_policy_fault.policy #> '{retry,backoff,multiplier}') = 'number'
                    then not (_policy_fault.policy #> '{retry,backoff,multiplier}')::numeric between 1 and 10
                    else _policy_fault.policy #> '{retry,backoff,multiplier}' is not null end
                union all
                select 'suspension.timeout_behavior', 'is invalid; use fail, cancel, expire, auto_resume or escalate'
                where _policy_fault.policy #>> '{suspension,timeout_behavior}' not in
                      ('fail', 'cancel', 'expire', 'auto_resume', 'auto_resume_with_timeout_signal', 'escalate')
                union all
                select 'retry.backoff.jitter', 'is invalid; use true or false'
                where jsonb_typeof(_policy_fault.policy #> '{retry,backoff,jitter}') <> 'boolean'
                union all
                select 'retry.retryable',
                       'is invalid; use a list of up to 64 failure classes or categories, 1 to 64 bytes each'
                where case when jsonb_typeof(_policy_fault.policy #> '{retry,retryable}') = 'array' then (
                        select count(*) > 64 or bool_or(jsonb_typeof(w.word) <> 'string'
                                                        or octet_length(w.word #>> '{}') not between 1 and 64)
                        from jsonb_array_elements(_policy_fault.policy #> '{retry,retryable}') w (word))
                    else _policy_fault.policy #> '{retry,retryable}' is not null end
            ) w (field, remedy)
            limit 1)
    end
$$;
