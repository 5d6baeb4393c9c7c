-- Signing keys: the secrets that sign tokens and grants. One key signs; older keys verify until they expire.

-- HMAC-SHA256 over kid, a colon and the message, as the wire format requires.
--
--   returns  64 hexadecimal digits
create or replace function flowfabric._hmac(key flowfabric.keys, message text)
returns text
language sql stable as $$
    select encode(sha256((_hmac.key).outer_pad || sha256(
        (_hmac.key).inner_pad || convert_to((_hmac.key).kid || ':' || _hmac.message, 'UTF8'))), 'hex')
$$;

-- Build the error for a call that needs a signing key while none is active.
--
--   refuses  no_active_key, as a value
create or replace function flowfabric._no_key_fault()
returns jsonb
language sql immutable as $$
    select flowfabric._fault(
        'no_active_key', 'no signing key is active; use seed_key or rotate_key to install one')
$$;

-- The active signing key. Refused if there is none.
create or replace function flowfabric._active_key()
returns flowfabric.keys
language plpgsql stable as $$
declare
    key flowfabric.keys;
begin
    select k.* into key from flowfabric.keys k where k.expires_at is null;
    if not found then
        perform flowfabric._raise(flowfabric._no_key_fault());
    end if;
    return key;
end $$;

-- Compare two digests in a time that does not reveal where they differ.
create or replace function flowfabric._is_same_digest(one text, other text)
returns boolean
language sql stable as $$
    select coalesce(sha256(convert_to(_is_same_digest.one, 'UTF8')) = sha256(convert_to(_is_same_digest.other, 'UTF8')),
                    false)
$$;

-- Refuse an invalid kid or secret. No error message contains a secret.
--
--   refuses  invalid_kid, invalid_secret
create or replace function flowfabric._check_key(kid text, secret text)
returns void
language plpgsql immutable as $$
begin
    if _check_key.kid !~ '^[A-Za-z0-9._-]{1,64}$' or _check_key.kid is null then
        -- A long kid is not shown: it may be a secret passed as the wrong argument.
        perform flowfabric._refuse('invalid_kid', format(
            'kid %s is invalid; use 1 to 64 letters, digits, dots, underscores or hyphens',
            case when length(_check_key.kid) > 32 then format('of %s characters', length(_check_key.kid))
                 else flowfabric._shown(_check_key.kid) end));
    end if;
    if _check_key.secret !~ '^[0-9A-Fa-f]{64}$' or _check_key.secret is null then
        perform flowfabric._refuse('invalid_secret',
                                   'the secret is invalid; use exactly 64 hexadecimal digits (32 bytes)');
    end if;
end $$;

