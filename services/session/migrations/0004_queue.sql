-- The queue as people change it, and the history as they go back in it and branch off.
--
-- Each change is one function that locks the session's `run_state` row first and reads
-- second, as in `0002_functions.sql`. It says in `outcome` what became of it; nothing but
-- its own word for success changes anything. `events` is what is to be published.

-- The sequence of the rewind that hides it, so that the last rewind can be undone and no
-- other. Queued turns that were cancelled are hidden too, but by no rewind.
alter table session.chat_messages add column hidden_by bigint
    check (hidden_by is null or hidden_at is not null);
create index chat_messages_rewound on session.chat_messages (session_id, hidden_by)
    where hidden_by is not null;

-- Each session is in exactly one index of these and `chat_sessions_recent`, so that a list
-- that includes more reads more of them and a turn still moves one entry.
create index chat_sessions_ephemeral on session.chat_sessions (tenant_id, updated_at desc, id desc)
    where ephemeral and archived_at is null;
create index chat_sessions_archived on session.chat_sessions (tenant_id, updated_at desc, id desc)
    where not ephemeral and archived_at is not null;
create index chat_sessions_put_away on session.chat_sessions (tenant_id, updated_at desc, id desc)
    where ephemeral and archived_at is not null;
create index chat_sessions_children on session.chat_sessions (parent_id, updated_at desc, id desc)
    where parent_id is not null;

-- Sessions that are gone and whose events are not yet: a long log is deleted in pieces.
create table session.deleted
(
    session_id text        primary key,
    deleted_at timestamptz not null default clock_timestamp()
);

-- Why a turn cannot be changed in the queue, if it cannot: the caller holds the row.
create function session.not_queued(p_session text, p_turn text)
returns table (outcome text, status text)
language sql as $$
    select case when m.queue_rank is null then 'not_queued' end, t.status
    from session.turn t
    join session.chat_messages m on m.session_id = t.session_id and m.id = t.message_id
    where t.session_id = p_session and t.id = p_turn
    union all
    select 'no_turn', null
    where not exists (select from session.turn t where t.session_id = p_session and t.id = p_turn);
$$;

