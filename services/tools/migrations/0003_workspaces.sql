-- What is known of a workspace beside its files. One that a session uses first has no project but
-- itself, and the usual quota.
create table tools.workspace
(
    tenant_id    text        not null,
    workspace_id text        not null,

    -- Whose rules, hooks, MCP servers and memories apply. Empty: the workspace is its own project.
    project      text        not null default '' check (length(project) <= 200),

    create_time  timestamptz not null default now(),

    primary key (tenant_id, workspace_id)
);
