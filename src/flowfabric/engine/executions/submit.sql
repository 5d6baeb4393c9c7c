-- Submit: create executions, one or many, also inside the caller's transaction.

-- Read the options that submissions share: the task, the lane, the policy and so on. Each set of options is read once
-- per call, however many items share it.
--
--   returns  the options as they are stored; their route has no id if it does not exist. Or the fault
create or replace function flowfabric._read_options(given jsonb)
returns flowfabric.options
language plpgsql stable as $$
declare
    read flowfabric.options;
    found record;
begin
    _read_options.given := jsonb_strip_nulls(_read_options.given);
    read.fault := flowfabric._options_fault(_read_options.given);
    if read.fault is null then
        read.task := _read_options.given ->> 'task';
        read.encoding := _read_options.given ->> 'encoding';
        read.creator := _read_options.given ->> 'creator';
        read.policy := nullif(_read_options.given -> 'policy', '{}');
        read.dedup_window := coalesce((read.policy ->> 'dedup_window_ms')::bigint, 86400000) * interval '1 ms';
        found := flowfabric._read_route(
            coalesce(_read_options.given ->> 'lane', 'default'),
            coalesce(_read_options.given ->> 'namespace', 'default'), coalesce(_read_options.given -> 'needs', '[]'),
            coalesce(_read_options.given -> 'budgets', '[]'), coalesce(_read_options.given -> 'quotas', '[]'));
        read.route := found.route;
        read.fault := found.fault;
    end if;
    return read;
end $$;

-- Check all options except the ones that select the route. Uses plain expressions, because this runs for every
-- submission.
--
--   refuses  invalid_body, invalid_name, as a value
--   returns  the fault, or null if the options are valid
create or replace function flowfabric._options_fault(given jsonb)
returns jsonb
language plpgsql immutable as $$
declare
    unknown constant jsonb :=
        _options_fault.given - '{task,namespace,lane,needs,budgets,quotas,policy,encoding,creator}'::text[];
    field text;
begin
    if unknown <> '{}' then
        field := (select min(f.name) from jsonb_object_keys(unknown) f (name));
        return flowfabric._fault('invalid_body',
            format('field %s is unknown; remove it', flowfabric._shown(field)), jsonb_build_object('field', field));
    end if;
    foreach field in array '{task,namespace,lane,encoding,creator}'::text[] loop
        if jsonb_typeof(_options_fault.given -> field) <> 'string' then
            return flowfabric._fault('invalid_body',
                format('%s %s is invalid; use a string', field,
                       flowfabric._shown((_options_fault.given -> field)::text)),
                jsonb_build_object('field', field));
        end if;
    end loop;
    return coalesce(
        flowfabric._length_fault(
            'invalid_name', 'task name', _options_fault.given ->> 'task', 1, 256, required => true),
        flowfabric._length_fault('invalid_body', 'encoding', _options_fault.given ->> 'encoding', 1, 64, 'encoding'),
        flowfabric._length_fault('invalid_body', 'creator', _options_fault.given ->> 'creator', 0, 256, 'creator'),
        case when _options_fault.given ? 'policy' then flowfabric._policy_fault(_options_fault.given -> 'policy') end);
end $$;

-- Check one submission, except its options.
--
--   refuses  invalid_body, as a value
--   returns  the fault, or null if the submission is valid
create or replace function flowfabric._submission_fault(
    key text, priority int, payload_bytes int, payload_limit int, delay_ms bigint, delay_until timestamptz,
    deadline_ms bigint, deadline_at timestamptz, tags text, now timestamptz)
returns jsonb
language sql stable as $$
    select coalesce(
        flowfabric._length_fault('invalid_body', 'idempotency key', _submission_fault.key, 1, 256, 'key'),
        flowfabric._priority_fault(_submission_fault.priority),
        case when _submission_fault.payload_bytes > _submission_fault.payload_limit then flowfabric._oversize_fault(
            'payload', _submission_fault.payload_bytes, _submission_fault.payload_limit) end,
        flowfabric._delay_fault(_submission_fault.delay_ms, _submission_fault.delay_until, _submission_fault.now),
        flowfabric._deadline_fault(_submission_fault.deadline_ms, _submission_fault.deadline_at, _submission_fault.now),
        case when _submission_fault.tags is not null then flowfabric._tags_fault(_submission_fault.tags::jsonb) end)
