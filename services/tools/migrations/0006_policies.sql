-- What governs tools beyond a single agent. A project's name is whatever its workspaces say; the
-- empty one stands for all projects of the tenant.

create table tools.rule
(
    tenant_id  text not null,
    project    text not null check (length(project) <= 200),
    permission text not null check (length(permission) between 1 and 100),
    pattern    text not null check (length(pattern) between 1 and 1000),
    action     text not null check (action in ('allow', 'ask', 'deny'))
);

-- A pattern may be longer than what an index takes.
create unique index rule_key on tools.rule (tenant_id, project, permission, md5(pattern));

create table tools.hook
(
    tenant_id  text    not null,
    project    text    not null check (length(project) <= 200),
    hook_id    text    not null check (hook_id ~ '^[a-z0-9-]{1,64}$'),
    event      text    not null check (event in (
        'session_start', 'user_prompt_submit', 'pre_tool_use', 'permission_request',
        'post_tool_use', 'post_tool_failure', 'stop')),

    -- A glob; empty: all tools.
    tools      text    not null check (length(tools) <= 100),

    -- Who is asked: one of the two.
    url        text    check (length(url) between 1 and 2000),
    command    text    check (length(command) between 1 and 10000),
    check (num_nonnulls(url, command) = 1),

    timeout_ms integer not null check (timeout_ms between 1 and 60000),
    fail_open  boolean not null,

    -- Those with a lower number are asked first.
    rank       integer not null,

    primary key (tenant_id, project, hook_id)
);
