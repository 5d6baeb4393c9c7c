-- Explain waits: what would satisfy a wait, what has arrived so far, and what happens at its timeout.

-- Describe what a wait waits for, and the approvals that have arrived so far.
--
--   returns  part of a sentence
create or replace function flowfabric._wait_words(wait flowfabric.waits)
returns text
language plpgsql stable as $$
declare
    keys text := array_to_string(flowfabric._named_keys(wait.condition), ', ');
begin
    return case
        when wait.is_sleep then format('sleeps until %s', flowfabric._moment(wait.timeout_at))
        when wait.reason_code = 'waiting_for_approval' and wait.condition #>> '{members,0,kind}' = 'count' then
            format('has %s of %s approvals on waitpoint %s',
                   cardinality(flowfabric._counted_signals(
                       wait.condition #> '{members,0}', flowfabric._signals_to_judge(_wait_words.wait))),
                   wait.condition #>> '{members,0,n}', keys)
        when wait.condition ->> 'kind' = 'operator_only' then 'waits for an operator'
        when wait.condition ->> 'kind' = 'timeout_only' then 'waits for its timeout'
        when wait.condition ->> 'kind' = 'single' then format(
            'waits for %s on waitpoint %s', coalesce('signal ' || (wait.condition ->> 'name'), 'a signal'), keys)
        when wait.condition ->> 'kind' = 'count' then format(
            'waits for %s %s on waitpoint %s', wait.condition ->> 'n', replace(wait.condition ->> 'of', '_', ' '), keys)
        else format(
            'waits for %s of %s conditions on waitpoints %s',
            case wait.condition ->> 'kind' when 'any_of' then 'one' else 'all' end,
            jsonb_array_length(wait.condition -> 'members'), keys) end;
end $$;

-- Explain what a suspended execution waits for: of several waits, the number of children and the first three of the
-- others.
create or replace function flowfabric._explain_suspended(ticket flowfabric.tickets)
returns jsonb
language plpgsql stable as $$
declare
    waits flowfabric.waits[] := array(
        select w from flowfabric.waits w
        where w.partition = ticket.partition and w.execution = ticket.id and w.ended_at is null
          and w.suspension = ticket.suspension);
    summary record := flowfabric._open_waits(ticket.partition, ticket.id, ticket.suspension);
    budget flowfabric.budget_waits;
    kind text;
    words text;
begin
    if waits = '{}' then
        select b.* into budget from flowfabric.budget_waits b
        where b.partition = ticket.partition and b.execution = ticket.id;
        return flowfabric._explain_budget_wait(budget, flowfabric.clock());
    end if;
    kind := case when cardinality(waits) = 1 then (waits[1]).condition ->> 'kind' end;
    words := case
        when cardinality(waits) > 1 or (waits[1]).child is not null then (
            select concat_ws(', ',
                case w.children when 0 then null when 1 then 'waits for its child ' || w.child
                                else format('waits for %s children', w.children) end,
                array_to_string(w.words, ', '),
                case when w.others > 3 then format('and %s more waits', w.others - 3) end)
            from (select count(*) filter (where w.child is not null) as children,
                         min(flowfabric._id(w.child_partition, w.child)) as child,
                         count(*) filter (where w.child is null) as others,
                         (array_agg(flowfabric._wait_words(w) order by w.name, w.occurrence)
                              filter (where w.child is null))[:3] as words
                  from unnest(waits) w) w)
        when ticket.reason = 'paused_by_operator' and summary.reason_code <> 'waiting_for_approval'
            then 'waits for an operator; resume releases it'
        else flowfabric._wait_words(waits[1]) end;
    if summary.timeout_at is not null then
        words := format(
            '%s; at %s it times out and %s', words, flowfabric._moment(summary.timeout_at),
            case summary.timeout_behavior
                when 'auto_resume' then 'resumes' when 'escalate' then 'waits for an operator'
                when 'cancel' then 'is cancelled' when 'expire' then 'expires' else 'fails' end);
    end if;
    return flowfabric._explanation(
        words, case kind when 'operator_only' then 'operator' when 'timeout_only' then 'time' else 'signal' end,
        ticket.suspended_at,
        case when kind = 'timeout_only' then 'time' when kind = 'operator_only' then 'resume' else 'deliver_signal' end,
        summary.timeout_at);
end $$;

-- The suspension an execution is in, as `describe` shows it.
--
--   returns  {suspension_id, reason_code, suspended_at, timeout_at?, waitpoint_keys, about_digest?}, or null if it is
--            not suspended
create or replace function flowfabric._suspension_summary(ticket flowfabric.tickets)
returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'suspension_id', (_suspension_summary.ticket).suspension, 'reason_code', w.reason_code,
        'suspended_at', (_suspension_summary.ticket).suspended_at, 'timeout_at', w.timeout_at,
        'timeout_behavior', w.timeout_behavior, 'about_digest', encode(w.about_digest, 'hex'),
        'waitpoint_keys', w.keys))
    from flowfabric._open_waits((_suspension_summary.ticket).partition, (_suspension_summary.ticket).id,
                                (_suspension_summary.ticket).suspension) w
    where (_suspension_summary.ticket).phase = 'suspended'
$$;