$$;

-- Check a priority.
--
--   refuses  invalid_body, as a value
--   returns  the fault, or null if the priority is valid
create or replace function flowfabric._priority_fault(priority int)
returns jsonb
language sql immutable as $$
    select case when _priority_fault.priority not between 0 and 9000 then
        flowfabric._fault('invalid_body', format('priority %s is invalid; use 0 to 9000', _priority_fault.priority),
                          '{"field": "priority"}') end
$$;

-- Check a deadline: it must lie ahead, but not too far.
--
--   refuses  invalid_time, as a value
--   returns  the fault, or null if the deadline is valid
create or replace function flowfabric._deadline_fault(deadline_ms bigint, deadline_at timestamptz, now timestamptz)
returns jsonb
language sql stable as $$
    select case when _deadline_fault.deadline_ms not between 1 and 315360000000
                     or _deadline_fault.deadline_at <= _deadline_fault.now
                     or _deadline_fault.deadline_at > _deadline_fault.now + interval '10 years' then
        flowfabric._fault('invalid_time',
            format('deadline %s is invalid; use a time after now (%s), at most ten years ahead',
                   coalesce('of ' || _deadline_fault.deadline_ms || ' ms',
                            flowfabric._moment(_deadline_fault.deadline_at)),
                   flowfabric._moment(_deadline_fault.now)))
    end
$$;

-- Insert records, tickets, tags and events for the items of a call, except the items marked in `passed`. An id that
-- already exists, or occurs twice, is skipped too. Each item's created_at is a microsecond after the previous item's:
-- it keeps the order within a call, and identifies the item of an inserted record.
--
--   moves    – → runnable
--   emits    execution_submitted
--   returns  whether each item was written; null if all were
create or replace function flowfabric._write_submissions(
    options flowfabric.options[], options_of int[], partitions int[], ids uuid[], payloads bytea[], priorities int[],
    dues timestamptz[], deadlines timestamptz[], tags jsonb[], passed boolean[], now timestamptz, flows uuid[])
returns boolean[]
language plpgsql as $$
declare
    total constant int := cardinality(_write_submissions.ids);
    ages timestamptz[];
    made boolean[];
    clock constant timestamptz := flowfabric.clock();
    details constant jsonb[] := array(
        select jsonb_build_object('task', o.task) from unnest(_write_submissions.options) o);
