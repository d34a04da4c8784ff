-- Children: who was spawned by whom, what one session has to tell another, and how that arrives.
--
-- No transaction holds the rows of two sessions. What must reach another session is a row of
-- `outbox`, written with whatever it follows from, and delivered by `deliver`, which holds the
-- addressee's row alone and removes the mail together with what it changes. So it arrives once.

-- The children of sessions, as their parents know them: rows change only under the lock of the
-- parent's `run_state` row.
create table session.subagent
(
    -- `sub_…`, the letters of the tool call. The child's session and its first message have them
    -- too, so however often a spawn is tried there is one child.
    id                text        primary key,
    tenant_id         text        not null,
    parent_id         text        not null references session.chat_sessions (id) on delete cascade,
    parent_turn       text        not null,
    parent_message_id text        not null,
    child_id          text        not null unique,
    tool_call_id      text        not null,
    step_id           text        not null,
    agent             text        not null,
    background        boolean     not null,
    inspectable       boolean     not null,
    depth             integer     not null check (depth > 0),

    -- What it may do: its own permissions within those of its ancestors.
    permissions       jsonb       not null,
    status            text        not null default 'running'
        check (status in ('running', 'waiting', 'completed', 'failed', 'closed')),

    -- How it ended, once the parent was told; see `Outcome` in `subagent.rs`.
    outcome           jsonb,

    -- Of those in the background: whether the end is in the conversation.
    told              boolean     not null default false,
    created_at        timestamptz not null default clock_timestamp(),
    ended_at          timestamptz,

    check ((outcome is null) = (status in ('running', 'waiting')))
);

create index subagent_parent on session.subagent (parent_id, id);
create index subagent_open on session.subagent (parent_id) where outcome is null;
create index subagent_untold on session.subagent (parent_id) where background and not told;

-- What one session has to tell another.
create table session.outbox
(
    id          bigint      generated always as identity primary key,

    -- Says what it is, so that it is there once however often it is written.
    key         text        not null unique,
    tenant_id   text        not null,

    -- Who is told.
    session_id  text        not null,
    kind        text        not null check (kind in ('spawn', 'close', 'status', 'input', 'end')),
    subagent_id text        not null,
    body        jsonb       not null,
    created_at  timestamptz not null default clock_timestamp()
);

create index outbox_session on session.outbox (session_id, id);

-- Of a child: whose it is and what it may do, see `Origin` in `subagent.rs`.
alter table session.chat_sessions add column child jsonb;

alter domain session.run_status drop constraint run_status_check;
alter domain session.run_status add constraint run_status_check check (value in
    ('idle', 'ready', 'busy', 'retrying', 'waiting_on_approval', 'waiting_on_user_input', 'waiting_on_child', 'error'));

alter table session.run_state
    -- Of a child: its name, whether its parent hears of its end already, whether somebody
    -- wants it to end, and what its parent was last told that it does.
    add column subagent  text,
    add column reported  boolean not null default false,
    add column closing   boolean not null default false,
    add column shown     text    not null default 'running',
    -- Whether it ever had children, and how many ended in the background of which the
    -- conversation does not say so yet.
    add column delegates boolean not null default false,
    add column news      integer not null default 0;

-- Writes mail, once. Returns whom it is for.
create function session.post(
    p_tenant text, p_session text, p_key text, p_kind text, p_subagent text, p_body jsonb
) returns text[]
language plpgsql as $$
begin
    insert into session.outbox (key, tenant_id, session_id, kind, subagent_id, body)
    values (p_key, p_tenant, p_session, p_kind, p_subagent, p_body)
    on conflict (key) do nothing;
    return array [p_session];
end;
$$;

-- The same from a child to its parent, whoever that is.
create function session.post_to_parent(p_child session.run_state, p_key text, p_kind text, p_body jsonb)
returns text[]
language plpgsql as $$
declare
    v_parent text;
begin
    select s.child ->> 'parent_id' into v_parent from session.chat_sessions s where s.id = p_child.session_id;
    return session.post(p_child.tenant_id, v_parent, p_key, p_kind, p_child.subagent, p_body);
end;
$$;

-- Tells the parent how its child ended: as its last turn did. The caller holds the child's row.
create function session.report(p_child session.run_state) returns text[]
language plpgsql as $$
declare
    v_turn session.turn;
begin
    select * into v_turn from session.turn t
    where t.session_id = p_child.session_id and t.id = p_child.active_turn;
    return session.post_to_parent(p_child, 'end:' || p_child.subagent, 'end', jsonb_build_object(
        'status', case when p_child.closing then 'closed' when v_turn.status = 'completed' then 'completed' else 'failed' end,
        'turn_id', v_turn.id,
        'reason', coalesce(v_turn.view ->> 'statusReason', ''),
        'subject', case when p_child.closing then coalesce(p_child.interrupt_by, '') else '' end));
end;
$$;

