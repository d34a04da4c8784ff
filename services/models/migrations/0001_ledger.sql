-- What was asked of models and what it cost. Redis counts the same to decide quickly, and
-- whatever it forgets is counted again from here.

-- "Limit" is a word of SQL's own.
create table models.rule
(
    tenant_id  text        not null,
    name       text        not null check (name in ('requests_per_minute', 'tokens_per_minute',
        'concurrent_streams', 'tokens_per_day', 'cost_micros_per_day', 'cost_micros_per_month')),
    scope      text        not null check (scope in ('tenant', 'subject', 'session_tree', 'provider', 'model')),

    -- Which one; empty: each that has no rule of its own.
    key        text        not null check (length(key) <= 256),
    value      bigint      not null check (value > 0),
    queue_ms   int         not null check (queue_ms between 0 and 60000),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, name, scope, key)
);

create table models.budget
(
    id             text        primary key,
    tenant_id      text        not null,

    -- Makes creation idempotent: a repeated call finds the row it made before.
    request_id     text        not null,

    -- The one called `default` pays for calls that name no budget.
    name           text        not null check (length(name) between 1 and 128),
    amount_micros  bigint      not null check (amount_micros >= 0),

    -- The sum of what its requests cost, moved by the statement that ends them.
    spent_micros   bigint      not null default 0,
    created_at     timestamptz not null default now(),
    unique (tenant_id, request_id),
    unique (tenant_id, name)
);

-- A process of this service. Others notice when it stops counting.
create table models.replica
(
    id         text        primary key,

    -- Raised about once a second. Everything that was admitted before a beat began is on record
    -- when it ends.
    beat       bigint      not null default 0,

    -- Given up: its requests are being closed, and it may not go on under this id.
    dead       boolean     not null default false,
    started_at timestamptz not null default now()
);

-- The request log and the ledger: one row per call of a provider.
create table models.request
(
    id              text        primary key,
    tenant_id       text        not null,
    subject         text        not null,
    session_id      text        not null,
    root_session_id text        not null,
    turn_id         text        not null,
    step_id         text        not null,
    provider        text        not null,
    model           text        not null,
    budget_id       text,
    replica_id      text        not null,

    -- It is written when the call is admitted and once more when it ends; the first end stands.
    status          text        not null check (status in ('running', 'completed', 'failed', 'cancelled')),
    error_kind      text        not null,

    -- Whether the provider counted, we did, or nobody could and the worst case counts.
    basis           text        not null check (basis in ('', 'exact', 'estimated', 'worst_case')),

    -- The worst case, which counts while the request runs.
    reserved_input  int         not null,
    reserved_output int         not null,
    reserved_micros bigint      not null,

    input           int         not null,
    output          int         not null,
    reasoning       int         not null,
    cache_read      int         not null,
    cache_write     int         not null,
    cost_micros     bigint      not null,
    currency        text        not null,

    started_at      timestamptz not null,
    first_token_ms  int         not null,
    duration_ms     int         not null
);

-- "What did it cost", by time for a tenant and for one of its session trees. The sums are made
-- from the index alone.
create index request_by_time on models.request (tenant_id, started_at)
    include (status, subject, session_id, root_session_id, provider, model, currency,
        input, output, reasoning, cache_read, cache_write, cost_micros);
create index request_by_tree on models.request (tenant_id, root_session_id, started_at)
    include (status, subject, session_id, provider, model, currency,
        input, output, reasoning, cache_read, cache_write, cost_micros);

-- The log, newest first: ids grow with time.
create index request_by_id on models.request (tenant_id, id);
create index request_by_session on models.request (tenant_id, session_id, id);
create index request_by_turn on models.request (tenant_id, turn_id, id);

-- What is under way: few rows among many.
create index request_running on models.request (tenant_id, replica_id) where status = 'running';
create index request_running_here on models.request (replica_id) where status = 'running';
