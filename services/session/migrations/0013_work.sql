-- Work that outlives calls and turns: tasks with attempts and edges, and jobs with items.
--
-- What runs is always a turn of a session, submitted as anybody would. Ids are derived: a run has
-- the letters of its turn, a task those of its session, a job those of the session that has its
-- facts, an attempt at an item those of its session and turn both. So a turn is found by key from
-- the run that waits for it, turns of nobody's cost nothing, and a submission that is repeated
-- finds itself.
--
-- The row of a task or a job is changed under the `run_state` row of its session, and nothing
-- locks two of them. What has to reach another task goes through `task_wish`.

create function session.session_of(p_id text) returns text
language sql immutable as $$ select 'ses_' || right(p_id, 26); $$;

create function session.turn_of(p_id text) returns text
language sql immutable as $$ select 'turn_' || right(p_id, 26); $$;

create table session.task
(
    id               text        primary key,
    tenant_id        text        not null,
    request_id       text        not null,
    request_digest   text        not null,
    owner            text        not null,
    title            text        not null,
    objective        text        not null,
    parent_id        text,
    root_id          text        not null,

    -- Where it may go from here is a rule of the server's (`task.rs`), which comes with every
    -- change and is looked up under the lock.
    status           text        not null check (status in (
        'draft', 'queued', 'preparing', 'running', 'waiting_input', 'waiting_permission', 'blocked', 'paused',
        'retrying', 'cancelling', 'cancelled', 'timed_out', 'failed', 'lost', 'completed', 'archived')),
    status_reason    text        not null default '',

    -- The latest attempt.
    run_id           text        not null,

    -- The task whose pause reached this one; its own id, if somebody paused this one.
    paused_by        text,
    percent          integer     not null default 0 check (percent between 0 and 100),
    progress_message text        not null default '',

    -- `[{"criterion", "met", "evidenceId"}]`
    acceptance       jsonb       not null default '[]',
    delivery_state   text        not null default 'none'
        check (delivery_state in ('none', 'pending', 'delivered', 'failed')),
    timeout_seconds  integer     not null default 0,
    created_at       timestamptz not null default clock_timestamp(),
    updated_at       timestamptz not null default clock_timestamp(),
    ended_at         timestamptz,

    -- Stays when it is archived: what it blocks depends on it.
    completed_at     timestamptz,

    unique (tenant_id, request_id),
    check ((paused_by is not null) = (status = 'paused'))
);

create index task_recent on session.task (tenant_id, id) where status <> 'archived';
create index task_status on session.task (tenant_id, status, id);
create index task_owner on session.task (tenant_id, owner, id);
create index task_children on session.task (parent_id, id) where parent_id is not null;
create index task_due on session.task (id) where status in ('queued', 'retrying');

-- The attempts.
create table session.task_run
(
    id         text        primary key,
    task_id    text        not null references session.task (id) on delete cascade,
    number     integer     not null check (number > 0),

    -- Of one that somebody asked for.
    request_id text,
    -- As the scheduler saw its turn last.
    status     text        not null check (status in (
        'queued', 'preparing', 'running', 'waiting_input', 'waiting_permission', 'completed', 'failed', 'cancelled')),
    error      text        not null default '',

    -- Why its turn is to be stopped: `paused`, `cancelled` or `timed_out`.
    stopping   text,
    created_at timestamptz not null default clock_timestamp(),
    started_at timestamptz,
    deadline   timestamptz,
    ended_at   timestamptz,

    unique (task_id, number),
    unique (task_id, request_id),
    check ((ended_at is not null) = (status in ('completed', 'failed', 'cancelled')))
);

-- What the scheduler looks at.
create index task_run_open on session.task_run (id) where started_at is not null and ended_at is null;

-- `blocks`: the target waits until the task is completed. `parent`: the target is its parent.
create table session.task_edge
(
    task_id    text        not null references session.task (id) on delete cascade,
    target_id  text        not null references session.task (id) on delete cascade,
    kind       text        not null check (kind in ('blocks', 'parent', 'relates')),
    reason     text        not null default '',
    created_at timestamptz not null default clock_timestamp(),

    primary key (task_id, kind, target_id)
);

create index task_edge_target on session.task_edge (target_id, kind);

-- What one task wants of another: delivered once, with the change that it makes.
create table session.task_wish
(
    id      bigint generated always as identity primary key,
    task_id text   not null,

    -- `pause`, `resume`, `cancel`, `archive`; `check`: look whether something blocks it.
    wish    text   not null,

    -- The task that the command was about.
    origin  text   not null default '',
    subject text   not null default '',
    reason  text   not null default ''
);

-- Appends a fact about a task or an attempt.
create function session.append_task(
    p_session text, p_seq bigint, p_type text, p_task text, p_run text, p_payload jsonb, p_stamp jsonb
) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_event jsonb;
begin
    insert into session.event
        (session_id, seq, type, runtime_id, created_at, task_id, run_id, trace_id, span_id, ids, payload)
    values (p_session, p_seq, p_type, p_stamp ->> 'runtime_id', clock_timestamp(), p_task, p_run,
            p_stamp ->> 'trace_id', p_stamp ->> 'span_id', p_stamp -> 'ids', jsonb_strip_nulls(p_payload))
    returning to_jsonb(event) into v_event;
    return v_event;
end;
$$;