-- Replaces what a queued turn says. Only a message that switches the agent or the model
-- may say nothing.
create function session.edit_queued(
    p_tenant text, p_session text, p_turn text, p_parts jsonb, p_stamp jsonb
) returns table (outcome text, status text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row     session.run_state;
    v_refused record;
    v_message session.chat_messages;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null::jsonb;
        return;
    end if;
    select * into v_refused from session.not_queued(p_session, p_turn);
    if v_refused.outcome is not null then
        return query select v_refused.outcome, v_refused.status, null::jsonb;
        return;
    end if;
    select m.* into v_message from session.chat_messages m
    join session.turn t on t.session_id = m.session_id and t.message_id = m.id
    where t.session_id = p_session and t.id = p_turn;
    if p_parts = '[]' and not v_message.metadata_json ?| array ['agent', 'model'] then
        return query select 'empty', v_refused.status, null::jsonb;
        return;
    end if;

    delete from session.chat_parts p where p.session_id = p_session and p.message_id = v_message.id;
    insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
    select p_session, v_message.id, p.index, p.id, p.type, p.data, v_row.next_seq
    from jsonb_to_recordset(p_parts) as p(index integer, id text, type text, data jsonb);
    update session.run_state r set next_seq = v_row.next_seq + 1 where r.session_id = p_session;
    update session.chat_sessions s set updated_at = clock_timestamp() where s.id = p_session;
    return query select 'edited', v_refused.status, jsonb_build_array(session.append(
        p_session, v_row.next_seq, 'queue.changed', p_turn,
        jsonb_build_object('change', 'edited', 'turnId', p_turn, 'length', v_row.queued), p_stamp));
end;
$$;

-- Takes a turn out of the queue for good. Its message gets a place in the log like any
-- other, so that its request id still finds it, and is hidden from people and models.
create function session.cancel_queued(
    p_tenant text, p_session text, p_turn text, p_subject text, p_stamp jsonb
) returns table (outcome text, status text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row     session.run_state;
    v_refused record;
    v_changed jsonb;
    v_failed  jsonb;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null::jsonb;
        return;
    end if;
    select * into v_refused from session.not_queued(p_session, p_turn);
    if v_refused.outcome is not null then
        return query select v_refused.outcome, v_refused.status, null::jsonb;
        return;
    end if;

    v_changed := session.append(
        p_session, v_row.next_seq, 'queue.changed', p_turn,
        jsonb_build_object('change', 'cancelled', 'turnId', p_turn, 'length', v_row.queued - 1), p_stamp);
    -- Who follows the turn sees it end, as any other that somebody stopped.
    v_failed := session.append(
        p_session, v_row.next_seq + 1, 'turn.failed', p_turn,
        jsonb_build_object('status', 'cancelled', 'reason', 'interrupted',
                           'message', 'taken out of the queue', 'subject', p_subject), p_stamp);
    update session.chat_messages m
    set queue_rank = null, position = v_row.next_seq, status = 'cancelled',
        hidden_at = (v_failed ->> 'created_at')::timestamptz, metadata_json = m.metadata_json - 'queued_at'
    from session.turn t
    where t.session_id = p_session and t.id = p_turn
      and m.session_id = t.session_id and m.id = t.message_id;
    -- What `turn.failed` adds up to.
    update session.turn t
    set status = 'cancelled',
        view = t.view || jsonb_build_object(
            'status', 'cancelled', 'statusReason', 'taken out of the queue', 'completedAt', v_failed -> 'created_at')
    where t.session_id = p_session and t.id = p_turn;
    update session.run_state r
    set next_seq = v_row.next_seq + 2, queued = v_row.queued - 1
    where r.session_id = p_session;
    update session.chat_sessions s set updated_at = clock_timestamp() where s.id = p_session;
    return query select 'cancelled', 'cancelled', jsonb_build_array(v_changed, v_failed);
end;
$$;

-- Puts a queued turn first. One that is first already stays there without a word.
create function session.promote_queued(p_tenant text, p_session text, p_turn text, p_stamp jsonb)
returns table (outcome text, status text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row     session.run_state;
    v_refused record;
    v_first   session.chat_messages;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null::jsonb;
        return;
    end if;
    select * into v_refused from session.not_queued(p_session, p_turn);
    if v_refused.outcome is not null then
        return query select v_refused.outcome, v_refused.status, null::jsonb;
        return;
    end if;
    select * into v_first from session.chat_messages m
    where m.session_id = p_session and m.queue_rank is not null
    order by m.queue_rank limit 1;
    if v_first.turn_id = p_turn then
        return query select 'promoted', v_refused.status, '[]'::jsonb;
        return;
    end if;

    -- Submissions get ranks above all there are, so below them there is always room.
    update session.chat_messages m
    set queue_rank = v_first.queue_rank - 1
    from session.turn t
    where t.session_id = p_session and t.id = p_turn
      and m.session_id = t.session_id and m.id = t.message_id;
    update session.run_state r set next_seq = v_row.next_seq + 1 where r.session_id = p_session;
    update session.chat_sessions s set updated_at = clock_timestamp() where s.id = p_session;
    return query select 'promoted', v_refused.status, jsonb_build_array(session.append(
        p_session, v_row.next_seq, 'queue.changed', p_turn,
        jsonb_build_object('change', 'promoted', 'turnId', p_turn, 'length', v_row.queued), p_stamp));
end;
$$;

-- Puts the queue in a new order. The list names each turn once; a list that was made from
-- another queue than the one there is now is refused, with the turn that tells.
create function session.reorder_queue(p_tenant text, p_session text, p_turns text[], p_stamp jsonb)
returns table (outcome text, turn_id text, status text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row     session.run_state;
    v_turn    text;
    v_refused record;
    v_old     text[];
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null, null::jsonb;
        return;
    end if;
    select coalesce(array_agg(m.turn_id order by m.queue_rank), '{}') into v_old
    from session.chat_messages m
    where m.session_id = p_session and m.queue_rank is not null;
    select n.turn_id into v_turn from unnest(p_turns) as n(turn_id) where n.turn_id <> all (v_old) limit 1;
    if found then
        select * into v_refused from session.not_queued(p_session, v_turn);
        return query select v_refused.outcome, v_turn, v_refused.status, null::jsonb;
        return;
    end if;
    select o.turn_id into v_turn from unnest(v_old) as o(turn_id) where o.turn_id <> all (p_turns) limit 1;
    if found then
        return query select 'missing', v_turn, 'queued', null::jsonb;
        return;
    end if;
    if p_turns = v_old then
        return query select 'reordered', null, null, '[]'::jsonb;
        return;
    end if;

    -- All below the lowest there was, so that no two have the same rank on the way.
    update session.chat_messages m
    set queue_rank = low.rank - cardinality(p_turns) + n.place - 1
    from unnest(p_turns) with ordinality as n(turn_id, place),
         (select min(q.queue_rank) as rank from session.chat_messages q
          where q.session_id = p_session and q.queue_rank is not null) low
    where m.session_id = p_session and m.turn_id = n.turn_id and m.queue_rank is not null;
    update session.run_state r set next_seq = v_row.next_seq + 1 where r.session_id = p_session;
    update session.chat_sessions s set updated_at = clock_timestamp() where s.id = p_session;
    return query select 'reordered', null, null, jsonb_build_array(session.append(
        p_session, v_row.next_seq, 'queue.changed', null,
        jsonb_build_object('change', 'reordered', 'length', v_row.queued, 'turnIds', to_jsonb(p_turns)), p_stamp));
end;
$$;

-- Lets a queue go on that a hard error stopped. A queue that does not stand still, or
-- stands still for another reason, is left alone.
create function session.resume_queue(p_tenant text, p_session text, p_stamp jsonb)
returns table (outcome text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row    session.run_state;
    v_head   session.chat_messages;
    v_events jsonb;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null::jsonb;
        return;
    end if;
    if v_row.status <> 'error' or v_row.queued = 0 then
        return query select 'resumed', '[]'::jsonb;
        return;
    end if;
    select * into v_head from session.chat_messages m
    where m.session_id = p_session and m.queue_rank is not null
    order by m.queue_rank limit 1;
    v_events := jsonb_build_array(
        session.append(p_session, v_row.next_seq, 'queue.changed', null,
                       jsonb_build_object('change', 'resumed', 'length', v_row.queued), p_stamp),
        session.fire(p_session, v_head.id, v_row.next_seq + 1, v_row.queued - 1, p_stamp));
    update session.run_state r
    set status = 'ready', status_message = '', attempts = 0, next_seq = v_row.next_seq + 2,
        active_turn = v_head.turn_id, queued = v_row.queued - 1
    where r.session_id = p_session;
    update session.chat_sessions s set updated_at = clock_timestamp() where s.id = p_session;
    return query select 'resumed', v_events;
end;
$$;

-- Changes what people call a session, and whether it is put away. Null leaves as it is.
create function session.update_session(
    p_tenant text, p_session text, p_title text, p_archived boolean, p_stamp jsonb
) returns table (outcome text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row     session.run_state;
    v_session session.chat_sessions;
    v_changed jsonb := '{}';
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null::jsonb;
        return;
    end if;
    select * into v_session from session.chat_sessions s where s.id = p_session;
    if p_title <> v_session.title then
        v_changed := v_changed || jsonb_build_object('title', p_title);
    end if;
    if p_archived <> (v_session.archived_at is not null) then
        v_changed := v_changed || jsonb_build_object('archived', p_archived);
    end if;
    if v_changed = '{}' then
        return query select 'updated', '[]'::jsonb;
        return;
    end if;

    update session.chat_sessions s
    set title = coalesce(p_title, s.title), updated_at = clock_timestamp(),
        archived_at = case
            when p_archived is null then s.archived_at
            when p_archived then coalesce(s.archived_at, clock_timestamp()) end
    where s.id = p_session;
    update session.run_state r set next_seq = v_row.next_seq + 1 where r.session_id = p_session;
    return query select 'updated', jsonb_build_array(
        session.append(p_session, v_row.next_seq, 'session.updated', null, v_changed, p_stamp));
end;
$$;

-- Deletes a session at rest. Its events are no longer anybody's from here on, and are
-- removed by `session.purge`.
create function session.delete_session(p_tenant text, p_session text)
returns table (outcome text, turn_id text)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row session.run_state;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'deleted', null;
    elsif v_row.status not in ('idle', 'error') then
        return query select 'busy', v_row.active_turn;
    elsif v_row.queued > 0 then
        return query select 'queued', null;
    else
        insert into session.deleted (session_id) values (p_session);
        delete from session.rule u
        where u.tenant_id = p_tenant and u.scope = 'session' and u.scope_id = p_session;
        delete from session.chat_sessions s where s.id = p_session;
        return query select 'deleted', null;
    end if;
end;
$$;

-- Removes up to `p_limit` events of one session that was deleted; null when none is left
-- to do, else whether that session's log is gone now.
create function session.purge(p_limit integer) returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
    v_session text;
    v_first   bigint;
begin
    select d.session_id into v_session from session.deleted d
    order by d.deleted_at limit 1
    for update skip locked;
    if not found then
        return null;
    end if;
    select min(e.seq) into v_first from session.event e where e.session_id = v_session;
    delete from session.event e where e.session_id = v_session and e.seq < v_first + p_limit;
    perform 1 from session.event e where e.session_id = v_session limit 1;
    if found then
        return false;
    end if;
    delete from session.deleted d where d.session_id = v_session;
    return true;
end;
$$;

-- Hides a user message and everything behind it. Nothing is deleted, and what was spent
-- stays spent.
create function session.rewind(p_tenant text, p_session text, p_message text, p_stamp jsonb)
returns table (outcome text, turn_id text, messages integer, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row      session.run_state;
    v_position bigint;
    v_count    integer;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null::integer, null::jsonb;
        return;
    end if;
    if v_row.status not in ('idle', 'error') then
        return query select 'busy', v_row.active_turn, null::integer, null::jsonb;
        return;
    end if;
    select m.position into v_position from session.chat_messages m
    where m.session_id = p_session and m.id = p_message
      and m.role = 'user' and m.hidden_at is null and m.position is not null;
    if not found then
        return query select 'nothing', null, null::integer, null::jsonb;
        return;
    end if;

    update session.chat_messages m
    set hidden_at = clock_timestamp(), hidden_by = v_row.next_seq
    where m.session_id = p_session and m.position >= v_position and m.hidden_at is null;
    get diagnostics v_count = row_count;
    update session.run_state r set next_seq = v_row.next_seq + 2 where r.session_id = p_session;
    update session.chat_sessions s set updated_at = clock_timestamp() where s.id = p_session;
    return query select 'rewound', null, v_count, jsonb_build_array(
        session.append(p_session, v_row.next_seq, 'history.rollback.started', null,
                       jsonb_build_object('kind', 'rewind', 'messageId', p_message), p_stamp),
        session.append(p_session, v_row.next_seq + 1, 'history.rollback.completed', null,
                       jsonb_build_object('kind', 'rewind', 'messageId', p_message, 'messages', v_count), p_stamp));
end;
$$;

-- Shows again what the last rewind hid, unless the conversation has gone on since.
create function session.unrewind(p_tenant text, p_session text, p_stamp jsonb)
returns table (outcome text, turn_id text, messages integer, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row     session.run_state;
    v_rewind  bigint;
    v_message text;
    v_count   integer;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null::integer, null::jsonb;
        return;
    end if;
    if v_row.status not in ('idle', 'error') then
        return query select 'busy', v_row.active_turn, null::integer, null::jsonb;
        return;
    end if;
    select max(m.hidden_by) into v_rewind from session.chat_messages m
    where m.session_id = p_session and m.hidden_by is not null;
    -- A submission to a session at rest puts some message into the conversation: its own,
    -- or the head of a queue that had stopped. So no place behind the rewind, no submission.
    if v_rewind is null or exists (
        select from session.chat_messages m
        where m.session_id = p_session and m.position > v_rewind and m.status <> 'cancelled'
    ) then
        return query select 'nothing', null, null::integer, null::jsonb;
        return;
    end if;

    select m.id into v_message from session.chat_messages m
    where m.session_id = p_session and m.hidden_by = v_rewind
    order by m.position limit 1;
    update session.chat_messages m
    set hidden_at = null, hidden_by = null
    where m.session_id = p_session and m.hidden_by = v_rewind;
    get diagnostics v_count = row_count;
    update session.run_state r set next_seq = v_row.next_seq + 2 where r.session_id = p_session;
    update session.chat_sessions s set updated_at = clock_timestamp() where s.id = p_session;
    return query select 'shown', null, v_count, jsonb_build_array(
        session.append(p_session, v_row.next_seq, 'history.rollback.started', null,
                       jsonb_build_object('kind', 'unrewind', 'messageId', v_message), p_stamp),
        session.append(p_session, v_row.next_seq + 1, 'history.rollback.completed', null,
                       jsonb_build_object('kind', 'unrewind', 'messageId', v_message, 'messages', v_count), p_stamp));
end;
$$;

-- 26 characters of our ids: the first 19 of the session's, which are its time and 43 random
-- bits, a number, and a last one that leaves no bits over.
create function session.forked_id(p_session text, p_number bigint) returns text
language sql immutable as $$
    select substr(p_session, 5, 19) || lpad(to_hex(p_number), 6, '0') || '0';
$$;

-- Makes a session with copies of the visible messages of another, up to one of them or all.
-- The copies stand before the new log, at positions up to zero: they are what its parent had
-- said by then, and no event of the new session says it again. The new session's row is
-- nobody else's yet, so only the parent's is held.
create function session.fork(
    p_tenant text, p_parent text, p_session text, p_message text, p_subject text,
    p_request text, p_digest text, p_ephemeral boolean, p_stamp jsonb
) returns table (outcome text, session_id text, turn_id text)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row    session.run_state;
    v_parent session.chat_sessions;
    v_last   bigint;
    v_count  integer;
    v_title  text;
    v_from   text;
begin
    -- First of all, so that a repeated call is answered also when the parent is busy by now.
    return query
        select case when s.request_digest = p_digest then 'forked' else 'reused' end, s.id, null
        from session.chat_sessions s
        where s.tenant_id = p_tenant and s.request_id = p_request;
    if found then
        return;
    end if;
    select * into v_row from session.run_state r
    where r.session_id = p_parent and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null;
        return;
    end if;
    if v_row.status not in ('idle', 'error') then
        return query select 'busy', null, v_row.active_turn;
        return;
    end if;
    select m.position into v_last from session.chat_messages m
    where m.session_id = p_parent and m.position is not null and m.hidden_at is null
      and (p_message is null or m.id = p_message)
    order by m.position desc limit 1;
    if not found and p_message is not null then
        return query select 'no_message', null, null;
        return;
    end if;

    select count(*) into v_count from session.chat_messages m
    where m.session_id = p_parent and m.position <= v_last and m.hidden_at is null;
    select m.id into v_from from session.chat_messages m
    where m.session_id = p_parent and m.position = v_last;
    select * into v_parent from session.chat_sessions s where s.id = p_parent;
    v_title := ltrim(left(v_parent.title, 193) || ' (copy)');
    insert into session.chat_sessions
        (id, tenant_id, subject, request_id, request_digest, title, agent, workspace_id, parent_id,
         parent_message_id, metadata_json, ephemeral)
    values (p_session, p_tenant, p_subject, p_request, p_digest, v_title, v_parent.agent, v_parent.workspace_id,
            p_parent, v_from, v_parent.metadata_json, p_ephemeral)
    on conflict (tenant_id, request_id) do nothing;
    if not found then
        return query
            select case when s.request_digest = p_digest then 'forked' else 'reused' end, s.id, null
            from session.chat_sessions s
            where s.tenant_id = p_tenant and s.request_id = p_request;
        return;
    end if;
    insert into session.run_state (session_id, tenant_id, next_seq) values (p_session, p_tenant, 3);
    perform session.append(p_session, 1, 'session.created', null, jsonb_strip_nulls(jsonb_build_object(
        'title', v_title, 'agent', v_parent.agent, 'parentSessionId', p_parent, 'parentMessageId', v_from,
        'workspaceId', v_parent.workspace_id, 'ephemeral', p_ephemeral)), p_stamp);
    perform session.append(p_session, 2, 'thread.started', null, '{}', p_stamp);

    -- New ids are the beginning of the session's own and a number: they are as unique as it
    -- is, and in order. A turn has the letters of its first message, as everywhere.
    with old as materialized (
        select m.*, row_number() over (order by m.position) as number
        from session.chat_messages m
        where m.session_id = p_parent and m.position <= v_last and m.hidden_at is null
    ), named as materialized (
        select o.*, session.forked_id(p_session, o.number) as letters,
               session.forked_id(p_session, min(o.number) over (partition by o.turn_id)) as turn_letters
        from old o
    ), messages as (
        insert into session.chat_messages
            (session_id, id, role, turn_id, position, status, synthetic, metadata_json, created_at)
        select p_session, 'msg_' || n.letters, n.role, 'turn_' || n.turn_letters, n.number - v_count, n.status,
               n.synthetic, n.metadata_json, n.created_at
        from named n
    ), parts as (
        insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
        select p_session, 'msg_' || n.letters, p.index,
               'prt_' || substr(p_session, 5, 15) || lpad(to_hex(n.number), 6, '0') || lpad(to_hex(p.index), 4, '0') || '0',
               p.type,
               -- A compaction names the first message that it keeps.
               case when p.type = 'data-compaction' and p.data_json ->> 'tail_start_id' <> ''
                    then p.data_json || jsonb_build_object('tail_start_id', (
                        select 'msg_' || t.letters from named t where t.id = p.data_json ->> 'tail_start_id'))
                    else p.data_json end,
               0
        from named n
        join session.chat_parts p on p.session_id = p_parent and p.message_id = n.id
    )
    update session.chat_sessions s
    set input_tokens = spent.input_tokens, output_tokens = spent.output_tokens,
        cost_micros = spent.cost_micros, model_calls = spent.model_calls
    from (
        select coalesce(sum(coalesce((u.usage ->> 'input')::bigint, 0) + coalesce((u.usage ->> 'cacheRead')::bigint, 0)
                            + coalesce((u.usage ->> 'cacheWrite')::bigint, 0)), 0) as input_tokens,
               coalesce(sum(coalesce((u.usage ->> 'output')::bigint, 0)), 0) as output_tokens,
               coalesce(sum((n.metadata_json ->> 'cost_micros')::bigint), 0) as cost_micros,
               count(u.usage) as model_calls
        from named n, lateral (select n.metadata_json -> 'usage' as usage) u
    ) spent
    where s.id = p_session;
    return query select 'forked', p_session, null;
end;
$$;
