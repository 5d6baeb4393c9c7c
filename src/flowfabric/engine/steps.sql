-- Steps: named results that a handler saves, and the journal that a run reads at its start.

-- Build the error for an execution that has no room for another step.
--
--   refuses  too_many_steps, as a value
create or replace function flowfabric._too_many_steps_fault()
returns jsonb
language sql immutable as $$
    select flowfabric._fault('too_many_steps',
        'the execution has reached its limit of 10,000 steps; split it into several executions')
$$;

-- Check a step, regardless of the steps already saved.
--
--   refuses  invalid_name, as a value
--   returns  the fault, or null if the step is valid
create or replace function flowfabric._step_fault(name text, occurrence int, bytes int, most int)
returns jsonb
language sql stable as $$
    select case
        when coalesce(octet_length(_step_fault.name), 0) not between 1 and 128
             or coalesce(_step_fault.occurrence, 0) < 1 then
            flowfabric._fault('invalid_name',
                format('step %s, occurrence %s is invalid; use a name of 1 to 128 bytes and an occurrence from 1',
                       flowfabric._shown(_step_fault.name), _step_fault.occurrence))
        when _step_fault.bytes > _step_fault.most then
            flowfabric._oversize_fault('result of a step', _step_fault.bytes, _step_fault.most)
    end
$$;

-- Save the results of steps, many in one call. With `dues_at` the step is a sleep that ends then; `spans_ms` says how
-- long each function took. The first result of a name and occurrence wins. An execution has at most 10 000 steps.
-- Without `wait`, items whose ticket another transaction has locked are refused, so that the other items do not wait.
--
--   locks    the tickets, in key order; without `wait`, skips locked ones
--   refuses  per item fence_required, partial_fence, lease_lost, execution_not_active, execution_not_found,
--            invalid_name, payload_too_large, too_many_steps, row_locked
--   returns  per item 'saved', 'duplicate' with the first {result, encoding}, or its refusal
create or replace function flowfabric.save_step(
    partitions int[], ids uuid[], lease_ids uuid[], epochs bigint[], attempts int[], names text[], occurrences int[],
    results bytea[] default null, encodings text[] default null, dues_at timestamptz[] default null,
    result_limit int default 1048576, wait boolean default true, spans_ms bigint[] default null)
returns table (item int, outcome text, refusal text, detail text)
language plpgsql as $$
declare
    now timestamptz;
    judged record;
    fresh int[];
begin
    perform flowfabric._limit_waits(save_step.wait);
    select array_agg(x.item) as items, array_agg(x.fault) as faults into judged from (
        select f.item, coalesce(f.fault, flowfabric._step_fault(
                   save_step.names[f.item], save_step.occurrences[f.item], octet_length(save_step.results[f.item]),
                   save_step.result_limit)) as fault
        from flowfabric._fenced(save_step.partitions, save_step.ids, save_step.lease_ids, save_step.epochs,
                                save_step.attempts, array_fill(1, array[cardinality(save_step.ids)]), 1,
                                save_step.wait) f) x;
    now := flowfabric.clock();

    with good as materialized (
        select save_step.partitions[j.item] as partition, save_step.ids[j.item] as id, save_step.names[j.item] as name,
               save_step.occurrences[j.item] as occurrence, j.item
        from unnest(judged.items, judged.faults) as j (item, fault) where j.fault is null
    ), first as (
        select distinct on (g.partition, g.id, g.name, g.occurrence) g.* from good g
        where not exists (select from flowfabric.steps s where s.partition = g.partition and s.execution = g.id
                          and s.name = g.name and s.occurrence = g.occurrence offset 0)
        order by g.partition, g.id, g.name, g.occurrence, g.item
    ), held as (
        select d.partition, d.id,
               (select count(*) from flowfabric.steps s where s.partition = d.partition and s.execution = d.id) as steps
        from (select distinct f.partition, f.id from first f) d
    ), fitting as (
        select f.*, h.steps + row_number() over (partition by f.partition, f.id order by f.item) as place
        from first f join held h on h.partition = f.partition and h.id = f.id
    ), saved as (
        insert into flowfabric.steps (partition, execution, name, occurrence, kind, result, encoding, at, due_at,
                                      started_at)
        select f.partition, f.id, f.name, f.occurrence,
               case when save_step.dues_at[f.item] is null then 'step' else 'sleep' end,
               save_step.results[f.item], save_step.encodings[f.item], now, save_step.dues_at[f.item],
               flowfabric._ago(save_step.spans_ms[f.item], now)
        from fitting f where f.place <= 10000
    )
    select array_agg(f.item) into fresh from fitting f where f.place <= 10000;

    return query
    select j.item,
           case when j.fault is null and j.item = any (fresh) then 'saved'
                when j.fault is null and s.name is not null then 'duplicate' end,
           o.fault ->> 'code',
           case when o.fault is not null then (o.fault - 'code')::text
                when j.item = any (fresh) then null
                else jsonb_strip_nulls(jsonb_build_object('result', translate(encode(s.result, 'base64'), E'\n', ''),
                                                          'encoding', s.encoding))::text end
    from unnest(judged.items, judged.faults) as j (item, fault)
    left join lateral (
        select s.name, s.result, s.encoding from flowfabric.steps s
        where s.partition = save_step.partitions[j.item] and s.execution = save_step.ids[j.item]
          and s.name = save_step.names[j.item] and s.occurrence = save_step.occurrences[j.item] offset 0) s on true
    cross join lateral (
        select coalesce(j.fault, case when s.name is null then flowfabric._too_many_steps_fault() end)) o (fault);
