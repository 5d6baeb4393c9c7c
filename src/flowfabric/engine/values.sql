-- Values: how ids, times, texts and limits are checked, shortened and shown. Used by every concept.

-- Return the text form of an execution's or a flow's id. A UUID of version 8 carries its partition in the 15 bits after
-- its variant; any other UUID has the partition of its checksum.
--
--   returns  the UUID; with the partition as a tag if the UUID alone would name another one
create or replace function flowfabric._id(partition int, id uuid)
returns text
language sql immutable as $$
    select case
        when _id.partition = case
            when get_byte(uuid_send(_id.id), 6) >> 4 = 8 and get_byte(uuid_send(_id.id), 8) >> 6 = 2 then
                ((get_byte(uuid_send(_id.id), 8) & 63) << 9) | (get_byte(uuid_send(_id.id), 9) << 1)
                | (get_byte(uuid_send(_id.id), 10) >> 7)
            else _id.partition / 256 * 256 + flowfabric._crc16(uuid_send(_id.id)) % 256 end
        then _id.id::text
        else flowfabric._tagged_id(_id.partition, _id.id) end
$$;

-- Return the form of an execution's or a flow's id that is signed.
--
--   returns  {fp:N}:<uuid>
create or replace function flowfabric._tagged_id(partition int, id uuid)
returns text
language sql immutable as $$
    select '{fp:' || _tagged_id.partition::text || '}:' || _tagged_id.id::text
$$;

-- Compute a checksum: CRC16-XMODEM, with the polynomial 0x1021 and the start 0.
--
--   returns  0 to 65535
create or replace function flowfabric._crc16(given bytea)
returns int
language plpgsql immutable strict as $$
declare
    crc int := 0;
    high int;
