-- Processes that outlive the call that started them, and what happened to them, until the
-- session service has it in its log.
--
-- Whoever changes a session's processes or facts takes its row of `tools.fence` first.

alter table tools.fence
    -- The number that the session's next fact gets.
    add column next_fact bigint not null default 1,

    -- The session was deleted: nothing is started for it any more.
    add column ended_at  timestamptz;

-- One row per start of a server that runs processes. It proves that it lives by moving the
-- time on; only the clock of the database counts.
create table tools.process_host
(
    id          text        primary key,
    alive_until timestamptz not null
);

create table tools.process
(
    tenant_id      text        not null,
    process_id     text        not null,
    session_id     text        not null,
    workspace_id   text        not null,

    -- Makes starting idempotent: a repeated call finds the row it made before, and the
    -- digest tells whether it asks for the same.
    request_id     text        not null,
    request_digest text        not null,

    command        text        not null,
    pty            boolean     not null,

    -- The server that runs it, and with which it ends.
    host_id        text        not null,

    status         text        not null default 'running'
        check (status in ('running', 'completed', 'failed', 'terminated', 'lost')),

    -- Why somebody wants it ended who cannot reach it; its host looks.
    stop_reason    text,

    exit_code      integer     not null default 0,
    signal         text        not null default '',
    reason         text        not null default '',

    -- How much it printed, as far as its host has said.
    output_bytes   bigint      not null default 0,

    -- Of one that is over: what is kept of its output, and which stream each stretch of it is
    -- of, `[[offset, stream], …]`.
    kept_bytes     bigint      not null default 0,
    output_ref     text        not null default '',
    streams        jsonb       not null default '[]',

    -- Lists are in the order of this.
    number         bigint      not null generated always as identity,
    start_time     timestamptz not null default now(),
    end_time       timestamptz,

    primary key (tenant_id, process_id),
    unique (tenant_id, session_id, request_id),
    check ((end_time is null) = (status = 'running'))
);

create index process_listed on tools.process (tenant_id, session_id, number desc);
create index process_running on tools.process (host_id) where status = 'running';
create index process_of_tenant on tools.process (tenant_id) where status = 'running';
create index process_of_workspace on tools.process (tenant_id, workspace_id) where status = 'running';
create index process_over on tools.process (end_time) where status <> 'running';

-- What is to be put on record, in order within each session.
create table tools.fact
(
    tenant_id    text        not null,
    session_id   text        not null,
    number       bigint      not null,

    -- A `windlass.event.v1.Event`.
    event        bytea       not null,

    -- Rises with `number` within a session, because both are given under its lock; over all
    -- sessions it is nearly the order in which things happened.
    place        bigint      not null generated always as identity,

    -- Until then somebody has it who is about to put it on record.
    leased_until timestamptz,

    primary key (tenant_id, session_id, number)
);

create index fact_oldest on tools.fact (place);

-- What a process prints is kept like what a tool prints.
alter table tools.output
    alter column tool_call_id drop not null,
    add column process_id text,
    add check ((tool_call_id is null) <> (process_id is null));

-- Puts facts into the outbox. Those of a session that is gone would find no log.
create function tools.put_facts(p_tenant text, p_session text, p_events bytea[]) returns void
language plpgsql as $$
declare
    v_count integer := cardinality(p_events);
    v_fence tools.fence;
begin
    if v_count = 0 then
        return;
    end if;
    insert into tools.fence as f (tenant_id, session_id, epoch, next_fact)
    values (p_tenant, p_session, 0, 1 + v_count)
    on conflict (tenant_id, session_id) do update set next_fact = f.next_fact + v_count
    returning * into v_fence;
    if v_fence.ended_at is null then
        insert into tools.fact (tenant_id, session_id, number, event)
        select p_tenant, p_session, v_fence.next_fact - v_count - 1 + e.place, e.event
        from unnest(p_events) with ordinality as e(event, place);
    end if;
end;
$$;

-- Takes the row that keeps a session's processes and facts in order.
create function tools.lock_session(p_tenant text, p_session text) returns tools.fence
language sql as $$
    insert into tools.fence as f (tenant_id, session_id, epoch) values (p_tenant, p_session, 0)
    on conflict (tenant_id, session_id) do update set epoch = f.epoch
    returning f;
$$;

-- Notes that a process is about to be started, or finds the one that this request started
-- before. `outcome` is `started`, `repeated`, `reused`, `ended`, `session_full` or
-- `tenant_full`; only `started` changes anything.
create function tools.start_process(
    p_tenant text, p_session text, p_process text, p_workspace text, p_request text, p_digest text,
    p_command text, p_pty boolean, p_host text, p_session_limit bigint, p_tenant_limit bigint
) returns table (outcome text, process_id text)
language plpgsql as $$
#variable_conflict use_column
declare
    v_fence tools.fence;
    v_old   tools.process;
