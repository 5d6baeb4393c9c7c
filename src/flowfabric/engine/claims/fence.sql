-- The fence: what every call under a lease shows, and the one place where it is judged.

-- Whether a fence is the one that counts for a ticket. The order of the checks tells the caller most.
--
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, as a value
--   returns  the fault, or null when the fence holds
create or replace function flowfabric._fence_fault(
    ticket flowfabric.tickets, lease_id uuid, epoch bigint, attempt int, now timestamptz)
returns jsonb
language sql stable as $$
    select case
        when num_nonnulls(lease_id, epoch, attempt) = 0 then
            flowfabric._fault('fence_required', 'show the lease: lease id, epoch and attempt')
        when num_nonnulls(lease_id, epoch, attempt) < 3 then
            flowfabric._fault('partial_fence', 'lease id, epoch and attempt belong together; send all three')
        when ((ticket).lease_id, (ticket).epoch, (ticket).attempt) is distinct from (lease_id, epoch, attempt) then
            flowfabric._fault('lease_lost', format('epoch %s, attempt %s is not the latest claim; stop and report nothing', epoch, attempt),
                              '{"cause": "superseded"}')
        when (ticket).phase <> 'active' and (ticket).attempt_state = 'pending_reclaim_attempt' then
            flowfabric._fault('lease_lost', format('the lease was taken back (%s); stop and report nothing', (ticket).lease_end),
                              jsonb_build_object('cause', (ticket).lease_end))
        when (ticket).phase <> 'active' then
            flowfabric._fault('execution_not_active', format('the execution is %s: this lease was given up', (ticket).phase),
                              jsonb_build_object('phase', (ticket).phase, 'eligibility', (ticket).eligibility,
                                                 'epoch', (ticket).epoch, 'attempt', (ticket).attempt))
        when (ticket).expires_at <= now then
            flowfabric._fault('lease_lost', format('the lease lapsed at %s; stop and report nothing', flowfabric._moment((ticket).expires_at)),
                              '{"cause": "expired"}')
    end
$$;

-- Whether a fence is the one that counts for the ticket at a place, which the caller holds.
--
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, as a value
--   returns  the fault, or null when the fence holds
create or replace function flowfabric._fault_at(place tid, lease_id uuid, epoch bigint, attempt int, now timestamptz)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
begin
    return (select flowfabric._fence_fault(t, _fault_at.lease_id, _fault_at.epoch, _fault_at.attempt, _fault_at.now)
            from flowfabric.tickets t where t.ctid = _fault_at.place);
end $$;

-- What to tell a caller whose execution has no ticket. A worker that finds its own epoch and attempt here knows that its
-- first call counted. Volatile: it must see the end that a lock has just waited for.
--
--   refuses  execution_not_found, execution_not_active, as a value
--   returns  the fault
create or replace function flowfabric._gone_fault(partition int, id uuid)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
begin
    return coalesce(
        (select flowfabric._fault('execution_not_active', format('the execution has ended: %s', flowfabric._ended_state(e.outcome)),
             jsonb_build_object('phase', 'terminal', 'outcome', e.outcome, 'epoch', e.epoch, 'attempt', e.attempt))
         from flowfabric.executions e
         where e.partition = _gone_fault.partition and e.id = _gone_fault.id and e.outcome is not null),
        flowfabric._fault('execution_not_found', format(
            'no execution %s; it was never submitted here, or retention has removed it', flowfabric._id(_gone_fault.partition, _gone_fault.id))));
end $$;

-- In which round each item of a batch is dealt with: the first about an execution in the first, the second in the second,
-- when the first has taken effect. So a batch answers as if its items had been sent one after the other.
--
--   returns  a number per item, from 1
create or replace function flowfabric._rounds(partitions int[], ids uuid[])
returns int[]
language plpgsql immutable as $$
begin
    if cardinality(ids) = 1 then
        return '{1}';
    elsif (select count(distinct i) from unnest(_rounds.ids) i) = cardinality(ids) then
        return array_fill(1, array[cardinality(ids)]);
    end if;
    return array(
        select r.round::int from (
            select x.item, row_number() over (partition by x.partition, x.id order by x.item) as round
            from unnest(_rounds.partitions, _rounds.ids) with ordinality as x (partition, id, item)) r
        order by r.item);
end $$;

-- Lock the tickets that one round of a batch of calls under leases is about, and judge each fence.
--
--   locks    the tickets, in key order
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, as a value
--   returns  per item of the round the ticket's place, or the fault; read it with a statement of its own, since one that
--            began before the lock does not see what the lock waited for
create or replace function flowfabric._fenced(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], rounds int[], round int, now timestamptz)
returns table (item int, place tid, fault jsonb)
language plpgsql rows 500 as $$
#variable_conflict use_column
begin
    return query
    select x.item::int, t.place,
           case when t.is_held then null when t.place is null then flowfabric._gone_fault(x.partition, x.id)
                else flowfabric._fault_at(t.place, x.lease_id, x.epoch, x.attempt, _fenced.now) end
    from (
        select x.* from unnest(_fenced.partitions, _fenced.ids, _fenced.lease_ids, _fenced.epochs, _fenced.attempts, _fenced.rounds)
             with ordinality as x (partition, id, lease_id, epoch, attempt, round, item)
        where x.round = _fenced.round
        order by x.partition, x.id) x
    left join lateral (
        select t.ctid as place,
               t.lease_id = x.lease_id and t.epoch = x.epoch and t.attempt = x.attempt and t.phase = 'active' and t.expires_at > _fenced.now as is_held
        from flowfabric.tickets t
        where t.partition = x.partition and t.id = x.id
        for update) t on true;
end $$;

-- Lock the ticket of one call under a lease, and judge its fence.
--
--   locks    the ticket
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, as a value
--   returns  the ticket, and the fault when the fence does not hold
create or replace function flowfabric._lock_fenced(
    partition int, id uuid, lease_id uuid, epoch bigint, attempt int, now timestamptz, out ticket flowfabric.tickets, out fault jsonb)
language plpgsql as $$
#variable_conflict use_column
begin
    select t.* into ticket from flowfabric.tickets t
    where t.partition = _lock_fenced.partition and t.id = _lock_fenced.id for update;
    if not found then
        fault := flowfabric._gone_fault(_lock_fenced.partition, _lock_fenced.id);
    elsif ticket.lease_id = lease_id and ticket.epoch = epoch and ticket.attempt = attempt and ticket.phase = 'active' and ticket.expires_at > now then
        fault := null;
    else
        fault := flowfabric._fence_fault(ticket, lease_id, epoch, attempt, now);
    end if;
end $$;
