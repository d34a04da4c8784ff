-- A conversation may be longer than one statement has time for. Removing a session's own row is
-- what makes it nobody's; what it said is removed by `session.purge`, as its events are.

-- Whoever removes a session, in whatever version: a deletion, an import that is given up, or one
-- that was there already. Turns that are still to be sealed go at once, so that nobody seals what
-- is gone; the sweep that seals leaves few of them.
create or replace function session.forget_conversation() returns trigger
language plpgsql as $$
begin
    insert into session.deleted (session_id) values (old.id) on conflict do nothing;
    delete from session.turn t
    where t.session_id = old.id and not t.sealed and t.status in ('completed', 'failed', 'cancelled');
    return null;
end;
$$;

-- Removes up to `p_limit` rows of one session that is gone; null when none is left to do, else
-- whether nothing of that session is left. Nobody else changes these rows, so they stay where
-- they are found.
create or replace function session.purge(p_limit integer) returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
    v_session text;
    v_left    integer := p_limit;
    v_removed integer;
begin
    select d.session_id into v_session from session.deleted d
    order by d.deleted_at limit 1
    for update skip locked;
    if not found then
        return null;
    end if;
    delete from session.turn t where t.ctid = any (array(
        select x.ctid from session.turn x where x.session_id = v_session limit v_left));
    get diagnostics v_removed = row_count;
    v_left := v_left - v_removed;
    if v_left > 0 then
        delete from session.chat_parts p where p.ctid = any (array(
            select x.ctid from session.chat_parts x where x.session_id = v_session limit v_left));
        get diagnostics v_removed = row_count;
        v_left := v_left - v_removed;
    end if;
    if v_left > 0 then
        delete from session.chat_messages m where m.ctid = any (array(
            select x.ctid from session.chat_messages x where x.session_id = v_session limit v_left));
        get diagnostics v_removed = row_count;
        v_left := v_left - v_removed;
    end if;
    if v_left > 0 then
        delete from session.event e where e.ctid = any (array(
            select x.ctid from session.event x where x.session_id = v_session limit v_left));
        get diagnostics v_removed = row_count;
        v_left := v_left - v_removed;
    end if;
    if v_left = 0 then
        return false;
    end if;
    delete from session.deleted d where d.session_id = v_session;
    return true;
end;
$$;

-- As before, and adds nothing to an import that was given up: nobody would ever remove it.
create or replace function session.import_messages(p_session text, p_messages jsonb, p_turns jsonb) returns void
language plpgsql as $$
#variable_conflict use_column
begin
    perform 1 from session.chat_sessions s where s.id = p_session for key share;
    if not found then
        raise exception 'the import % was given up', p_session;
    end if;
    insert into session.chat_messages
        (session_id, id, role, turn_id, position, status, synthetic, metadata_json, created_at, hidden_at)
    select p_session, m.id, m.role, m.turn_id, m.position, m.status, m.synthetic, m.metadata, m.created_at, m.hidden_at
    from jsonb_to_recordset(p_messages) as m(
        id text, role text, turn_id text, position bigint, status text, synthetic boolean,
        metadata jsonb, created_at timestamptz, hidden_at timestamptz);
    insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
    select p_session, m.id, p.index, p.id, p.type, p.data, 0
    from jsonb_to_recordset(p_messages) as m(id text, parts jsonb),
         jsonb_to_recordset(m.parts) as p(index integer, id text, type text, data jsonb);
    insert into session.turn (session_id, id, message_id, status, view, subject, submitted_at, sealed)
    select p_session, t.id, t.message_id, t.status, t.view, t.subject, t.submitted_at, true
    from jsonb_to_recordset(p_turns) as t(
        id text, message_id text, status text, view jsonb, subject text, submitted_at timestamptz);
end;
$$;
