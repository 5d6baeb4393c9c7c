-- Policy: what an execution asks of the engine for its whole life. Read closed: what is not known is refused.

-- Whether a JSON value is a whole number within bounds, written as one: 3.0 is none, and could not be read as one later.
--
--   returns  true, or false for anything else
create or replace function flowfabric._is_whole(value jsonb, low numeric, high numeric)
returns boolean
language sql immutable as $$
    select case when jsonb_typeof(_is_whole.value) = 'number'
        then scale(_is_whole.value::numeric) = 0
             and _is_whole.value::numeric between _is_whole.low and _is_whole.high
        else false end
$$;

-- The fields of a policy that are not known here, as dotted paths. A backoff has the fields of its type only.
--
--   returns  a path each
create or replace function flowfabric._unknown_policy_fields(policy jsonb)
returns setof text
language sql immutable as $$
    select f.name from jsonb_object_keys(_unknown_policy_fields.policy) f (name)
    where f.name not in ('retry', 'attempt_timeout_ms', 'max_reclaim_count', 'max_replay_count', 'dedup_window_ms', 'retention_ms',
                         'suspension', 'max_signals')
    union all
    select 'suspension.' || f.name
    from jsonb_object_keys(case when jsonb_typeof(policy -> 'suspension') = 'object' then policy -> 'suspension' else '{}' end) f (name)
    where f.name not in ('default_timeout_ms', 'timeout_behavior')
    union all
    select 'retry.' || f.name
    from jsonb_object_keys(case when jsonb_typeof(policy -> 'retry') = 'object' then policy -> 'retry' else '{}' end) f (name)
    where f.name not in ('max_retries', 'backoff', 'retryable')
    union all
    select 'retry.backoff.' || f.name
    from jsonb_object_keys(case when jsonb_typeof(policy #> '{retry,backoff}') = 'object'
                                then policy #> '{retry,backoff}' else '{}' end) f (name)
    where f.name not in ('type', 'jitter')
      and not (policy #>> '{retry,backoff,type}' = 'fixed' and f.name = 'delay_ms')
      and not (policy #>> '{retry,backoff,type}' = 'exponential'
               and f.name in ('initial_delay_ms', 'max_delay_ms', 'multiplier'))
$$;

-- What is wrong with a policy.
--
--   refuses  invalid_policy, as a value
--   returns  the fault with the field's path, or null when it is good
create or replace function flowfabric._policy_fault(policy jsonb)
returns jsonb
language sql immutable as $$
    select case when jsonb_typeof(policy) <> 'object'
        then flowfabric._fault('invalid_policy', format('policy %s: give an object', flowfabric._shown(policy::text)), '{"field": "policy"}')
        else (
            select flowfabric._fault('invalid_policy',
                format('policy.%s%s: %s', w.field, ' ' || flowfabric._shown((policy #> string_to_array(w.field, '.'))::text), w.remedy),
                jsonb_build_object('field', w.field))
            from (
                select array_to_string(o.path, '.'), 'give an object'
                from (values ('{retry}'::text[]), ('{retry,backoff}'), ('{suspension}')) o (path)
                where jsonb_typeof(policy #> o.path) <> 'object'
                union all
                select 'retry.backoff.type', 'give "fixed" or "exponential"'
                where policy #> '{retry,backoff}' is not null
                  and coalesce(policy #>> '{retry,backoff,type}', '') not in ('fixed', 'exponential')
                union all
                select u.field, 'there is no such field; leave it out'
                from flowfabric._unknown_policy_fields(policy) u (field)
                union all
                select array_to_string(n.path, '.'), format('give a whole number from %s to %s', n.low, n.high)
                from (values
                    ('{attempt_timeout_ms}'::text[], 1, 315360000000), ('{max_reclaim_count}', 0, 10000),
                    ('{max_replay_count}', 0, 10000), ('{dedup_window_ms}', 0, 2592000000), ('{retention_ms}', 0, 315360000000),
                    ('{max_signals}', 1, 10000), ('{suspension,default_timeout_ms}', 1, 315360000000), ('{retry,max_retries}', 0, 1000),
                    ('{retry,backoff,delay_ms}', 0, 2592000000),
                    ('{retry,backoff,initial_delay_ms}', 0, 2592000000), ('{retry,backoff,max_delay_ms}', 0, 2592000000)
                ) n (path, low, high)
                where policy #> n.path is not null and not flowfabric._is_whole(policy #> n.path, n.low, n.high)
                union all
                select 'retry.backoff.multiplier', 'give a number from 1 to 10'
                where case when jsonb_typeof(policy #> '{retry,backoff,multiplier}') = 'number'
                    then not (policy #> '{retry,backoff,multiplier}')::numeric between 1 and 10
                    else policy #> '{retry,backoff,multiplier}' is not null end
                union all
                select 'suspension.timeout_behavior', 'give fail, cancel, expire, auto_resume or escalate'
                where policy #>> '{suspension,timeout_behavior}' not in
                      ('fail', 'cancel', 'expire', 'auto_resume', 'auto_resume_with_timeout_signal', 'escalate')
                union all
                select 'retry.backoff.jitter', 'give true or false'
                where jsonb_typeof(policy #> '{retry,backoff,jitter}') <> 'boolean'
                union all
                select 'retry.retryable', 'give a list of up to 64 failure classes or categories, 1 to 64 bytes each'
                where not flowfabric._is_word_list(policy #> '{retry,retryable}')
            ) w (field, remedy)
            limit 1)
    end
$$;

-- Whether a JSON value is a list of short words.
--
--   returns  true, false, or null for no value
create or replace function flowfabric._is_word_list(value jsonb)
returns boolean
language sql immutable as $$
    select case
        when value is null then null
        when jsonb_typeof(value) <> 'array' then false
        else jsonb_array_length(value) <= 64 and not exists (
            select from jsonb_array_elements(value) w (word)
            where jsonb_typeof(w.word) <> 'string' or octet_length(w.word #>> '{}') not between 1 and 64)
    end
$$;