-- Stores the children that a turn spawns and asks for their sessions. The caller holds the
-- parent's row.
create function session.spawn(p_tenant text, p_session text, p_turn text, p_spawns jsonb) returns text[]
language plpgsql as $$
#variable_conflict use_column
declare
    v_spawn jsonb;
    v_mail  text[] := '{}';
begin
    for v_spawn in select s.value from jsonb_array_elements(p_spawns) s
    loop
        insert into session.subagent
            (id, tenant_id, parent_id, parent_turn, parent_message_id, child_id, tool_call_id, step_id, agent,
             background, inspectable, depth, permissions)
        select c.subagent_id, p_tenant, p_session, p_turn, c.parent_message_id, c.session_id, c.tool_call_id,
               v_spawn ->> 'step_id', c.agent, c.background, c.inspectable, c.depth, c.permissions
        from jsonb_to_record(v_spawn -> 'origin') as c(
            subagent_id text, parent_message_id text, session_id text, tool_call_id text, agent text,
            background boolean, inspectable boolean, depth integer, permissions jsonb);
        v_mail := v_mail || session.post(
            p_tenant, v_spawn -> 'origin' ->> 'session_id', 'spawn:' || (v_spawn -> 'origin' ->> 'subagent_id'), 'spawn',
            v_spawn -> 'origin' ->> 'subagent_id', v_spawn);
    end loop;
    return v_mail;
end;
$$;

-- Asks all open descendants of a session to end, or those behind the calls that one turn waits
-- for. The caller holds the session's row.
create function session.stop_children(p_tenant text, p_session text, p_turn text, p_subject text)
returns text[]
language plpgsql as $$
#variable_conflict use_column
declare
    v_child record;
    v_mail  text[] := '{}';
begin
    for v_child in
        with recursive below as (
            select a.id, a.child_id, a.outcome is null as open from session.subagent a
            where a.parent_id = p_session
              and (p_turn is null or a.parent_turn = p_turn and not a.background and a.outcome is null)
            union all
            select a.id, a.child_id, a.outcome is null from session.subagent a
            join below b on a.parent_id = b.child_id
        )
        select * from below b where b.open
    loop
        v_mail := v_mail || session.post(
            p_tenant, v_child.child_id, 'close:' || v_child.id, 'close', v_child.id,
            jsonb_build_object('subject', coalesce(p_subject, ''), 'reason', 'aborted by parent'));
    end loop;
    return v_mail;
end;
$$;

-- Says in a conversation how children in the background have ended of which it does not say so
-- yet, each in a synthetic message at the place of its event. The caller holds the row, and no
-- turn is under way.
create function session.tell(p_session text, p_seq bigint, p_stamp jsonb) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_child  session.subagent;
    v_seq    bigint := p_seq;
    v_events jsonb := '[]';
    v_event  jsonb;
begin
    for v_child in
        update session.subagent a set told = true
        where a.parent_id = p_session and a.background and a.outcome is not null and not a.told
        returning a.*
    loop
        v_event := session.append_about_subagent(
            p_session, v_seq, 'subagent.' || v_child.status, v_child, v_child.outcome -> 'ended', p_stamp);
        insert into session.chat_messages
            (session_id, id, role, turn_id, position, status, synthetic, metadata_json, created_at)
        values (p_session, v_child.outcome -> 'ended' ->> 'messageId', 'assistant', v_child.parent_turn, v_seq,
                'completed', true, '{}', (v_event ->> 'created_at')::timestamptz);
        insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
        values (p_session, v_child.outcome -> 'ended' ->> 'messageId', 0, v_child.outcome ->> 'part_id',
                'data-subagent', v_child.outcome -> 'note', v_seq);
        v_events := v_events || v_event;
        v_seq := v_seq + 1;
    end loop;
    return v_events;
end;
$$;

-- Appends an event about a child to its parent's log.
create function session.append_about_subagent(
    p_session text, p_seq bigint, p_type text, p_child session.subagent, p_payload jsonb, p_stamp jsonb
) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_event jsonb;
begin
    insert into session.event
        (session_id, seq, type, runtime_id, created_at, turn_id, step_id, tool_call_id, subagent_id,
         trace_id, span_id, ids, payload)
    values (p_session, p_seq, p_type, p_stamp ->> 'runtime_id', clock_timestamp(), p_child.parent_turn, p_child.step_id,
            p_child.tool_call_id, p_child.id, p_stamp ->> 'trace_id', p_stamp ->> 'span_id', p_stamp -> 'ids', p_payload)
    returning to_jsonb(event) into v_event;
    return v_event;
end;
$$;

-- Makes the session of a child and has it ready to run.
create function session.create_child(p_tenant text, p_spawn jsonb, p_stamp jsonb) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_origin  jsonb := p_spawn -> 'origin';
    v_session text := v_origin ->> 'session_id';
    v_turn    text := p_spawn ->> 'turn_id';
    v_events  jsonb;