begin
    with recorded as (
        insert into flowfabric.executions (partition, id, route, task, payload, encoding, creator, tags, policy,
                                           created_at)
        select _write_submissions.partitions[x.item], _write_submissions.ids[x.item], (o.route).id, o.task,
               _write_submissions.payloads[x.item], o.encoding, o.creator, _write_submissions.tags[x.item], o.policy,
               _write_submissions.now + x.item * interval '1 microsecond'
        from (select i as item, _write_submissions.options_of[i] as option from generate_series(1, total) i
              where _write_submissions.passed[i] is not true) x
        cross join lateral (select (_write_submissions.options[x.option]).*) o
        -- In id order, so that two batches with the same ids cannot deadlock. Minted ids are time-ordered, as
        -- created_at is.
        order by 2, 1, x.item
        on conflict do nothing
        returning created_at
    )
    select array_agg(r.created_at) into ages from recorded r;
    if cardinality(ages) = cardinality(array_positions(_write_submissions.passed, false)) then
        made := array(select not p from unnest(_write_submissions.passed) p);
    elsif cardinality(ages) = total is not true then
        made := array(select _write_submissions.now + i * interval '1 microsecond' = any (ages) is true
                      from generate_series(1, total) i);
    end if;

    insert into flowfabric.tickets (partition, id, route, lane, priority, created_at, due_at, deadline_at, bytes,
                                    eligibility, reason)
    select _write_submissions.partitions[x.item], _write_submissions.ids[x.item], (o.route).id, (o.route).lane,
           coalesce(_write_submissions.priorities[x.item], 0),
           _write_submissions.now + x.item * interval '1 microsecond', x.due_at, _write_submissions.deadlines[x.item],
           flowfabric._large(octet_length(_write_submissions.payloads[x.item])),
           case when x.due_at is null then 'eligible_now'::flowfabric.eligibility else 'not_eligible_until_time' end,
           case when x.due_at is null then 'waiting_for_worker'::flowfabric.reason else 'waiting_for_delay' end
    from (select i as item, _write_submissions.options_of[i] as option, _write_submissions.dues[i] as due_at
          from generate_series(1, total) i where made is null or made[i]) x
    cross join lateral (select (_write_submissions.options[x.option]).*) o;
    if _write_submissions.tags is not null then
        insert into flowfabric.tags (partition, execution, key, value, created_at)
        select _write_submissions.partitions[i], _write_submissions.ids[i], t.key, t.value,
               _write_submissions.now + i * interval '1 microsecond'
        from generate_series(1, total) i cross join lateral jsonb_each_text(_write_submissions.tags[i]) t
        where made is null or made[i];
    end if;

    perform flowfabric._lock_log();
    insert into flowfabric.events (at, kind, partition, execution, route, tags, detail, flow)
    select clock, 'execution_submitted', _write_submissions.partitions[x.item], _write_submissions.ids[x.item],
           ((_write_submissions.options[x.option]).route).id, _write_submissions.tags[x.item], details[x.option],
           _write_submissions.flows[x.item]
    from (select i as item, _write_submissions.options_of[i] as option
          from generate_series(1, total) i where made is null or made[i]) x;
    return made;
end $$;

-- Compute the public state of new executions with these options: a budget or a quota may close their route. Costs
-- nothing for routes without budgets and quotas.
--
--   returns  a public state per options, in the order given; null for routes without budgets and quotas
create or replace function flowfabric._fresh_states(options flowfabric.options[], now timestamptz)
returns text[]
language plpgsql stable as $$
declare
    states text[] := '{}';
    route flowfabric.routes;
begin
    for number in 1 .. cardinality(_fresh_states.options) loop
        route := (_fresh_states.options[number]).route;
        if route.id is not null and (route.budgets <> '{}' or route.quotas <> '{}') then
            states[number] := case
                when flowfabric._admission(route.id, _fresh_states.now) in ('blocked_by_budget', 'blocked_by_quota')
                    then 'rate_limited'
                else 'waiting' end;
        end if;
    end loop;
    return states;
end $$;

-- Check the items of a call and compute their due times, deadlines and tags. An array is null if no item needs it.
--
--   returns  the faults, with faults of the options first; due times, deadlines and tags of the valid items
create or replace function flowfabric._judge_submissions(
    options flowfabric.options[], options_of int[], payloads bytea[], payload_limit int, keys text[], priorities int[],
    delays_ms bigint[], delays_until timestamptz[], deadlines_ms bigint[],
    deadlines_at timestamptz[], tags text[], now timestamptz,
    out faults jsonb[], out dues timestamptz[], out deadlines timestamptz[], out labels jsonb[])
