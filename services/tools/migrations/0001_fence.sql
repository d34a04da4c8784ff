-- The highest epoch seen for each session. A session is owned by one replica of the session
-- service at a time and every new owner has a higher epoch, so whoever comes with a lower one has
-- lost the session, whatever it believes.
create table tools.fence
(
    tenant_id  text   not null,
    session_id text   not null,
    epoch      bigint not null check (epoch >= 0),

    primary key (tenant_id, session_id)
)
-- Rewritten by every call: room on the page keeps that an in-place update.
with (fillfactor = 70);

-- Every tool call that was ever started. A call has effects, so it is never run again: not by
-- a retry, not by another replica, not after a restart.
create table tools.call
(
    tenant_id    text        not null,
    session_id   text        not null,
    tool_call_id text        not null,
    epoch        bigint      not null,
    start_time   timestamptz not null default now(),

    primary key (tenant_id, session_id, tool_call_id)
);
