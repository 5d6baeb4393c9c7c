-- Submit one: a plain function call for every language and driver, in the caller's own transaction.

-- Create an execution, as `submit` does for many, and return its id. All options have names and may be left out:
-- select flowfabric.submit_one(task => 'ship', payload => '{"order": 17}', lane => 'shipping'). The payload is a JSON
-- object with the arguments of the task by name. An error leaves the caller's transaction aborted, as every error of
-- Postgres does. If the key or the id already exists, the id of the first execution is returned.
--
--   moves    – → runnable: eligible_now, or not_eligible_until_time if it is due later; lane – → active, if it is new
--   locks    the idempotency key
--   emits    execution_submitted; lane_registered, if the lane is new
--   refuses  invalid_body, invalid_name, invalid_policy, invalid_lane, invalid_namespace, invalid_capabilities,
--            budget_not_found, quota_not_found, lane_draining, payload_too_large, invalid_time, invalid_tag_key,
--            invalid_tag, key_conflict
--   returns  the id of the execution
create or replace function flowfabric.submit_one(
    task text, payload jsonb default '{}', lane text default null, priority int default null, key text default null,
    delay interval default null, run_at timestamptz default null, deadline timestamptz default null,
    tags jsonb default null, namespace text default null, needs text[] default null, budgets text[] default null,
    quotas text[] default null, policy jsonb default null, creator text default null)
returns text
language plpgsql as $$
declare
    first constant int := 256 * (select d.cell from flowfabric.deployment d); -- of the partitions of this cell
    home constant int := first + floor(random() * 256);
    minted constant uuid := flowfabric._mint_id(home);
    answer record;
begin
    -- What the arrays of `submit` cannot hold, or what Python checks before it calls `submit`.
    perform flowfabric._raise(case
        when coalesce(jsonb_typeof(submit_one.payload), 'null') <> 'object' then
            flowfabric._fault('invalid_body', format(
                'payload %s is invalid; use a JSON object with the arguments of the task by name',
                flowfabric._shown(submit_one.payload::text)), '{"field": "payload"}')
        when num_nonnulls(submit_one.delay, submit_one.run_at) = 2 then
            flowfabric._fault('invalid_body', 'delay and run_at are both given; use one of them', '{"field": "delay"}')
        when not isfinite(submit_one.delay) or abs(extract(epoch from submit_one.delay)) > 1e12 then
            flowfabric._fault('invalid_time', format(
                'delay %s is invalid; use a duration from 0, at most ten years', submit_one.delay)) end);
    select s.* into answer from flowfabric.submit(
        options => array[jsonb_strip_nulls(jsonb_build_object(
            'task', submit_one.task, 'lane', submit_one.lane, 'namespace', submit_one.namespace,
            'needs', to_jsonb(submit_one.needs), 'budgets', to_jsonb(submit_one.budgets),
            'quotas', to_jsonb(submit_one.quotas), 'policy', submit_one.policy,
            'creator', submit_one.creator))::text],
        options_of => null, partitions => array[home], ids => array[minted],
        payloads => array[convert_to(submit_one.payload::text, 'UTF8')],
        keys => case when submit_one.key is not null then array[submit_one.key] end,
        key_partitions => case when submit_one.key is not null then array[first + flowfabric._crc16(
            convert_to(coalesce(submit_one.namespace, 'default'), 'UTF8') || '\x00'
            || convert_to(submit_one.key, 'UTF8')) % 256] end,
        priorities => array[submit_one.priority],
        delays_ms => case when submit_one.delay is not null then
            array[(extract(epoch from submit_one.delay) * 1000)::bigint] end,
        delays_until => case when submit_one.run_at is not null then array[submit_one.run_at] end,
        deadlines_at => case when submit_one.deadline is not null then array[submit_one.deadline] end,
        tags => case when submit_one.tags is not null then array[submit_one.tags::text] end) s;
    if answer.refusal is not null then
        perform flowfabric._raise(answer.detail::jsonb || jsonb_build_object('code', answer.refusal));
    end if;
    return case answer.outcome when 'duplicate' then answer.detail::jsonb ->> 'execution_id'
                               else flowfabric._id(home, minted) end;
end $$;

-- Mint a UUID of version 8: 48 bits of milliseconds, 12 bits below the millisecond, 15 bits of partition, 47 random.
--
--   returns  the UUID
create or replace function flowfabric._mint_id(partition int)
returns uuid
language plpgsql as $$
declare
    micros constant bigint := extract(epoch from flowfabric.clock()) * 1000000;
    random constant bigint := ('x' || right(gen_random_uuid()::text, 12))::bit(48)::bigint & ((1::bigint << 47) - 1);
begin
    return (lpad(to_hex(micros / 1000), 12, '0') || '8' || lpad(to_hex(micros % 1000 * 4096 / 1000), 3, '0')
            || to_hex(32768 | (_mint_id.partition >> 1))
            || lpad(to_hex((_mint_id.partition & 1)::bigint << 47 | random), 12, '0'))::uuid;
end $$;
