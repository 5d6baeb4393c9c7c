-- Steps: named, saved results inside a handler, and the journal a run begins with.

-- Why a step cannot be saved.
--
--   refuses  invalid_name, payload_too_large, too_many_steps, as a value
--   returns  the fault, or null when it can
create or replace function flowfabric._step_fault(partition int, execution uuid, name text, occurrence int, bytes int, most int)
returns jsonb
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
begin
    if coalesce(octet_length(_step_fault.name), 0) not between 1 and 128 or coalesce(_step_fault.occurrence, 0) < 1 then
        return flowfabric._fault('invalid_name', format('step %s, occurrence %s: a name is 1 to 128 bytes, occurrences count from 1',
                                                        flowfabric._shown(_step_fault.name), _step_fault.occurrence));
    end if;
    if bytes > most then
        return flowfabric._oversize_fault('result of a step', bytes, most);
    end if;
    if (select count(*) from (select from flowfabric.steps s
            where s.partition = _step_fault.partition and s.execution = _step_fault.execution limit 10000) x) >= 10000 then
        return flowfabric._fault('too_many_steps', 'the execution has 10 000 steps, as many as it may have; split it into children');
    end if;
    return null;
end $$;

-- Keep the results of steps, many in one call. The first one of a name and occurrence counts.
--
--   locks    the tickets, in key order
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found, invalid_name,
--            payload_too_large, too_many_steps
--   returns  per item 'saved', 'duplicate' {result, encoding} of the first, or its refusal
create or replace function flowfabric.save_step(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], names text[], occurrences int[],
    results bytea[] default null, encodings text[] default null, result_limit int default 1048576)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    now timestamptz := flowfabric.clock();
    judged record;
begin
    select array_agg(x.item) as items, array_agg(x.fault) as faults into judged from (
        select f.item, coalesce(f.fault, flowfabric._step_fault(save_step.partitions[f.item], save_step.ids[f.item], save_step.names[f.item],
            save_step.occurrences[f.item], octet_length(save_step.results[f.item]), save_step.result_limit)) as fault
        from flowfabric._fenced(save_step.partitions, save_step.ids, save_step.lease_ids, save_step.epochs, save_step.attempts,
            array_fill(1, array[cardinality(save_step.ids)]), 1, now) f) x;

    return query
    with saved as (
        insert into flowfabric.steps (partition, execution, name, occurrence, kind, result, encoding, at)
        select save_step.partitions[i.item], save_step.ids[i.item], save_step.names[i.item], save_step.occurrences[i.item], 'step',
               save_step.results[i.item], save_step.encodings[i.item], now
        from unnest(judged.items, judged.faults) as i (item, fault) where i.fault is null
        order by save_step.partitions[i.item], save_step.ids[i.item], save_step.names[i.item], save_step.occurrences[i.item], i.item
        on conflict do nothing
        returning partition, execution, name, occurrence
    ), fresh as (
        select array_agg((s.partition, s.execution, s.name, s.occurrence)::text) as keys from saved s
    )
    select i.item, case when i.fault is not null then null
                        when not i.again and (save_step.partitions[i.item]::smallint, save_step.ids[i.item], save_step.names[i.item],
                              save_step.occurrences[i.item])::text = any (f.keys) then 'saved'
                        else 'duplicate' end,
           i.fault ->> 'code', (i.fault - 'code')::text
    from (select j.item, j.fault, row_number() over (partition by save_step.partitions[j.item], save_step.ids[j.item], save_step.names[j.item],
                                                     save_step.occurrences[j.item], j.fault is null order by j.item) > 1 as again
          from unnest(judged.items, judged.faults) as j (item, fault)) i
    cross join fresh f;
end $$;

-- What a handler finds when it begins again from the top: saved steps, sleeps, and waits that have ended; by name and
-- occurrence, behind a place. Stops at a megabyte of results.
--
--   returns  {entries: [{kind, name, occurrence, …}], more}
create or replace function flowfabric.read_journal(partition int, id uuid, after_name text default '', after_occurrence int default 0)
returns text
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
declare
    journal jsonb;
begin
    with entries as (
        select s.name, s.occurrence, octet_length(s.result) as bytes, jsonb_strip_nulls(jsonb_build_object(
            'kind', s.kind, 'name', s.name, 'occurrence', s.occurrence, 'encoding', coalesce(s.encoding, 'json'),
            'result', translate(encode(s.result, 'base64'), E'\n', ''), 'due_at', s.due_at)) as entry
        from flowfabric.steps s
        where s.partition = read_journal.partition and s.execution = read_journal.id
          and (s.name, s.occurrence) > (read_journal.after_name, read_journal.after_occurrence)
        union all
        select s.name, s.occurrence, 1000, jsonb_build_object(
            'kind', 'wait', 'name', s.name, 'occurrence', s.occurrence, 'by', s.ended_by,
            'signals', flowfabric._signals_text(s.partition, s.execution, s.satisfiers)::jsonb)
        from flowfabric.suspensions s
        where s.partition = read_journal.partition and s.execution = read_journal.id and s.ended_at is not null and s.name is not null
          and (s.name collate "C", s.occurrence) > (read_journal.after_name, read_journal.after_occurrence)
    ), measured as (
        select e.entry, sum(coalesce(e.bytes, 0)) over (order by e.name collate "C", e.occurrence) as size,
               row_number() over (order by e.name collate "C", e.occurrence) as place, count(*) over () as total
        from entries e
    )
    select jsonb_build_object(
        'entries', coalesce(jsonb_agg(m.entry order by m.place) filter (where m.size <= 1048576 or m.place = 1), '[]'),
        'more', coalesce(bool_or(m.size > 1048576 and m.place > 1), false))
    into journal from measured m;
    return journal::text;
end $$;

-- Forget what a handler has done, so that it runs from the beginning.
create or replace function flowfabric._forget_steps(partition int, id uuid)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
    delete from flowfabric.steps s where s.partition = _forget_steps.partition and s.execution = _forget_steps.id;
    update flowfabric.suspensions s set name = null, occurrence = null
    where s.partition = _forget_steps.partition and s.execution = _forget_steps.id and s.name is not null;
end $$;
