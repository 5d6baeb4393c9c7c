-- Flows: executions of one partition with dependencies between them.

create type flowfabric.edge_state as enum ('pending', 'succeeded', 'failed', 'skipped');

create type flowfabric.group_state as enum ('pending', 'satisfied', 'impossible');

-- The lock for all that belongs to a flow: whoever changes it, or ends a member, takes this row first.
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
    names          jsonb, -- of members, where the flow was submitted whole
    cancel_policy  text,
    cancel_reason  text,
    cancel_by      text,
    cancel_count   int,
    cancel_members uuid[],
    primary key (partition, id)
) with (fillfactor = 50);

-- A submission names its flow by its id alone.
create index flows_by_id on flowfabric.flows (id);
create index flows_by_namespace on flowfabric.flows (namespace, partition, id);

-- Which flow an idempotency key stands for, for as long as that flow is there.
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

-- From an upstream to its edges, and from a flow to all of its own; an execution is in one flow at most. Not by the partition
-- first: the planner takes any index that begins with that.
create index flow_edges_by_upstream on flowfabric.flow_edges (upstream, downstream);
create index flow_edges_by_flow on flowfabric.flow_edges (flow, downstream, upstream);
create unique index flow_edges_by_id on flowfabric.flow_edges (partition, id);

-- All edges into one member, and the rule over them. `needed` is null where all are.
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
-- Groups that end what others still run for them: who ends a member may have to lock those.
create index edge_groups_cancelling on flowfabric.edge_groups (flow) where cancels and state = 'pending';

-- Whose member a ticket is: who locks it sees at once whether it should have taken a flow before.
alter table flowfabric.tickets add column flow uuid;

create index tickets_by_flow on flowfabric.tickets (flow) where flow is not null;
create index tickets_blocked on flowfabric.tickets (lane) where phase = 'runnable' and eligibility = 'blocked_by_dependencies';