-- Store a key with its precomputed HMAC pads, as the active key.
--
--   moves    key – → active
create or replace function flowfabric._install_key(kid text, secret text)
returns void
language plpgsql as $$
declare
    bytes bytea := decode(_install_key.secret, 'hex');
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
begin
    for i in 0 .. 31 loop
        inner_pad := set_byte(inner_pad, i, get_byte(bytes, i) # 54);
        outer_pad := set_byte(outer_pad, i, get_byte(bytes, i) # 92);
    end loop;
    insert into flowfabric.keys (kid, created_at, secret, inner_pad, outer_pad)
    values (_install_key.kid, flowfabric.clock(), bytes, inner_pad, outer_pad);
end $$;

-- Install the first signing key.
--
--   moves    key – → active
--   locks    the keystore
--   emits    key_seeded
--   refuses  invalid_kid, invalid_secret, another_key_active, rotation_conflict
--   returns  'seeded', or 'already_seeded' and whether the secret is the same
create or replace function flowfabric.seed_key(kid text, secret text, out outcome text, out same_secret boolean)
language plpgsql as $$
declare
    active flowfabric.keys;
begin
    perform flowfabric._check_key(seed_key.kid, seed_key.secret);
    perform pg_advisory_xact_lock(17990, 4);
    select k.* into active from flowfabric.keys k where k.expires_at is null;
    if active.kid = seed_key.kid then
        outcome := 'already_seeded';
        same_secret := active.secret = decode(seed_key.secret, 'hex');
        return;
    end if;
    if active.kid is not null then
        perform flowfabric._refuse(
            'another_key_active', format('key %s is already active; use rotate_key to replace it',
                                         flowfabric._shown(active.kid)),
            jsonb_build_object('kid', active.kid));
    end if;
    if exists (select from flowfabric.keys k where k.kid = seed_key.kid) then
        perform flowfabric._refuse('rotation_conflict', format(
            'kid %s already exists and is retired; use another kid', flowfabric._shown(seed_key.kid)));
    end if;

    perform flowfabric._install_key(seed_key.kid, seed_key.secret);
    perform flowfabric._append('key_seeded', seed_key.kid);
    outcome := 'seeded';
end $$;

-- Seed a new installation with its first signing key. This happens only once: if the keys are deleted later, the old
-- secret is not installed again.
--
--   moves    key – → active, by the first migration
create or replace function flowfabric._seed_first_key(secret text)
returns void
language plpgsql as $$
begin
    update flowfabric.deployment d set seeded_at = flowfabric.clock() where d.seeded_at is null;
    if found then
        perform flowfabric.seed_key('k1', _seed_first_key.secret);
    end if;
end $$;

-- Make a new key the active one. The previous key verifies until the grace period ends; a grace of 0 retires it
-- immediately.
--
--   moves    key – → active; the previously active key → verifying until it expires
--   locks    the keystore
--   emits    key_rotated
--   refuses  invalid_kid, invalid_secret, invalid_grace, rotation_conflict, invalid_body
--   returns  'rotated' with the previous kid, how many old keys were removed and how many open waitpoints depend on
--            older keys; or 'noop' if it already was the active key
create or replace function flowfabric.rotate_key(
    kid text, secret text, grace_ms bigint default 86400000, by text default null,
    out outcome text, out previous_kid text, out removed int, out open_waitpoints bigint)
language plpgsql as $$
declare
    known flowfabric.keys;
    retires_at timestamptz;
begin
    perform flowfabric._check_key(rotate_key.kid, rotate_key.secret);
    if rotate_key.grace_ms is null or rotate_key.grace_ms not between 0 and 9007199254740991 then
        perform flowfabric._refuse('invalid_grace', format(
            'grace of %s ms is invalid; use 0 to 9,007,199,254,740,991 ms', rotate_key.grace_ms));
    end if;
    perform flowfabric._check_by(rotate_key.by);
    perform pg_advisory_xact_lock(17990, 4);
    select k.* into known from flowfabric.keys k where k.kid = rotate_key.kid;
    if known.expires_at is null and known.secret = decode(rotate_key.secret, 'hex') then
        outcome := 'noop';
        return;
    end if;
    if known.kid is not null then
        perform flowfabric._refuse('rotation_conflict', format(
            'kid %s already exists, with another secret or retired; use another kid',
            flowfabric._shown(rotate_key.kid)));
    end if;

    -- Capped at a century, so that the sum stays a valid timestamp.
    retires_at := flowfabric.clock() + least(rotate_key.grace_ms, 3155760000000) * interval '1 ms';
    update flowfabric.keys k set expires_at = retires_at where k.expires_at is null returning k.kid into previous_kid;
    perform flowfabric._install_key(rotate_key.kid, rotate_key.secret);
    removed := (flowfabric.retire_signing_keys()).moved;
    -- Not by their state, which is in no index: the pending ones have an expiry, and the others an open wait.
    select count(*) into open_waitpoints from (
        select p.kid from flowfabric.waitpoints p where p.expires_at is not null
        union all
        select p.kid from flowfabric.waits w cross join unnest(w.waitpoints) as g (id)
        join flowfabric.waitpoints p on p.id = g.id where w.ended_at is null) o
    where o.kid <> rotate_key.kid;
    perform flowfabric._append('key_rotated', rotate_key.kid, rotate_key.by,
                               jsonb_build_object('previous_kid', previous_kid, 'grace_ms', rotate_key.grace_ms));
    outcome := 'rotated';
end $$;

-- Sweep: remove keys that expired at least seven days ago.
--
--   locks    the keys it removes, skipping locked ones
--   returns  how many were removed
create or replace function flowfabric.retire_signing_keys(
    take int default 500, passing int default 0, out moved int, out lanes text[], out ended text[])
language plpgsql set lock_timeout = '100ms' as $$
begin
    delete from flowfabric.keys k where k.kid = any (array(
        select o.kid from flowfabric.keys o where o.expires_at <= flowfabric.clock() - interval '7 days'
        order by o.expires_at limit retire_signing_keys.take offset retire_signing_keys.passing
        for update skip locked));
    get diagnostics moved = row_count;
end $$;

-- List the signing keys by kid, without their secrets.
--
--   returns  a row per key; the active one has no expiry
create or replace function flowfabric.list_keys()
returns table (kid text, created_at timestamptz, expires_at timestamptz)
language sql stable as $$
    select k.kid, k.created_at, k.expires_at from flowfabric.keys k order by k.kid
$$;