language plpgsql stable as $$
begin
    select array_agg(coalesce((_judge_submissions.options[_judge_submissions.options_of[x.item]]).fault, x.fault)),
           array_agg(case when x.fault is null then nullif(greatest(coalesce(
               _judge_submissions.delays_until[x.item],
               _judge_submissions.now + _judge_submissions.delays_ms[x.item] * interval '1 ms'),
               _judge_submissions.now), _judge_submissions.now) end),
           array_agg(case when x.fault is null then coalesce(
               _judge_submissions.deadlines_at[x.item],
               _judge_submissions.now + _judge_submissions.deadlines_ms[x.item] * interval '1 ms') end),
           array_agg(case when x.fault is null then _judge_submissions.tags[x.item]::jsonb end)
    into faults, dues, deadlines, labels
    from (
        select i as item, flowfabric._submission_fault(
            _judge_submissions.keys[i], _judge_submissions.priorities[i],
            octet_length(_judge_submissions.payloads[i]), _judge_submissions.payload_limit,
            _judge_submissions.delays_ms[i], _judge_submissions.delays_until[i], _judge_submissions.deadlines_ms[i],
            _judge_submissions.deadlines_at[i], _judge_submissions.tags[i], _judge_submissions.now) as fault
        from generate_series(1, cardinality(_judge_submissions.options_of)) i offset 0) x;
    if array_remove(faults, null) = '{}' then
        faults := null;
    end if;
    if _judge_submissions.tags is null then
        labels := null;
    end if;
end $$;

-- Build the answers of a call. An item that was refused but is a duplicate is answered as a duplicate, unless the
-- duplicate is a conflict.
--
--   returns  per item 'created' {public_state}, 'duplicate' {execution_id}, or its refusal
create or replace function flowfabric._submission_answers(
    options_of int[], partitions int[], ids uuid[], dues timestamptz[], faults jsonb[], conflicts jsonb[],
    owners text[], made boolean[], states text[])
returns table (item int, outcome text, refusal text, detail text)
language plpgsql stable as $$
begin
    return query
    select x.item,
           case when x.fault is not null then null when x.is_made then 'created' else 'duplicate' end,
           x.fault ->> 'code',
           case when x.fault is not null then (x.fault - 'code')::text
                when not x.is_made then jsonb_build_object('execution_id', coalesce(
                    _submission_answers.owners[x.item],
                    flowfabric._id(_submission_answers.partitions[x.item], _submission_answers.ids[x.item])))::text
                when _submission_answers.dues[x.item] is not null then '{"public_state": "delayed"}'
                else '{"public_state": "' || coalesce(
                    _submission_answers.states[_submission_answers.options_of[x.item]], 'waiting') || '"}' end
    from (
        select i as item, _submission_answers.made is null or _submission_answers.made[i] as is_made,
               case when _submission_answers.owners[i] is null then _submission_answers.faults[i]
                    else _submission_answers.conflicts[i] end as fault
        from generate_series(1, cardinality(_submission_answers.ids)) i offset 0) x;
end $$;

-- Create executions, many in one call, as if one after the other; an invalid item does not affect the others. `options`
-- holds the options that items share. `options_of` is the position of each item's options, from 1, or null if all items
-- use the first. A new lane or route is created only for an item that is written. created_at starts at now, or at
-- `counted_from`, which keeps the order of a call that is sent in several parallel statements.
--
--   moves    – → runnable: eligible_now, or not_eligible_until_time if it is due later; lane – → active, if it is new
--   locks    the flows that get members, in key order; idempotency keys, in key order
--   emits    execution_submitted; lane_registered, if a lane is new; flow_member_added, for members
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time, invalid_tag_key,
--            invalid_tag, flow_not_found, flow_already_terminal, wrong_partition, flow_too_large, key_conflict, per
--            item; invalid_limit over 1,000 items
--   returns  per item 'created' {public_state}, 'duplicate' {execution_id}, or its refusal
create or replace function flowfabric.submit(
    options text[], options_of int[], partitions int[], ids uuid[], payloads bytea[] default null,
    keys text[] default null, key_partitions int[] default null, priorities int[] default null,
    delays_ms bigint[] default null, delays_until timestamptz[] default null, deadlines_ms bigint[] default null,
    deadlines_at timestamptz[] default null, tags text[] default null, payload_limit int default 1048576,
    counted_from timestamptz default null, flows uuid[] default null, wait boolean default true)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    now timestamptz := flowfabric.clock();
    is_bare constant boolean := num_nonnulls(submit.keys, submit.delays_ms, submit.delays_until, submit.deadlines_ms,
                                             submit.deadlines_at, submit.tags, submit.flows) = 0
        and coalesce(0 <= all (submit.priorities) and 9000 >= all (submit.priorities), true);
    option flowfabric.options;
    read flowfabric.options[];
    is_new boolean;
    faults jsonb[]; -- null if there are none
    dues timestamptz[];
    deadlines timestamptz[];
    labels jsonb[];
    owners text[];
    passed boolean[];
    made boolean[]; -- null if all are
    states text[];
