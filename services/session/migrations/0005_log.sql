-- What becomes of a log once it is written: who reads it under a name, how it is sealed,
-- how it grows old; and how a session comes from elsewhere.

-- A reader with a name: one row for each name, whoever reads under it.
create table session.channel
(
    session_id   text        not null references session.chat_sessions (id) on delete cascade,
    name         text        not null check (length(name) between 1 and 64),
    id           text        not null,
    subject      text        not null,

    -- Everything up to here arrived.
    acknowledged bigint      not null default 0,

    -- Rises with every connect, so that a reader that lost its name cannot speak for
    -- the one that has it now.
    connection   bigint      not null default 1,

    -- The replica that serves the reader, so that others can say that it is gone when
    -- that replica dies; null: nobody is connected.
    replica_id   text,
    created_at   timestamptz not null default now(),

    primary key (session_id, name)
);

create index channel_served on session.channel (replica_id) where replica_id is not null;

-- An import that is not finished has this request id, and no `run_state`, without which nobody
-- sees it; those that were given up are found here.
create index chat_sessions_importing on session.chat_sessions (created_at) where request_id like 'import:%';

-- Where a log begins. No row: with its first event.
create table session.log
(
    session_id text   primary key references session.chat_sessions (id) on delete cascade,

    -- Events before this one were removed by policy.
    first_seq  bigint not null
);

-- The chain of seals: each vouches for a stretch of the log and for the seal before it.
-- The primary key and the condition in `session.add_seal` keep it without gaps and forks,
-- however many replicas seal at once.
create table session.seal
(
    session_id  text        not null references session.chat_sessions (id) on delete cascade,
    number      integer     not null check (number > 0),
    first_seq   bigint      not null,
    through_seq bigint      not null,

    -- The digest of the seal before; empty for the first.
    previous    text        not null,
    digest      text        not null,

    -- The digests of its events, 32 bytes each, so that what is left of them can be
    -- checked after some were removed. Null when all of them are.
    digests     bytea,

    -- What retention joined: `[{"first", "through", "digest"}]`, the digest of the one
    -- event that is left of that stretch.
    replaced    jsonb       not null default '[]',

    -- Whether a turn ended with its last event: the log may be cut there.
    ends_turn   boolean     not null,

    -- Whether its deltas were joined.
    compacted   boolean     not null default false,
    sealed_at   timestamptz not null default now(),

    primary key (session_id, number),
    unique (session_id, first_seq),
    check (through_seq >= first_seq),
    check (octet_length(digests) = 32 * (through_seq - first_seq + 1))
);

-- Digests do not compress.
alter table session.seal alter column digests set storage external;

-- What retention looks for: the oldest that it has not dealt with.
create index seal_whole on session.seal (sealed_at) where not compacted;
create index seal_kept on session.seal (sealed_at) where digests is not null;

-- What the sealing sweep looks for. `flush` changes neither column before the turn ends,
-- so that its updates stay on their page.
alter table session.turn add column sealed boolean not null default false;
create index turn_unsealed on session.turn (session_id)
    where not sealed and status in ('completed', 'failed', 'cancelled');

-- What watchers of a tenant look at while Redis is away. Claims and ends change `owner`
-- or `status`, which are indexed already, and nothing else touches this one.
create index run_state_active on session.run_state (tenant_id) where active_turn is not null;

-- Adds ids that few events have to a stamp.
create function session.stamp_with(p_stamp jsonb, p_ids jsonb) returns jsonb
language sql immutable as $$
    select p_stamp || jsonb_build_object('ids', coalesce(p_stamp -> 'ids', '{}') || p_ids);
$$;

