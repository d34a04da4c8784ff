-- What a rewind to a user message has to put back in the workspace.
--
-- A turn that may change files says first which snapshot holds them as they were. So the first
-- event from the message on that is such a snapshot, or a change without one, tells: `found` a
-- snapshot, `unknown`, because something changed files that nobody had kept or because the log no
-- longer reaches so far, or `unchanged`.
create function session.files_at(p_tenant text, p_session text, p_message text)
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
      and (e.type = 'snapshot.updated'
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

-- As before, and says which snapshot was restored with it, if one was.
create function session.rewind(
    p_tenant text, p_session text, p_message text, p_snapshot text, p_stamp jsonb
) returns table (outcome text, turn_id text, messages integer, events jsonb)
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
                       jsonb_strip_nulls(jsonb_build_object(
                           'kind', 'rewind', 'messageId', p_message, 'messages', v_count,
                           'snapshotId', p_snapshot)), p_stamp));
end;
$$;

-- While a deployment rolls, servers call it that restore nothing.
create or replace function session.rewind(p_tenant text, p_session text, p_message text, p_stamp jsonb)
returns table (outcome text, turn_id text, messages integer, events jsonb)
language sql as $$
    select * from session.rewind(p_tenant, p_session, p_message, null, p_stamp);
$$;
