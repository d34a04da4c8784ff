-- People: what they are asked, what they decided, and how they stop a turn.

-- What a turn waits for. One per tool call, named after it.
create table session.action
(
    session_id   text        not null references session.chat_sessions (id) on delete cascade,
    id           text        not null,
    tenant_id    text        not null,
    turn_id      text        not null,
    step_id      text        not null,
    tool_call_id text        not null,
    kind         text        not null check (kind in ('approval', 'question')),
    status       text        not null default 'open'
        check (status in ('open', 'approved', 'rejected', 'answered', 'expired', 'cancelled')),

    -- The payloads of `action.required` and `action.resolved`.
    request      jsonb       not null,
    resolution   jsonb,

    -- Of approvals: the rule that "from now on" makes of them.
    permission   text,
    pattern      text,

    created_at   timestamptz not null,
    expires_at   timestamptz,

    primary key (session_id, id),
    check ((status = 'open') = (resolution is null))
);

create index action_turn on session.action (session_id, turn_id);
create index action_tenant on session.action (tenant_id, created_at, id);
create index action_open on session.action (tenant_id, created_at, id) where status = 'open';
create index action_due on session.action (expires_at) where status = 'open' and expires_at is not null;

-- What people decided for more than one call.
create table session.rule
(
    tenant_id  text        not null,

    -- A session, or a project: the workspace that sessions share.
    scope      text        not null check (scope in ('session', 'project')),
    scope_id   text        not null,
    permission text        not null,
    pattern    text        not null,
    action     text        not null check (action in ('allow', 'ask', 'deny')),
    subject    text        not null,
    created_at timestamptz not null default now(),

    primary key (tenant_id, scope, scope_id, permission, pattern)
);

-- Who wants `interrupt_turn` stopped, and why.
alter table session.run_state add column interrupt_by text, add column interrupt_reason text;

-- Appends an event about something smaller than a turn: `p_about` has its ids by column.
--
-- In plpgsql, like whatever runs often: a function in SQL is parsed and planned anew in every
-- transaction that calls it.
create function session.append_about(
    p_session text, p_seq bigint, p_type text, p_about jsonb, p_payload jsonb, p_stamp jsonb
) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_event jsonb;
begin
    insert into session.event
        (session_id, seq, type, runtime_id, created_at, turn_id, step_id, tool_call_id, action_id,
         trace_id, span_id, ids, payload)
    values (p_session, p_seq, p_type, p_stamp ->> 'runtime_id', clock_timestamp(), p_about ->> 'turn_id',
            p_about ->> 'step_id', p_about ->> 'tool_call_id', p_about ->> 'action_id',
            p_stamp ->> 'trace_id', p_stamp ->> 'span_id', p_stamp -> 'ids', p_payload)
    returning to_jsonb(event) into v_event;
    return v_event;
end;
$$;

-- As in 0002, in plpgsql.
create or replace function session.append(
    p_session text, p_seq bigint, p_type text, p_turn text, p_payload jsonb, p_stamp jsonb
) returns jsonb
language plpgsql as $$
begin
    return session.append_about(
        p_session, p_seq, p_type, jsonb_build_object('turn_id', p_turn), p_payload, p_stamp);
end;
$$;

