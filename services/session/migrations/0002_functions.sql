-- Each operation on a session is one call in one round trip that locks the row and
-- only then looks at the queue and at duplicates. Under READ COMMITTED a statement
-- that waited for the row re-reads only that row, its subselects still see the past;
-- inside a function every statement sees what was committed before it began.
--
-- Names are columns (`use_column`), so that a function may return what it writes; its own
-- parameters and variables begin with `p_` and `v_`.

-- Appends one event that the database itself words, and returns it as a reader gets it.
create function session.append(
    p_session text, p_seq bigint, p_type text, p_turn text, p_payload jsonb, p_stamp jsonb
) returns jsonb
language sql as $$
    insert into session.event (session_id, seq, type, runtime_id, created_at, turn_id, trace_id, span_id, ids, payload)
    values (p_session, p_seq, p_type, p_stamp ->> 'runtime_id', clock_timestamp(), p_turn,
            p_stamp ->> 'trace_id', p_stamp ->> 'span_id', p_stamp -> 'ids', p_payload)
    returning to_jsonb(event);
$$;

-- Creates a session, or finds the one this request made before.
create function session.create_session(
    p_tenant text, p_session text, p_subject text, p_request text, p_digest text,
    p_title text, p_agent text, p_workspace text, p_metadata jsonb, p_created jsonb, p_stamp jsonb
) returns table (session_id text, reused boolean)
language plpgsql as $$
#variable_conflict use_column
begin
    insert into session.chat_sessions
        (id, tenant_id, subject, request_id, request_digest, title, agent, workspace_id, metadata_json)
    values (p_session, p_tenant, p_subject, p_request, p_digest, p_title, p_agent, p_workspace, p_metadata)
    on conflict (tenant_id, request_id) do nothing;
    if not found then
        return query
            select s.id, s.request_digest <> p_digest
            from session.chat_sessions s
            where s.tenant_id = p_tenant and s.request_id = p_request;
        return;
    end if;

    insert into session.run_state (session_id, tenant_id, next_seq) values (p_session, p_tenant, 3);
    perform session.append(p_session, 1, 'session.created', null, p_created, p_stamp);
    perform session.append(p_session, 2, 'thread.started', null, '{}', p_stamp);
    return query select p_session, false;
end;
$$;