-- The first task that has to be completed before this one, if there is one.
create function session.blocker(p_task text) returns text
language plpgsql stable as $$
begin
    return (
        select e.task_id from session.task_edge e join session.task t on t.id = e.task_id
        where e.target_id = p_task and e.kind = 'blocks' and t.completed_at is null
        order by e.task_id limit 1);
end;
$$;

-- Creates a task with its session, or finds the one that this request made before. `outcome` is
-- `created`, `repeated`, `reused`, `no_task` (`task_id` is missing), `wrong_status` or `deep`.
create function session.create_task(
    p_tenant text, p_task text, p_run text, p_subject text, p_request text, p_digest text, p_new jsonb,
    p_created jsonb, p_stamp jsonb
) returns table (outcome text, task_id text, status text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_session  text := session.session_of(p_task);
    v_parent   text := p_new ->> 'parent_id';
    v_blockers text[] := array(select jsonb_array_elements_text(p_new -> 'blocked_by'));
    v_root     text := p_task;
    v_depth    integer;
    v_missing  text;
    v_other    session.task;
    v_status   text;
    v_blocker  text;
    v_events   jsonb := '[]';
begin
    select * into v_other from session.task t where t.tenant_id = p_tenant and t.request_id = p_request;
    if found then
        return query select case when v_other.request_digest = p_digest then 'repeated' else 'reused' end,
            v_other.id, v_other.status, v_events;
        return;
    end if;

    -- Held, so that whatever happens to them either is seen here or sees what is added here.
    perform 1 from session.task t
    where t.tenant_id = p_tenant and t.id = any (v_blockers || v_parent)
    order by t.id for share;
    select w.id into v_missing from unnest(v_blockers || v_parent) as w(id)
    where w.id is not null
      and not exists (select from session.task t where t.tenant_id = p_tenant and t.id = w.id) limit 1;
    if found then
        return query select 'no_task', v_missing, null, v_events;
        return;
    end if;
    if v_parent is not null then
        select * into v_other from session.task t where t.id = v_parent;
        if v_other.status in ('cancelling', 'cancelled', 'archived') then
            return query select 'wrong_status', v_parent, v_other.status, v_events;
            return;
        end if;
        v_root := v_other.root_id;
        with recursive up as (
            select t.id, t.parent_id, 1 as depth from session.task t where t.id = v_parent
            union all
            select t.id, t.parent_id, up.depth + 1 from up join session.task t on t.id = up.parent_id
            where up.depth < 100
        )
        select max(up.depth) into v_depth from up;
        if v_depth >= (p_new ->> 'generations')::integer then
            return query select 'deep', v_parent, null, v_events;
            return;
        end if;
    end if;

    select b.id into v_blocker from session.task b
    where b.id = any (v_blockers) and b.completed_at is null order by b.id limit 1;
    v_status := case
        when (p_new ->> 'draft')::boolean then 'draft'
        when v_blocker is not null then 'blocked'
        else 'queued' end;
    insert into session.task
        (id, tenant_id, request_id, request_digest, owner, title, objective, parent_id, root_id, status, status_reason,
         run_id, acceptance, timeout_seconds)
    values (p_task, p_tenant, p_request, p_digest, p_subject, p_new ->> 'title', p_new ->> 'objective', v_parent, v_root,
            v_status, case when v_status = 'blocked' then 'waits for ' || v_blocker else '' end, p_run,
            p_new -> 'acceptance', (p_new ->> 'timeout_seconds')::integer)
    on conflict (tenant_id, request_id) do nothing;
    if not found then
        select * into v_other from session.task t where t.tenant_id = p_tenant and t.request_id = p_request;
        return query select case when v_other.request_digest = p_digest then 'repeated' else 'reused' end,
            v_other.id, v_other.status, v_events;
        return;
    end if;
    insert into session.task_run (id, task_id, number, status) values (p_run, p_task, 1, 'queued');
    insert into session.task_edge (task_id, target_id, kind)
    select p_task, v_parent, 'parent' where v_parent is not null
    union all
    select b.id, p_task, 'blocks' from unnest(v_blockers) as b(id);

    -- Callers' request ids have no colon.
    insert into session.chat_sessions
        (id, tenant_id, subject, request_id, request_digest, title, agent, workspace_id, metadata_json)
    values (v_session, p_tenant, p_subject, 'task:' || p_task, p_digest, p_new ->> 'title', p_new ->> 'agent',
            p_new ->> 'workspace_id', jsonb_build_object('task_id', p_task));
    perform session.append(v_session, 1, 'session.created', null, p_created, p_stamp);
    perform session.append(v_session, 2, 'thread.started', null, '{}', p_stamp);
    perform session.append_task(v_session, 3, 'task.created', p_task, null, jsonb_build_object(
        'title', p_new ->> 'title', 'objective', p_new ->> 'objective', 'parentTaskId', v_parent,
        'rootTaskId', v_root, 'owner', p_subject), p_stamp);
    perform session.append_task(v_session, 4, 'task.delegated', p_task, null,
        jsonb_build_object('kind', 'session', 'targetId', v_session), p_stamp);
    if v_status <> 'draft' then
        perform session.append_task(v_session, 5, 'task.' || v_status, p_task, p_run, jsonb_build_object(
            'status', v_status, 'reason', 'waits for ' || v_blocker, 'subject', p_subject), p_stamp);
    end if;
    insert into session.run_state (session_id, tenant_id, next_seq)
    values (v_session, p_tenant, case when v_status = 'draft' then 5 else 6 end);
    return query select 'created', p_task, v_status, v_events;
end;
$$;

-- Changes a task as the table of moves allows from where it stands, and everything that follows
-- from it. `p_moves` has, for each status that it may be in, where it goes and the event that says
-- so. `p_change` may have:
--
--   run         {id, status, error}: what became of an attempt, which holds whatever becomes of the task
--   wish        the row of `task_wish` that this delivers
--   origin      the task that the command was about
--   stop        why attempts under way are to be stopped
--   spread      the wish for whatever depends on the task
--   new_run     the id for an attempt, should there be none that waits; with request_id, who asked for it
--   reason, subject, error
--
-- `outcome` is `moved`, `refused`, `repeated`, `stale` (somebody was faster) or `not_found`; with
-- `refused` the attempt may have changed.
create function session.move_task(p_tenant text, p_task text, p_moves jsonb, p_change jsonb, p_stamp jsonb)
returns table (outcome text, status text, stops boolean, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_session text := session.session_of(p_task);
    v_seq     bigint;
    v_task    session.task;
    v_run     session.task_run;
    v_move    jsonb;
    v_to      text;
    v_over    boolean;
    v_stops   boolean := false;
    v_edge    session.task_edge;
    v_events  jsonb := '[]';
begin
    -- None, when somebody deleted the session: then there is no log either.
    select r.next_seq into v_seq from session.run_state r where r.session_id = v_session for update;
    select * into v_task from session.task t
    where t.id = p_task and t.tenant_id = coalesce(p_tenant, t.tenant_id)
    for update;
    if not found then
        return query select 'not_found', null, false, v_events;
        return;
    end if;
    if p_change ? 'wish' then
        delete from session.task_wish w where w.id = (p_change ->> 'wish')::bigint;
        if not found then
            return query select 'stale', v_task.status, false, v_events;
            return;
        end if;
    end if;
    if p_change ? 'request_id' then
        perform 1 from session.task_run r where r.task_id = p_task and r.request_id = p_change ->> 'request_id';
        if found then
            return query select 'repeated', v_task.status, false, v_events;
            return;
        end if;
    end if;
    v_move := p_moves -> v_task.status;
    -- A resumption reaches only what its pause reached.
    if p_change ? 'origin' and p_change ->> 'spread' = 'resume'
        and v_task.paused_by is distinct from p_change ->> 'origin'
    then
        v_move := null;
    end if;

    if p_change ? 'run' then
        v_over := p_change -> 'run' ->> 'status' in ('completed', 'failed', 'cancelled');
        update session.task_run r
        set status = p_change -> 'run' ->> 'status',
            error = coalesce(p_change -> 'run' ->> 'error', ''),
            ended_at = case when v_over then clock_timestamp() end
        where r.id = p_change -> 'run' ->> 'id' and r.task_id = p_task and r.ended_at is null
        returning * into v_run;
        if not found then
            return query select 'stale', v_task.status, false, v_events;
            return;
        end if;
        if v_over and v_seq is not null then
            v_events := v_events || session.append_task(
                v_session, v_seq, case v_run.status when 'completed' then 'task.attempt.completed' else 'task.attempt.failed' end,
                p_task, v_run.id, jsonb_build_object('attempt', v_run.number, 'error', nullif(v_run.error, '')), p_stamp);
            v_seq := v_seq + 1;
        end if;
        -- How the task is, only its latest attempt says.
        if v_run.id <> v_task.run_id then
            v_move := null;
        end if;
    end if;

    if v_move is null then
        update session.run_state r set next_seq = v_seq where r.session_id = v_session and v_events <> '[]';
        return query select 'refused', v_task.status, false, v_events;
        return;
    end if;
    v_to := v_move ->> 'to';

    if p_change ? 'stop' then
        update session.task_run r set stopping = coalesce(r.stopping, p_change ->> 'stop')
        where r.task_id = p_task and r.started_at is not null and r.ended_at is null;
        v_stops := found;
    end if;
    if v_to = 'cancelled' then
        update session.task_run r set status = 'cancelled', ended_at = clock_timestamp()
        where r.task_id = p_task and r.started_at is null and r.ended_at is null;
    end if;
    if p_change ? 'new_run' then
        insert into session.task_run (id, task_id, number, request_id, status)
        select p_change ->> 'new_run', p_task, max(r.number) + 1, p_change ->> 'request_id', 'queued'
        from session.task_run r where r.task_id = p_task
        having bool_and(r.started_at is not null or r.ended_at is not null)
        returning * into v_run;
        if found then
            v_task.run_id := v_run.id;
        end if;
    end if;

    update session.task t
    set status = v_to,
        status_reason = coalesce(p_change ->> 'error', p_change ->> 'reason', ''),
        run_id = v_task.run_id,
        paused_by = case when v_to = 'paused' then coalesce(p_change ->> 'origin', p_task) end,
        percent = case when v_to = 'completed' then 100 else t.percent end,
        updated_at = clock_timestamp(),
        ended_at = case
            when v_to = 'archived' then t.ended_at
            when v_to in ('cancelled', 'timed_out', 'failed', 'lost', 'completed') then clock_timestamp() end,
        completed_at = case when v_to = 'completed' then clock_timestamp() else t.completed_at end
    where t.id = p_task;
    if v_seq is not null then
        v_events := v_events || session.append_task(
            v_session, v_seq, v_move ->> 'event', p_task, v_task.run_id, jsonb_build_object(
                'status', v_to, 'reason', nullif(p_change ->> 'reason', ''), 'subject', nullif(p_change ->> 'subject', ''),
                'error', nullif(p_change ->> 'error', '')), p_stamp);
        v_seq := v_seq + 1;
    end if;

    if p_change ? 'spread' then
        insert into session.task_wish (task_id, wish, origin, subject, reason)
        select d.id, p_change ->> 'spread', coalesce(p_change ->> 'origin', p_task),
               coalesce(p_change ->> 'subject', ''), coalesce(p_change ->> 'reason', '')
        from (
            select t.id from session.task t where t.parent_id = p_task
            union
            select e.target_id from session.task_edge e
            where e.task_id = p_task and e.kind = 'blocks' and p_change ->> 'spread' <> 'archive'
        ) d;
    end if;
    if v_to = 'completed' then
        for v_edge in
            select * from session.task_edge e where e.task_id = p_task and e.kind = 'blocks' order by e.target_id
        loop
            insert into session.task_wish (task_id, wish, origin) values (v_edge.target_id, 'check', p_task);
            if v_seq is not null then
                v_events := v_events || session.append_task(
                    v_session, v_seq, 'task.dependency.updated', p_task, null, jsonb_build_object(
                        'targetTaskId', v_edge.target_id, 'kind', 'blocks', 'status', 'satisfied',
                        'reason', nullif(v_edge.reason, '')), p_stamp);
                v_seq := v_seq + 1;
            end if;
        end loop;
    end if;
    update session.run_state r set next_seq = v_seq where r.session_id = v_session;
    return query select 'moved', v_to, v_stops, v_events;
end;
$$;

-- Delivers the wish to look whether something blocks a task.
create function session.check_task(p_task text, p_wish bigint, p_block jsonb, p_unblock jsonb, p_stamp jsonb)
returns table (outcome text, status text, stops boolean, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_blocker text;
begin
    perform 1 from session.run_state r where r.session_id = session.session_of(p_task) for update;
    v_blocker := session.blocker(p_task);
    return query select * from session.move_task(
        null, p_task, case when v_blocker is null then p_unblock else p_block end,
        jsonb_strip_nulls(jsonb_build_object('wish', p_wish, 'reason', 'waits for ' || v_blocker)), p_stamp);
end;
$$;

-- Begins the attempt that waits, unless something blocks the task. `outcome` is `started`, `blocked`,
-- or `stale`: it is not its time, or somebody else is at it.
create function session.start_task(p_task text, p_start jsonb, p_block jsonb, p_worker text, p_stamp jsonb)
returns table (outcome text, run_id text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_session text := session.session_of(p_task);
    v_seq     bigint;
    v_task    session.task;
    v_run     session.task_run;
    v_blocker text;
    v_events  jsonb := '[]';
begin
    select r.next_seq into v_seq from session.run_state r where r.session_id = v_session for update skip locked;
    if not found and exists (select from session.run_state r where r.session_id = v_session) then
        return query select 'stale', null, v_events;
        return;
    end if;
    select * into v_task from session.task t where t.id = p_task for update;
    -- One that was stopped may take a moment to end.
    if not found or not p_start ? v_task.status or exists (
        select from session.task_run r where r.task_id = p_task and r.started_at is not null and r.ended_at is null)
    then
        return query select 'stale', null, v_events;
        return;
    end if;
    v_blocker := session.blocker(p_task);
    if v_blocker is not null then
        select m.events into v_events from session.move_task(
            null, p_task, p_block, jsonb_build_object('reason', 'waits for ' || v_blocker), p_stamp) m;
        return query select 'blocked', null, v_events;
        return;
    end if;
    update session.task_run r
    set status = 'preparing', started_at = clock_timestamp(),
        deadline = case when v_task.timeout_seconds > 0
            then clock_timestamp() + make_interval(secs => v_task.timeout_seconds) end
    where r.id = v_task.run_id and r.started_at is null and r.ended_at is null
    returning * into v_run;
    if not found then
        return query select 'stale', null, v_events;
        return;
    end if;
    if v_seq is not null then
        v_events := jsonb_build_array(session.append_task(
            v_session, v_seq, 'task.attempt.started', p_task, v_run.id,
            jsonb_build_object('attempt', v_run.number, 'worker', p_worker), p_stamp));
        update session.run_state r set next_seq = v_seq + 1 where r.session_id = v_session;
    end if;
    select v_events || m.events into v_events from session.move_task(null, p_task, p_start, '{}', p_stamp) m;
    return query select 'started', v_run.id, v_events;
end;
$$;

-- Adds an edge. `outcome` is `linked`, `not_found` (`task_id` is missing), `cycle`, `full`,
-- `archived` or `has_parent`.
create function session.link_tasks(
    p_tenant text, p_task text, p_target text, p_kind text, p_reason text, p_most integer, p_stamp jsonb
) returns table (outcome text, task_id text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_session text := session.session_of(p_task);
    v_seq     bigint;
    v_task    session.task;
    v_target  session.task;
    v_root    text;
    v_status  text;
    v_events  jsonb := '[]';
begin
    -- Two edges that are good by themselves may be a circle together.
    perform pg_advisory_xact_lock(hashtextextended('tasks of ' || p_tenant, 0));
    select r.next_seq into v_seq from session.run_state r where r.session_id = v_session for update;
    perform 1 from session.task t
    where t.tenant_id = p_tenant and t.id in (p_task, p_target) order by t.id for share;
    select * into v_task from session.task t where t.tenant_id = p_tenant and t.id = p_task;
    if not found then
        return query select 'not_found', p_task, v_events;
        return;
    end if;
    select * into v_target from session.task t where t.tenant_id = p_tenant and t.id = p_target;
    if not found then
        return query select 'not_found', p_target, v_events;
        return;
    end if;
    perform 1 from session.task_edge e where e.task_id = p_task and e.kind = p_kind and e.target_id = p_target;
    if found then
        return query select 'linked', p_task, v_events;
        return;
    end if;
    if 'archived' in (v_task.status, v_target.status) then
        return query select 'archived', case v_task.status when 'archived' then p_task else p_target end, v_events;
        return;
    end if;
    if p_kind = 'parent' and v_task.parent_id is not null then
        return query select 'has_parent', v_task.parent_id, v_events;
        return;
    end if;
    -- Whether a way of such edges leads back.
    if p_task = p_target or p_kind <> 'relates' and p_task in (
        with recursive way as (
            select e.target_id from session.task_edge e where e.task_id = p_target and e.kind = p_kind
            union
            select e.target_id from way join session.task_edge e on e.task_id = way.target_id and e.kind = p_kind
        )
        select way.target_id from way)
    then
        return query select 'cycle', p_target, v_events;
        return;
    end if;
    if (select count(*) from session.task_edge e where e.task_id = p_task and e.kind = p_kind) >= p_most
        or p_kind <> 'parent'
            and (select count(*) from session.task_edge e where e.target_id = p_target and e.kind = p_kind) >= p_most
    then
        return query select 'full', p_task, v_events;
        return;
    end if;

    insert into session.task_edge (task_id, target_id, kind, reason) values (p_task, p_target, p_kind, p_reason);
    if p_kind = 'parent' then
        with recursive down as (
            select t.id from session.task t where t.id = p_task
            union all
            select t.id from down join session.task t on t.parent_id = down.id
        )
        update session.task t set root_id = v_target.root_id from down where t.id = down.id;
        update session.task t set parent_id = p_target, updated_at = clock_timestamp() where t.id = p_task;
    elsif p_kind = 'blocks' then
        insert into session.task_wish (task_id, wish, origin) values (p_target, 'check', p_task);
    end if;
    if v_seq is not null then
        v_status := case
            when p_kind <> 'blocks' then 'active'
            when v_task.completed_at is null then 'open'
            else 'satisfied' end;
        v_events := jsonb_build_array(session.append_task(
            v_session, v_seq, 'task.dependency.updated', p_task, null, jsonb_build_object(
                'targetTaskId', p_target, 'kind', p_kind, 'status', v_status, 'reason', nullif(p_reason, '')), p_stamp));
        update session.run_state r set next_seq = v_seq + 1 where r.session_id = v_session;
    end if;
    return query select 'linked', p_task, v_events;
end;
$$;

-- Reports how far a task is. `p_change` may have percent, message, acceptance and delivery_state.
-- `outcome` is `updated`, `not_found`, `archived`, or `no_criterion`.
create function session.update_task(p_tenant text, p_task text, p_change jsonb, p_subject text, p_stamp jsonb)
returns table (outcome text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_session text := session.session_of(p_task);
    v_seq     bigint;
    v_task    session.task;
    v_events  jsonb := '[]';
begin
    select r.next_seq into v_seq from session.run_state r where r.session_id = v_session for update;
    select * into v_task from session.task t where t.id = p_task and t.tenant_id = p_tenant for update;
    if not found then
        return query select 'not_found', v_events;
        return;
    elsif v_task.status = 'archived' then
        return query select 'archived', v_events;
        return;
    end if;
    if exists (
        select from jsonb_array_elements(p_change -> 'acceptance') n
        where not exists (
            select from jsonb_array_elements(v_task.acceptance) a where a ->> 'criterion' = n ->> 'criterion'))
    then
        return query select 'no_criterion', v_events;
        return;
    end if;
    update session.task t
    set percent = coalesce((p_change ->> 'percent')::integer, t.percent),
        progress_message = coalesce(p_change ->> 'message', t.progress_message),
        delivery_state = coalesce(p_change ->> 'delivery_state', t.delivery_state),
        acceptance = (
            select coalesce(jsonb_agg(coalesce(n.value, a.value) order by a.ordinality), '[]')
            from jsonb_array_elements(t.acceptance) with ordinality a
            left join jsonb_array_elements(p_change -> 'acceptance') n
                on n.value ->> 'criterion' = a.value ->> 'criterion'),
        updated_at = clock_timestamp()
    where t.id = p_task
    returning * into v_task;
    if v_seq is not null and (p_change ? 'percent' or p_change ? 'message') then
        v_events := v_events || session.append_task(
            v_session, v_seq, 'task.progress', p_task, v_task.run_id,
            jsonb_build_object('percent', v_task.percent, 'message', v_task.progress_message), p_stamp);
    end if;
    if v_seq is not null and (p_change ? 'acceptance' or p_change ? 'delivery_state') then
        v_events := v_events || session.append_task(
            v_session, v_seq + jsonb_array_length(v_events), 'task.updated', p_task, v_task.run_id,
            jsonb_build_object(
                'status', v_task.status, 'subject', p_subject,
                'reason', (select count(*) filter (where (a ->> 'met')::boolean) || ' of ' || count(*) || ' criteria met, delivery '
                                  || v_task.delivery_state
                           from jsonb_array_elements(v_task.acceptance) a)), p_stamp);
    end if;
    update session.run_state r set next_seq = r.next_seq + jsonb_array_length(v_events)
    where r.session_id = v_session and v_events <> '[]';
    return query select 'updated', v_events;
end;
$$;

create table session.job
(
    id             text        primary key,
    tenant_id      text        not null,
    request_id     text        not null,
    request_digest text        not null,
    subject        text        not null,
    instruction    text        not null,
    agent          text        not null,

    -- As it was given; empty: results are text.
    output_schema  text        not null,
    parallelism    integer     not null check (parallelism > 0),
    inspectable    boolean     not null,

    -- Null: each item has one of its own.
    workspace_id   text,
    status         text        not null check (status in ('running', 'completed', 'failed', 'cancelled')),

    -- How many items are what. Changed together with the items.
    pending        integer     not null check (pending >= 0),
    running        integer     not null default 0 check (running >= 0),
    completed      integer     not null default 0 check (completed >= 0),
    failed         integer     not null default 0 check (failed >= 0),
    cancelled      integer     not null default 0 check (cancelled >= 0),

    -- Why somebody cancelled it.
    cancel_reason  text        not null default '',
    created_at     timestamptz not null default clock_timestamp(),
    ended_at       timestamptz,

    -- When items were last started: who waited longest comes first.
    started_at     timestamptz not null default clock_timestamp(),

    unique (tenant_id, request_id),
    check (running <= parallelism),
    check (status in ('running', 'cancelled') or pending + running = 0)
) with (fillfactor = 70);

create index job_recent on session.job (tenant_id, id);
create index job_due on session.job (started_at) where status = 'running' and pending > 0 and running < parallelism;
create index job_stopping on session.job (id) where status = 'cancelled' and running > 0;

create table session.job_item
(
    job_id     text        not null references session.job (id) on delete cascade,
    index      integer     not null,
    id         text        not null unique,
    input      text        not null,
    status     text        not null default 'pending'
        check (status in ('pending', 'running', 'completed', 'failed', 'cancelled')),
    attempts   integer     not null default 0,
    last_error text        not null default '',
    result     text        not null default '',

    -- The latest attempt.
    run_id     text,
    started_at timestamptz,

    primary key (job_id, index),
    check (status <> 'running' or run_id is not null)
) with (fillfactor = 70);

create index job_item_pending on session.job_item (job_id, index) where status = 'pending';
create index job_item_running on session.job_item (run_id) where status = 'running';
create index job_item_status on session.job_item (job_id, status, index);

-- Makes retries idempotent.
create table session.job_retry
(
    job_id     text not null references session.job (id) on delete cascade,
    request_id text not null,
    item_id    text not null,

    primary key (job_id, request_id)
);

-- The counts of a job as its facts show them.
create function session.job_progress(p_job session.job) returns jsonb
language sql immutable as $$
    select jsonb_build_object('pending', p_job.pending, 'running', p_job.running, 'completed', p_job.completed,
                              'failed', p_job.failed, 'cancelled', p_job.cancelled);
$$;

-- Appends facts of a job, `[{"type", "item", "payload"}]`; the caller holds the row of its session.
create function session.append_job(p_job text, p_facts jsonb, p_stamp jsonb) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_session text := session.session_of(p_job);
    v_seq     bigint;
    v_events  jsonb;
begin
    select r.next_seq into v_seq from session.run_state r where r.session_id = v_session;
    if not found then
        return '[]';
    end if;
    with appended as (
        insert into session.event
            (session_id, seq, type, runtime_id, created_at, trace_id, span_id, ids, payload)
        select v_session, v_seq - 1 + f.place, f.fact ->> 'type', p_stamp ->> 'runtime_id', clock_timestamp(),
               p_stamp ->> 'trace_id', p_stamp ->> 'span_id',
               coalesce(p_stamp -> 'ids', '{}') || jsonb_build_object('jobId', p_job)
                   || case when f.fact ? 'item' then jsonb_build_object('jobItemId', f.fact -> 'item') else '{}' end,
               jsonb_strip_nulls(f.fact -> 'payload')
        from jsonb_array_elements(p_facts) with ordinality as f(fact, place)
        returning event.*
    )
    select coalesce(jsonb_agg(to_jsonb(a) order by a.seq), '[]') into v_events from appended a;
    update session.run_state r set next_seq = v_seq + jsonb_array_length(v_events) where r.session_id = v_session;
    return v_events;
end;
$$;

-- Creates a job with all its items, or finds the one that this request made before.
create function session.create_job(
    p_tenant text, p_job text, p_subject text, p_request text, p_digest text, p_new jsonb, p_items text[],
    p_inputs text[], p_created jsonb, p_stamp jsonb
) returns table (job_id text, reused boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    v_session text := session.session_of(p_job);
    v_job     session.job;
begin
    insert into session.job
        (id, tenant_id, request_id, request_digest, subject, instruction, agent, output_schema, parallelism,
         inspectable, workspace_id, status, pending)
    values (p_job, p_tenant, p_request, p_digest, p_subject, p_new ->> 'instruction', p_new ->> 'agent',
            p_new ->> 'output_schema', (p_new ->> 'parallelism')::integer, (p_new ->> 'inspectable')::boolean,
            p_new ->> 'workspace_id', 'running', cardinality(p_items))
    on conflict (tenant_id, request_id) do nothing
    returning * into v_job;
    if not found then
        return query select j.id, j.request_digest <> p_digest from session.job j
            where j.tenant_id = p_tenant and j.request_id = p_request;
        return;
    end if;
    insert into session.job_item (job_id, index, id, input)
    select p_job, i.place - 1, i.id, i.input
    from unnest(p_items, p_inputs) with ordinality as i(id, input, place);
    insert into session.chat_sessions
        (id, tenant_id, subject, request_id, request_digest, title, agent, workspace_id, metadata_json, ephemeral)
    values (v_session, p_tenant, p_subject, 'job:' || p_job, p_digest, left(p_new ->> 'title', 200), p_new ->> 'agent',
            coalesce(p_new ->> 'workspace_id', 'ws_' || right(p_job, 26)), jsonb_build_object('job_id', p_job), true);
    insert into session.run_state (session_id, tenant_id, next_seq) values (v_session, p_tenant, 3);
    perform session.append(v_session, 1, 'session.created', null, p_created, p_stamp);
    perform session.append(v_session, 2, 'thread.started', null, '{}', p_stamp);
    perform session.append_job(p_job, jsonb_build_array(
        jsonb_build_object('type', 'job.created', 'payload', jsonb_build_object(
            'instruction', p_new ->> 'instruction', 'items', cardinality(p_items), 'parallelism', v_job.parallelism)),
        jsonb_build_object('type', 'job.started', 'payload', session.job_progress(v_job))), p_stamp);
    return query select p_job, false;
end;
$$;

-- Starts as many items as the job and the caller have room for: marks them, creates the sessions that
-- they run in, and says so. Their turns are submitted afterwards, by whoever comes first.
create function session.start_items(p_job text, p_runs text[], p_stamp jsonb)
returns table (item_id text, index integer, run_id text, input text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_job    session.job;
    v_count  integer;
    v_events jsonb;
begin
    -- Whoever else is at this job starts its items.
    perform 1 from session.run_state r where r.session_id = session.session_of(p_job) for update skip locked;
    if not found and exists (select from session.run_state r where r.session_id = session.session_of(p_job)) then
        return;
    end if;
    select * into v_job from session.job j where j.id = p_job for update;
    if not found or v_job.status <> 'running' then
        return;
    end if;
    v_count := least(v_job.pending, v_job.parallelism - v_job.running, cardinality(p_runs));
    if v_count <= 0 then
        return;
    end if;
    update session.job_item i
    set status = 'running', attempts = i.attempts + 1, run_id = p_runs[n.place], started_at = clock_timestamp()
    from (
        select w.index, row_number() over (order by w.index) as place
        from (
            select p.index from session.job_item p
            where p.job_id = p_job and p.status = 'pending' order by p.index limit v_count
        ) w
    ) n
    where i.job_id = p_job and i.index = n.index;

    insert into session.chat_sessions
        (id, tenant_id, subject, request_id, request_digest, title, agent, workspace_id, metadata_json, ephemeral)
    select session.session_of(i.run_id), v_job.tenant_id, v_job.subject, 'item:' || i.run_id, '',
           'Item ' || (i.index + 1) || ' of ' || p_job, v_job.agent,
           coalesce(v_job.workspace_id, 'ws_' || right(i.run_id, 26)),
           jsonb_build_object('job_id', p_job, 'item_id', i.id), not v_job.inspectable
    from session.job_item i
    where i.status = 'running' and i.run_id = any (p_runs);
    insert into session.run_state (session_id, tenant_id, next_seq)
    select session.session_of(i.run_id), v_job.tenant_id, 3
    from session.job_item i where i.status = 'running' and i.run_id = any (p_runs);
    insert into session.event (session_id, seq, type, runtime_id, created_at, ids, payload)
    select session.session_of(i.run_id), e.seq, e.type, p_stamp ->> 'runtime_id', clock_timestamp(), p_stamp -> 'ids',
           case e.seq when 1 then jsonb_build_object(
               'title', 'Item ' || (i.index + 1) || ' of ' || p_job, 'agent', v_job.agent, 'workspaceId',
               coalesce(v_job.workspace_id, 'ws_' || right(i.run_id, 26)), 'ephemeral', not v_job.inspectable)
           else '{}' end
    from session.job_item i,
         (values (1, 'session.created'), (2, 'thread.started')) as e(seq, type)
    where i.status = 'running' and i.run_id = any (p_runs);

    update session.job j
    set pending = j.pending - v_count, running = j.running + v_count, started_at = clock_timestamp()
    where j.id = p_job;
    v_events := session.append_job(p_job, (
        select jsonb_agg(jsonb_build_object('type', 'job.item.started', 'item', i.id, 'payload', jsonb_build_object(
            'attempt', i.attempts, 'itemSessionId', session.session_of(i.run_id))) order by i.index)
        from session.job_item i where i.status = 'running' and i.run_id = any (p_runs)), p_stamp);
    return query
        select i.id, i.index, i.run_id, i.input, case when row_number() over (order by i.index) = 1 then v_events end
        from session.job_item i
        where i.status = 'running' and i.run_id = any (p_runs)
        order by i.index;
end;
$$;

-- Ends the job if nothing is left of it; the caller holds it, and passes on the facts so far.
create function session.end_job(p_job text, p_facts jsonb, p_stamp jsonb) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_job session.job;
begin
    update session.job j
    set status = case
            when j.status = 'cancelled' then 'cancelled'
            when j.failed + j.cancelled > 0 then 'failed'
            else 'completed' end,
        ended_at = clock_timestamp()
    where j.id = p_job and j.pending + j.running = 0 and j.ended_at is null
    returning * into v_job;
    if found and v_job.status <> 'cancelled' then
        p_facts := p_facts || jsonb_build_object('type', 'job.' || v_job.status, 'payload', session.job_progress(v_job));
    end if;
    return session.append_job(p_job, p_facts, p_stamp);
end;
$$;

-- Takes in what became of items, `[{"run_id", "status", "error", "result"}]`, of those that still run
-- in that attempt. Returns what was appended.
create function session.settle_items(p_job text, p_results jsonb, p_stamp jsonb) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_job   session.job;
    v_facts jsonb;
    v_counts record;
begin
    perform 1 from session.run_state r where r.session_id = session.session_of(p_job) for update;
    select * into v_job from session.job j where j.id = p_job for update;
    if not found then
        return '[]';
    end if;
    with settled as (
        update session.job_item i
        set status = w.status, result = coalesce(w.result, ''), last_error = coalesce(w.error, i.last_error)
        from jsonb_to_recordset(p_results) as w(run_id text, status text, error text, result text)
        where i.job_id = p_job and i.status = 'running' and i.run_id = w.run_id
        returning i.*, w.error
    )
    select count(*)::integer as total,
           count(*) filter (where s.status = 'completed')::integer as completed,
           count(*) filter (where s.status = 'failed')::integer as failed,
           count(*) filter (where s.status = 'cancelled')::integer as cancelled,
           jsonb_agg(jsonb_build_object(
               'type', case s.status when 'completed' then 'job.item.completed' else 'job.item.failed' end,
               'item', s.id,
               'payload', jsonb_build_object(
                   'attempt', s.attempts, 'itemSessionId', session.session_of(s.run_id), 'error', s.error,
                   'resultJson', case when s.result <> '' and octet_length(s.result) <= 4096 then s.result end))
               order by s.index) as facts
    into v_counts from settled s;
    if v_counts.total = 0 then
        return '[]';
    end if;
    update session.job j
    set running = j.running - v_counts.total, completed = j.completed + v_counts.completed,
        failed = j.failed + v_counts.failed, cancelled = j.cancelled + v_counts.cancelled
    where j.id = p_job
    returning * into v_job;
    v_facts := v_counts.facts || jsonb_build_object('type', 'job.progress', 'payload', session.job_progress(v_job));
    return session.end_job(p_job, v_facts, p_stamp);
end;
$$;

-- Lets one failed item run again. `outcome` is `retried`, `repeated`, `reused`, `not_found`, `no_item`,
-- or `wrong_status` with the status that does not allow it.
create function session.retry_item(p_tenant text, p_job text, p_item text, p_request text, p_stamp jsonb)
returns table (outcome text, status text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_job   session.job;
    v_item  session.job_item;
    v_other text;
begin
    perform 1 from session.run_state r where r.session_id = session.session_of(p_job) for update;
    select * into v_job from session.job j where j.id = p_job and j.tenant_id = p_tenant for update;
    if not found then
        return query select 'not_found', null, '[]'::jsonb;
        return;
    end if;
    select * into v_item from session.job_item i where i.id = p_item and i.job_id = p_job;
    if not found then
        return query select 'no_item', null, '[]'::jsonb;
        return;
    end if;
    select t.item_id into v_other from session.job_retry t where t.job_id = p_job and t.request_id = p_request;
    if found then
        return query select case when v_other = p_item then 'repeated' else 'reused' end, v_item.status, '[]'::jsonb;
        return;
    end if;
    if v_job.status = 'cancelled' or v_item.status <> 'failed' then
        return query select 'wrong_status',
            case when v_job.status = 'cancelled' then v_job.status else v_item.status end, '[]'::jsonb;
        return;
    end if;
    insert into session.job_retry (job_id, request_id, item_id) values (p_job, p_request, p_item);
    update session.job_item i set status = 'pending' where i.id = p_item;
    update session.job j
    set status = 'running', ended_at = null, failed = j.failed - 1, pending = j.pending + 1
    where j.id = p_job
    returning * into v_job;
    return query select 'retried', 'pending', session.append_job(p_job, jsonb_build_array(
        jsonb_build_object('type', 'job.progress', 'item', p_item, 'payload', session.job_progress(v_job))), p_stamp);
end;
$$;

-- Gives up what waits, and has what runs stopped. `outcome` is `cancelled`, `not_found` or `wrong_status`.
create function session.cancel_job(p_tenant text, p_job text, p_reason text, p_stamp jsonb)
returns table (outcome text, status text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_job   session.job;
    v_count integer;
begin
    perform 1 from session.run_state r where r.session_id = session.session_of(p_job) for update;
    select * into v_job from session.job j where j.id = p_job and j.tenant_id = p_tenant for update;
    if not found then
        return query select 'not_found', null, '[]'::jsonb;
        return;
    elsif v_job.status = 'cancelled' then
        return query select 'cancelled', v_job.status, '[]'::jsonb;
        return;
    elsif v_job.status <> 'running' then
        return query select 'wrong_status', v_job.status, '[]'::jsonb;
        return;
    end if;
    update session.job_item i set status = 'cancelled' where i.job_id = p_job and i.status = 'pending';
    get diagnostics v_count = row_count;
    update session.job j
    set status = 'cancelled', cancel_reason = p_reason, pending = j.pending - v_count,
        cancelled = j.cancelled + v_count
    where j.id = p_job
    returning * into v_job;
    return query select 'cancelled', v_job.status, session.end_job(p_job, jsonb_build_array(
        jsonb_build_object('type', 'job.cancelled', 'payload',
                           session.job_progress(v_job) || jsonb_build_object('reason', nullif(p_reason, '')))), p_stamp);
end;
$$;