-- Everything a worker must know about a turn beside the messages, so that taking one
-- costs one round trip.
create function session.context(p_session text, p_turn text) returns jsonb
language plpgsql stable as $$
begin
    return (select jsonb_build_object(
        'agent', s.agent,
        'workspace_id', s.workspace_id,
        'subject', t.subject,
        'trace_parent', t.trace_parent,
        'view', t.view,
        'resumes', t.status = 'waiting',
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

-- As in 0002, with the context and without a lock on the replica.
drop function session.claim(text, text[]);
create function session.claim(p_replica text, p_sessions text[])
returns table (
    session_id text, tenant_id text, turn_id text, epoch bigint, flush_no bigint, attempts integer, context jsonb
)
language plpgsql as $$
#variable_conflict use_column
begin
    -- Only read: what somebody claims who is buried at this very moment is found by the next
    -- heartbeat of anybody. A lock taken with every claim would keep the heartbeats waiting.
    perform 1 from session.replica r where r.id = p_replica and not r.dead;
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
        returning r.session_id, r.tenant_id, r.active_turn, r.epoch, r.flush_no, r.attempts,
                  session.context(r.session_id, r.active_turn);
end;
$$;

-- Stores a message and the turn it asks for, as `submit` in 0002, and where its session rests,
-- claims it for the replica that asks: it has room, and nobody else needs to be told.
create function session.submit_and_claim(
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

-- For servers of the version before, while a deployment rolls.
create or replace function session.submit(
    p_tenant text, p_session text, p_message text, p_turn text, p_request text, p_digest text,
    p_parts jsonb, p_metadata jsonb, p_submitted jsonb, p_subject text, p_trace_parent text,
    p_reject boolean, p_queue_limit integer, p_stamp jsonb
) returns table (
    outcome text, turn_id text, message_id text, status text, queue_position integer,
    sequence bigint, submitted_at timestamptz, events jsonb
)
language sql as $$
    select s.outcome, s.turn_id, s.message_id, s.status, s.queue_position, s.sequence, s.submitted_at, s.events
    from session.submit_and_claim(
        null, p_tenant, p_session, p_message, p_turn, p_request, p_digest, p_parts, p_metadata, p_submitted, p_subject,
        p_trace_parent, p_reject, p_queue_limit, p_stamp) s;
$$;

-- As in 0002, with the context; a turn that went on after a wait and said nothing yet has
-- not begun either.
drop function session.adopt(text, text, text);
create function session.adopt(p_replica text, p_session text, p_dead text)
returns table (
    session_id text, tenant_id text, turn_id text, epoch bigint, flush_no bigint, attempts integer, begun boolean,
    context jsonb
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
    select t.status not in ('accepted', 'waiting') into v_begun from session.turn t
    where t.session_id = p_session and t.id = v_row.active_turn;
    update session.run_state r
    set epoch = r.epoch + 1,
        owner = case when v_begun then p_replica end,
        status = case when v_begun then 'busy' else 'ready' end
    where r.session_id = p_session;
    return query select p_session, v_row.tenant_id, v_row.active_turn, v_row.epoch + 1, v_row.flush_no,
        v_row.attempts, v_begun, session.context(p_session, v_row.active_turn);
end;
$$;

-- As in 0002, with the questions that turns ask, and with turns that wait for the answers.
--
-- New rows are written for all sessions at once, what exists is changed session by session by its
-- key: a join with a table is planned by its size, and one that was small when the plan was made
-- may be large when it runs. What a batch does not hold costs nothing.
drop function session.flush(text, jsonb);
create function session.flush(p_owner text, p_batch jsonb)
returns table (
    lease integer, base bigint, interrupt_turn text, fired jsonb, interrupt_by text, interrupt_reason text, ready boolean
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_want    jsonb;
    v_wants   jsonb[] := '{}';
    v_row     session.run_state;
    v_rows    session.run_state[] := '{}';
    v_lease   integer[] := '{}';
    v_session text[] := '{}';
    v_tenant  text[] := '{}';
    v_base    bigint[] := '{}';
    v_part    record;
    v_head    session.chat_messages;
    v_ends    text;
    v_parks   boolean;
    v_lets_go boolean;
begin
    for v_want in
        select w.value from jsonb_array_elements(p_batch -> 'leases') w order by w.value ->> 'session_id'
    loop
        select * into v_row from session.run_state r
        where r.session_id = v_want ->> 'session_id' and r.owner = p_owner
          and r.epoch = (v_want ->> 'epoch')::bigint and r.flush_no = (v_want ->> 'flush_no')::bigint
        for update skip locked;
        if found then
            v_wants := v_wants || v_want;
            v_rows := v_rows || v_row;
            v_lease := v_lease || (v_want ->> 'lease')::integer;
            v_session := v_session || v_row.session_id;
            v_tenant := v_tenant || v_row.tenant_id;
            v_base := v_base || v_row.next_seq;
        end if;
    end loop;
    if v_lease = '{}' then
        return;
    end if;

    insert into session.event
        (session_id, seq, type, runtime_id, created_at, turn_id, step_id, tool_call_id, action_id,
         task_id, run_id, subagent_id, trace_id, span_id, ids, refs, payload)
    select m.session_id, m.base + e.ordinal, e.type, p_owner, e.created_at, e.turn_id, e.step_id, e.tool_call_id,
           e.action_id, e.task_id, e.run_id, e.subagent_id, e.trace_id, e.span_id, e.ids, e.refs, e.payload
    from jsonb_to_recordset(p_batch -> 'events') as e(
        lease integer, ordinal integer, type text, created_at timestamptz, turn_id text, step_id text,
        tool_call_id text, action_id text, task_id text, run_id text, subagent_id text,
        trace_id text, span_id text, ids jsonb, refs jsonb, payload jsonb)
    join unnest(v_lease, v_session, v_base) as m(lease, session_id, base) using (lease);

    if p_batch -> 'messages' <> '[]' then
        insert into session.chat_messages as old
            (session_id, id, role, turn_id, position, status, synthetic, metadata_json, created_at)
        select m.session_id, c.id, 'assistant', c.turn_id, m.base + c.ordinal, c.status, c.synthetic, c.metadata, c.created_at
        from jsonb_to_recordset(p_batch -> 'messages') as c(
            lease integer, id text, turn_id text, ordinal integer, status text, synthetic boolean,
            metadata jsonb, created_at timestamptz)
        join unnest(v_lease, v_session, v_base) as m(lease, session_id, base) using (lease)
        on conflict (session_id, id) do update
        set status = excluded.status, metadata_json = old.metadata_json || excluded.metadata_json;
    end if;

    if p_batch -> 'parts' <> '[]' then
        insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
        select m.session_id, p.message_id, p.index, p.id, p.type, p.data, m.base + p.ordinal
        from jsonb_to_recordset(p_batch -> 'parts') as p(
            lease integer, message_id text, index integer, id text, type text, data jsonb, ordinal integer)
        join unnest(v_lease, v_session, v_base) as m(lease, session_id, base) using (lease)
        on conflict (session_id, message_id, index) do update
        set data_json = excluded.data_json, folded_seq = excluded.folded_seq;
    end if;

    if p_batch -> 'actions' <> '[]' then
        insert into session.action
            (session_id, id, tenant_id, turn_id, step_id, tool_call_id, kind, request, permission, pattern,
             created_at, expires_at)
        select m.session_id, a.id, m.tenant_id, a.turn_id, a.step_id, a.tool_call_id, a.kind, a.request, a.permission,
               a.pattern, a.created_at, a.expires_at
        from jsonb_to_recordset(p_batch -> 'actions') as a(
            lease integer, id text, turn_id text, step_id text, tool_call_id text, kind text, request jsonb,
            permission text, pattern text, created_at timestamptz, expires_at timestamptz)
        join unnest(v_lease, v_session, v_tenant) as m(lease, session_id, tenant_id) using (lease);
    end if;

    if p_batch -> 'prompts' <> '[]' then
        insert into session.prompt (tenant_id, digest, body)
        select distinct on (m.tenant_id, p.digest) m.tenant_id, p.digest, p.body
        from jsonb_to_recordset(p_batch -> 'prompts') as p(lease integer, digest text, body text)
        join unnest(v_lease, v_tenant) as m(lease, tenant_id) using (lease)
        -- In one order, or two flushes with the same prompts could wait for each other.
        order by m.tenant_id, p.digest
        on conflict do nothing;
    end if;

    for v_part in
        select m.session_id, t.*
        from jsonb_to_recordset(p_batch -> 'turns') as t(lease integer, id text, status text, view jsonb)
        join unnest(v_lease, v_session) as m(lease, session_id) using (lease)
    loop
        update session.turn t set status = v_part.status, view = v_part.view
        where t.session_id = v_part.session_id and t.id = v_part.id;
    end loop;

    for v_part in
        select m.session_id, u.*
        from jsonb_to_recordset(p_batch -> 'sums') as u(
            lease integer, input_tokens bigint, output_tokens bigint, cost_micros bigint, model_calls bigint)
        join unnest(v_lease, v_session) as m(lease, session_id) using (lease)
    loop
        update session.chat_sessions s
        set updated_at = clock_timestamp(),
            input_tokens = s.input_tokens + v_part.input_tokens,
            output_tokens = s.output_tokens + v_part.output_tokens,
            cost_micros = s.cost_micros + v_part.cost_micros,
            model_calls = s.model_calls + v_part.model_calls
        where s.id = v_part.session_id;
    end loop;

    for i in 1 .. cardinality(v_rows) loop
        v_row := v_rows[i];
        v_want := v_wants[i];
        v_ends := v_want ->> 'ends';
        v_parks := coalesce((v_want ->> 'parks')::boolean, false);
        v_lets_go := v_ends is not null or v_parks;
        lease := v_lease[i];
        base := v_row.next_seq;
        fired := null;
        v_row.next_seq := v_row.next_seq + (v_want ->> 'count')::bigint;
        v_row.status_message := coalesce(v_want ->> 'status_message', v_row.status_message);
        if v_ends is not null then
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
            queued = v_row.queued
        where r.session_id = v_row.session_id;
        interrupt_turn := v_row.interrupt_turn;
        interrupt_by := v_row.interrupt_by;
        interrupt_reason := v_row.interrupt_reason;
        ready := v_row.status = 'ready';
        return next;
    end loop;
end;
$$;

-- What a turn waits for, in the words of the session's status; nothing when nothing is open.
create function session.waits_for(p_session text, p_turn text) returns text
language sql stable as $$
    select case
        when bool_or(a.kind = 'approval') then 'waiting_on_approval'
        when bool_or(a.kind = 'question') then 'waiting_on_user_input' end
    from session.action a
    where a.session_id = p_session and a.turn_id = p_turn and a.status = 'open';
$$;

-- Resolves an action, once, and lets its turn go on when it was the last one. `outcome` is
-- `stored`, `not_found`, `resolved`, `wrong_kind` or `no_rule`; only `stored` changes anything.
create function session.resolve(
    p_tenant text, p_session text, p_action text, p_kind text, p_resolution jsonb, p_rule_scope text,
    p_rule_limit integer, p_stamp jsonb
) returns table (outcome text, ready boolean, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row     session.run_state;
    v_action  session.action;
    v_about   jsonb;
    v_scope   text;
    v_rule    jsonb;
    v_seq     bigint;
    v_status  text;
    v_events  jsonb;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', false, '[]'::jsonb;
        return;
    end if;
    select * into v_action from session.action a where a.session_id = p_session and a.id = p_action;
    if not found then
        return query select 'not_found', false, '[]'::jsonb;
        return;
    end if;
    -- A turn that is being stopped takes no answers any more.
    if v_action.status <> 'open' or v_row.interrupt_turn = v_action.turn_id then
        return query select 'resolved', false, '[]'::jsonb;
        return;
    end if;
    if v_action.kind <> p_kind then
        return query select 'wrong_kind', false, '[]'::jsonb;
        return;
    end if;
    if p_rule_scope is not null then
        select case p_rule_scope when 'session' then s.id else s.workspace_id end into v_scope
        from session.chat_sessions s where s.id = p_session;
        if v_action.pattern is null or (
            select count(*) from session.rule u
            where u.tenant_id = p_tenant and u.scope = p_rule_scope and u.scope_id = v_scope) >= p_rule_limit
        then
            return query select 'no_rule', false, '[]'::jsonb;
            return;
        end if;
    end if;

    update session.action a set status = p_resolution ->> 'status', resolution = p_resolution
    where a.session_id = p_session and a.id = p_action;
    v_about := jsonb_build_object('turn_id', v_action.turn_id, 'step_id', v_action.step_id,
                                  'tool_call_id', v_action.tool_call_id, 'action_id', p_action);
    v_seq := v_row.next_seq;
    v_events := jsonb_build_array(
        session.append_about(p_session, v_seq, 'action.resolved', v_about, p_resolution, p_stamp));

    if v_action.kind = 'approval' then
        if p_rule_scope is not null then
            v_rule := jsonb_build_object('permission', v_action.permission, 'pattern', v_action.pattern,
                                         'action', 'allow', 'source', p_rule_scope);
            insert into session.rule (tenant_id, scope, scope_id, permission, pattern, action, subject)
            values (p_tenant, p_rule_scope, v_scope, v_action.permission, v_action.pattern, 'allow',
                    coalesce(p_resolution ->> 'subject', ''))
            on conflict (tenant_id, scope, scope_id, permission, pattern) do update set action = excluded.action;
        end if;
        v_seq := v_seq + 1;
        v_events := v_events || session.append_about(
            p_session, v_seq, 'permission.resolved', v_about,
            jsonb_strip_nulls(jsonb_build_object('decision', p_resolution ->> 'decision', 'rule', v_rule)), p_stamp);
    end if;

    -- A turn that still runs finds the decision when it wants to wait.
    v_status := case when v_row.status like 'waiting%'
        then coalesce(session.waits_for(p_session, v_row.active_turn), 'ready')
        else v_row.status end;
    update session.run_state r set next_seq = v_seq + 1, status = v_status where r.session_id = p_session;
    return query select 'stored', v_row.status <> 'ready' and v_status = 'ready', v_events;
end;
$$;

-- Closes what a turn asked, because it ends; the caller holds the row. Returns the events.
create function session.close_actions(p_session text, p_turn text, p_seq bigint, p_subject text, p_stamp jsonb)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_action     session.action;
    v_resolution jsonb := jsonb_build_object('status', 'cancelled', 'subject', p_subject);
    v_events     jsonb := '[]';
begin
    for v_action in
        update session.action a set status = 'cancelled', resolution = v_resolution
        where a.session_id = p_session and a.turn_id = p_turn and a.status = 'open'
        returning a.*
    loop
        v_events := v_events || session.append_about(
            p_session, p_seq + jsonb_array_length(v_events), 'action.resolved',
            jsonb_build_object('turn_id', p_turn, 'step_id', v_action.step_id,
                               'tool_call_id', v_action.tool_call_id, 'action_id', v_action.id),
            v_resolution, p_stamp);
    end loop;
    return v_events;
end;
$$;

-- The same for a turn that its owner ends.
create function session.cancel_actions(p_owner text, p_session text, p_epoch bigint, p_turn text, p_stamp jsonb)
returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_row    session.run_state;
    v_events jsonb;
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.owner = p_owner and r.epoch = p_epoch
    for update;
    if not found then
        return '[]'::jsonb;
    end if;
    v_events := session.close_actions(p_session, p_turn, v_row.next_seq, '', p_stamp);
    update session.run_state r set next_seq = r.next_seq + jsonb_array_length(v_events)
    where r.session_id = p_session and v_events <> '[]';
    return v_events;
end;
$$;

-- Marks a turn as one to be stopped. The active one is ended by its owner, or by whoever
-- claims it, so that there is one way in which turns end. `outcome` is `stopping`, `queued`,
-- `over`, `idle` or `not_found`; only `stopping` changes anything.
create function session.interrupt(
    p_tenant text, p_session text, p_turn text, p_subject text, p_reason text, p_stamp jsonb
) returns table (outcome text, turn_id text, status text, owner text, ready boolean, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row    session.run_state;
    v_turn   text;
    v_status text;
    v_waits  boolean;
    v_events jsonb := '[]';
begin
    select * into v_row from session.run_state r
    where r.session_id = p_session and r.tenant_id = p_tenant
    for update;
    if not found then
        return query select 'not_found', null, null, null, false, v_events;
        return;
    end if;
    v_turn := coalesce(p_turn, v_row.active_turn);
    select t.status into v_status from session.turn t where t.session_id = p_session and t.id = v_turn;
    if v_turn is null or v_status is null or v_turn is distinct from v_row.active_turn then
        return query select case
            when v_turn is null then 'idle'
            when v_status is null then 'no_turn'
            when v_status = 'queued' then 'queued'
            else 'over' end, v_turn, v_status, null, false, v_events;
        return;
    end if;

    v_waits := v_row.status like 'waiting%';
    if v_waits then
        v_events := session.close_actions(p_session, v_turn, v_row.next_seq, p_subject, p_stamp);
    end if;
    update session.run_state r
    set interrupt_turn = v_turn,
        -- Who came first is who did it.
        interrupt_by = coalesce(r.interrupt_by, p_subject),
        interrupt_reason = coalesce(r.interrupt_reason, p_reason),
        next_seq = r.next_seq + jsonb_array_length(v_events),
        status = case when v_waits then 'ready' else r.status end
    where r.session_id = p_session;
    return query select 'stopping', v_turn, v_status, v_row.owner, v_waits, v_events;
end;
$$;
