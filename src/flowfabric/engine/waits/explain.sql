-- Explaining a wait: what would satisfy it, what has come so far, and what happens when nothing more does.

-- What a condition asks for, in words.
--
--   returns  part of a sentence
create or replace function flowfabric._condition_words(condition jsonb)
returns text
language plpgsql immutable as $$
declare
    keys text := array_to_string(flowfabric._named_keys(condition), ', ');
begin
    return case condition ->> 'kind'
        when 'operator_only' then 'waits for an operator'
        when 'timeout_only' then 'waits for its time'
        when 'single' then format('waits for %s on waitpoint %s', coalesce('signal ' || (condition ->> 'name'), 'a signal'), keys)
        when 'count' then format('waits for %s %s on waitpoint %s', condition ->> 'n', replace(condition ->> 'of', '_', ' '), keys)
        else format('waits for %s of %s conditions on waitpoints %s', case condition ->> 'kind' when 'any_of' then 'one' else 'all' end,
                    jsonb_array_length(condition -> 'members'), keys)
    end;
end $$;

-- What a suspended execution waits for.
--
--   returns  the explanation
create or replace function flowfabric._explain_suspended(ticket flowfabric.tickets)
returns jsonb
language plpgsql stable as $$
#variable_conflict use_column
declare
    asked flowfabric.suspensions;
    kind text;
    words text;
begin
    select s.* into asked from flowfabric.suspensions s
    where s.partition = ticket.partition and s.execution = ticket.id and s.id = ticket.suspension;
    kind := asked.condition ->> 'kind';
    words := case
        when asked.reason_code = 'waiting_for_approval' and asked.condition #>> '{members,0,kind}' = 'count' then
            format('has %s of %s approvals on waitpoint %s', cardinality((flowfabric._judge(asked.condition #> '{members,0}', flowfabric._arrived(asked))).counted),
                   asked.condition #>> '{members,0,n}', array_to_string(flowfabric._named_keys(asked.condition), ', '))
        when ticket.reason = 'paused_by_operator' then 'waits for an operator; resume releases it'
        else flowfabric._condition_words(asked.condition) end;
    if asked.timeout_at is not null then
        words := format('%s; at %s it will %s', words, flowfabric._moment(asked.timeout_at), case asked.timeout_behavior
            when 'auto_resume' then 'go on without' when 'escalate' then 'be left to an operator' when 'cancel' then 'be cancelled' else asked.timeout_behavior end);
    end if;
    return flowfabric._explanation(
        words, case kind when 'operator_only' then 'operator' when 'timeout_only' then 'time' else 'signal' end, asked.suspended_at,
        case when kind = 'timeout_only' then 'time' when kind = 'operator_only' then 'resume' else 'deliver_signal' end, asked.timeout_at);
end $$;

-- What a description shows of the suspension an execution is in.
--
--   returns  {suspension_id, reason_code, suspended_at, timeout_at?, waitpoint_keys, about_digest?}, or null when it is in none
create or replace function flowfabric._suspension_summary(ticket flowfabric.tickets)
returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'suspension_id', s.id, 'reason_code', s.reason_code, 'suspended_at', s.suspended_at, 'timeout_at', s.timeout_at,
        'timeout_behavior', s.timeout_behavior, 'about_digest', encode(s.about_digest, 'hex'),
        'waitpoint_keys', (select coalesce(jsonb_agg(w.key order by w.key), '[]') from flowfabric.waitpoints w
                           where w.suspension = s.id)))
    from flowfabric.suspensions s
    where (ticket).phase = 'suspended' and s.partition = (ticket).partition and s.execution = (ticket).id and s.id = (ticket).suspension
$$;
