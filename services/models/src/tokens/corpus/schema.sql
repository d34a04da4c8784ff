-- The tables of the session service. `event` is the truth; `chat_*` and `turn` are
-- projections of it, written in the same transaction.

create table session.chat_sessions
(
    id                text        primary key,
    tenant_id         text        not null,
    subject           text        not null,

    -- Makes creation idempotent: a retried call finds the row it made before, and
    -- the digest tells whether it asks for the same.
    request_id        text        not null,
    request_digest    text        not null,

    title             text        not null check (length(title) <= 200),

    -- The agent the session was opened with. A message may override it from there on.
    agent             text        not null,
    workspace_id      text        not null,
    parent_id         text,
    parent_message_id text,
    metadata_json     jsonb       not null default '{}',
    ephemeral         boolean     not null default false,
    archived_at       timestamptz,
    created_at        timestamptz not null default now(),
    updated_at        timestamptz not null default now(),

    -- Sums over all turns, rewound ones too.
    input_tokens      bigint      not null default 0,
    output_tokens     bigint      not null default 0,
    cost_micros       bigint      not null default 0,
    model_calls       bigint      not null default 0,

    unique (tenant_id, request_id)
);

-- The default list: the most recently used first.
create index chat_sessions_recent on session.chat_sessions (tenant_id, updated_at desc, id desc)
    where not ephemeral and archived_at is null;

-- One narrow row per session is its mutex: whoever appends an event, in whatever role,
-- first locks it and bumps `next_seq`. That makes sequences gapless, unique and in
-- commit order. The indexes cover only what sweeps look for, so that bumps stay HOT.
create table session.run_state
(
    session_id     text    primary key references session.chat_sessions (id) on delete cascade,
    tenant_id      text    not null,

    -- `ready` waits for a worker and `busy` has one; people see both as busy.
    status         text    not null default 'idle'
        check (status in ('idle', 'ready', 'busy', 'retrying', 'waiting_on_approval', 'waiting_on_user_input', 'error')),
    status_message text    not null default '',
    active_turn    text,
    next_seq       bigint  not null default 1,

    -- The owner proves itself on every write: its epoch rises with every claim, and
    -- `flush_no` tells a repeated write from a lost one.
    owner          text,
    epoch          bigint  not null default 0,
    flush_no       bigint  not null default 0,

    -- How often the active turn was claimed; a turn that keeps killing its worker fails.
    attempts       integer not null default 0,

    -- The turn somebody wants stopped; its owner learns of it with every flush.
    interrupt_turn text,

    -- How many turns wait in the queue.
    queued         integer not null defaul