begin
    insert into session.chat_sessions
        (id, tenant_id, subject, request_id, request_digest, title, agent, workspace_id, parent_id,
         parent_message_id, metadata_json, ephemeral, child)
    values (v_session, p_tenant, p_spawn ->> 'subject', 'child:' || (v_origin ->> 'subagent_id'), '', p_spawn ->> 'title',
            v_origin ->> 'agent', p_spawn ->> 'workspace_id', v_origin ->> 'parent_id',
            v_origin ->> 'parent_message_id', p_spawn -> 'metadata', not (v_origin ->> 'inspectable')::boolean, v_origin)
    on conflict do nothing;
    if not found then
        return '[]';
    end if;
    insert into session.run_state (session_id, tenant_id, next_seq, status, active_turn, subagent)
    values (v_session, p_tenant, 4, 'ready', v_turn, v_origin ->> 'subagent_id');
    v_events := jsonb_build_array(
        session.append(v_session, 1, 'session.created', null, p_spawn -> 'created', p_stamp),
        session.append(v_session, 2, 'thread.started', null, '{}', p_stamp),
        session.append(v_session, 3, 'turn.submitted', v_turn, p_spawn -> 'submitted', p_stamp));
    insert into session.chat_messages
        (session_id, id, role, turn_id, position, request_id, request_digest, status, metadata_json, created_at)
    values (v_session, p_spawn ->> 'message_id', 'user', v_turn, 3, 'spawn', '', 'accepted', p_spawn -> 'message_metadata',
            clock_timestamp());
    insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
    values (v_session, p_spawn ->> 'message_id', 0, p_spawn ->> 'part_id', 'text',
            jsonb_build_object('text', p_spawn ->> 'prompt'), 3);
    insert into session.turn (session_id, id, message_id, status, trace_parent, subject, submitted_at)
    values (v_session, v_turn, p_spawn ->> 'message_id', 'accepted', p_spawn ->> 'trace_parent', p_spawn ->> 'subject',
            clock_timestamp());
    return v_events;
end;
$$;

-- Ends a child: the turn that runs is stopped as by anybody, and what waits behind it does not
-- run any more. The caller holds the row.
create function session.close_child(p_row session.run_state, p_subject text, p_reason text, p_stamp jsonb)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_waits  boolean := p_row.status like 'waiting%';
    v_events jsonb := '[]';
begin
    if p_row.reported or p_row.closing or p_row.active_turn is null then
        return v_events;
    end if;
    if v_waits then
        v_events := session.close_actions(p_row.session_id, p_row.active_turn, p_row.next_seq, p_subject, p_stamp);
    end if;
    update session.run_state r
    set closing = true,
        interrupt_turn = r.active_turn,
        interrupt_by = coalesce(r.interrupt_by, p_subject),
        interrupt_reason = coalesce(r.interrupt_reason, p_reason),
        next_seq = r.next_seq + jsonb_array_length(v_events),
        status = case when v_waits then 'ready' else r.status end
    where r.session_id = p_row.session_id;
    return v_events;
end;
$$;

-- Takes all turns out of the queue of a child that has ended, as `cancel_queued` does with one.
-- The caller holds the row.
create function session.drop_queue(p_session text, p_seq bigint, p_stamp jsonb) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_message session.chat_messages;
    v_seq     bigint := p_seq;
    v_events  jsonb := '[]';
    v_failed  jsonb;
begin
    for v_message in
        select * from session.chat_messages m
        where m.session_id = p_session and m.queue_rank is not null
        order by m.queue_rank desc
    loop
        v_events := v_events || session.append(
            p_session, v_seq, 'queue.changed', v_message.turn_id,
            jsonb_build_object('change', 'cancelled', 'turnId', v_message.turn_id, 'length', (
                select count(*) - 1 from session.chat_messages m
                where m.session_id = p_session and m.queue_rank is not null)), p_stamp);
        v_failed := session.append(
            p_session, v_seq + 1, 'turn.failed', v_message.turn_id,
            jsonb_build_object('status', 'cancelled', 'reason', 'interrupted',
                               'message', 'the subagent has ended'), p_stamp);
        update session.chat_messages m
        set queue_rank = null, position = v_seq, status = 'cancelled',
            hidden_at = (v_failed ->> 'created_at')::timestamptz, metadata_json = m.metadata_json - 'queued_at'
        where m.session_id = p_session and m.id = v_message.id;
        update session.turn t
        set status = 'cancelled',
            view = t.view || jsonb_build_object(
                'status', 'cancelled', 'statusReason', 'the subagent has ended', 'completedAt', v_failed -> 'created_at')
        where t.session_id = p_session and t.id = v_message.turn_id;
        v_events := v_events || v_failed;
        v_seq := v_seq + 2;
    end loop;
    return v_events;
end;
$$;

-- Delivers mail to a session, all that is named, in the order in which it was written. Mail of
-- the kind `end` comes with what is to be remembered of it, which its reader worked out from the
-- child's messages. Mail that somebody else delivered, or for whom nobody is left, is gone.
create function session.deliver(p_session text, p_mail jsonb, p_stamp jsonb)
returns table (tenant_id text, events jsonb, ready boolean, owner text)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row    session.run_state;
    v_mail   session.outbox;
    v_child  session.subagent;
    v_with   jsonb;
    v_new    jsonb;
    v_status text;
