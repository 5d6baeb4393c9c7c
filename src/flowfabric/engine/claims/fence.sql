-- The fence: lease id, epoch and attempt, sent with every call under a lease. Only this file checks them.

-- Check a fence against a ticket. The most informative fault comes first.
--
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, as a value
--   returns  the fault, or null if the fence is valid
create or replace function flowfabric._fence_fault(
    ticket flowfabric.tickets, lease_id uuid, epoch bigint, attempt int, now timestamptz)
returns jsonb
language sql stable as $$
    select case
        when num_nonnulls(_fence_fault.lease_id, _fence_fault.epoch, _fence_fault.attempt) = 0 then
            flowfabric._fault('fence_required', 'the fence is missing; pass lease_id, epoch and attempt')
        when num_nonnulls(_fence_fault.lease_id, _fence_fault.epoch, _fence_fault.attempt) < 3 then
            flowfabric._fault('partial_fence', 'the fence is incomplete; pass all of lease_id, epoch and attempt')
        when (t.lease_id, t.epoch, t.attempt)
             is distinct from (_fence_fault.lease_id, _fence_fault.epoch, _fence_fault.attempt) then
            flowfabric._fault('lease_lost', format(
                'epoch %s, attempt %s is not the latest claim of this execution; stop and report nothing',
                _fence_fault.epoch, _fence_fault.attempt), '{"cause": "superseded"}')
        when t.phase <> 'active' and t.attempt_state = 'pending_reclaim_attempt' then
            flowfabric._fault('lease_lost', format('the lease is %s; stop and report nothing', t.lease_end),
                              jsonb_build_object('cause', t.lease_end))
        when t.phase <> 'active' then
            flowfabric._fault(
                'execution_not_active', format('the execution is %s, not active; stop and report nothing', t.phase),
                jsonb_build_object('phase', t.phase, 'eligibility', t.eligibility, 'epoch', t.epoch,
                                   'attempt', t.attempt))
        when t.expires_at <= _fence_fault.now then
            flowfabric._fault('lease_lost', format(
                'the lease expired at %s; stop and report nothing', flowfabric._moment(t.expires_at)),
                '{"cause": "expired"}')
    end
    from (select (_fence_fault.ticket).*) t
$$;

-- The fault for an execution without a ticket. A worker that finds its own epoch and attempt in it knows that its first
-- call took effect. Volatile, because it must see the end that a lock has just waited for.
--
--   refuses  execution_not_active, as a value
create or replace function flowfabric._ended_fault(partition int, id uuid)
returns jsonb
language plpgsql as $$
begin
    return coalesce(
        (select flowfabric._fault(
             'execution_not_active', format('execution %s has ended: %s; stop and report nothing',
                                            flowfabric._id(e.partition, e.id), flowfabric._ended_state(e.outcome)),
             jsonb_build_object('phase', 'terminal', 'outcome', e.outcome, 'epoch', e.epoch, 'attempt', e.attempt))
         from flowfabric.executions e
         where e.partition = _ended_fault.partition and e.id = _ended_fault.id and e.outcome is not null),
        flowfabric._missing_fault(_ended_fault.partition, _ended_fault.id));
end $$;

-- The fault for an execution that another transaction has locked, for a call that does not wait.
--
--   refuses  row_locked, as a value
create or replace function flowfabric._locked_fault(partition int, id uuid)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('row_locked', format(
        'execution %s, or the flow it is in, is locked by another transaction; call again when that has ended',
        flowfabric._id(_locked_fault.partition, _locked_fault.id)))
$$;

-- Check a fence against a ticket that this transaction has locked, or against one that another has locked, as it was
-- before: an expired lease may be in the middle of its renewal then, and the next call checks that. Volatile, because
-- it must see what has been committed since the caller's statement began.
--
--   returns  the fault, or null: the fence is valid, or that depends on the other transaction
create or replace function flowfabric._fault_of(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, is_ours boolean)
returns jsonb
language plpgsql as $$
declare
    ticket flowfabric.tickets;
begin
    select t.* into ticket from flowfabric.tickets t
    where t.partition = _fault_of.partition and t.id = _fault_of.id;
    if not found then
        return flowfabric._ended_fault(_fault_of.partition, _fault_of.id);
    end if;
    return flowfabric._fence_fault(ticket, _fault_of.lease_id, _fault_of.epoch, _fault_of.attempt,
                                   case when _fault_of.is_ours then flowfabric.clock() else '-infinity' end);
end $$;

-- Lock what the ends of the items of a batch need, without waiting, and take the items out of their rounds for which
-- that is not possible: they get round 0. Items that are not in a flow need only their ticket, and are not locked here.
--
--   returns  the round numbers
create or replace function flowfabric._free_rounds(
    rounds int[], partitions int[], ids uuid[], flows uuid[], wins boolean)
returns int[]
language plpgsql as $$
declare
    members record := flowfabric._members(_free_rounds.partitions, _free_rounds.ids, _free_rounds.flows);
    free uuid[];
begin
    if members.ids is null then
        return _free_rounds.rounds;
    end if;
    free := flowfabric._try_members(members.partitions::smallint[], members.ids, members.flows, _free_rounds.wins);
    return array(
        select case when x.id = any (members.ids) and not x.id = any (free) then 0 else x.round end
        from unnest(_free_rounds.ids, _free_rounds.rounds) with ordinality as x (id, round, item) order by x.item);
