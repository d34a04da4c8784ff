-- Output that is too large for the log, in a store beside the database. The store is addressed by
-- content within each tenant, so what many calls print is kept once, and nobody can find out by a
-- digest what others have.
create table tools.output
(
    tenant_id    text        not null,
    output_ref   text        not null,
    session_id   text        not null,
    tool_call_id text        not null,

    -- SHA-256 of what is kept, in hexadecimal, and how much that is.
    digest       text        not null check (digest ~ '^[0-9a-f]{64}$'),
    bytes        bigint      not null check (bytes >= 0),

    -- A row comes before what it names, so that whatever is in the store has a row that is
    -- swept some day, however the server ended.
    stored       boolean     not null default false,
    created_at   timestamptz not null default now(),
    expires_at   timestamptz not null,

    primary key (tenant_id, output_ref)
);

create index output_digest on tools.output (tenant_id, digest);
create index output_expired on tools.output (expires_at);