end $$;

-- Read the steps that an active execution runs, as its worker has last reported them with a renewal: the ones that run
-- longest, at most 20. Steps that have been saved since are left out.
--
--   returns  one row per step, none if its lease has expired; `number` counts the steps and sleeps of the run
create or replace function flowfabric._running_steps(ticket flowfabric.tickets)
returns table (name text, occurrence int, number int, started_at timestamptz)
language sql stable rows 2 as $$
    select r.name, r.occurrence, r.number, r.started_at
    from jsonb_to_recordset((_running_steps.ticket).running)
         as r (name text, occurrence int, number int, started_at timestamptz)
    where (_running_steps.ticket).phase = 'active' and (_running_steps.ticket).expires_at > flowfabric.clock()
      and not exists (
        select from flowfabric.steps s
        where s.partition = (_running_steps.ticket).partition and s.execution = (_running_steps.ticket).id
          and s.name = r.name and s.occurrence = r.occurrence offset 0)
    order by r.started_at, r.number
$$;

-- List the steps and sleeps that an execution has saved, in the order in which they were saved, and then the steps
-- that it runs. Keyset pagination; without `after_at` the saved ones are left out. A page sorts the steps of the
-- execution, at most 10,000. Results are read only if requested; a page stops at 1 MiB of them, but has at least one.
--
--   refuses  execution_not_found, invalid_limit
--   returns  one row per step, and one more than `take` if another page follows; `fits` is false for those that the
--            page has no room for. A sleep is `sleeping` until it is over, or `interrupted` if the execution ended
--            before. `lasted` is how long the function took, how long it has run, or how long a sleep is
create or replace function flowfabric.list_steps(
    partition int, id uuid, with_results boolean default false, after_at timestamptz default '-infinity',
    after_name text default '', after_occurrence int default 0, take int default 50)
returns table (name text, occurrence int, kind text, state text, started_at timestamptz, saved_at timestamptz,
               due_at timestamptz, lasted interval, size int, encoding text, result bytea, fits boolean)
language plpgsql stable as $$
declare
    now timestamptz := flowfabric.clock();
    ended_at timestamptz;
