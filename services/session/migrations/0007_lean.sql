-- What a status may be, as a type of its own. A check of a table is read from its text again by
-- every statement that writes there, and a list of words is a long text; what a domain allows,
-- a connection works out once. Only where every turn writes, and no function returns the column.

create domain session.run_status as text check (value in
    ('idle', 'ready', 'busy', 'retrying', 'waiting_on_approval', 'waiting_on_user_input', 'error'));
create domain session.message_status as text check (value in
    ('queued', 'accepted', 'streaming', 'completed', 'failed', 'cancelled'));
create domain session.message_role as text check (value in ('user', 'assistant'));

-- Indexes that mention a column are made anew with it.
alter table session.run_state
    drop constraint run_state_status_check,
    alter column status drop default,
    alter column status type session.run_status,
    alter column status set default 'idle';
alter table session.chat_messages
    drop constraint chat_messages_status_check,
    drop constraint chat_messages_role_check,
    alter column status type session.message_status,
    alter column role type session.message_role;

-- For the same reason, what must hold between columns is said by a function: a connection reads its
-- text once.

create function session.run_state_holds(
    p_status text, p_owner text, p_active_turn text, p_queued integer
)
returns boolean
language plpgsql immutable as $$
begin
    return (p_owner is not null) = (p_status in ('busy', 'retrying'))
        and (p_active_turn is null) = (p_status in ('idle', 'error'))
        -- Nothing waits behind nothing: who ends a turn lets the next one go.
        and (p_status <> 'idle' or p_queued = 0)
        and p_queued >= 0;
end;
$$;

create function session.message_holds(
    p_position bigint, p_queue_rank bigint, p_metadata jsonb, p_hidden_by bigint, p_hidden_at timestamptz
)
returns boolean
language plpgsql immutable as $$
begin
    return (p_position is null) = (p_queue_rank is not null)
        and (p_queue_rank is not null) = (p_metadata ? 'queued_at')
        and (p_hidden_by is null or p_hidden_at is not null);
end;
$$;

create function session.is_turn_status(p_status text)
returns boolean
language plpgsql immutable as $$
begin
    return p_status in ('queued', 'accepted', 'running', 'waiting', 'completed', 'failed', 'cancelled');
end;
$$;

alter table session.run_state
    drop constraint run_state_check,
    drop constraint run_state_check1,
    drop constraint run_state_check2,
    drop constraint run_state_queued_check,
    add constraint run_state_holds check (session.run_state_holds(status, owner, active_turn, queued));
alter table session.chat_messages
    drop constraint chat_messages_check,
    drop constraint chat_messages_check1,
    drop constraint chat_messages_check2,
    add constraint message_holds
        check (session.message_holds(position, queue_rank, metadata_json, hidden_by, hidden_at));
alter table session.turn
    drop constraint turn_status_check,
    add constraint turn_status check (session.is_turn_status(status));

-- What `flush` does, which stays for replicas of the version before. Here a batch is grouped by
-- session, so that nothing has to be joined: most batches are of one session, and setting up a
-- join costs more than the rows that go through it.
create function session.flush_turns(p_owner text, p_batch jsonb)
returns table (
    lease integer, base bigint, interrupt_turn text, fired jsonb, interrupt_by text, interrupt_reason text, ready boolean
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

        v_ends := v_want ->> 'ends';
        v_parks := coalesce((v_want ->> 'parks')::boolean, false);
        v_lets_go := v_ends is not null or v_parks;
        lease := (v_want ->> 'lease')::integer;
        base := v_base;
        fired := null;
        v_row.next_seq := v_base + v_count;
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
