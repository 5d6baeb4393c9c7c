-- The sessions and prepared transactions of this database that hold a lock which a migration may need: on our tables,
-- functions or advisory locks, for longer than a second. From system catalogs only, because a migration that was rolled
-- back may have left no function. A role without the privilege to see when a transaction began gets all of them.

select coalesce(jsonb_agg(x order by x.is_migration desc, x.open_s desc nulls last), '[]')::text as holders
from (
    select h.pid, p.gid, coalesce(a.usename, p.owner) as role, nullif(a.application_name, '') as application,
           nullif(a.backend_type, 'client backend') as background, a.state,
           extract(epoch from statement_timestamp() - coalesce(a.xact_start, p.prepared))::int as open_s, h.is_migration
    from (
        select l.pid, l.virtualtransaction,
               bool_or(l.locktype = 'advisory' and l.classid = 17990 and l.objid = 2) as is_migration
        from pg_locks l
        where l.granted and l.pid is distinct from pg_backend_pid()
          and l.database = (select d.oid from pg_database d where d.datname = current_database())
          and case l.locktype
              when 'relation' then l.relation in (
                  select c.oid from pg_class c where c.relnamespace = to_regnamespace('flowfabric'))
              when 'object' then l.classid = 'pg_proc'::regclass and l.objid in (
                  select f.oid from pg_proc f where f.pronamespace = to_regnamespace('flowfabric'))
              when 'advisory' then l.classid = 17990
              else false
          end
        group by l.pid, l.virtualtransaction) h
    left join pg_stat_activity a on a.pid = h.pid
    -- A prepared transaction has no process, but it holds the lock of its own number.
    left join pg_locks t on h.pid is null and t.pid is null and t.locktype = 'transactionid'
        and t.virtualtransaction = h.virtualtransaction
    left join pg_prepared_xacts p on p.transaction = t.transactionid
    where h.is_migration
       or coalesce(a.xact_start, p.prepared, '-infinity') < statement_timestamp() - interval '1 second'
    order by open_s desc nulls last limit 20) x
