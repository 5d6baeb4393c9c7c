-- Listing waits: which executions wait, for what, and since when. Tokens are never shown.

-- List the executions that are suspended now, longest first, with keyset pagination.
--
--   refuses  invalid_limit
--   returns  one row per execution
create or replace function flowfabric.list_suspended(
    namespace text default null, lane text default null, reason_code text default null,
    after_suspended timestamptz default null, after_partition int default null, after_id uuid default null,
    take int default 50)
returns table (partition int, id uuid, suspension_id uuid, suspended_at timestamptz, code text, about bytea,
               about_digest text, waitpoint_keys text[], timeout_at timestamptz, timeout_behavior text)
language plpgsql stable as $$
declare
    most int := flowfabric._page(list_suspended.take);
begin
    return query
    select t.partition::int, t.id, t.suspension, t.suspended_at, w.reason_code, w.about, encode(w.about_digest, 'hex'),
           w.keys, w.timeout_at, w.timeout_behavior
    from (
        select t.* from flowfabric.lanes l
        cross join lateral (
            select t.partition, t.id, t.suspension, t.suspended_at from flowfabric.tickets t
            cross join lateral (select r.namespace from flowfabric.routes r where r.id = t.route offset 0) r
            where t.lane = l.name and t.phase = 'suspended'
              and (list_suspended.namespace is null or r.namespace = list_suspended.namespace)
              and (list_suspended.reason_code is null or list_suspended.reason_code = (
                  select w.reason_code from flowfabric._open_waits(t.partition, t.id, t.suspension) w))
              and (list_suspended.after_id is null or t.suspended_at >= list_suspended.after_suspended
                   and (t.suspended_at, t.partition, t.id) > (
                       list_suspended.after_suspended, list_suspended.after_partition, list_suspended.after_id))
            order by t.lane, t.suspended_at, t.partition, t.id limit most) t
        where list_suspended.lane is null or l.name = list_suspended.lane
        order by t.suspended_at, t.partition, t.id limit most) t
    cross join lateral flowfabric._open_waits(t.partition, t.id, t.suspension) w
    order by t.suspended_at, t.partition, t.id;
end $$;

-- List the waits of one execution that are open now.
--
--   refuses  execution_not_found
--   returns  one row per wait, with the columns of `list_suspended`; none if the execution does not wait
create or replace function flowfabric.list_waits(partition int, id uuid)
returns table (execution uuid, suspension_id uuid, suspended_at timestamptz, code text, about bytea, about_digest text,
               waitpoint_keys text[], timeout_at timestamptz, timeout_behavior text)
language plpgsql stable as $$
begin
    perform flowfabric._refuse_missing(list_waits.partition, list_waits.id)
    where not exists (select from flowfabric.executions e
                      where e.partition = list_waits.partition and e.id = list_waits.id);
    return query
    select w.execution, w.id, w.suspended_at, w.reason_code, w.about, encode(w.about_digest, 'hex'),
           array(select p.key from unnest(w.waitpoints) as g (id)
                 cross join lateral (select p.key from flowfabric.waitpoints p where p.id = g.id offset 0) p
                 order by p.key), w.timeout_at, w.timeout_behavior
    from flowfabric.waits w
    where w.partition = list_waits.partition and w.execution = list_waits.id and w.ended_at is null
    union all
    select t.id, t.suspension, t.suspended_at, 'paused_by_budget', null, null, '{}', null, 'fail'
    from flowfabric.budget_waits b
    cross join lateral (select t.id, t.suspension, t.suspended_at from flowfabric.tickets t
                        where t.partition = b.partition and t.id = b.execution offset 0) t
    where b.partition = list_waits.partition and b.execution = list_waits.id
    order by 3, 2;
end $$;

-- List the waitpoints of an execution, oldest first, with keyset pagination.
--
--   refuses  execution_not_found, invalid_limit
--   returns  one row per waitpoint, with the kid and the fingerprint of its token, and the names of the signals that
--            its condition accepts, sorted: none if any name is accepted, a marker if no signal can satisfy it
create or replace function flowfabric.list_waitpoints(
    partition int, id uuid, state text default null, after_created timestamptz default null, after_id uuid default null,
    take int default 100)