begin
    perform flowfabric._limit_waits(submit.wait);
    if cardinality(submit.ids) > 1000 then
        perform flowfabric._refuse('invalid_limit',
            format('the call has %s items; use at most 1,000', flowfabric._number(cardinality(submit.ids))));
    elsif is_bare and cardinality(submit.ids) = 1 then
        option := flowfabric._read_options(submit.options[coalesce(submit.options_of[1], 1)]::jsonb);
        if (option.route).id is not null
           and not coalesce(octet_length(submit.payloads[1]) > submit.payload_limit, false)
           and flowfabric._write_plain(
               option, submit.partitions[1], submit.ids[1], submit.payloads[1], submit.priorities[1],
               coalesce(submit.counted_from, now) + interval '1 microsecond') then
            states := flowfabric._fresh_states(array[option], now);
            return query values (1, 'created', null::text,
                                 '{"public_state": "' || coalesce(states[1], 'waiting') || '"}');
            return;
        end if;
    end if;
    read := array(select flowfabric._read_options(o::jsonb) from unnest(submit.options) o);
    submit.options_of := coalesce(submit.options_of, array_fill(1, array[cardinality(submit.ids)]));
    if not is_bare or exists (select from unnest(read) o where o.fault is not null)
       or submit.payload_limit < any (array(select octet_length(p) from unnest(submit.payloads) p)) then
        select j.* into faults, dues, deadlines, labels from flowfabric._judge_submissions(
            read, submit.options_of, submit.payloads, submit.payload_limit, submit.keys, submit.priorities,
            submit.delays_ms, submit.delays_until, submit.deadlines_ms, submit.deadlines_at, submit.tags, now) j;
    end if;
    if submit.flows is not null then
        faults := flowfabric._joining_faults(faults, submit.partitions, submit.ids, submit.flows);
    end if;
    if submit.keys is not null then
        owners := flowfabric._find_owners(
            submit.partitions, submit.ids, submit.keys, submit.key_partitions,
            array(select ((read[t]).route).namespace from unnest(submit.options_of) t),
            array(select now + (read[t]).dedup_window from unnest(submit.options_of) t), faults);
    end if;
    is_new := exists (select from unnest(read) o where (o.route).id is null);
    if is_new then
        read := flowfabric._make_routes(
            read, submit.options_of, submit.partitions, submit.ids, faults, owners);
    end if;

    if is_new or faults is not null or owners is not null then
        passed := array(
            select faults[i] is not null or owners[i] is not null or ((read[submit.options_of[i]]).route).id is null
            from generate_series(1, cardinality(submit.ids)) i);
    end if;
    made := flowfabric._write_submissions(
        read, submit.options_of, submit.partitions, submit.ids, submit.payloads, submit.priorities, dues, deadlines,
        labels, passed, coalesce(submit.counted_from, now), submit.flows);
    if submit.flows is not null then
        perform flowfabric._join_flows(submit.partitions, submit.ids, submit.flows, made);
    end if;

    if faults is not null then
        owners := flowfabric._add_late_owners(
            owners, submit.partitions, submit.ids, submit.keys, submit.key_partitions, read, submit.options_of,
            submit.deadlines_at, faults, made, now);
    end if;
    return query
    select a.* from flowfabric._submission_answers(
        submit.options_of, submit.partitions, submit.ids, dues, faults, flowfabric._key_faults(
            owners, submit.keys, submit.key_partitions, submit.payloads, read, submit.options_of),
        owners, made, flowfabric._fresh_states(read, now)) a;
end $$;
