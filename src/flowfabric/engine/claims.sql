-- Claims: leases, and the fence that every call under a lease shows.

-- Whether a fence is the one that counts for a ticket, in the order of checks that tells the caller most.
--
--   refuses  fence_required, partial_fence, lease_lost, execution_not_active, as a value
--   returns  the fault, or null when the fence holds
create or replace function flowfabric._fence_fault(
    ticket flowfabric.tickets, lease_id uuid, epoch bigint, attempt int, now timestamptz)
returns jsonb
language sql stable as $$
    select case
        when num_nonnulls(lease_id, epoch, attempt) = 0 then
            flowfabric._fault('fence_required', 'the execution is leased: show lease id, epoch and attempt, or act as operator')
        when num_nonnulls(lease_id, epoch, attempt) < 3 then
            flowfabric._fault('partial_fence', 'lease id, epoch and attempt belong together; send all three')
        when ((ticket).lease_id, (ticket).epoch, (ticket).attempt) is distinct from (lease_id, epoch, attempt) then
            flowfabric._fault('lease_lost', format('epoch %s attempt %s is not the latest claim of this execution; stop and report nothing',
                                                   epoch, attempt), '{"cause": "superseded"}')
        when (ticket).expires_at <= now then
            flowfabric._fault('lease_lost', format('the lease lapsed at %s; stop and report nothing', flowfabric._moment((ticket).expires_at)),
                              '{"cause": "expired"}')
    end
$$;
