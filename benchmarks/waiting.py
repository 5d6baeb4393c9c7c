"""Create many waiting executions in one statement."""

# Copies one waiting execution $1 times; the database must contain one.
FILL = """
with one as (
    select e as execution, t as ticket, s as suspension, w as waitpoint
    from flowfabric.executions e join flowfabric.tickets t on t.id = e.id
    join flowfabric.suspensions s on s.execution = e.id join flowfabric.waitpoints w on w.execution = e.id limit 1
), made as materialized (
    select o.*, jsonb_build_object('partition', x.partition, 'id', x.id, 'suspension', x.suspension) as own_ticket,
           jsonb_build_object('partition', x.partition, 'execution', x.id, 'id', x.suspension) as own_suspension,
           jsonb_build_object('partition', x.partition, 'execution', x.id, 'id', gen_random_uuid(),
                              'suspension', x.suspension) as own_waitpoint
    from one o cross join (
        select gen_random_uuid() as id, gen_random_uuid() as suspension, n % 256 as partition
        from generate_series(1, $1::int) n) x
), recorded as (
    insert into flowfabric.executions select (jsonb_populate_record(m.execution, m.own_ticket)).* from made m
), ticketed as (
    insert into flowfabric.tickets select (jsonb_populate_record(m.ticket, m.own_ticket)).* from made m
), suspended as (
    insert into flowfabric.suspensions select (jsonb_populate_record(m.suspension, m.own_suspension)).* from made m
)
insert into flowfabric.waitpoints select (jsonb_populate_record(m.waitpoint, m.own_waitpoint)).* from made m
"""