-- Connects a reader under a name. `outcome` is `connected`, `not_found`, `ahead` or `full`;
-- only `connected` changes anything.
create function session.connect_channel(
    p_tenant text, p_session text, p_name text, p_channel text, p_subject text, p_client text, p_replica text,
    p_from text, p_after bigint, p_limit integer, p_stamp jsonb
) returns table (outcome text, channel_id text, connection bigint, after_seq bigint, last_seq bigint, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row    session.run_state;
    v_old    session.channel;
    v_new    session.channel;
    v_after  bigint;
    v_seq    bigint;
    v_stamp  jsonb;
    v_events jsonb := '[]';
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null::bigint, null::bigint, null::bigint, null::jsonb;
        return;
    end if;
    select * into v_old from session.channel c where c.session_id = p_session and c.name = p_name;
    v_seq := v_row.next_seq;
    v_after := case p_from
        when 'start' then 0
        when 'after' then p_after
        when 'acknowledged' then coalesce(v_old.acknowledged, 0)
        else v_seq - 1 end;
    if v_after >= v_seq then
        return query select 'ahead', null, null::bigint, v_after, v_seq - 1, null::jsonb;
        return;
    end if;
    if v_old.id is null and (select count(*) from session.channel c where c.session_id = p_session) >= p_limit then
        return query select 'full', null, null::bigint, null::bigint, null::bigint, null::jsonb;
        return;
    end if;

    insert into session.channel as c (session_id, name, id, subject, replica_id)
    values (p_session, p_name, p_channel, p_subject, p_replica)
    on conflict (session_id, name) do update
    set subject = excluded.subject, replica_id = excluded.replica_id, connection = c.connection + 1
    returning * into v_new;
    v_stamp := session.stamp_with(p_stamp, jsonb_build_object('channelId', v_new.id));
    if v_old.replica_id is not null then
        v_events := v_events || session.append(
            p_session, v_seq, 'channel.disconnected', null,
            jsonb_build_object('reason', 'lost', 'acknowledgedSequence', v_old.acknowledged::text), v_stamp);
        v_seq := v_seq + 1;
    end if;
    v_events := v_events || session.append(
        p_session, v_seq, case when v_old.id is null then 'channel.connected' else 'channel.resumed' end, null,
        jsonb_build_object('subject', p_subject, 'client', p_client, 'afterSequence', v_after::text), v_stamp);
    update session.run_state r set next_seq = v_seq + 1 where r.session_id = p_session;
    return query select 'connected', v_new.id, v_new.connection, v_after, v_seq, v_events;
end;
$$;

-- Says that a reader is gone, unless somebody said so before or took its name.
create function session.disconnect_channel(
    p_session text, p_name text, p_connection bigint, p_reason text, p_stamp jsonb
) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_seq     bigint;
    v_channel session.channel;
    v_event   jsonb;
begin
    select r.next_seq into v_seq from session.run_state r where r.session_id = p_session for update;
    update session.channel c set replica_id = null
    where c.session_id = p_session and c.name = p_name and c.connection = p_connection and c.replica_id is not null
    returning * into v_channel;
    if v_seq is null or v_channel.id is null then
        return '[]';
    end if;
    v_event := session.append(
        p_session, v_seq, 'channel.disconnected', null,
        jsonb_build_object('reason', p_reason, 'acknowledgedSequence', v_channel.acknowledged::text),
        session.stamp_with(p_stamp, jsonb_build_object('channelId', v_channel.id)));
    update session.run_state r set next_seq = v_seq + 1 where r.session_id = p_session;
    return jsonb_build_array(v_event);
end;
$$;

-- Adds a seal to the end of the chain, if that is still where the caller thinks it is.
create function session.add_seal(
    p_session text, p_number integer, p_first bigint, p_through bigint,
    p_previous text, p_digest text, p_digests bytea, p_ends_turn boolean
) returns boolean
language sql as $$
    with added as (
        insert into session.seal
            (session_id, number, first_seq, through_seq, previous, digest, digests, ends_turn)
        select p_session, p_number, p_first, p_through, p_previous, p_digest, p_digests, p_ends_turn
        where (p_number = 1 and p_first = 1 and p_previous = '')
           or exists (
               select from session.seal s
               where s.session_id = p_session and s.number = p_number - 1
                 and s.through_seq = p_first - 1 and s.digest = p_previous)
        on conflict do nothing
        returning 1
    )
    select exists (select from added);
$$;

-- Leaves one event of each stretch of deltas of a seal, with what all of them said. No
-- append is concerned, so the session's row is left alone; the seal's own row keeps
-- two of these apart.
create function session.join_deltas(p_session text, p_number integer, p_joined jsonb)
returns boolean
language plpgsql as $$
#variable_conflict use_column
begin
    perform 1 from session.seal s
    where s.session_id = p_session and s.number = p_number and not s.compacted
    for update;
    if not found then
        return false;
    end if;
    delete from session.event e
    using jsonb_to_recordset(p_joined) as j(first bigint, through bigint)
    where e.session_id = p_session and e.seq >= j.first and e.seq < j.through;
    update session.event e
    set payload = j.payload, refs = j.refs
    from jsonb_to_recordset(p_joined) as j(through bigint, payload jsonb, refs jsonb)
    where e.session_id = p_session and e.seq = j.through;
    update session.seal s
    set compacted = true,
        replaced = coalesce((
            select jsonb_agg(jsonb_build_object('first', j.first, 'through', j.through, 'digest', j.digest))
            from jsonb_to_recordset(p_joined) as j(first bigint, through bigint, digest text)), '[]')
    where s.session_id = p_session and s.number = p_number;
    return true;
end;
$$;

-- Removes the beginning of a log: what seals from before `p_before` cover, up to the end of
-- a turn. Returns where the log begins now, null when nothing was removed.
create function session.expire_log(p_session text, p_before timestamptz)
returns bigint
language plpgsql as $$
#variable_conflict use_column
declare
    v_through bigint;
begin
    -- Keeps two of these apart, and readers of `first_seq` with them.
    insert into session.log (session_id, first_seq) values (p_session, 1) on conflict do nothing;
    perform 1 from session.log l where l.session_id = p_session for update;

    -- A few at a time, unless one turn alone has more.
    select max(s.through_seq) filter (where s.ends_turn) into v_through
    from (
        select * from session.seal s
        where s.session_id = p_session and s.digests is not null and s.sealed_at < p_before
        order by s.number limit 32
    ) s;
    if v_through is null then
        select min(s.through_seq) into v_through from session.seal s
        where s.session_id = p_session and s.digests is not null and s.sealed_at < p_before and s.ends_turn;
    end if;
    if v_through is null then
        return null;
    end if;
    delete from session.event e where e.session_id = p_session and e.seq <= v_through;
    update session.seal s set digests = null, replaced = '[]', compacted = true
    where s.session_id = p_session and s.through_seq <= v_through and s.digests is not null;
    update session.log l set first_seq = v_through + 1 where l.session_id = p_session;
    return v_through + 1;
end;
$$;

-- Stores lines of an import. Its session has no `run_state` yet, so nobody can see it.
create function session.import_messages(p_session text, p_messages jsonb, p_turns jsonb) returns void
language plpgsql as $$
#variable_conflict use_column
begin
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

-- Makes an imported session visible, or finds the one that this request made before and
-- drops this one.
create function session.finish_import(
    p_tenant text, p_session text, p_request text, p_digest text, p_created jsonb, p_imported jsonb, p_stamp jsonb
) returns table (session_id text, reused boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    v_first session.chat_sessions;
begin
    begin
        update session.chat_sessions s
        set request_id = p_request, request_digest = p_digest
        where s.id = p_session and s.tenant_id = p_tenant;
    exception when unique_violation then
        select * into v_first from session.chat_sessions s
        where s.tenant_id = p_tenant and s.request_id = p_request;
        delete from session.chat_sessions s where s.id = p_session and s.tenant_id = p_tenant;
        return query select v_first.id, v_first.request_digest <> p_digest;
        return;
    end;
    insert into session.run_state (session_id, tenant_id, next_seq) values (p_session, p_tenant, 4);
    perform session.append(p_session, 1, 'session.created', null, p_created, p_stamp);
    perform session.append(p_session, 2, 'thread.started', null, '{}', p_stamp);
    perform session.append(p_session, 3, 'history.reconstructed', null, p_imported, p_stamp);
    return query select p_session, false;
end;
$$;