-- Stores a message and the turn it asks for. `outcome` is `stored`, `repeated`, `reused`,
-- `busy`, `full` or `not_found`; only `stored` changes anything.
create function session.submit(
    p_tenant text, p_session text, p_message text, p_turn text, p_request text, p_digest text,
    p_parts jsonb, p_metadata jsonb, p_submitted jsonb, p_subject text, p_trace_parent text,
    p_reject boolean, p_queue_limit integer, p_stamp jsonb
) returns table (
    outcome text, turn_id text, message_id text, status text, queue_position integer,
    sequence bigint, submitted_at timestamptz, events jsonb
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
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null, null, null::integer, null::bigint, null::timestamptz, null::jsonb;
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
            v_row.next_seq - 1, v_turn.submitted_at, '[]'::jsonb;
        return;
    end if;

    -- Asked for under the lock, so that turns are in the order in which they were let in.
    v_now := clock_timestamp();
    v_rests := v_row.status in ('idle', 'error');
    v_queued := not v_rests or v_row.queued > 0;
    if v_queued and p_reject then
        return query select 'busy', v_row.active_turn, null, null, null::integer, null::bigint, null::timestamptz, null::jsonb;
        return;
    end if;
    -- A session that rests lets its head go, which makes room for one more.
    if v_queued and v_row.queued >= p_queue_limit + v_rests::integer then
        return query select 'full', null, null, null, null::integer, null::bigint, null::timestamptz, null::jsonb;
        return;
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
        update session.run_state r
        set status = 'ready', status_message = '', attempts = 0, next_seq = v_seq + 1,
            active_turn = coalesce(v_head.turn_id, p_turn)
        where r.session_id = p_session;
    else
        update session.run_state r
        set next_seq = v_seq + 1, queued = v_row.queued + 1
        where r.session_id = p_session;
    end if;

    return query select 'stored', p_turn, p_message,
        case when v_queued then 'queued' else 'accepted' end,
        case when v_queued then v_row.queued + case when v_head.id is null then 1 else 0 end end,
        v_seq, v_now, v_events;
end;
$$;

-- Takes a message out of the queue to be the active turn; the caller holds the row and
-- moves the run state. `p_left` is how many wait afterwards.
create function session.fire(p_session text, p_message text, p_seq bigint, p_left integer, p_stamp jsonb)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_turn text;
begin
    update session.chat_messages m
    set queue_rank = null, position = p_seq, status = 'accepted', metadata_json = m.metadata_json - 'queued_at'
    where m.session_id = p_session and m.id = p_message
    returning m.turn_id into v_turn;
    update session.turn t set status = 'accepted' where t.session_id = p_session and t.id = v_turn;
    return session.append(
        p_session, p_seq, 'queue.changed', v_turn,
        jsonb_build_object('change', 'fired', 'turnId', v_turn, 'length', p_left), p_stamp);
end;
$$;

-- Claims ready sessions for a replica that is alive, as many as are named and free.
create function session.claim(p_replica text, p_sessions text[])
returns table (
    session_id text, tenant_id text, turn_id text, epoch bigint, flush_no bigint, attempts integer
)
language plpgsql as $$
#variable_conflict use_column
begin
    -- Locked against the judge, who marks a replica dead before it takes its sessions:
    -- either it sees this claim, or the claim sees that it is dead.
    perform 1 from session.replica r where r.id = p_replica and not r.dead for share;
    if not found then
        return;
    end if;
    return query
        with free as (
            select r.session_id from session.run_state r
            where r.session_id = any (p_sessions) and r.status = 'ready'
            order by r.session_id
            for update skip locked
        )
        update session.run_state r
        set status = 'busy', owner = p_replica, epoch = r.epoch + 1, attempts = r.attempts + 1
        from free
        where r.session_id = free.session_id
        returning r.session_id, r.tenant_id, r.active_turn, r.epoch, r.flush_no, r.attempts;
end;
$$;

-- Takes a session from a dead owner. A turn that had not begun goes back to `ready`;
-- of one that had, the caller becomes the owner and brings it to its end.
create function session.adopt(p_replica text, p_session text, p_dead text)
returns table (
    session_id text, tenant_id text, turn_id text, epoch bigint, flush_no bigint, attempts integer, begun boolean
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row   session.run_state;
    v_begun boolean;
begin
    perform 1 from session.replica r where r.id = p_replica and not r.dead for share;
    if not found then
        return;
    end if;
    -- From others only when they are dead, which they stay; from itself what it does not drive.
    perform 1 from session.replica r where r.id = p_dead and r.id <> p_replica and not r.dead;
    if found then
        return;
    end if;
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.owner = p_dead
    for update;
    if not found then
        return;
    end if;
    select t.status <> 'accepted' into v_begun from session.turn t
    where t.session_id = p_session and t.id = v_row.active_turn;
    update session.run_state r
    set epoch = r.epoch + 1,
        owner = case when v_begun then p_replica end,
        status = case when v_begun then 'busy' else 'ready' end
    where r.session_id = p_session;
    return query select p_session, v_row.tenant_id, v_row.active_turn, v_row.epoch + 1, v_row.flush_no, v_row.attempts, v_begun;
end;
$$;

-- Commits what is pending for many sessions of one owner: events, messages, parts, read
-- models, sums, and the ends of turns. A session that is missing from the answer was
-- locked, was flushed before, or is lost; the caller asks which.
--
-- The batch is JSON, so that a newer server may send more than an older function reads
-- and the other way round while a deployment rolls.
create function session.flush(p_owner text, p_batch jsonb)
returns table (lease integer, base bigint, interrupt_turn text, next_turn text, fired jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_lease   integer[];
    v_session text[];
    v_base    bigint[];
    v_count   integer;
begin
    select array_agg(locked.lease), array_agg(locked.session_id), array_agg(locked.next_seq)
    into v_lease, v_session, v_base
    from (
        select b.lease, r.session_id, r.next_seq
        from jsonb_to_recordset(p_batch -> 'leases') as b(lease integer, session_id text, epoch bigint, flush_no bigint)
        join session.run_state r on r.session_id = b.session_id
        where r.owner = p_owner and r.epoch = b.epoch and r.flush_no = b.flush_no
        order by r.session_id
        for update of r skip locked
    ) locked;
    if v_lease is null then
        return;
    end if;

    with mine as (
        select * from unnest(v_lease, v_session, v_base) as m(lease, session_id, base)
    ), logged as (
        insert into session.event
            (session_id, seq, type, runtime_id, created_at, turn_id, step_id, tool_call_id, action_id,
             task_id, run_id, subagent_id, trace_id, span_id, ids, refs, payload)
        select m.session_id, m.base + e.ordinal, e.type, p_owner, e.created_at, e.turn_id, e.step_id, e.tool_call_id,
               e.action_id, e.task_id, e.run_id, e.subagent_id, e.trace_id, e.span_id, e.ids, e.refs, e.payload
        from jsonb_to_recordset(p_batch -> 'events') as e(
            lease integer, ordinal integer, type text, created_at timestamptz, turn_id text, step_id text,
            tool_call_id text, action_id text, task_id text, run_id text, subagent_id text,
            trace_id text, span_id text, ids jsonb, refs jsonb, payload jsonb)
        join mine m using (lease)
    ), said as (
        insert into session.chat_messages as old
            (session_id, id, role, turn_id, position, status, synthetic, metadata_json, created_at)
        select m.session_id, c.id, 'assistant', c.turn_id, m.base + c.ordinal, c.status, c.synthetic, c.metadata, c.created_at
        from jsonb_to_recordset(p_batch -> 'messages') as c(
            lease integer, id text, turn_id text, ordinal integer, status text, synthetic boolean,
            metadata jsonb, created_at timestamptz)
        join mine m using (lease)
        on conflict (session_id, id) do update
        set status = excluded.status, metadata_json = old.metadata_json || excluded.metadata_json
    ), shown as (
        insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
        select m.session_id, p.message_id, p.index, p.id, p.type, p.data, m.base + p.ordinal
        from jsonb_to_recordset(p_batch -> 'parts') as p(
            lease integer, message_id text, index integer, id text, type text, data jsonb, ordinal integer)
        join mine m using (lease)
        on conflict (session_id, message_id, index) do update
        set data_json = excluded.data_json, folded_seq = excluded.folded_seq
    ), prompted as (
        insert into session.prompt (tenant_id, digest, body)
        select distinct s.tenant_id, p.digest, p.body
        from jsonb_to_recordset(p_batch -> 'prompts') as p(lease integer, digest text, body text)
        join mine m using (lease)
        join session.chat_sessions s on s.id = m.session_id
        -- In one order, or two flushes with the same prompts could wait for each other.
        order by s.tenant_id, p.digest
        on conflict do nothing
    ), viewed as (
        update session.turn t
        set status = v.status, view = v.view
        from jsonb_to_recordset(p_batch -> 'turns') as v(lease integer, id text, status text, view jsonb)
        join mine m using (lease)
        where t.session_id = m.session_id and t.id = v.id
    ), summed as (
        update session.chat_sessions s
        set updated_at = clock_timestamp(),
            input_tokens = s.input_tokens + u.input_tokens,
            output_tokens = s.output_tokens + u.output_tokens,
            cost_micros = s.cost_micros + u.cost_micros,
            model_calls = s.model_calls + u.model_calls
        from jsonb_to_recordset(p_batch -> 'sums') as u(
            lease integer, input_tokens bigint, output_tokens bigint, cost_micros bigint, model_calls bigint)
        join mine m using (lease)
        where s.id = m.session_id
    )
    select count(*) into v_count from mine;

    return query
        with mine as (
            select m.*, b.count, b.status, b.status_message, b.ends
            from unnest(v_lease, v_session, v_base) as m(lease, session_id, base)
            join jsonb_to_recordset(p_batch -> 'leases') as b(
                lease integer, count integer, status text, status_message text, ends text) using (lease)
        ), head as (
            -- Only an end without a hard error lets the queue go on.
            select distinct on (c.session_id) c.session_id, c.id, c.turn_id
            from session.chat_messages c
            join mine m on m.session_id = c.session_id and m.ends = 'idle'
            where c.queue_rank is not null
            order by c.session_id, c.queue_rank
        ), fired as (
            select h.session_id, session.fire(h.session_id, h.id, m.base + m.count, r.queued - 1, p_batch -> 'stamp') as event
            from head h
            join mine m using (session_id)
            join session.run_state r using (session_id)
        )
        update session.run_state r
        set next_seq = r.next_seq + m.count + case when fired.event is null then 0 else 1 end,
            flush_no = r.flush_no + 1,
            status = case
                when m.ends is null then coalesce(m.status, r.status)
                when fired.event is not null then 'ready'
                else m.ends end,
            status_message = coalesce(m.status_message, r.status_message),
            active_turn = case when m.ends is null then r.active_turn else head.turn_id end,
            owner = case when m.ends is null then r.owner end,
            attempts = case when m.ends is null then r.attempts else 0 end,
            interrupt_turn = case when m.ends is null then r.interrupt_turn end,
            queued = r.queued - case when fired.event is null then 0 else 1 end
        from mine m
        left join head on head.session_id = m.session_id
        left join fired on fired.session_id = m.session_id
        where r.session_id = m.session_id
        returning m.lease, m.base, r.interrupt_turn, head.turn_id, fired.event;
end;
$$;
