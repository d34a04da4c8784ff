-- Evidence: finding what a pack is about, putting on record that there is one, and running a
-- recorded turn again.

-- Packs are asked for by the id of a turn alone.
create index turn_by_id on session.turn (id);

-- And by that of a task, which few events have.
create index event_of_task on session.event (task_id, session_id) where task_id is not null;

-- Says that evidence was made of a session, wherever that stands.
create function session.note_evidence(
    p_tenant text, p_session text, p_turn text, p_payload jsonb, p_stamp jsonb
) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_seq bigint;
begin
    update session.run_state r set next_seq = r.next_seq + 1
    where r.session_id = p_session and r.tenant_id = p_tenant
    returning r.next_seq - 1 into v_seq;
    if not found then
        return '[]';
    end if;
    return jsonb_build_array(session.append(p_session, v_seq, 'evidence.changed', p_turn, p_payload, p_stamp));
end;
$$;

-- Makes a session in which a turn can run again: it begins with what came before the turn, under
-- the same ids and at positions up to zero, and is hidden like every sidecar. What was visible then
-- is what is visible now or was hidden by a rewind since.
create function session.begin_replay(
    p_tenant text, p_parent text, p_turn text, p_session text, p_workspace text, p_subject text,
    p_request text, p_digest text, p_stamp jsonb
) returns table (outcome text, session_id text)
language plpgsql as $$
#variable_conflict use_column
declare
    v_parent   session.chat_sessions;
    v_message  session.chat_messages;
    v_title    text := 'Replay of ' || p_turn;
begin
    select s.* into v_parent
    from session.chat_sessions s
    join session.run_state r on r.session_id = s.id
    where s.id = p_parent and s.tenant_id = p_tenant;
    if not found then
        return query select 'not_found', null;
        return;
    end if;
    select m.* into v_message
    from session.turn t
    join session.chat_messages m on m.session_id = t.session_id and m.id = t.message_id
    where t.session_id = p_parent and t.id = p_turn;

    insert into session.chat_sessions
        (id, tenant_id, subject, request_id, request_digest, title, agent, workspace_id, parent_id,
         parent_message_id, metadata_json, ephemeral)
    values (p_session, p_tenant, p_subject, p_request, p_digest, v_title, v_parent.agent, p_workspace,
            p_parent, v_message.id, v_parent.metadata_json, true)
    on conflict (tenant_id, request_id) do nothing;
    if not found then
        return query
            select case when s.request_digest = p_digest then 'begun' else 'reused' end, s.id
            from session.chat_sessions s
            where s.tenant_id = p_tenant and s.request_id = p_request;
        return;
    end if;
    insert into session.run_state (session_id, tenant_id, next_seq) values (p_session, p_tenant, 3);
    perform session.append(p_session, 1, 'session.created', null, jsonb_build_object(
        'title', v_title, 'agent', v_parent.agent, 'parentSessionId', p_parent,
        'parentMessageId', v_message.id, 'workspaceId', p_workspace, 'ephemeral', true), p_stamp);
    perform session.append(p_session, 2, 'thread.started', null, '{}', p_stamp);
    with old as materialized (
        select m.*, row_number() over (order by m.position desc) as back
        from session.chat_messages m
        where m.session_id = p_parent and m.position < v_message.position
          and (m.hidden_at is null or m.hidden_by > v_message.position)
    ), messages as (
        insert into session.chat_messages
            (session_id, id, role, turn_id, position, status, synthetic, metadata_json, created_at)
        select p_session, o.id, o.role, o.turn_id, 1 - o.back, o.status, o.synthetic, o.metadata_json, o.created_at
        from old o
    )
    insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
    select p_session, p.message_id, p.index, p.id, p.type, p.data_json, 0
    from old o
    join session.chat_parts p on p.session_id = p_parent and p.message_id = o.id;
    return query select 'begun', p_session;
end;
$$;
