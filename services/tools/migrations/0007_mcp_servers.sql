-- The MCP servers whose tools agents have beside ours. Secrets are never in here: only their names.
create table tools.mcp_server
(
    tenant_id     text    not null,

    -- Whose workspaces have them. Empty: those of all projects of the tenant.
    project       text    not null check (length(project) <= 200),

    -- The prefix of its tools' names, so it has no underscore in it.
    mcp_server_id text    not null check (mcp_server_id ~ '^[a-z0-9]{1,32}$'),

    -- How it is reached: a command that is run in the sandbox, or the URL of an endpoint.
    command       text    check (length(command) between 1 and 4000),
    url           text    check (length(url) between 1 and 2000),

    -- From the name of a variable or header to the name of the secret that is its value.
    secret_refs   jsonb   not null default '{}' check (jsonb_typeof(secret_refs) = 'object'),

    -- Whether what it says of its tools is believed.
    trusted       boolean not null default false,

    primary key (tenant_id, project, mcp_server_id),
    check (num_nonnulls(command, url) = 1)
);
