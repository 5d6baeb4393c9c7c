-- Waitpoints: named places where an execution can receive signals, each with a signed token.

-- Compute the token of a waitpoint. It is always the same, and valid only under the signing key that the waitpoint was
-- created with.
--
--   returns  kid:digest, or null if that signing key has been removed
create or replace function flowfabric._waitpoint_token(partition int, execution uuid, waitpoint uuid, kid text)
returns text
language sql stable as $$
    select k.kid || ':' || flowfabric._hmac(
        k, flowfabric._tagged_id(_waitpoint_token.partition, _waitpoint_token.execution) || ':'
               || _waitpoint_token.waitpoint)
    from flowfabric.keys k where k.kid = _waitpoint_token.kid
$$;

-- Create a waitpoint. The caller has locked the ticket and checked that no open waitpoint has this key.
--
--   moves    waitpoint – → pending or active
--   emits    waitpoint_created
--   refuses  no_active_key
--   returns  its id and token
create or replace function flowfabric._mint_waitpoint(
    partition int, execution uuid, key text, state flowfabric.waitpoint_state, suspension uuid, expires_at timestamptz,
    out id uuid, out token text)
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    signer flowfabric.keys := flowfabric._active_key();
begin
    id := gen_random_uuid();
    token := signer.kid || ':' || flowfabric._hmac(
        signer, flowfabric._tagged_id(_mint_waitpoint.partition, _mint_waitpoint.execution) || ':' || id);
    insert into flowfabric.waitpoints (
        partition, execution, id, key, state, suspension, kid, fingerprint, created_at, activated_at, expires_at)
    values (_mint_waitpoint.partition, _mint_waitpoint.execution, _mint_waitpoint.id, _mint_waitpoint.key,
            _mint_waitpoint.state, _mint_waitpoint.suspension, signer.kid,
            left(encode(sha256(convert_to(token, 'UTF8')), 'hex'), 16), now,
            case when _mint_waitpoint.state = 'active' then now end, _mint_waitpoint.expires_at);
    perform flowfabric._mark_for_closing(_mint_waitpoint.partition, _mint_waitpoint.execution);
    perform flowfabric._append_about(
        'waitpoint_created', _mint_waitpoint.partition, _mint_waitpoint.execution,
        detail => jsonb_build_object('waitpoint_id', id, 'key', _mint_waitpoint.key, 'kid', signer.kid));
end $$;

-- Close open waitpoints, with the reason. The caller has locked the tickets.
--
--   moves    waitpoint pending, active → closed
--   emits    waitpoint_closed
create or replace function flowfabric._close_waitpoints(
    partitions smallint[], executions uuid[], ids uuid[], reason text)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    closed record;
begin
    with shut as (
        update flowfabric.waitpoints w
        set state = 'closed', closed_at = flowfabric.clock(), close_reason = _close_waitpoints.reason, expires_at = null
        from (
            select w.place
            from unnest(_close_waitpoints.partitions, _close_waitpoints.executions, _close_waitpoints.ids)
                 as x (partition, execution, id)
            cross join lateral (
                select w.ctid as place from flowfabric.waitpoints w
                where w.partition = x.partition and w.execution = x.execution and w.id = x.id offset 0) w
            limit cardinality(_close_waitpoints.ids)) x
        where w.ctid = x.place
        returning w.partition, w.execution, w.id, w.key
    )
    select array_agg(s.partition) as partitions, array_agg(s.execution) as executions, array_agg(e.route) as routes,
           array_agg(e.tags) as tags, array_agg(e.flow) as flows,
           array_agg(jsonb_build_object(
               'waitpoint_id', s.id, 'key', s.key, 'reason', _close_waitpoints.reason)) as details
    into closed from shut s
    cross join lateral (
        select e.route, e.tags, e.flow from flowfabric.executions e
        where e.partition = s.partition and e.id = s.execution offset 0) e;
    perform flowfabric._append_each(
        'waitpoint_closed', closed.partitions, closed.executions, closed.routes, closed.tags, closed.details,
        flows => closed.flows);
end $$;

-- Close the waitpoints of suspensions that have ended. The caller has locked the tickets.
--
--   moves    waitpoint active → closed
--   emits    waitpoint_closed
create or replace function flowfabric._close_suspended(suspensions uuid[], reason text)
returns void
language plpgsql as $$
#variable_conflict use_column
declare
    found_ones record;
begin
    select array_agg(w.partition) as partitions, array_agg(w.execution) as executions, array_agg(w.id) as ids
    into found_ones
    from unnest(_close_suspended.suspensions) as x (suspension)
    cross join lateral (
        select w.partition, w.execution, w.id from flowfabric.waitpoints w
        where w.suspension = x.suspension offset 0) w;
    if found_ones.ids is not null then
        perform flowfabric._close_waitpoints(
            found_ones.partitions, found_ones.executions, found_ones.ids, _close_suspended.reason);
    end if;
end $$;

