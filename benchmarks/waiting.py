"""Create many waiting executions in one statement."""

# Copies one waiting execution $1 times; the database must contain one.
FILL = """
with one as (
    select e as execution, t as ticket, w as wait, p as waitpoint
    from flowfabric.executions e join flowfabric.tickets t on t.id = e.id
    join flowfabric.waits w on w.execution = e.id join flowfabric.waitpoints p on p.execution = e.id limit 1
), made as materialized (
    select o.*, jsonb_build_object('partition', x.partition, 'id', x.id, 'suspension', x.wait) as own_ticket,
           jsonb_build_object('partition', x.partition, 'execution', x.id, 'id', x.wait, 'suspension', x.wait,
                              'waitpoints', array[x.waitpoint]) as own_wait,
           jsonb_build_object('partition', x.partition, 'execution', x.id, 'id', x.waitpoint,
                              'wait', x.wait) as own_waitpoint
    from one o cross join (
        select gen_random_uuid() as id, gen_random_uuid() as wait, gen_random_uuid() as waitpoint, n % 256 as partition
        from generate_series(1, $1::int) n) x
), recorded as (
    insert into flowfabric.executions select (jsonb_populate_record(m.execution, m.own_ticket)).* from made m
), ticketed as (
    insert into flowfabric.tickets select (jsonb_populate_record(m.ticket, m.own_ticket)).* from made m
), waited as (
    insert into flowfabric.waits select (jsonb_populate_record(m.wait, m.own_wait)).* from made m
)
insert into flowfabric.waitpoints select (jsonb_populate_record(m.waitpoint, m.own_waitpoint)).* from made m
"""