begin
    for place in 0 .. length(_crc16.given) - 1 loop
        high := (crc >> 8) # get_byte(_crc16.given, place);
        high := high # (high >> 4);
        crc := ((crc << 8) # (high << 12) # (high << 5) # high) & 65535;
    end loop;
    return crc;
end $$;

-- Return an execution's or a flow's id as JSON, in the shape that Python decodes as an id.
--
--   returns  {partition, uuid}, or null
create or replace function flowfabric._id_json(partition int, id uuid)
returns jsonb
language sql immutable as $$
    select case when _id_json.id is not null
        then jsonb_build_object('partition', _id_json.partition, 'uuid', _id_json.id) end
$$;

-- Format a time for a message or an explanation.
--
--   returns  the time in UTC, to the second; or infinity
create or replace function flowfabric._moment(at timestamptz)
returns text
language sql immutable as $$
    select coalesce(to_char(timezone('UTC', _moment.at), 'YYYY-MM-DD HH24:MI:SS') || ' UTC', _moment.at::text)
$$;

-- Format a number for a message or an explanation: 1,000,000.
--
--   returns  the number, with commas
create or replace function flowfabric._number(value bigint)
returns text
language sql immutable as $$
    select to_char(_number.value, 'FM9,999,999,999,999,999,990')
$$;

-- Format how long something has taken, in its largest unit: 12 s, 3 min, 5 h, 2 d.
create or replace function flowfabric._lasting(span interval)
returns text
language sql immutable as $$
    select case when s < 120 then s || ' s' when s < 7200 then s / 60 || ' min' when s < 172800 then s / 3600 || ' h'
                else flowfabric._number(s / 86400) || ' d' end
    from (select greatest(extract(epoch from _lasting.span), 0)::bigint as s) x
$$;

-- The time so many milliseconds before `now`, at most a century.
--
--   returns  the time; null if the number is
create or replace function flowfabric._ago(span_ms bigint, now timestamptz)
returns timestamptz
language sql immutable strict as $$
    select _ago.now - least(greatest(_ago.span_ms, 0), 3155760000000) * interval '1 ms'
$$;

-- Quote a value for an error message, shortened to keep the message on one line.
--
--   returns  at most 80 characters of the value
create or replace function flowfabric._shown(value text)
returns text
language sql immutable as $$
    select quote_nullable(left(_shown.value, 80)) || case when length(_shown.value) > 80 then '…' else '' end
$$;

-- Truncate a text to its first 4,096 bytes, at a character boundary.
--
--   returns  the truncated text
create or replace function flowfabric._kept_text(given text)
returns text
language plpgsql immutable as $$
declare
    kept text := left(_kept_text.given, 4096);
begin
    while octet_length(kept) > 4096 loop
        -- A character has at most four bytes, so this never removes a character too many.
        kept := left(kept, length(kept) - (octet_length(kept) - 4096 + 3) / 4);
    end loop;
    return kept;
end $$;

-- Check the length of a text; null is valid unless it is `required`. Stable, as `format` is: otherwise Postgres would
-- not inline it, and every submission calls it.
--
--   refuses  with the code given, as a value
--   returns  the fault, or null if the text is valid
create or replace function flowfabric._length_fault(
    code text, what text, value text, low int, high int, field text default null, required boolean default false)
returns jsonb
language sql stable as $$
    select case when octet_length(_length_fault.value) not between _length_fault.low and _length_fault.high
                     or _length_fault.required and _length_fault.value is null then
        flowfabric._fault(_length_fault.code,
            format('%s %s is invalid; use %s %s bytes', _length_fault.what, flowfabric._shown(_length_fault.value),
                   case _length_fault.low when 0 then 'at most' else _length_fault.low || ' to' end,
                   _length_fault.high),
            case when _length_fault.field is null then '{}' else jsonb_build_object('field', _length_fault.field) end)
    end
$$;

-- Check the name of a lane or a namespace; null is valid. The pattern only searches for an invalid character and the
-- length is checked separately: a pattern with a repetition count is ten times slower.
--
--   refuses  with the code given, as a value
--   returns  the fault, or null if the name is valid
create or replace function flowfabric._label_fault(code text, what text, value text)
returns jsonb
language sql stable as $$
    select case when octet_length(_label_fault.value) not between 1 and 64 or _label_fault.value ~ '[^\x20-\x7e]' then
        flowfabric._fault(_label_fault.code, format('%s %s is invalid; use 1 to 64 printable ASCII characters',
                                                    _label_fault.what, flowfabric._shown(_label_fault.value)))
    end
$$;

-- Check the name of the acting person or service (`by`). Null is allowed and means that no name was given.
--
--   refuses  invalid_body
create or replace function flowfabric._check_by(by text)
returns void
language sql as $$
    select flowfabric._raise(flowfabric._length_fault('invalid_body', 'by', _check_by.by, 1, 256, 'by'))
$$;

-- Normalize a set of words for storage and comparison: distinct, in byte order.
--
--   returns  the sorted set
create or replace function flowfabric._sorted_set(words jsonb)
returns text[]
language plpgsql immutable as $$
begin
    if _sorted_set.words = '[]' then
        return '{}';
    end if;
    return array(select distinct w.word collate "C" from jsonb_array_elements_text(_sorted_set.words) w (word)
                 order by 1);
end $$;

-- The length of a payload if it is large. Small payloads are not counted: even a claim with the highest `take` stays
-- below its limit with small payloads only.
--
--   returns  the length, or null
create or replace function flowfabric._large(bytes int)
returns int
language sql immutable as $$
    select case when _large.bytes > 16384 then _large.bytes end
$$;

-- Return how many rows to read for a page: one more than the page holds, to know whether another page follows.
--
--   refuses  invalid_limit
--   returns  the number; limits above 1,000 are reduced to 1,000
create or replace function flowfabric._page(take int)
returns int
language plpgsql stable as $$
begin
    if _page.take < 0 then
        perform flowfabric._refuse('invalid_limit', format('limit %s is invalid; use 0 to 1,000', _page.take));
    end if;
    return least(_page.take, 1000) + 1;
end $$;