-- Find the open waitpoint of a key. If it has expired, or its signing key has been removed, it is closed instead: its
-- token can never be valid again. The caller has locked the ticket.
--
--   moves    waitpoint pending → closed, if it is no longer usable
--   emits    waitpoint_closed
--   returns  the waitpoint and its token, or null if none is usable
create or replace function flowfabric._pending_waitpoint(
    partition int, execution uuid, key text, now timestamptz, out waitpoint flowfabric.waitpoints, out token text)
language plpgsql as $$
#variable_conflict use_column
begin
    select w.* into waitpoint from flowfabric.waitpoints w
    where w.partition = _pending_waitpoint.partition and w.execution = _pending_waitpoint.execution
      and w.key = _pending_waitpoint.key and w.state <> 'closed';
    if not found then
        return;
    end if;
    token := flowfabric._waitpoint_token(waitpoint.partition, waitpoint.execution, waitpoint.id, waitpoint.kid);
    if waitpoint.expires_at <= _pending_waitpoint.now or token is null then
        perform flowfabric._close_waitpoints(
            array[waitpoint.partition], array[waitpoint.execution], array[waitpoint.id], 'never_committed');
        waitpoint := null;
        token := null;
    end if;
end $$;

-- Create a waitpoint before the suspension that will wait on it, so that its token can be given away first. The
-- waitpoint belongs to the execution, not to the attempt: it survives a crash in between.
--
--   moves    waitpoint – → pending; an expired one with that key → closed
--   locks    the ticket
--   emits    waitpoint_created, waitpoint_closed
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, invalid_name,
--            invalid_time, no_active_key
--   returns  'created', or 'existing' while a waitpoint with that key is open; with its id, token and expiry
create or replace function flowfabric.create_waitpoint(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, key text, expires_in_ms bigint default 86400000,
    out outcome text, out waitpoint_id uuid, out token text, out expires_at timestamptz)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    held record := flowfabric._lock_fenced(
        create_waitpoint.partition, create_waitpoint.id, create_waitpoint.lease_id, create_waitpoint.epoch,
        create_waitpoint.attempt);
    now timestamptz := flowfabric.clock();
    known record;
    minted record;
begin
    if held.fault is not null then
        perform flowfabric._raise(held.fault);
    end if;
    if coalesce(octet_length(create_waitpoint.key), 0) not between 1 and 128 then
        perform flowfabric._refuse('invalid_name', format(
            'waitpoint key %s is invalid; use 1 to 128 bytes', flowfabric._shown(create_waitpoint.key)));
    end if;
    if coalesce(create_waitpoint.expires_in_ms, 0) not between 1 and 2592000000 then
        perform flowfabric._refuse('invalid_time', format(
            'expires_in of %s ms is invalid; use 1 to 2,592,000,000 ms (30 days)',
            create_waitpoint.expires_in_ms));
    end if;
    known := flowfabric._pending_waitpoint(create_waitpoint.partition, create_waitpoint.id, create_waitpoint.key, now);
    if known.token is not null then
        outcome := 'existing';
        waitpoint_id := (known.waitpoint).id;
        token := known.token;
        -- An active waitpoint (of one of several waits of the run) has no expiry: it stays open as long as its wait.
        expires_at := coalesce((known.waitpoint).expires_at, now + create_waitpoint.expires_in_ms * interval '1 ms');
        return;
    end if;
    outcome := 'created';
    expires_at := now + create_waitpoint.expires_in_ms * interval '1 ms';
    minted := flowfabric._mint_waitpoint(
        create_waitpoint.partition, create_waitpoint.id, create_waitpoint.key, 'pending', null, expires_at);
    waitpoint_id := minted.id;
    token := minted.token;
end $$;

-- Sweep: close the pending waitpoints that have expired.
--
--   moves    waitpoint pending → closed
--   locks    the tickets whose waitpoints it closes, skipping locked ones
--   emits    waitpoint_closed
--   returns  how many were closed
create or replace function flowfabric.close_waitpoints(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    late record;
    still record;
begin
    select array_agg(x.partition) as partitions, array_agg(x.execution) as executions, array_agg(x.id) as ids into late
    from (
        select w.partition, w.execution, w.id
        from (select w.* from flowfabric.waitpoints w where w.expires_at <= now
              order by w.expires_at, w.partition, w.execution offset 0) w
        cross join lateral (
            select from flowfabric.tickets t
            where t.partition = w.partition and t.id = w.execution for update skip locked) t
        limit close_waitpoints.take offset close_waitpoints.passing) x;
    -- Optimistic re-check under the lock: the execution may have suspended on one in between.
    select array_agg(w.partition) as partitions, array_agg(w.execution) as executions, array_agg(w.id) as ids into still
    from unnest(late.partitions, late.executions, late.ids) as x (partition, execution, id)
    cross join lateral (
        select w.partition, w.execution, w.id, w.expires_at from flowfabric.waitpoints w
        where w.partition = x.partition and w.execution = x.execution and w.id = x.id offset 0) w
    where w.expires_at <= now;
    moved := coalesce(cardinality(still.ids), 0);
    if moved > 0 then
        perform flowfabric._close_waitpoints(still.partitions, still.executions, still.ids, 'never_committed');
    end if;
end $$;
