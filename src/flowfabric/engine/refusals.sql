-- Errors: returned as values by batch calls, one per item, and raised by calls about a single thing.

-- Build an error as a value.
--
--   returns  {code, message, …fields}
create or replace function flowfabric._fault(code text, message text, fields jsonb default '{}')
returns jsonb
language sql immutable as $$
    select jsonb_build_object('code', _fault.code, 'message', _fault.message) || _fault.fields
$$;

-- Raise an error that was built as a value; does nothing for null. In the Postgres error the message is the code, the
-- detail is the sentence and the hint is the fields.
--
--   refuses  with the fault's code
create or replace function flowfabric._raise(fault jsonb)
returns void
language plpgsql as $$
begin
    if _raise.fault is not null then
        raise exception '%', _raise.fault ->> 'code' using
            errcode = 'FF' || flowfabric._family(_raise.fault ->> 'code'),
            detail = _raise.fault ->> 'message',
            hint = (_raise.fault - 'code' - 'message')::text;
    end if;
end $$;

-- Raise an error with a code and a message.
--
--   refuses  with the code given
create or replace function flowfabric._refuse(code text, message text, fields jsonb default '{}')
returns void
language sql as $$
    select flowfabric._raise(flowfabric._fault(_refuse.code, _refuse.message, _refuse.fields))
$$;

-- Return the family of an error code. A test compares this list with errors.py.
--
--   returns  the HTTP status
create or replace function flowfabric._family(code text)
returns text
language sql immutable as $$
    select case
        when _family.code in ('missing_token', 'invalid_token', 'token_expired', 'invalid_grant', 'wrong_lane')
            then '403'
        when _family.code in ('execution_not_found', 'flow_not_found', 'lane_not_found', 'budget_not_found',
                              'quota_not_found', 'waitpoint_not_found', 'schedule_not_found', 'reservation_not_found',
                              'step_not_found')
            then '404'
        when _family.code in ('execution_ended', 'execution_not_runnable', 'lane_draining', 'execution_not_terminal',
                              'key_conflict',
                              'max_replays_exhausted', 'instance_reassigned', 'cursor_expired',
                              'execution_not_suspended', 'target_not_signalable', 'waitpoint_closed',
                              'approval_digest_mismatch', 'waitpoint_not_pending', 'pending_waitpoint_expired',
                              'waitpoint_of_other_execution', 'another_key_active', 'rotation_conflict',
                              'quota_already_exists', 'budget_already_exists', 'schedule_already_exists',
                              'self_referencing_edge', 'cycle_detected', 'dependency_already_exists',
                              'stale_graph_revision', 'execution_already_in_flow', 'execution_already_started',
                              'edge_group_already_fixed', 'edge_group_settled', 'flow_already_terminal')
            then '409'
        when _family.code in ('lease_lost', 'execution_not_active', 'grant_expired') then '412'
        when _family.code in ('signal_limit_exceeded', 'too_many_steps', 'flow_too_large') then '429'
        when _family.code in ('no_active_key', 'row_locked') then '503'
        else '422'
    end
$$;

-- Build the error for data that exceeds its size limit.
--
--   refuses  payload_too_large, as a value
create or replace function flowfabric._oversize_fault(what text, size int, most int)
returns jsonb
language sql immutable as $$
    select flowfabric._fault('payload_too_large',
        format('the %s has %s bytes, more than the limit of %s; store it elsewhere and pass a reference',
               _oversize_fault.what, flowfabric._number(_oversize_fault.size),
               flowfabric._number(_oversize_fault.most)),
        jsonb_build_object('limit', _oversize_fault.most))
$$;