begin
    select e.ended_at into ended_at from flowfabric.executions e
    where e.partition = list_steps.partition and e.id = list_steps.id;
    if not found then
        perform flowfabric._refuse_missing(list_steps.partition, list_steps.id);
    end if;

    return query
    with steps as (
        select s.name, s.occurrence, s.kind, s.at, s.at as saved_at, s.due_at, s.encoding,
               coalesce(s.started_at, case when s.kind = 'sleep' then s.at end) as started_at,
               coalesce(octet_length(s.result), 0) as size
        from flowfabric.steps s
        where s.partition = list_steps.partition and s.execution = list_steps.id
          and (s.at, s.name, s.occurrence) > (coalesce(list_steps.after_at, 'infinity'), list_steps.after_name,
                                              list_steps.after_occurrence)
        union all
        select r.name, r.occurrence, 'step', 'infinity', null, null, null, r.started_at, 0
        from flowfabric.tickets t cross join lateral flowfabric._running_steps(t) r
        where t.partition = list_steps.partition and t.id = list_steps.id
          and (list_steps.after_at is not null
               or (r.name collate "C", r.occurrence) > (list_steps.after_name, list_steps.after_occurrence))
        order by at, name, occurrence
        limit flowfabric._page(list_steps.take)
    ), measured as (
        select s.*, row_number() over page = 1 or not list_steps.with_results
                    or sum(s.size) over page <= 1048576 as fits
        from steps s window page as (order by s.at, s.name, s.occurrence)
    )
    select m.name, m.occurrence, m.kind,
           case when m.saved_at is null then 'running'
                when m.due_at is null or m.due_at <= coalesce(ended_at, now) then 'completed'
                when ended_at is null then 'sleeping' else 'interrupted' end,
           m.started_at, m.saved_at, m.due_at,
           case when m.started_at is not null
                then greatest(coalesce(m.due_at, m.saved_at, now) - m.started_at, interval '0') end, m.size,
           coalesce(m.encoding, 'json'),
           case when list_steps.with_results and m.fits and m.saved_at is not null then (
               select s.result from flowfabric.steps s
               where s.partition = list_steps.partition and s.execution = list_steps.id and s.name = m.name
                 and s.occurrence = m.occurrence) end,
           m.fits
    from measured m order by m.at, m.name, m.occurrence;
end $$;

-- Read the journal that a handler starts with when it runs again: saved steps, sleeps and completed waits, by name and
-- occurrence. Keyset pagination; a page stops at 1 MiB. A wait whose signals do not fit into a page comes without them:
-- `read_signals` returns them.
--
--   returns  {entries: [{kind, name, occurrence, …}], more, unread: {place of the entry: its wait}}
create or replace function flowfabric.read_journal(
    partition int, id uuid, after_name text default '', after_occurrence int default 0)
returns text
language plpgsql stable as $$
begin
    -- Sizes first: only the entries of this page are read and encoded.
    return (
        with entries as (
            select s.name, s.occurrence, null::uuid as wait,
                   coalesce(octet_length(s.result), 0) / 3 * 4 + 200 as bytes
            from flowfabric.steps s
            where s.partition = read_journal.partition and s.execution = read_journal.id
              and (s.name, s.occurrence) > (read_journal.after_name, read_journal.after_occurrence)
            union all
            select w.name, w.occurrence, w.id, 500 + flowfabric._signals_bytes(w.partition, w.execution, w.satisfiers)
            from flowfabric.waits w
            where w.partition = read_journal.partition and w.execution = read_journal.id
              and w.name is not null and w.occurrence is not null and (w.ended_at is not null or w.is_sleep)
              and (w.name, w.occurrence) > (read_journal.after_name, read_journal.after_occurrence)
        ), measured as (
            select e.*, e.wait is not null and e.bytes > 1048576 as is_unread,
                   sum(case when e.wait is not null and e.bytes > 1048576 then 500 else e.bytes end)
                       over (order by e.name, e.occurrence) as size,
                   row_number() over (order by e.name, e.occurrence) as place
            from entries e
        ), shown as (
            select m.* from measured m where m.size <= 1048576 or m.place = 1
        )
        select jsonb_build_object(
            'more', (select count(*) from shown) < (select count(*) from measured),
            'unread', coalesce(jsonb_object_agg(s.place - 1, s.wait) filter (where s.is_unread), '{}'),
            'entries', ('[' || coalesce(string_agg(case
                when s.wait is null then (
                    select flowfabric._step_entry(e) from flowfabric.steps e
                    where e.partition = read_journal.partition and e.execution = read_journal.id
                      and e.name = s.name and e.occurrence = s.occurrence)
                else (
                    select flowfabric._wait_entry(e, not s.is_unread) from flowfabric.waits e
                    where e.partition = read_journal.partition and e.execution = read_journal.id
                      and e.id = s.wait) end, ',' order by s.place), '') || ']')::jsonb)::text
        from shown s);