begin
    -- A session that is to be made has no row to be held yet.
    perform pg_advisory_xact_lock(hashtextextended(p_session, 12));
    events := '[]';
    ready := false;
    for v_with in
        select m.value from jsonb_array_elements(p_mail) m order by (m.value ->> 'id')::bigint
    loop
        delete from session.outbox o
        where o.id = (v_with ->> 'id')::bigint and o.session_id = p_session
        returning o.* into v_mail;
        continue when not found;
        tenant_id := v_mail.tenant_id;
        if v_mail.kind = 'spawn' then
            -- A parent that was deleted meanwhile needs no child.
            perform 1 from session.subagent a where a.id = v_mail.subagent_id;
            if found then
                v_new := session.create_child(v_mail.tenant_id, v_mail.body, p_stamp);
                events := events || v_new;
                ready := ready or v_new <> '[]';
            end if;
            continue;
        end if;

        select * into v_row from session.run_state r where r.session_id = p_session for update;
        continue when not found;
        if v_mail.kind = 'close' then
            events := events || session.close_child(
                v_row, v_mail.body ->> 'subject', v_mail.body ->> 'reason', p_stamp);
            ready := ready or v_row.status like 'waiting%';
            owner := v_row.owner;
            continue;
        end if;

        select * into v_child from session.subagent a where a.id = v_mail.subagent_id;
        continue when not found or v_child.outcome is not null;
        v_status := v_row.status;
        if v_mail.kind = 'input' then
            v_new := jsonb_build_array(session.append_about_subagent(
                p_session, v_row.next_seq, 'subagent.input', v_child, v_mail.body, p_stamp));
        elsif v_mail.kind = 'status' then
            update session.subagent a
            set status = case v_mail.body ->> 'status' when 'running' then 'running' else 'waiting' end
            where a.id = v_child.id;
            v_new := jsonb_build_array(session.append_about_subagent(
                p_session, v_row.next_seq, 'subagent.status', v_child, v_mail.body, p_stamp));
        else
            v_child.status := v_with -> 'outcome' ->> 'status';
            update session.subagent a
            set outcome = v_with -> 'outcome', status = v_child.status, ended_at = clock_timestamp()
            where a.id = v_child.id;
            if not v_child.background then
                v_new := jsonb_build_array(session.append_about_subagent(
                    p_session, v_row.next_seq, 'subagent.' || v_child.status, v_child,
                    v_with -> 'outcome' -> 'ended', p_stamp));
                -- A turn that still runs finds it when it wants to wait.
                if v_row.status like 'waiting%' then
                    v_status := coalesce(session.waits_for(p_session, v_row.active_turn), 'ready');
                end if;
            elsif v_row.status in ('idle', 'error') then
                v_new := session.tell(p_session, v_row.next_seq, p_stamp);
            else
                -- Whoever runs the turn says so between two steps, or its end does.
                update session.run_state r set news = r.news + 1 where r.session_id = p_session;
                v_new := '[]';
            end if;
        end if;
        update session.run_state r
        set next_seq = r.next_seq + jsonb_array_length(v_new), status = v_status
        where r.session_id = p_session;
        events := events || v_new;
        ready := ready or v_status = 'ready' and v_row.status <> 'ready';
    end loop;
    return next;
end;
$$;

-- As before; a turn also waits for the children that its calls spawned.
create or replace function session.waits_for(p_session text, p_turn text) returns text
language sql stable as $$
    select coalesce(
        (select case
            when bool_or(a.kind = 'approval') then 'waiting_on_approval'
            when bool_or(a.kind = 'question') then 'waiting_on_user_input' end
         from session.action a
         where a.session_id = p_session and a.turn_id = p_turn and a.status = 'open'),
        (select 'waiting_on_child'
         from session.subagent a
         where a.parent_id = p_session and a.parent_turn = p_turn and not a.background and a.outcome is null
         limit 1));
$$;

