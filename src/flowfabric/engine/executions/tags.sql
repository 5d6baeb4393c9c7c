-- Tags: names and values to find executions by. The record stores them for reading, the tags table for searching.

-- Check a set of tags.
--
--   refuses  invalid_tag, invalid_tag_key, as a value
--   returns  the fault of the first invalid tag, or null if all are valid
create or replace function flowfabric._tags_fault(tags jsonb)
returns jsonb
language sql immutable as $$
    select case
        when jsonb_typeof(_tags_fault.tags) <> 'object'
            then flowfabric._fault('invalid_tag',
                format('tags %s are invalid; use an object of strings', flowfabric._shown(_tags_fault.tags::text)))
        else coalesce(
            (select coalesce(
                 flowfabric._length_fault('invalid_tag_key', 'tag name', t.key, 1, 128),
                 case when jsonb_typeof(t.value) <> 'string' or octet_length(t.value #>> '{}') > 256 then
                     flowfabric._fault('invalid_tag',
                         format('value %s of tag %s is invalid; use a string of at most 256 bytes',
                                flowfabric._shown(case jsonb_typeof(t.value) when 'string' then t.value #>> '{}'
                                                  else t.value::text end),
                                flowfabric._shown(t.key))) end)
             from jsonb_each(_tags_fault.tags) t order by 1 limit 1),
            (select flowfabric._fault('invalid_tag',
                 format('there are %s tags; use at most 64', flowfabric._number(count(*))))
             from jsonb_object_keys(_tags_fault.tags) having count(*) > 64))
    end
$$;

-- Set, change or (with a null value) remove a tag among others.
create or replace function flowfabric._with_tag(tags jsonb, key text, value text)
returns jsonb
language plpgsql stable as $$
declare
    changed jsonb := coalesce(_with_tag.tags, '{}') - _with_tag.key;
begin
    if _with_tag.value is not null then
        changed := changed || jsonb_build_object(_with_tag.key, _with_tag.value);
    end if;
    perform flowfabric._raise(flowfabric._tags_fault(changed));
    return changed;
end $$;

-- Set, change or (with a null value) remove a tag of an execution, even after the execution has ended.
--
--   locks    the ticket, if there is one; the record
--   emits    tag_set
--   refuses  execution_not_found, invalid_tag_key, invalid_tag
--   returns  'set', 'removed', or 'noop' if nothing changed
create or replace function flowfabric.set_tag(
    partition int, id uuid, key text, value text default null, by text default null)
returns text
language plpgsql as $$
declare
    asked flowfabric.executions;
    new_tags jsonb;
begin
    perform flowfabric._raise(flowfabric._tags_fault(
        jsonb_build_object(set_tag.key, coalesce(set_tag.value, ''))));
    asked := flowfabric._lock_whole(set_tag.partition, set_tag.id);
    new_tags := flowfabric._with_tag(asked.tags, set_tag.key, set_tag.value);
    if new_tags = coalesce(asked.tags, '{}') then
        return 'noop';
    end if;
    update flowfabric.executions e set tags = nullif(new_tags, '{}')
    where e.partition = set_tag.partition and e.id = set_tag.id;
    delete from flowfabric.tags t
    where t.partition = set_tag.partition and t.execution = set_tag.id and t.key = set_tag.key;
    insert into flowfabric.tags (partition, execution, key, value, created_at)
    select set_tag.partition, set_tag.id, set_tag.key, set_tag.value, asked.created_at
    where set_tag.value is not null;
    perform flowfabric._append_about('tag_set', set_tag.partition, set_tag.id, set_tag.by,
                                     jsonb_build_object('key', set_tag.key, 'value', set_tag.value));
    return case when set_tag.value is null then 'removed' else 'set' end;
end $$;

-- Read one tag.
--
--   refuses  execution_not_found, invalid_tag_key
--   returns  the tag's value, or null if the execution does not have the tag
create or replace function flowfabric.get_tag(partition int, id uuid, key text)
returns text
language plpgsql stable as $$
declare
    value text;
begin
    perform flowfabric._raise(flowfabric._length_fault('invalid_tag_key', 'tag name', get_tag.key, 1, 128));
    select e.tags ->> get_tag.key into value from flowfabric.executions e
    where e.partition = get_tag.partition and e.id = get_tag.id;
    if not found then
        perform flowfabric._refuse_missing(get_tag.partition, get_tag.id);
    end if;
    return value;
end $$;
