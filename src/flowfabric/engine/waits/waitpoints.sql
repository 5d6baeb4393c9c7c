-- Waitpoints: the named places where an execution can be reached, each with a signed token.

-- The token of a waitpoint: always the same, and good only under the key the waitpoint was made with.
--
--   returns  kid:digest, or null when that key has been removed
create or replace function flowfabric._waitpoint_token(partition int, execution uuid, waitpoint uuid, kid text)
returns text
language sql stable as $$
    select k.kid || ':' || flowfabric._hmac(k, flowfabric._id(_waitpoint_token.partition, _waitpoint_token.execution) || ':' || _waitpoint_token.waitpoint)
    from flowfabric.keys k where k.kid = _waitpoint_token.kid
$$;

-- Make a waitpoint. The caller holds the ticket and has seen that no open one has this key.
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
    token := signer.kid || ':' || flowfabric._hmac(signer, flowfabric._id(_mint_waitpoint.partition, _mint_waitpoint.execution) || ':' || id);
    insert into flowfabric.waitpoints (partition, execution, id, key, state, suspension, kid, fingerprint, created_at, activated_at, expires_at)
    values (_mint_waitpoint.partition, _mint_waitpoint.execution, _mint_waitpoint.id, _mint_waitpoint.key, _mint_waitpoint.state,
            _mint_waitpoint.suspension, signer.kid, left(encode(sha256(convert_to(token, 'UTF8')), 'hex'), 16), now,
            case when _mint_waitpoint.state = 'active' then now end, _mint_waitpoint.expires_at);
    perform flowfabric._append_about('waitpoint_created', _mint_waitpoint.partition, _mint_waitpoint.execution,
                                     detail => jsonb_build_object('waitpoint_id', id, 'key', _mint_waitpoint.key, 'kid', signer.kid));
end $$;

-- Close waitpoints, with the reason. The caller holds the tickets.
--
--   moves    waitpoint pending, active → closed
--   emits    waitpoint_closed
create or replace function flowfabric._close_waitpoints(partitions smallint[], executions uuid[], reason text)
returns void
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    closed record;
begin
    with shut as (
        update flowfabric.waitpoints w set state = 'closed', closed_at = flowfabric.clock(), close_reason = _close_waitpoints.reason, expires_at = null
        from unnest(_close_waitpoints.partitions, _close_waitpoints.executions) as x (partition, execution)
        where w.partition = x.partition and w.execution = x.execution and w.state <> 'closed'
        returning w.partition, w.execution, w.id, w.key
    )
    select array_agg(s.partition) as partitions, array_agg(s.execution) as executions, array_agg(e.route) as routes, array_agg(e.tags) as tags,
           array_agg(e.flow) as flows,
           array_agg(jsonb_build_object('waitpoint_id', s.id, 'key', s.key, 'reason', _close_waitpoints.reason)) as details
    into closed from shut s join flowfabric.executions e on e.partition = s.partition and e.id = s.execution;
    if closed.executions is not null then
        perform flowfabric._append_each('waitpoint_closed', closed.partitions, closed.executions, closed.routes, closed.tags, closed.details,
                                        flows => closed.flows);
    end if;
end $$;

-- Make a waitpoint ahead of the suspension that will wait for it, so that its token can be given away first. It belongs
-- to the execution, not to the attempt: a crash in between loses nothing.
--
--   moves    waitpoint – → pending; one of that key past its expiry → closed
--   locks    the ticket
--   emits    waitpoint_created, waitpoint_closed
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, invalid_name, invalid_time, no_active_key
--   returns  'created', or 'existing' while one of that key is pending; with its id, token and expiry
create or replace function flowfabric.create_waitpoint(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, key text, expires_in_ms bigint default 86400000,
    out outcome text, out waitpoint_id uuid, out token text, out expires_at timestamptz)
language plpgsql as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    open_one flowfabric.waitpoints;
begin
    perform flowfabric._raise((flowfabric._lock_fenced(create_waitpoint.partition, create_waitpoint.id, create_waitpoint.lease_id,
                                                       create_waitpoint.epoch, create_waitpoint.attempt, now)).fault);
    if coalesce(octet_length(create_waitpoint.key), 0) not between 1 and 128 then
        perform flowfabric._refuse('invalid_name', format('waitpoint key %s: a key is 1 to 128 bytes', flowfabric._shown(create_waitpoint.key)));
    end if;
    if create_waitpoint.expires_in_ms not between 1 and 2592000000 then
        perform flowfabric._refuse('invalid_time', format('expiry in %s ms: give 1 to 2 592 000 000', create_waitpoint.expires_in_ms));
    end if;
    select w.* into open_one from flowfabric.waitpoints w
    where w.partition = create_waitpoint.partition and w.execution = create_waitpoint.id and w.key = create_waitpoint.key and w.state <> 'closed';
    if open_one.expires_at <= now then
        perform flowfabric._close_one(open_one);
        open_one := null;
    end if;
    if open_one.id is not null then
        outcome := 'existing';
        waitpoint_id := open_one.id;
        token := flowfabric._waitpoint_token(open_one.partition, open_one.execution, open_one.id, open_one.kid);
        expires_at := open_one.expires_at;
        return;
    end if;
    outcome := 'created';
    expires_at := now + create_waitpoint.expires_in_ms * interval '1 ms';
    select m.id, m.token into waitpoint_id, token
    from flowfabric._mint_waitpoint(create_waitpoint.partition, create_waitpoint.id, create_waitpoint.key, 'pending', null, expires_at) m;
end $$;

-- Close a pending waitpoint that nobody suspended on in time.
--
--   moves    waitpoint pending → closed
--   emits    waitpoint_closed
create or replace function flowfabric._close_one(waitpoint flowfabric.waitpoints)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
    update flowfabric.waitpoints w set state = 'closed', closed_at = flowfabric.clock(), close_reason = 'never_committed', expires_at = null
    where w.partition = waitpoint.partition and w.execution = waitpoint.execution and w.id = waitpoint.id;
    perform flowfabric._append_about('waitpoint_closed', waitpoint.partition, waitpoint.execution, detail => jsonb_build_object(
        'waitpoint_id', waitpoint.id, 'key', waitpoint.key, 'reason', 'never_committed'));
end $$;

-- Close the pending waitpoints whose time is over.
--
--   moves    waitpoint pending → closed
--   locks    the waitpoints it closes; skips those that are locked
--   emits    waitpoint_closed
--   returns  how many were closed
create or replace function flowfabric.close_waitpoints(take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql as $$
#variable_conflict use_column
declare
    late flowfabric.waitpoints;
begin
    moved := 0;
    for late in
        select w.* from flowfabric.waitpoints w where w.state = 'pending' and w.expires_at <= flowfabric.clock()
        order by w.expires_at limit close_waitpoints.take offset close_waitpoints.passing for update skip locked
    loop
        perform flowfabric._close_one(late);
        moved := moved + 1;
    end loop;
end $$;
