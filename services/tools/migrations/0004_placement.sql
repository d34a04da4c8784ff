alter table tools.workspace
    -- Of one that somebody created: what it was asked for with, so that asking again finds it.
    -- One that a session uses first is made without being asked for.
    add column request_id     text check (length(request_id) between 1 and 100),
    add column request_digest text,

    -- Null: what the server gives everybody.
    add column quota_bytes    bigint check (quota_bytes > 0),

    -- Whose disk it is on. Null: on one that all replicas share, or on none yet. Set once, by
    -- whoever is first, so that no two replicas ever hold the same workspace.
    add column replica_id     text,

    -- It is gone for everybody, and its replica removes what is left of it.
    add column deleting       boolean not null default false;

create unique index workspace_request on tools.workspace (tenant_id, request_id);
create index workspace_deleting on tools.workspace (workspace_id) where deleting;

-- A replica is its disk: whoever starts with that disk, wherever, is this replica.
create table tools.replica
(
    replica_id   text        primary key,

    -- Where the others reach it.
    address      text        not null check (length(address) between 1 and 1000),
    heartbeat_at timestamptz not null default now()
);

-- Copies of workspaces as they once were, on the disk of the workspace.
create table tools.snapshot
(
    tenant_id    text        not null,
    workspace_id text        not null,
    snapshot_id  text        not null,
    request_id   text        not null check (length(request_id) between 1 and 100),

    -- A row comes before its files, so that whatever is on the disk has a row, however the
    -- server ended. Only what is stored can be restored.
    stored       boolean     not null default false,
    create_time  timestamptz not null default now(),

    primary key (tenant_id, workspace_id, snapshot_id),
    unique (tenant_id, workspace_id, request_id),
    foreign key (tenant_id, workspace_id)
        references tools.workspace (tenant_id, workspace_id) on delete cascade
);
