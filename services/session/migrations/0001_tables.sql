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
    queued         integer not null default 0 check (queued >= 0),

    check ((owner is not null) = (status in ('busy', 'retrying'))),
    check ((active_turn is null) = (status in ('idle', 'error'))),

    -- Nothing waits behind nothing: who ends a turn lets the next one go.
    check (status <> 'idle' or queued = 0)
) with (fillfactor = 50);

create index run_state_ready on session.run_state (session_id) where status = 'ready';
create index run_state_owned on session.run_state (owner) where owner is not null;

-- What happened, in order. Rows are inserted and never changed. Only functions that
-- hold the session's `run_state` row write here, which is why there is no foreign key
-- to pay for on every event.
create table session.event
(
    session_id   text        not null,
    seq          bigint      not null,
    type         text        not null,
    runtime_id   text        not null,
    created_at   timestamptz not null,
    turn_id      text,
    step_id      text,
    tool_call_id text,
    action_id    text,
    task_id      text,
    run_id       text,
    subagent_id  text,
    trace_id     text,
    span_id      text,

    -- The ids that few events have, by their JSON names.
    ids          jsonb,
    refs         jsonb,
    payload      jsonb       not null,

    primary key (session_id, seq)
);

create table session.chat_messages
(
    session_id     text        not null references session.chat_sessions (id) on delete cascade,
    id             text        not null,
    role           text        not null check (role in ('user', 'assistant')),
    turn_id        text        not null,

    -- The place in the conversation: the sequence of the event that put it there. A
    -- queued message has none yet and waits by its rank instead.
    position       bigint,
    queue_rank     bigint,

    -- Of user messages: makes submission idempotent.
    request_id     text,
    request_digest text,

    status         text        not null
        check (status in ('queued', 'accepted', 'streaming', 'completed', 'failed', 'cancelled')),
    synthetic      boolean     not null default false,

    -- `queued_at`, `agent`, `model`, `trigger`, `usage`, `cost_micros`, `prompt_digest`, …
    metadata_json  jsonb       not null default '{}',
    created_at     timestamptz not null,
    hidden_at      timestamptz,

    primary key (session_id, id),
    check ((position is null) = (queue_rank is not null)),
    check ((queue_rank is not null) = (metadata_json ? 'queued_at'))
);

create unique index chat_messages_request on session.chat_messages (session_id, request_id)
    where request_id is not null;
create unique index chat_messages_position on session.chat_messages (session_id, position)
    where position is not null;
create unique index chat_messages_queue on session.chat_messages (session_id, queue_rank)
    where queue_rank is not null;
create index chat_messages_turn on session.chat_messages (session_id, turn_id);

create table session.chat_parts
(
    session_id text        not null,
    message_id text        not null,
    index      integer     not null,
    id         text        not null,

    -- `text`, `reasoning`, `tool-<name>`, `file` or `data-<name>`.
    type       text        not null,
    data_json  jsonb       not null,

    -- A part that still grows is not rewritten with every delta: it holds what the
    -- log said up to here, and readers add the deltas after it.
    folded_seq bigint      not null,

    primary key (session_id, message_id, index),
    foreign key (session_id, message_id) references session.chat_messages (session_id, id) on delete cascade
);

-- The read model of a turn.
create table session.turn
(
    session_id   text        not null references session.chat_sessions (id) on delete cascade,
    id           text        not null,
    message_id   text        not null,
    status       text        not null
        check (status in ('queued', 'accepted', 'running', 'waiting', 'completed', 'failed', 'cancelled')),

    -- What readers are shown beyond the columns, in the snapshot's own JSON.
    view         jsonb       not null default '{}',

    -- The W3C trace of the call that submitted it; the turn runs under it.
    trace_parent text,
    subject      text        not null,
    submitted_at timestamptz not null,

    primary key (session_id, id)
);

create index turn_recent on session.turn (session_id, submitted_at desc);

-- System prompts, once per digest; assistant messages name theirs.
create table session.prompt
(
    tenant_id  text        not null,
    digest     text        not null,
    body       text        not null,
    created_at timestamptz not null default now(),

    primary key (tenant_id, digest)
);

-- Agents are data. Versions are inserted and never changed.
create table session.agent
(
    tenant_id  text        not null,
    id         text        not null,
    version    integer     not null check (version > 0),
    manifest   jsonb       not null,
    digest     text        not null,
    created_at timestamptz not null default now(),
    deleted_at timestamptz,

    primary key (tenant_id, id, version)
);

-- One row per start of a process. It proves that it lives by counting; a dead one
-- can neither count nor claim.
create table session.replica
(
    id         text        primary key,
    address    text        not null,
    counter    bigint      not null default 0,
    dead       boolean     not null default false,
    started_at timestamptz not null default now()
);