end $$;

-- The answers of the items that are in no round, because what they need is locked.
--
--   returns  per item its refusal
create or replace function flowfabric._locked_items(rounds int[], partitions int[], ids uuid[])
returns table (item int, outcome text, refusal text, detail text)
language sql immutable as $$
    select x.item::int, null, f.fault ->> 'code', (f.fault - 'code')::text
    from unnest(_locked_items.rounds, _locked_items.partitions, _locked_items.ids)
         with ordinality as x (round, partition, id, item)
    cross join lateral (select flowfabric._locked_fault(x.partition, x.id)) f (fault)
    where x.round = 0
$$;

-- Assign each item of a batch to a round: the first item about an execution to round 1, the second to round 2, which
-- sees the effect of the first. So a batch answers as if its items had been sent one by one.
--
--   returns  a round number per item, from 1
create or replace function flowfabric._rounds(partitions int[], ids uuid[])
returns int[]
language plpgsql immutable as $$
begin
    if cardinality(_rounds.ids) = 1 then
        return '{1}';
    elsif (select count(distinct i) from unnest(_rounds.ids) i) = cardinality(_rounds.ids) then
        return array_fill(1, array[cardinality(_rounds.ids)]);
    end if;
    return array(
        select r.round::int from (
            select x.item, row_number() over (partition by x.partition, x.id order by x.item) as round
            from unnest(_rounds.partitions, _rounds.ids) with ordinality as x (partition, id, item)) r
        order by r.item);
end $$;

-- Lock the tickets of one round of a batch of fenced calls, and check each fence: by the clock after the last lock, so
-- that a call that waited longer than its lease is refused. Without `wait`, an item whose ticket another transaction
-- has locked is refused, so that the other items do not wait for it.
--
--   locks    the tickets, in key order; without `wait`, skips locked ones
--   returns  per item of the round the ticket's ctid, or the fault; read the ticket in a new statement, because a
--            statement that began before the lock does not see what the lock waited for
create or replace function flowfabric._fenced(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], rounds int[], round int,
    wait boolean default true)
returns table (item int, place tid, fault jsonb)
language plpgsql rows 500 as $$
begin
    if _fenced.wait then
        perform from (
            select x.partition, x.id from unnest(_fenced.partitions, _fenced.ids, _fenced.rounds)
                                          as x (partition, id, round)
            where x.round = _fenced.round
            order by x.partition, x.id) x
        cross join lateral (
            select from flowfabric.tickets t where t.partition = x.partition and t.id = x.id for update) t;
    end if;
    return query
    select f.item, f.place,
           case when f.place is null and f.fault is null then
               flowfabric._locked_fault(_fenced.partitions[f.item], _fenced.ids[f.item]) else f.fault end
    from flowfabric._try_fenced(
        _fenced.partitions, _fenced.ids, _fenced.lease_ids, _fenced.epochs, _fenced.attempts, _fenced.rounds,
        _fenced.round, flowfabric.clock()) f;
end $$;

-- Lock those tickets of one round of a batch of fenced calls that nobody else has locked, and check each fence. Never
-- waits.
--
--   locks    the tickets, in key order (skips locked ones)
--   returns  per item of the round the ticket's ctid, or the fault; neither for a ticket that another transaction has
--            locked
create or replace function flowfabric._try_fenced(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], rounds int[], round int,
    now timestamptz)
returns table (item int, place tid, fault jsonb)
language plpgsql rows 500 as $$
begin
    return query
    select x.item::int, t.place,
           case when t.is_held is not true then flowfabric._fault_of(
               x.partition, x.id, x.lease_id, x.epoch, x.attempt, t.place is not null) end
    from (
        select x.* from unnest(_try_fenced.partitions, _try_fenced.ids, _try_fenced.lease_ids, _try_fenced.epochs,
                               _try_fenced.attempts, _try_fenced.rounds)
             with ordinality as x (partition, id, lease_id, epoch, attempt, round, item)
        where x.round = _try_fenced.round
        order by x.partition, x.id) x
    left join lateral (
        select t.ctid as place,
               t.lease_id = x.lease_id and t.epoch = x.epoch and t.attempt = x.attempt and t.phase = 'active'
                   and t.expires_at > _try_fenced.now as is_held
        from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.id
        for update skip locked) t on true;
end $$;

-- Lock the ticket of one fenced call, and check its fence.
--
--   locks    the ticket
--   returns  the ticket, and the fault when the fence is not valid
create or replace function flowfabric._lock_fenced(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, out ticket flowfabric.tickets, out fault jsonb)
language plpgsql as $$
declare
    now timestamptz;
begin
    select t.* into ticket from flowfabric.tickets t
    where t.partition = _lock_fenced.partition and t.id = _lock_fenced.id for update;
    now := flowfabric.clock();
    if not found then
        fault := flowfabric._ended_fault(_lock_fenced.partition, _lock_fenced.id);
    elsif (ticket.lease_id = _lock_fenced.lease_id and ticket.epoch = _lock_fenced.epoch
           and ticket.attempt = _lock_fenced.attempt and ticket.phase = 'active'
           and ticket.expires_at > now) is not true then
        fault := flowfabric._fence_fault(
            ticket, _lock_fenced.lease_id, _lock_fenced.epoch, _lock_fenced.attempt, now);
    end if;
end $$;
