-- What happened at the tools service outside of a turn is put on record here, once; and the
-- tools service hears of sessions that are gone.

-- The number of the last fact of the tools service that is in the log. Facts come in order and
-- may come again.
alter table session.run_state add column last_fact bigint not null default 0;

-- Sessions that are gone and of which the tools service has not heard yet: what they have
-- running there is to be ended.
create table session.ended
(
    session_id text        primary key,
    tenant_id  text        not null,
    ended_at   timestamptz not null default clock_timestamp(),

    -- Until then somebody tells it.
    leased_until timestamptz not null default '-infinity'
);

-- As before, and remembers that the tools service is to be told.
create or replace function session.delete_session(p_tenant text, p_session text)
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
        insert into session.ended (session_id, tenant_id) values (p_session, p_tenant);
        delete from session.rule u
        where u.tenant_id = p_tenant and u.scope = 'session' and u.scope_id = p_session;
        delete from session.chat_sessions s where s.id = p_session;
        return query select 'deleted', null;
    end if;
end;
$$;

-- Appends facts of the tools service that are not in the log yet, in their order. Null: there
-- is no such session. Else what was appended, to be published.
create function session.append_facts(p_tenant text, p_session text, p_facts jsonb, p_runtime text)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_row    session.run_state;
    v_events jsonb;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return null;
    end if;
    with new as (
        select f.type, f.ids, f.payload, row_number() over (order by f.number) as place
        from jsonb_to_recordset(p_facts) as f(number bigint, type text, ids jsonb, payload jsonb)
        where f.number > v_row.last_fact
    ), appended as (
        insert into session.event (session_id, seq, type, runtime_id, created_at, ids, payload)
        select p_session, v_row.next_seq - 1 + n.place, n.type, p_runtime, clock_timestamp(), n.ids, n.payload
        from new n
        returning event.*
    )
    select coalesce(jsonb_agg(to_jsonb(a) order by a.seq), '[]') into v_events from appended a;
    if v_events <> '[]' then
        update session.run_state r
        set next_seq = r.next_seq + jsonb_array_length(v_events),
            last_fact = (select max(f.number) from jsonb_to_recordset(p_facts) as f(number bigint))
        where r.session_id = p_session;
    end if;
    return v_events;
end;
$$;