-- As before, with children in it: those that a turn spawns, those that it was told of, those that
-- are to stop; and with the ends of children in it. `mail` is who has some, `told` what was
-- appended behind the batch.
drop function session.flush_turns(text, jsonb);
create function session.flush_turns(p_owner text, p_batch jsonb)
returns table (
    lease integer, base bigint, interrupt_turn text, fired jsonb, interrupt_by text, interrupt_reason text, ready boolean,
    mail text[], told jsonb
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_want    jsonb;
    v_row     session.run_state;
    v_head    session.chat_messages;
    v_base    bigint;
    v_count   bigint;
    v_ends    text;
    v_parks   boolean;
    v_lets_go boolean;
    v_shown   text;
    v_news    integer;
    v_dropped jsonb;
begin
    for v_want in
        select w.value from jsonb_array_elements(p_batch -> 'leases') w order by w.value ->> 'session_id'
    loop
        select * into v_row from session.run_state r
        where r.session_id = v_want ->> 'session_id' and r.owner = p_owner
          and r.epoch = (v_want ->> 'epoch')::bigint and r.flush_no = (v_want ->> 'flush_no')::bigint
        for update skip locked;
        continue when not found;
        v_base := v_row.next_seq;
        mail := '{}';
        told := '[]';

        insert into session.event
            (session_id, seq, type, runtime_id, created_at, turn_id, step_id, tool_call_id, action_id,
             task_id, run_id, subagent_id, trace_id, span_id, ids, refs, payload)
        select v_row.session_id, v_base + e.ordinal, e.type, p_owner, e.created_at, v_row.active_turn, e.step_id,
               e.tool_call_id, e.action_id, e.task_id, e.run_id, e.subagent_id,
               coalesce(e.trace_id, v_want ->> 'trace_id'), coalesce(e.span_id, v_want ->> 'span_id'),
               e.ids, e.refs, e.payload
        from jsonb_to_recordset(v_want -> 'events') as e(
            ordinal integer, type text, created_at timestamptz, step_id text, tool_call_id text,
            action_id text, task_id text, run_id text, subagent_id text, trace_id text, span_id text,
            ids jsonb, refs jsonb, payload jsonb);
        get diagnostics v_count = row_count;

        if v_want ? 'messages' then
            insert into session.chat_messages as old
                (session_id, id, role, turn_id, position, status, synthetic, metadata_json, created_at)
            select v_row.session_id, c.id, 'assistant', c.turn_id, v_base + c.ordinal, c.status, c.synthetic,
                   c.metadata, c.created_at
            from jsonb_to_recordset(v_want -> 'messages') as c(
                id text, turn_id text, ordinal integer, status text, synthetic boolean, metadata jsonb,
                created_at timestamptz)
            on conflict (session_id, id) do update
            set status = excluded.status, metadata_json = old.metadata_json || excluded.metadata_json;
        end if;
        if v_want ? 'parts' then
            insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
            select v_row.session_id, p.message_id, p.index, p.id, p.type, p.data, v_base + p.ordinal
            from jsonb_to_recordset(v_want -> 'parts') as p(
                message_id text, index integer, id text, type text, data jsonb, ordinal integer)
            on conflict (session_id, message_id, index) do update
            set data_json = excluded.data_json, folded_seq = excluded.folded_seq;
        end if;
        if v_want ? 'actions' then
            insert into session.action
                (session_id, id, tenant_id, turn_id, step_id, tool_call_id, kind, request, permission, pattern,
                 created_at, expires_at)
            select v_row.session_id, a.id, v_row.tenant_id, a.turn_id, a.step_id, a.tool_call_id, a.kind, a.request,
                   a.permission, a.pattern, a.created_at, a.expires_at
            from jsonb_to_recordset(v_want -> 'actions') as a(
                id text, turn_id text, step_id text, tool_call_id text, kind text, request jsonb,
                permission text, pattern text, created_at timestamptz, expires_at timestamptz);
        end if;
        if v_want ? 'turn' then
            update session.turn t
            set status = v_want -> 'turn' ->> 'status', view = v_want -> 'turn' -> 'view'
            where t.session_id = v_row.session_id and t.id = v_want -> 'turn' ->> 'id';
        end if;
        if v_want ? 'sum' then
            update session.chat_sessions s
            set updated_at = clock_timestamp(),
                input_tokens = s.input_tokens + (v_want -> 'sum' ->> 'input_tokens')::bigint,
                output_tokens = s.output_tokens + (v_want -> 'sum' ->> 'output_tokens')::bigint,
                cost_micros = s.cost_micros + (v_want -> 'sum' ->> 'cost_micros')::bigint,
                model_calls = s.model_calls + (v_want -> 'sum' ->> 'model_calls')::bigint
            where s.id = v_row.session_id;
        end if;

        if v_want ? 'spawns' then
            mail := mail || session.spawn(v_row.tenant_id, v_row.session_id, v_row.active_turn, v_want -> 'spawns');
            v_row.delegates := true;
        end if;
        if v_want ? 'tells' then
            update session.subagent a set told = true
            where a.id in (select jsonb_array_elements_text(v_want -> 'tells')) and a.parent_id = v_row.session_id;
            get diagnostics v_news = row_count;
            v_row.news := v_row.news - v_news;
        end if;
        if v_want ? 'stops' and v_row.delegates then
            mail := mail || session.stop_children(
                v_row.tenant_id, v_row.session_id,
                case when v_want ->> 'stops' = 'turn' then v_row.active_turn end, v_row.interrupt_by);
        end if;

        v_ends := v_want ->> 'ends';
        v_parks := coalesce((v_want ->> 'parks')::boolean, false);
        v_lets_go := v_ends is not null or v_parks;
        lease := (v_want ->> 'lease')::integer;
        base := v_base;
        fired := null;
        v_row.next_seq := v_base + v_count;
        v_row.status_message := coalesce(v_want ->> 'status_message', v_row.status_message);
        if v_ends is not null then
            -- What nobody told the turn is told behind it.
            if v_row.news > 0 then
                told := session.tell(v_row.session_id, v_row.next_seq, p_batch -> 'stamp');
                v_row.next_seq := v_row.next_seq + jsonb_array_length(told);
                v_row.news := 0;
            end if;
            -- A child has ended when nothing waits, and when nothing that waits will run.
            if v_row.subagent is not null and not v_row.reported
               and (v_row.closing or v_row.queued = 0 or v_ends <> 'idle') then
                mail := mail || session.report(v_row);
                v_row.reported := true;
                if v_row.queued > 0 then
                    v_dropped := session.drop_queue(v_row.session_id, v_row.next_seq, p_batch -> 'stamp');
                    v_row.next_seq := v_row.next_seq + jsonb_array_length(v_dropped);
                    v_row.queued := 0;
                    told := told || v_dropped;
                end if;
            end if;
            v_row.status := v_ends;
            v_row.active_turn := null;
            v_row.interrupt_turn := null;
            v_row.interrupt_by := null;
            v_row.interrupt_reason := null;
            -- Only an end without a hard error lets the queue go on.
            if v_ends = 'idle' and v_row.queued > 0 then
                select * into v_head from session.chat_messages c
                where c.session_id = v_row.session_id and c.queue_rank is not null
                order by c.queue_rank limit 1;
                v_row.queued := v_row.queued - 1;
                fired := session.fire(v_row.session_id, v_head.id, v_row.next_seq, v_row.queued, p_batch -> 'stamp');
                v_row.next_seq := v_row.next_seq + 1;
                v_row.status := 'ready';
                v_row.active_turn := v_head.turn_id;
            end if;
        elsif v_parks then
            v_row.status := 'ready';
            -- The answer may have been faster, and so may somebody who wants to stop it.
            if v_row.interrupt_turn is null then
                v_row.status := coalesce(session.waits_for(v_row.session_id, v_row.active_turn), 'ready');
            end if;
        else
            v_row.status := coalesce(v_want ->> 'status', v_row.status);
        end if;
        -- A parent hears what its child waits for.
        if v_row.subagent is not null and not v_row.reported then
            v_shown := case when v_row.status like 'waiting%' then v_row.status else 'running' end;
            if v_shown <> v_row.shown then
                v_row.shown := v_shown;
                mail := mail || session.post_to_parent(
                    v_row, 'status:' || v_row.subagent || ':' || v_row.next_seq, 'status',
                    jsonb_build_object('status', v_shown));
            end if;
        end if;
        update session.run_state r
        set next_seq = v_row.next_seq,
            flush_no = r.flush_no + 1,
            status = v_row.status,
            status_message = v_row.status_message,
            active_turn = v_row.active_turn,
            owner = case when v_lets_go then null else r.owner end,
            -- Who waited well does not pay for how often.
            attempts = case when v_lets_go then 0 else r.attempts end,
            interrupt_turn = v_row.interrupt_turn,
            interrupt_by = v_row.interrupt_by,
            interrupt_reason = v_row.interrupt_reason,
            queued = v_row.queued,
            delegates = v_row.delegates,
            news = v_row.news,
            reported = v_row.reported,
            shown = v_row.shown
        where r.session_id = v_row.session_id;
        interrupt_turn := v_row.interrupt_turn;
        interrupt_by := v_row.interrupt_by;
        interrupt_reason := v_row.interrupt_reason;
        ready := v_row.status = 'ready';
        return next;
    end loop;

    if p_batch ? 'prompts' then
        insert into session.prompt (tenant_id, digest, body)
        select distinct on (p.tenant_id, p.digest) p.tenant_id, p.digest, p.body
        from jsonb_to_recordset(p_batch -> 'prompts') as p(tenant_id text, digest text, body text)
        -- In one order, or two flushes with the same prompts could wait for each other.
        order by p.tenant_id, p.digest
        on conflict do nothing;
    end if;
end;
$$;

-- As before; a child that has ended takes nothing more, and input of one that runs is told to
-- its parent.
create or replace function session.submit_and_claim(
    p_replica text, p_tenant text, p_session text, p_message text, p_turn text, p_request text, p_digest text,
    p_parts jsonb, p_metadata jsonb, p_submitted jsonb, p_subject text, p_trace_parent text,
    p_reject boolean, p_queue_limit integer, p_stamp jsonb
) returns table (
    outcome text, turn_id text, message_id text, status text, queue_position integer,
    sequence bigint, submitted_at timestamptz, events jsonb, claim jsonb
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row    session.run_state;
    v_first  session.chat_messages;
    v_turn   session.turn;
    v_now    timestamptz;
    v_seq    bigint;
    v_rests  boolean;
    v_queued boolean;
    v_events jsonb;
    v_head   session.chat_messages;
    v_claims boolean := false;
    v_claim  jsonb;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null, null, null::integer, null::bigint, null::timestamptz, null::jsonb, null::jsonb;
        return;
    end if;

    select * into v_first from session.chat_messages m
    where m.session_id = p_session and m.request_id = p_request;
    if found then
        select * into v_turn from session.turn t where t.session_id = p_session and t.id = v_first.turn_id;
        return query select
            case when v_first.request_digest = p_digest then 'repeated' else 'reused' end,
            v_turn.id, v_first.id, v_turn.status,
            (select count(*)::integer from session.chat_messages m
             where m.session_id = p_session and m.queue_rank <= v_first.queue_rank),
            v_row.next_seq - 1, v_turn.submitted_at, '[]'::jsonb, null::jsonb;
        return;
    end if;

    -- A child that has ended is not entered again.
    if v_row.reported then
        return query select 'finished', null, null, null, null::integer, null::bigint, null::timestamptz, null::jsonb, null::jsonb;
        return;
    end if;

    -- Asked for under the lock, so that turns are in the order in which they were let in.
    v_now := clock_timestamp();
    v_rests := v_row.status in ('idle', 'error');
    v_queued := not v_rests or v_row.queued > 0;
    if v_queued and p_reject then
        return query select 'busy', v_row.active_turn, null, null, null::integer, null::bigint, null::timestamptz, null::jsonb, null::jsonb;
        return;
    end if;
    -- A session that rests lets its head go, which makes room for one more.
    if v_queued and v_row.queued >= p_queue_limit + v_rests::integer then
        return query select 'full', null, null, null, null::integer, null::bigint, null::timestamptz, null::jsonb, null::jsonb;
        return;
    end if;

    if v_row.subagent is not null then
        perform session.post_to_parent(
            v_row, 'input:' || v_row.subagent || ':' || p_message, 'input',
            jsonb_build_object('messageId', p_message, 'subject', p_subject));
    end if;

    v_seq := v_row.next_seq;
    insert into session.chat_messages
        (session_id, id, role, turn_id, position, queue_rank, request_id, request_digest, status, metadata_json, created_at)
    values (
        p_session, p_message, 'user', p_turn,
        case when v_queued then null else v_seq end,
        case when v_queued then v_seq end,
        p_request, p_digest,
        case when v_queued then 'queued' else 'accepted' end,
        case when v_queued
            then p_metadata || jsonb_build_object('queued_at', floor(extract(epoch from v_now) * 1000)::bigint)
            else p_metadata end,
        v_now
    );
    insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
    select p_session, p_message, p.index, p.id, p.type, p.data, v_seq
    from jsonb_to_recordset(p_parts) as p(index integer, id text, type text, data jsonb);
    insert into session.turn (session_id, id, message_id, status, trace_parent, subject, submitted_at)
    values (p_session, p_turn, p_message, case when v_queued then 'queued' else 'accepted' end,
            p_trace_parent, p_subject, v_now);

    v_events := jsonb_build_array(session.append(
        p_session, v_seq, 'turn.submitted', p_turn,
        p_submitted || jsonb_build_object('status', case when v_queued then 'queued' else 'accepted' end), p_stamp));
    if v_queued then
        v_seq := v_seq + 1;
        v_events := v_events || session.append(
            p_session, v_seq, 'queue.changed', p_turn,
            jsonb_build_object('change', 'queued', 'turnId', p_turn, 'length', v_row.queued + 1), p_stamp);
    end if;

    -- A submission clears an error: what waited behind it goes first.
    if v_rests then
        if v_queued then
            select * into v_head from session.chat_messages m
            where m.session_id = p_session and m.queue_rank is not null
            order by m.queue_rank limit 1;
            v_seq := v_seq + 1;
            v_events := v_events || session.fire(p_session, v_head.id, v_seq, v_row.queued, p_stamp);
        end if;
        -- Only somebody who lives gets it; see `claim`.
        v_claims := exists (select from session.replica p where p.id = p_replica and not p.dead);
        update session.run_state r
        set status = case when v_claims then 'busy' else 'ready' end,
            status_message = '',
            owner = case when v_claims then p_replica end,
            epoch = r.epoch + v_claims::integer,
            attempts = v_claims::integer,
            next_seq = v_seq + 1,
            active_turn = coalesce(v_head.turn_id, p_turn)
        where r.session_id = p_session
        returning * into v_row;
        if v_claims then
            v_claim := jsonb_build_object(
                'session_id', p_session, 'tenant_id', p_tenant, 'turn_id', v_row.active_turn, 'epoch', v_row.epoch,
                'flush_no', v_row.flush_no, 'attempts', v_row.attempts,
                'context', session.context(p_session, v_row.active_turn));
        end if;
    else
        update session.run_state r
        set next_seq = v_seq + 1, queued = v_row.queued + 1
        where r.session_id = p_session;
    end if;

    return query select 'stored', p_turn, p_message,
        case when v_queued then 'queued' else 'accepted' end,
        case when v_queued then v_row.queued + case when v_head.id is null then 1 else 0 end end,
        v_seq, v_now, v_events, v_claim;
end;
$$;

-- As before, with what a turn must know of its parent and its children.
create or replace function session.context(p_session text, p_turn text) returns jsonb
language plpgsql stable as $$
begin
    return (select jsonb_build_object(
        'agent', s.agent,
        'workspace_id', s.workspace_id,
        'subject', t.subject,
        'trace_parent', t.trace_parent,
        'view', t.view,
        'resumes', t.status = 'waiting',
        'title', s.title,
        'child', s.child,
        'background', r.delegates and exists (
            select from session.subagent a where a.parent_id = p_session and a.background and not a.told),
        -- How the children ended that the turn waits for.
        'ended', case when r.delegates then (
            select coalesce(jsonb_agg(a.outcome || jsonb_build_object('tool_call_id', a.tool_call_id)), '[]')
            from session.subagent a
            where a.parent_id = p_session and a.parent_turn = p_turn and not a.background and a.outcome is not null)
            else '[]' end,
        'interrupt', case when r.interrupt_turn = p_turn then jsonb_build_object(
            'turn_id', p_turn, 'subject', r.interrupt_by, 'reason', r.interrupt_reason) end,
        'actions', (
            select coalesce(jsonb_agg(jsonb_build_object(
                'tool_call_id', a.tool_call_id, 'status', a.status, 'resolution', a.resolution)), '[]')
            from session.action a
            where a.session_id = p_session and a.turn_id = p_turn),
        'rules', (
            select coalesce(jsonb_agg(jsonb_build_object(
                'scope', u.scope, 'permission', u.permission, 'pattern', u.pattern, 'action', u.action)
                order by u.scope, u.permission, u.pattern), '[]')
            from session.rule u
            where u.tenant_id = s.tenant_id
              and (u.scope, u.scope_id) in (('session', s.id), ('project', s.workspace_id))),
        -- The index of what is remembered; 0006 has the table.
        'memories', (
            select coalesce(jsonb_agg(jsonb_build_object(
                'scope', n.scope, 'name', n.name, 'description', n.description)
                order by n.scope, n.name), '[]')
            from (
                (select m.scope, m.name, m.description from session.memory m
                 where m.tenant_id = s.tenant_id and m.scope = 'user' and m.owner = t.subject
                 order by m.name limit 100)
                union all
                (select m.scope, m.name, m.description from session.memory m
                 where m.tenant_id = s.tenant_id and m.scope = 'project' and m.owner = s.workspace_id
                 order by m.name limit 100)
            ) n))
    from session.chat_sessions s
    join session.run_state r on r.session_id = s.id
    join session.turn t on t.session_id = s.id
    where s.id = p_session and t.id = p_turn);
end;
$$;

-- As before; what a child did to the files is in its own log, so nobody can say here.
create or replace function session.files_at(p_tenant text, p_session text, p_message text)
returns table (outcome text, turn_id text, workspace_id text, snapshot_id text)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_row       session.run_state;
    v_workspace text;
    v_position  bigint;
    v_event     session.event;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant;
    if not found then
        return query select 'not_found', null, null, null;
        return;
    end if;
    if v_row.status not in ('idle', 'error') then
        return query select 'busy', v_row.active_turn, null, null;
        return;
    end if;
    select s.workspace_id into v_workspace from session.chat_sessions s where s.id = p_session;
    select m.position into v_position from session.chat_messages m
    where m.session_id = p_session and m.id = p_message
      and m.role = 'user' and m.hidden_at is null and m.position is not null;
    if not found then
        return query select 'nothing', null, v_workspace, null;
        return;
    end if;
    if not exists (select from session.event e where e.session_id = p_session and e.seq = v_position) then
        return query select 'unknown', null, v_workspace, null;
        return;
    end if;
    select * into v_event from session.event e
    where e.session_id = p_session and e.seq >= v_position
      and (e.type in ('snapshot.updated', 'subagent.spawned')
           or e.type = 'sandbox.applied' and exists (
               select
               from session.chat_messages m
               join session.chat_parts p on p.session_id = m.session_id and p.message_id = m.id
               where m.session_id = e.session_id and m.turn_id = e.turn_id
                 and p.data_json ->> 'tool_call_id' = e.tool_call_id
                 and not coalesce((p.data_json ->> 'read_only')::boolean, false)))
    order by e.seq
    limit 1;
    if not found then
        return query select 'unchanged', null, v_workspace, null;
    elsif v_event.type = 'snapshot.updated' then
        return query select 'found', v_event.turn_id, v_workspace, v_event.payload ->> 'snapshotId';
    else
        return query select 'unknown', v_event.turn_id, v_workspace, null;
    end if;
end;
$$;

-- Names a session that still has no title.
create function session.name_session(p_tenant text, p_session text, p_title text, p_stamp jsonb)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_row session.run_state;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return '[]';
    end if;
    update session.chat_sessions s set title = p_title where s.id = p_session and s.title = '';
    if not found then
        return '[]';
    end if;
    update session.run_state r set next_seq = v_row.next_seq + 1 where r.session_id = p_session;
    return jsonb_build_array(session.append(
        p_session, v_row.next_seq, 'session.updated', null, jsonb_build_object('title', p_title), p_stamp));
end;
$$;
