-- Facts about the Postgres server and database, from system catalogs only: readable before FlowFabric is installed.

select jsonb_build_object(
    'version_num', current_setting('server_version_num')::int,
    'version', current_setting('server_version'),
    'at', clock_timestamp(),
    'pid', pg_backend_pid(),
    'is_standby', pg_is_in_recovery(),
    'sees_all', pg_has_role('pg_read_all_stats', 'usage')
        or (select r.rolsuper from pg_roles r where r.rolname = current_user),
    'connection_count', (select count(*) from pg_stat_activity a where a.backend_type = 'client backend'),
    'settings', (
        select jsonb_object_agg(s.name, s.setting) from pg_settings s
        where s.name in ('fsync', 'synchronous_commit', 'full_page_writes', 'autovacuum', 'track_counts',
                         'max_connections', 'superuser_reserved_connections', 'reserved_connections',
                         'idle_in_transaction_session_timeout', 'max_locks_per_transaction',
                         'default_transaction_read_only', 'default_transaction_isolation')),
    -- Sessions of this database with an open transaction.
    'transactions', (
        select coalesce(jsonb_agg(x order by x.began_at), '[]') from (
            select a.pid, a.usename as role, a.application_name as application, coalesce(a.state, 'unknown') as state,
                   a.xact_start as began_at, a.backend_xmin is not null or a.backend_xid is not null as pins,
                   exists (select from pg_locks l
                           where l.pid = a.pid and l.locktype = 'advisory' and l.classid = 17990 and l.objid = 1
                             and l.objsubid = 2 and l.granted and l.database = a.datid) as writes_events
            from pg_stat_activity a
            where a.datname = current_database() and a.xact_start is not null and a.pid <> pg_backend_pid()
              and a.backend_type = 'client backend'
            order by a.xact_start limit 100) x),
    'prepared', (
        select coalesce(jsonb_agg(x order by x.prepared_at), '[]') from (
            select p.gid, p.owner as role, p.prepared as prepared_at from pg_prepared_xacts p
            where p.database = current_database() order by p.prepared limit 100) x),
    'slots', (
        select coalesce(jsonb_agg(s.slot_name order by s.slot_name), '[]') from pg_replication_slots s
        where not s.active and s.xmin is not null),
    'tables', (
        select coalesce(jsonb_agg(x order by x.name), '[]') from (
            select s.relname as name, s.n_dead_tup as dead_count, s.n_live_tup as live_count,
                   greatest(s.last_autovacuum, s.last_vacuum) as vacuumed_at,
                   exists (select from pg_options_to_table(c.reloptions) o
                           where o.option_name = 'autovacuum_enabled' and not o.option_value::boolean) as is_left_out
            from pg_stat_user_tables s join pg_class c on c.oid = s.relid
            where s.schemaname = 'flowfabric'
              and s.relname in ('tickets', 'executions', 'workers', 'horizon', 'waits', 'waitpoints')) x),
    -- flowfabric.testing replaces the clock function with one that reads an offset.
    'has_test_clock', exists (
        select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'flowfabric' and p.proname = 'clock' and p.prosrc like '%clock_offset%'))::text as facts