begin
    v_fence := tools.lock_session(p_tenant, p_session);
    select * into v_old from tools.process p
    where p.tenant_id = p_tenant and p.session_id = p_session and p.request_id = p_request;
    if found then
        return query select
            case when v_old.request_digest = p_digest then 'repeated' else 'reused' end, v_old.process_id;
        return;
    end if;
    if v_fence.ended_at is not null then
        return query select 'ended', null;
        return;
    end if;
    -- Starts of other sessions of the tenant are counted with this one.
    perform pg_advisory_xact_lock(hashtextextended('tools.process/' || p_tenant, 0));
    if p_session_limit <= (
        select count(*) from tools.process p
        where p.tenant_id = p_tenant and p.session_id = p_session and p.status = 'running')
    then
        return query select 'session_full', null;
        return;
    end if;
    if p_tenant_limit <= (
        select count(*) from tools.process p where p.tenant_id = p_tenant and p.status = 'running')
    then
        return query select 'tenant_full', null;
        return;
    end if;
    insert into tools.process
        (tenant_id, process_id, session_id, workspace_id, request_id, request_digest, command, pty, host_id)
    values (p_tenant, p_process, p_session, p_workspace, p_request, p_digest, p_command, p_pty, p_host);
    return query select 'started', p_process;
end;
$$;

-- Puts on record what happens to a process that runs. False: it is no longer the host's to
-- speak for.
create function tools.note_process(
    p_tenant text, p_session text, p_process text, p_host text, p_output bigint, p_events bytea[]
) returns boolean
language plpgsql as $$
begin
    perform tools.lock_session(p_tenant, p_session);
    update tools.process p set output_bytes = p_output
    where p.tenant_id = p_tenant and p.process_id = p_process and p.host_id = p_host and p.status = 'running';
    if not found then
        return false;
    end if;
    perform tools.put_facts(p_tenant, p_session, p_events);
    return true;
end;
$$;

-- Says how a process ended, once. Lost is one whose host is, and that is seen here.
create function tools.end_process(
    p_tenant text, p_session text, p_process text, p_host text, p_status text,
    p_exit_code integer, p_signal text, p_reason text,
    p_output bigint, p_kept bigint, p_output_ref text, p_streams jsonb, p_events bytea[]
) returns boolean
language plpgsql as $$
declare
    v_fence tools.fence;
begin
    v_fence := tools.lock_session(p_tenant, p_session);
    update tools.process p
    set status = p_status, exit_code = p_exit_code, signal = p_signal, reason = p_reason,
        output_bytes = greatest(p.output_bytes, p_output), kept_bytes = p_kept,
        output_ref = p_output_ref, streams = p_streams, end_time = now()
    where p.tenant_id = p_tenant and p.process_id = p_process and p.host_id = p_host and p.status = 'running'
      and (p_status <> 'lost' or not exists (
          select from tools.process_host h where h.id = p_host and h.alive_until > now()));
    if not found then
        return false;
    end if;
    perform tools.put_facts(p_tenant, p_session, p_events);
    if v_fence.ended_at is not null then
        delete from tools.process p where p.tenant_id = p_tenant and p.process_id = p_process;
    end if;
    return true;
end;
$$;

-- A session is over: nothing is started for it any more, what runs is to be ended and the rest
-- forgotten, and nobody waits for its facts.
create function tools.end_session(p_tenant text, p_session text) returns void
language plpgsql as $$
begin
    perform tools.lock_session(p_tenant, p_session);
    update tools.fence f set ended_at = coalesce(f.ended_at, now())
    where f.tenant_id = p_tenant and f.session_id = p_session;
    update tools.process p set stop_reason = 'its session was deleted'
    where p.tenant_id = p_tenant and p.session_id = p_session and p.status = 'running' and p.stop_reason is null;
    delete from tools.process p
    where p.tenant_id = p_tenant and p.session_id = p_session and p.status <> 'running';
    delete from tools.fact f where f.tenant_id = p_tenant and f.session_id = p_session;
end;
$$;

-- Hands the oldest facts over, for a while: none of a session of which somebody has some.
-- One at a time, so that nobody can be between looking and taking.
create function tools.take_facts(p_limit integer, p_lease interval)
returns table (tenant_id text, number bigint, event bytea)
language plpgsql as $$
#variable_conflict use_column
begin
    perform pg_advisory_xact_lock(hashtextextended('tools.fact', 0));
    return query
        with free as (
            select f.tenant_id, f.session_id, f.number from tools.fact f
            where not exists (
                select from tools.fact held
                where held.tenant_id = f.tenant_id and held.session_id = f.session_id
                  and held.leased_until > now())
            order by f.place
            limit p_limit
        ), taken as (
            update tools.fact f set leased_until = now() + p_lease
            from free
            where f.tenant_id = free.tenant_id and f.session_id = free.session_id and f.number = free.number
            returning f.tenant_id, f.number, f.event, f.place
        )
        select t.tenant_id, t.number, t.event from taken t order by t.place;
end;
$$;
