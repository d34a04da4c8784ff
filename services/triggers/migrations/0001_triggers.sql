-- What starts turns, when it is due, and what became of it.

create table triggers.trigger
(
    id             text        primary key,
    tenant_id      text        not null,

    -- Who made it. Its turns are submitted in their name.
    subject        text        not null,

    -- Makes creation idempotent: a retried call finds the row it made before, and the digest
    -- tells whether it asks for the same. That of a wake-up begins with its session and a slash.
    request_id     text        not null,
    request_digest text        not null,

    source         text        not null
        check (source in ('schedule', 'webhook', 'api', 'self_schedule', 'mcp_event')),

    -- `trigger::Definition`: what fires it, and what it does then.
    definition     jsonb       not null,

    -- The session of its turns, if it is always the same.
    session_id     text,

    status         text        not null default 'active'
        check (status in ('active', 'paused', 'expired', 'finished')),

    -- When it stops by itself; null: when it has nothing left to do.
    expires_at     timestamptz,

    -- Of a schedule that is paused: what was due next.
    held_at        timestamptz,

    -- By the clock of the service, as everything that schedules are compared with.
    created_at     timestamptz not null,
    updated_at     timestamptz not null,

    unique (tenant_id, request_id),
    check (held_at is null or status = 'paused')
);

-- The list: ids sort by the time they were made.
create index trigger_list on triggers.trigger (tenant_id, id desc);
-- Wake-ups that are over, for those who forget them.
create index trigger_over on triggers.trigger (updated_at)
    where source = 'self_schedule' and status in ('expired', 'finished');
create index trigger_session on triggers.trigger (session_id, id) where session_id is not null;

-- One narrow row per schedule that is active: when it is due. It is the schedule's mutex as
-- well: who fires, pauses, changes or deletes a schedule takes this row first and the trigger's
-- row second. A look for what is due reads the rows that are, and no others.
create table triggers.due
(
    trigger_id text        primary key references triggers.trigger (id) on delete cascade,
    fire_at    timestamptz not null
) with (fillfactor = 70);

create index due_fire_at on triggers.due (fire_at, trigger_id);

-- What fired and what was dropped. It stays when its trigger goes, until retention takes it.
create table triggers.firing
(
    -- Sorts by the time it fired. It is the `request_id` of its turn too, by which the session
    -- service knows a turn that was submitted before.
    id           text        primary key,
    tenant_id    text        not null,
    trigger_id   text        not null,
    subject      text        not null,
    source       text        not null,

    -- What the sender calls it, or the due time of a schedule.
    delivery_id  text        not null,

    status       text        not null check (status in ('pending', 'submitted', 'dropped')),
    drop_reason  text        not null default '',
    due_at       timestamptz not null,
    fired_at     timestamptz not null,

    -- How many other due times of a schedule this stands for.
    missed       integer     not null default 0,

    -- The `SubmitTurnRequest` as it is submitted, however often; without the session where that is
    -- made or looked up first. Null: nothing could be made of the payload.
    envelope     bytea,

    -- What the template saw: JSON text, for those who want it fired again.
    payload      text        not null default '',

    -- `firing::Route`: where the turn goes.
    route        jsonb       not null,

    session_id   text,
    turn_id      text,
    attempts     integer     not null default 0,

    -- Of a pending one: nobody takes it before, because somebody has it, or because it rests.
    -- By the clock of the database, which all replicas share.
    not_before   timestamptz not null default clock_timestamp(),

    submitted_at timestamptz,

    check ((status = 'dropped') = (drop_reason <> '')),
    check ((status = 'submitted') = (turn_id is not null)),
    check (status = 'dropped' or envelope is not null)
);

-- A delivery becomes one turn at most. What was dropped may come again.
create unique index firing_delivery on triggers.firing (trigger_id, delivery_id) where status <> 'dropped';
create index firing_list on triggers.firing (tenant_id, id desc);
create index firing_of_trigger on triggers.firing (trigger_id, id desc);
create index firing_pending on triggers.firing (not_before) where status = 'pending';

-- How often a trigger fired in the minute in which it last did.
create table triggers.throttle
(
    trigger_id text        primary key,
    minute     timestamptz not null,
    count      integer     not null
) with (fillfactor = 70);

-- How often a tenant's triggers fired on the day on which they last did.
create table triggers.account
(
    tenant_id text   primary key,
    day       date   not null,
    count     bigint not null
) with (fillfactor = 70);

-- The session of each key of a trigger that has one session per key.
create table triggers.session_key
(
    trigger_id text        not null,
    key        text        not null,
    session_id text        not null,
    created_at timestamptz not null default now(),
    primary key (trigger_id, key)
);