end $$;

-- Encode a step or a sleep as an entry of the journal. Concatenated as text: json_build_object takes twice as long.
--
--   returns  {kind, name, occurrence, …} as text, the result in base64
create or replace function flowfabric._step_entry(step flowfabric.steps)
returns text
language sql stable as $$
    select '{"name":' || to_json((_step_entry.step).name)::text
        || ',"occurrence":' || (_step_entry.step).occurrence::text
        || ',"kind":' || to_json((_step_entry.step).kind)::text
        || coalesce(',"encoding":' || to_json((_step_entry.step).encoding)::text, '')
        || coalesce(',"result":"' || replace(encode((_step_entry.step).result, 'base64'), E'\n', '') || '"', '')
        || coalesce(',"due_at":' || to_json((_step_entry.step).due_at)::text, '')
        || ',"at":' || to_json((_step_entry.step).at)::text || '}'
$$;

-- Encode a completed wait as an entry of the journal, with or without its signals.
--
--   returns  {kind, name, occurrence, …} as text
create or replace function flowfabric._wait_entry(wait flowfabric.waits, with_signals boolean)
returns text
language sql stable as $$
    select '{"name":' || to_json((_wait_entry.wait).name)::text
        || ',"occurrence":' || (_wait_entry.wait).occurrence::text
        || case when (_wait_entry.wait).is_sleep then ',"kind":"sleep"' || coalesce(
               ',"due_at":' || to_json(coalesce((_wait_entry.wait).timeout_at, (_wait_entry.wait).ended_at))::text, '')
           else ',"kind":"wait"' end
        || coalesce(',"by":' || to_json((_wait_entry.wait).ended_by)::text, '')
        || case when (_wait_entry.wait).ended_at is null then ''
                else ',"at":' || to_json((_wait_entry.wait).suspended_at)::text
                     || ',"ended_at":' || to_json((_wait_entry.wait).ended_at)::text end
        || ',"signals":' || flowfabric._signals_text(
               (_wait_entry.wait).partition, (_wait_entry.wait).execution,
               case when _wait_entry.with_signals then (_wait_entry.wait).satisfiers end) || '}'
$$;

-- Read the journals that a claim returns for executions that may have run before, by the row addresses (ctid) of their
-- tickets, up to 1 MiB in total. An execution that alone exceeds that takes no room from the others. Lengths are read
-- first, and no journal that does not fit.
--
--   returns  per ticket {entries, more}, null if no attempt has run yet or the journal does not fit
create or replace function flowfabric._read_journals(places tid[])
returns text[]
language plpgsql stable as $$
declare
    most constant int := 1048576;
    room int := most;
    run record;
    journals text[];
begin
    for run in
        select x.number, (
            select '{"more":false,"entries":[' || coalesce(string_agg(e.entry, ',' order by e.name, e.occurrence), '')
                   || ']}'
            from (
                select s.name, s.occurrence, flowfabric._step_entry(s) as entry
                from flowfabric.steps s where s.partition = x.partition and s.execution = x.id
                union all
                select w.name, w.occurrence, flowfabric._wait_entry(w, true) from flowfabric.waits w
                where w.partition = x.partition and w.execution = x.id and w.name is not null
                  and w.occurrence is not null and (w.ended_at is not null or w.is_sleep)) e) as journal
        from (
            select m.*, sum(m.bytes) over (order by m.number) as size from (
                select p.number, t.partition, t.id, coalesce((
                           select sum(coalesce(octet_length(s.result), 0) / 3 * 4 + 100) from flowfabric.steps s
                           where s.partition = t.partition and s.execution = t.id), 0) + coalesce((
                           select sum(flowfabric._signals_bytes(w.partition, w.execution, w.satisfiers))
                           from flowfabric.waits w
                           where w.partition = t.partition and w.execution = t.id and w.name is not null), 0) as bytes
                from unnest(_read_journals.places) with ordinality as p (place, number)
                cross join lateral (select t.* from flowfabric.tickets t where t.ctid = p.place offset 0) t
                where t.attempt_state <> 'pending_first_attempt' offset 0) m
            where m.bytes <= most) x
        where x.size <= most
        order by x.number
    loop
        room := room - octet_length(run.journal);
        journals[run.number] := case when room >= 0 then run.journal end;
    end loop;
    return journals;
