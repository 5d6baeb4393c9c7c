-- Flows: executions of one partition with dependencies between them.

create type flowfabric.edge_state as enum ('pending', 'succeeded', 'failed', 'skipped');

create type flowfabric.group_state as enum ('pending', 'satisfied', 'impossible');

-- The row to lock for everything in a flow: a transaction that changes the flow or ends a member locks it first.
create table flowfabric.flows (
    partition      smallint not null,
    revision       int not null default 0,
    node_count     int not null default 0,
    edge_count     int not null default 0,
    created_at     timestamptz not null,
    changed_at     timestamptz not null,
    cancelled_at   timestamptz,
    id             uuid not null,
    namespace      text collate "C" not null,
    kind           text collate "C" not null,
    key            text collate "C",
    tags           jsonb,
    names          jsonb, -- names of members, if the flow was submitted as a whole
    cancel_policy  text,
    cancel_reason  text,
    cancel_by      text,
    cancel_count   int,
    cancel_members uuid[],
    primary key (partition, id)
) with (fillfactor = 50);

-- A submission refers to its flow by id alone.
create index flows_by_id on flowfabric.flows (id);
create index flows_by_namespace on flowfabric.flows (namespace, partition, id);

-- The flow of each idempotency key, for as long as the flow exists.
create table flowfabric.flow_keys (
    partition      smallint not null,
    flow_partition smallint not null,
    flow           uuid not null,
    namespace      text collate "C" not null,
    key            text collate "C" not null,
    primary key (partition, namespace, key)
);

create index flow_keys_by_flow on flowfabric.flow_keys (flow);

create table flowfabric.flow_edges (
    partition  smallint not null,
    state      flowfabric.edge_state not null default 'pending',
    flow       uuid not null,
    upstream   uuid not null,
    downstream uuid not null,
    id         uuid not null,
    pass_as    text,
    primary key (partition, downstream, upstream)
) with (fillfactor = 50);

-- From an upstream to its edges, and from a flow to all its edges; an execution is in at most one flow. Without the
-- partition in front, because the planner might then use another index that begins with it.
create index flow_edges_by_upstream on flowfabric.flow_edges (upstream, downstream);
create index flow_edges_by_flow on flowfabric.flow_edges (flow, downstream, upstream);
create unique index flow_edges_by_id on flowfabric.flow_edges (partition, id);

-- All edges into one member, and their rule. `needed` is null if all of them are needed.
create table flowfabric.edge_groups (
    partition  smallint not null,
    state      flowfabric.group_state not null default 'pending',
    cancels    boolean not null default false,
    needed     int,
    total      int not null default 0,
    succeeded  int not null default 0,
    failed     int not null default 0,
    skipped    int not null default 0,
    flow       uuid not null,
    downstream uuid not null,
    kind       text not null,
    primary key (partition, downstream)
) with (fillfactor = 50);

create index edge_groups_by_flow on flowfabric.edge_groups (flow, downstream);
-- Groups that cancel members still running once they are decided: ending a member may have to lock those.
create index edge_groups_cancelling on flowfabric.edge_groups (flow) where cancels and state = 'pending';

-- The flow of a ticket, so that a transaction that locks the ticket sees whether it had to lock the flow first.
alter table flowfabric.tickets add column flow uuid;

create index tickets_by_flow on flowfabric.tickets (flow) where flow is not null;
create index tickets_blocked on flowfabric.tickets (lane)
    where phase = 'runnable' and eligibility = 'blocked_by_dependencies';
