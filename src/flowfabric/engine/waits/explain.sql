-- Explain waits: what would satisfy a wait, what has arrived so far, and what happens at its timeout.

-- Describe what a condition waits for.
--
--   returns  part of a sentence
create or replace function flowfabric._condition_words(condition jsonb)
returns text
language plpgsql immutable as $$
declare
    keys text := array_to_string(flowfabric._named_keys(_condition_words.condition), ', ');
begin
    return case _condition_words.condition ->> 'kind'
        when 'operator_only' then 'waits for an operator'
        when 'timeout_only' then 'waits for its timeout'
        when 'single' then format(
            'waits for %s on waitpoint %s', coalesce('signal ' || (_condition_words.condition ->> 'name'), 'a signal'),
            keys)
        when 'count' then format(
            'waits for %s %s on waitpoint %s', _condition_words.condition ->> 'n',
            replace(_condition_words.condition ->> 'of', '_', ' '), keys)
        else format(
            'waits for %s of %s conditions on waitpoints %s',
            case _condition_words.condition ->> 'kind' when 'any_of' then 'one' else 'all' end,
            jsonb_array_length(_condition_words.condition -> 'members'), keys)
    end;
end $$;

-- Describe the condition of a wait, and the approvals that have arrived so far.
--
--   returns  part of a sentence
create or replace function flowfabric._wait_words(wait flowfabric.suspensions)
returns text
language plpgsql stable as $$
begin
    return case
        when wait.is_sleep then format('sleeps until %s', flowfabric._moment(wait.timeout_at))
        when wait.reason_code = 'waiting_for_approval' and wait.condition #>> '{members,0,kind}' = 'count' then
            format('has %s of %s approvals on waitpoint %s',
                   cardinality((flowfabric._judge(
                       wait.condition #> '{members,0}', flowfabric._arrived_signals(_wait_words.wait))).counted),
                   wait.condition #>> '{members,0,n}', array_to_string(flowfabric._named_keys(wait.condition), ', '))
        else flowfabric._condition_words(wait.condition) end;
end $$;

-- Describe what several waits of one suspension wait for: the number of children, and the first three of the others.
--
--   returns  part of a sentence
create or replace function flowfabric._together_words(asked flowfabric.suspensions)
returns text
language plpgsql stable as $$
#variable_conflict use_column
declare
    left_over record;
begin
    select count(*) filter (where w.child is not null) as children,
           min(flowfabric._id(w.child_partition, w.child)) as child, count(*) filter (where w.child is null) as others,
           (array_agg(flowfabric._wait_words(w) order by w.name, w.occurrence)
                filter (where w.child is null))[:3] as words
    into left_over from flowfabric._waits_of(_together_words.asked) w;
    return concat_ws(', ',
        case left_over.children when 0 then null when 1 then 'waits for its child ' || left_over.child
                                else format('waits for %s children', left_over.children) end,
        array_to_string(left_over.words, ', '),
        case when left_over.others > 3 then format('and %s more waits', left_over.others - 3) end);
end $$;

-- Explain what a suspended execution waits for.
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
    if asked.requested_by = 'budget' then
        return flowfabric._explain_budget_wait(asked, flowfabric.clock());
    end if;
    kind := asked.condition ->> 'kind';
    words := case
        when kind = 'together' then flowfabric._together_words(asked)
        when ticket.reason = 'paused_by_operator' and asked.reason_code <> 'waiting_for_approval'
            then 'waits for an operator; resume releases it'
        else flowfabric._wait_words(asked) end;
    asked.timeout_at := (select min(w.timeout_at) from flowfabric._waits_of(asked) w);
    if asked.timeout_at is not null then
        words := format(
            '%s; at %s it times out and %s', words, flowfabric._moment(asked.timeout_at), case asked.timeout_behavior
                when 'auto_resume' then 'resumes' when 'escalate' then 'waits for an operator'
                when 'cancel' then 'is cancelled' when 'expire' then 'expires' else 'fails' end);
    end if;
    return flowfabric._explanation(
        words, case kind when 'operator_only' then 'operator' when 'timeout_only' then 'time' else 'signal' end,
        asked.suspended_at,
        case when kind = 'timeout_only' then 'time' when kind = 'operator_only' then 'resume' else 'deliver_signal' end,
        asked.timeout_at);
end $$;

-- The suspension an execution is in, as `describe` shows it.
--
--   returns  {suspension_id, reason_code, suspended_at, timeout_at?, waitpoint_keys, about_digest?}, or null if it is
--            not suspended
create or replace function flowfabric._suspension_summary(ticket flowfabric.tickets)
returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'suspension_id', s.id, 'reason_code', s.reason_code, 'suspended_at', s.suspended_at,
        'timeout_at', (select min(p.timeout_at) from flowfabric._waits_of(s) p), 'timeout_behavior', s.timeout_behavior,
        'about_digest', encode(s.about_digest, 'hex'),
        'waitpoint_keys', (
            select coalesce(jsonb_agg(w.key order by w.key), '[]') from flowfabric._waits_of(s) p
            cross join lateral (select w.key from flowfabric.waitpoints w where w.suspension = p.id offset 0) w)))
    from flowfabric.suspensions s
    where (_suspension_summary.ticket).phase = 'suspended' and s.partition = (_suspension_summary.ticket).partition
      and s.execution = (_suspension_summary.ticket).id and s.id = (_suspension_summary.ticket).suspension
$$;