end $$;

-- Delete the entries of a journal that were saved from a step on, in the order of list_steps, or all of them with
-- `from_scratch`. A wait counts as saved when it ended. An open wait stays: the next run continues or withdraws it. The
-- refusal names what is saved, up to 100 names, in the order of list_steps.
--
--   refuses  step_not_found
--   returns  for the event: {from_step, from_occurrence or from_scratch, forgotten_count, forgotten: the first names};
--            {} if nothing is asked for
create or replace function flowfabric._forget_from(
    partition int, id uuid, from_step text, from_occurrence int, from_scratch boolean)
returns jsonb
language plpgsql as $$
declare
    since timestamptz := '-infinity';
    saved text[];
    forgotten record;
begin
    if _forget_from.from_step is null and not _forget_from.from_scratch then
        return '{}';
    end if;
    if _forget_from.from_step is not null then
        select min(j.at) into since from flowfabric._journal(_forget_from.partition, _forget_from.id) j
        where j.name = _forget_from.from_step and j.occurrence = _forget_from.from_occurrence;
        if since is null then
            saved := array(
                select j.name from flowfabric._journal(_forget_from.partition, _forget_from.id) j
                group by j.name order by min(j.at), 1 limit 100);
            perform flowfabric._refuse('step_not_found', format(
                'execution %s has not saved %s, occurrence %s; saved: %s',
                flowfabric._id(_forget_from.partition, _forget_from.id), flowfabric._shown(_forget_from.from_step),
                _forget_from.from_occurrence, coalesce(nullif(array_to_string(saved[:20], ', '), ''), 'nothing')
                                              || case when cardinality(saved) > 20 then ', …' else '' end),
                jsonb_build_object('names', saved));
        end if;
    end if;
    select count(*) as amount, to_jsonb((array_agg(j.name order by j.at, j.name, j.occurrence))[:100]) as names
    into forgotten from flowfabric._journal(_forget_from.partition, _forget_from.id) j
    where _forget_from.from_scratch
       or (j.at, j.name, j.occurrence) >= (since, _forget_from.from_step, _forget_from.from_occurrence);
    delete from flowfabric.steps s
    where s.partition = _forget_from.partition and s.execution = _forget_from.id
      and (_forget_from.from_scratch
           or (s.at, s.name, s.occurrence) >= (since, _forget_from.from_step, _forget_from.from_occurrence));
    delete from flowfabric.waits w
    where w.partition = _forget_from.partition and w.execution = _forget_from.id
      and (w.ended_at is not null or w.is_sleep)
      and (_forget_from.from_scratch
           or (coalesce(w.ended_at, w.suspended_at), w.name, w.occurrence)
              >= (since, _forget_from.from_step, _forget_from.from_occurrence));
    return jsonb_strip_nulls(jsonb_build_object(
        'from_step', _forget_from.from_step, 'from_scratch', nullif(_forget_from.from_scratch, false),
        'from_occurrence', case when _forget_from.from_step is not null then _forget_from.from_occurrence end,
        'forgotten_count', forgotten.amount, 'forgotten', forgotten.names));
end $$;

-- The places of a journal, with the time at which each was saved: steps, sleeps, and waits by their end.
--
--   returns  a row per entry; a sleep beside other waits may have two
create or replace function flowfabric._journal(partition int, id uuid)
returns table (name text, occurrence int, at timestamptz)
language sql stable as $$
    select s.name, s.occurrence, s.at from flowfabric.steps s
    where s.partition = _journal.partition and s.execution = _journal.id
    union all
    select w.name, w.occurrence, coalesce(w.ended_at, w.suspended_at) from flowfabric.waits w
    where w.partition = _journal.partition and w.execution = _journal.id and w.name is not null
      and w.occurrence is not null and (w.ended_at is not null or w.is_sleep)
$$;
