-- Messages, parts and turns are written only by functions that hold the `run_state` row of their
-- session, which exists as long as the session does; that is why events have no foreign key. A
-- turn paid for five of them here: each looks its row up and locks it, which is written down too.

alter table session.chat_messages drop constraint chat_messages_session_id_fkey;
alter table session.chat_parts drop constraint chat_parts_session_id_message_id_fkey;
alter table session.turn drop constraint turn_session_id_fkey;

-- What they did when a session is deleted, whoever deletes it.
create function session.forget_conversation() returns trigger
language plpgsql as $$
begin
    delete from session.chat_parts p where p.session_id = old.id;
    delete from session.chat_messages m where m.session_id = old.id;
    delete from session.turn t where t.session_id = old.id;
    return null;
end;
$$;

create trigger forget_conversation after delete on session.chat_sessions
    for each row execute function session.forget_conversation();
