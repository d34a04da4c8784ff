-- Who is connected to the MCP server of which trigger. A replica that does not renew its lease loses
-- it, and the epoch keeps one that has not noticed from firing.
create table triggers.mcp_watch
(
    trigger_id  text        primary key references triggers.trigger (id) on delete cascade,
    owner       text        not null,
    epoch       bigint      not null,
    lease_until timestamptz not null
);

create index mcp_watch_lease on triggers.mcp_watch (lease_until);

-- The triggers that somebody has to be connected for.
create index trigger_mcp on triggers.trigger (id) where source = 'mcp_event' and status = 'active';
