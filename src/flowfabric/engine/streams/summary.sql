-- Summaries: a JSON document per attempt, changed by merge patches (RFC 7396).

-- Apply the valid patches of a call to the summaries of their streams, in order. The caller has locked the tickets and
-- created the streams; it counts the versions.
--
--   returns  the faults, with those of patches that would make a summary too large
create or replace function flowfabric._apply_patches(
    partitions int[], ids uuid[], attempts int[], payloads bytea[], fences_of int[], modes text[], faults jsonb[],
    repeats boolean[], document_limit int, now timestamptz)
returns jsonb[]
language plpgsql as $$
#variable_conflict use_column
declare
    judged jsonb[] := _apply_patches.faults;
    given record;
    merged jsonb;
    fence int;
    is_changed boolean;
    document jsonb;
begin
    for given in
        select x.item, x.fence, p.patch,
               lead(x.fence) over (order by x.fence, x.item) is distinct from x.fence as is_last
        from unnest(_apply_patches.payloads, _apply_patches.fences_of, _apply_patches.modes, _apply_patches.faults,
                    _apply_patches.repeats) with ordinality as x (payload, fence, mode, fault, is_repeat, item)
        cross join lateral flowfabric._read_patch(x.payload) p
        where x.mode = 'summary' and x.fault is null and not x.is_repeat
        order by x.fence, x.item
    loop
        if given.fence is distinct from fence then
            fence := given.fence;
            is_changed := false;
            select s.summary into document from flowfabric.streams s
            where s.partition = _apply_patches.partitions[fence] and s.execution = _apply_patches.ids[fence]
              and s.attempt = _apply_patches.attempts[fence];
        end if;
        merged := flowfabric._merge_patch(document, given.patch);
        if pg_column_size(merged) > _apply_patches.document_limit / 2
           and octet_length(merged::text) > _apply_patches.document_limit then
            judged[given.item] := flowfabric._patch_fault('document_too_large', _apply_patches.document_limit);
        else
            document := merged;
            is_changed := true;
        end if;
        if given.is_last and is_changed then
            update flowfabric.streams s
            set summary = document, summary_first_at = coalesce(s.summary_first_at, _apply_patches.now),
                summary_updated_at = _apply_patches.now
            where s.partition = _apply_patches.partitions[fence] and s.execution = _apply_patches.ids[fence]
              and s.attempt = _apply_patches.attempts[fence];
        end if;
    end loop;
    return judged;
end $$;

-- Read the payload of a frame as a merge patch. The block that catches errors writes nothing, so it costs no
-- transaction id.
--
--   returns  the patch, or the cause why it is invalid
create or replace function flowfabric._read_patch(payload bytea, out patch jsonb, out cause text)
language plpgsql immutable as $$
begin
    patch := convert_from(_read_patch.payload, 'UTF8')::jsonb;
    cause := case
        when jsonb_typeof(patch) <> 'object' then 'not_object'
        when jsonb_path_exists(patch, 'strict $.**{16 to last} ? (@.type() == "object" || @.type() == "array")')
            then 'too_deep' end;
exception
    when statement_too_complex then cause := 'too_deep';
    when untranslatable_character then cause := 'nul_character';
    when data_exception or program_limit_exceeded then cause := 'not_json';
end $$;

-- Build the error for an invalid patch.
--
--   refuses  invalid_patch, as a value
--   returns  the fault, or null if there is no cause
create or replace function flowfabric._patch_fault(cause text, document_limit int default null)
returns jsonb
language sql immutable as $$
    select case when _patch_fault.cause is not null then flowfabric._fault('invalid_patch', case _patch_fault.cause
        when 'not_json' then 'the payload of a summary frame is not JSON in UTF-8; use a JSON object'
        when 'not_object' then
            'the payload of a summary frame is not a JSON object; use one, such as {"progress": 40}'
        when 'too_deep' then 'the patch has more than 16 levels; use a flatter object'
        when 'nul_character' then 'the patch contains U+0000, which Postgres cannot store; remove it'
        else format('the summary would exceed %s bytes; delete keys by setting them to null, or append durable frames',
                    flowfabric._number(_patch_fault.document_limit)) end,
        jsonb_build_object('cause', _patch_fault.cause)) end
$$;

-- Apply a merge patch to a document. A member null deletes the key, an object is merged into an object, and everything
-- else replaces what is there. The text __ff_null__ as a value stores a null.
--
--   returns  the new document
create or replace function flowfabric._merge_patch(document jsonb, patch jsonb)
returns jsonb
language plpgsql immutable as $$
declare
    merged jsonb := case when jsonb_typeof(_merge_patch.document) = 'object' then _merge_patch.document else '{}' end;
    member record;
begin
    for member in select m.key, m.value, jsonb_typeof(m.value) as type from jsonb_each(_merge_patch.patch) m loop
        merged := case member.type
            when 'null' then merged - member.key
            when 'object' then merged || jsonb_build_object(
                member.key, flowfabric._merge_patch(merged -> member.key, member.value))
            else merged || jsonb_build_object(member.key, flowfabric._with_nulls(member.value)) end;
    end loop;
    return merged;
end $$;

-- Replace the text __ff_null__ in a value by null, at any depth. Keys stay as they are, and so do nulls in arrays.
--
--   returns  the value
create or replace function flowfabric._with_nulls(value jsonb)
returns jsonb
language plpgsql immutable as $$
begin
    return case
        when strpos(_with_nulls.value::text, '"__ff_null__"') = 0 then _with_nulls.value
        when jsonb_typeof(_with_nulls.value) = 'array' then (
            select jsonb_agg(flowfabric._with_nulls(e.element) order by e.place)
            from jsonb_array_elements(_with_nulls.value) with ordinality as e (element, place))
        when jsonb_typeof(_with_nulls.value) = 'object' then (
            select jsonb_object_agg(m.key, flowfabric._with_nulls(m.value)) from jsonb_each(_with_nulls.value) m)
        when _with_nulls.value = '"__ff_null__"' then 'null'
        else _with_nulls.value end;
end $$;

-- Read the summary of an attempt, the current one unless it is given. While the current attempt has none and the
-- journal has entries, it is the one with which it would begin.
--
--   refuses  execution_not_found
--   returns  {document, version, updated_at, first_at, attempt}; no row if there is none
create or replace function flowfabric.read_summary(partition int, id uuid, attempt int default null)
returns table (document text, version bigint, updated_at timestamptz, first_at timestamptz, of_attempt int)
language plpgsql stable set enable_seqscan = off as $$
#variable_conflict use_column
declare
    latest int;
begin
    select coalesce(t.attempt, e.attempt, 0) into latest
    from flowfabric.executions e left join flowfabric.tickets t on t.partition = e.partition and t.id = e.id
    where e.partition = read_summary.partition and e.id = read_summary.id;
    if not found then
        perform flowfabric._refuse_missing(read_summary.partition, read_summary.id);
    end if;
    return query
    select s.summary::text, s.summary_version, s.summary_updated_at, s.summary_first_at, s.attempt
    from flowfabric.streams s
    where s.partition = read_summary.partition and s.execution = read_summary.id
      and s.summary is not null and case
          when read_summary.attempt is not null then s.attempt = read_summary.attempt
          else s.attempt = latest or s.attempt < latest
               and exists (select from flowfabric._journal(read_summary.partition, read_summary.id)) end
    order by s.attempt desc limit 1;
end $$;