returns table (waitpoint_id uuid, key text, state_name text, required_signal_names text[], created_at timestamptz,
               activated_at timestamptz, expires_at timestamptz, closed_at timestamptz, close_reason text, kid text,
               fingerprint text, signal_count bigint, about_digest text)
language plpgsql stable as $$
begin
    perform flowfabric._refuse_missing(list_waitpoints.partition, list_waitpoints.id)
    where not exists (select from flowfabric.executions e
                      where e.partition = list_waitpoints.partition and e.id = list_waitpoints.id);
    return query
    select w.id, w.key, w.state::text,
           case s.condition ->> 'kind'
               when 'operator_only' then array['__operator_only__']
               when 'timeout_only' then array['__timeout_only__']
               else (select case when bool_and(n.node ? 'name')
                         then array_agg(distinct n.node ->> 'name' order by n.node ->> 'name') else '{}' end
                     from flowfabric._nodes(s.condition) n
                     where coalesce(n.node -> 'waitpoints', n.node -> 'waitpoint') ? w.key) end,
           w.created_at, w.activated_at, w.expires_at, w.closed_at, w.close_reason, w.kid, w.fingerprint,
           (select count(*) from flowfabric.signals g where g.waitpoint = w.id), encode(s.about_digest, 'hex')
    from flowfabric.waitpoints w
    left join flowfabric.waits s on s.partition = w.partition and s.execution = w.execution and s.id = w.wait
    where w.partition = list_waitpoints.partition and w.execution = list_waitpoints.id
      and (list_waitpoints.state is null or w.state::text = list_waitpoints.state)
      and (list_waitpoints.after_id is null
           or (w.created_at, w.id) > (list_waitpoints.after_created, list_waitpoints.after_id))
    order by w.created_at, w.id
    limit flowfabric._page(list_waitpoints.take);
end $$;

-- List the approvals that people are asked for now, the oldest first, with keyset pagination.
--
--   refuses  invalid_limit
--   returns  one row per approval, with the people who have approved so far
create or replace function flowfabric.list_approvals(
    namespace text default null, lane text default null, tag text default null, tag_value text default null,
    after_asked timestamptz default null, after_id uuid default null, take int default 50)
returns table (partition int, id uuid, task text, its_namespace text, its_lane text, its_tags text, approval_id uuid,
               title text, asked_at timestamptz, timeout_at timestamptz, about bytea, about_digest text,
               approvers int, by_token boolean, approved_by text[])
language plpgsql stable set enable_seqscan = off as $$
begin
    return query
    select w.partition::int, w.execution, e.task, e.namespace, e.lane, e.tags::text, w.id,
           (select p.key from flowfabric.waitpoints p where p.id = w.waitpoints[1]), w.suspended_at, w.timeout_at,
           w.about, encode(w.about_digest, 'hex'), coalesce(n.approvers, 1), n.by_token,
           array(select distinct g.signal ->> 'source_identity'
                 from jsonb_array_elements(flowfabric._signals_to_judge(w)) g (signal)
                 where g.signal ->> 'name' = 'approve' order by 1)
    from flowfabric.waits w
    cross join lateral (
        select e.task, e.tags, r.namespace, r.lane from flowfabric.executions e
        join flowfabric.routes r on r.id = e.route
        where e.partition = w.partition and e.id = w.execution offset 0) e
    cross join lateral (
        select max((n.node ->> 'n')::int) filter (where n.node ->> 'kind' = 'count') as approvers,
               not coalesce(bool_or(n.node ->> 'source_type' = 'operator'), false) as by_token
        from flowfabric._nodes(w.condition) n) n
    where w.reason_code = 'waiting_for_approval' and w.ended_at is null
      and (list_approvals.namespace is null or e.namespace = list_approvals.namespace)
      and (list_approvals.lane is null or e.lane = list_approvals.lane)
      and (list_approvals.tag is null or e.tags ->> list_approvals.tag = list_approvals.tag_value)
      and (list_approvals.after_id is null
           or (w.suspended_at, w.id) > (list_approvals.after_asked, list_approvals.after_id))
    order by w.suspended_at, w.id
    limit flowfabric._page(list_approvals.take);
end $$;
