-- As before; a turn that ends leaves no question open. An owner withdraws what its turn asks, but one
-- that stops a turn while the question is still on its way to the log finds nothing to withdraw, and
-- so does one that gives a turn up which it could not load.
create or replace function session.flush_turns(p_owner text, p_batch jsonb)
returns table (
    lease integer, base bigint, interrupt_turn text, fired jsonb, interrupt_by text, interrupt_reason text, ready boolean,
    mail text[], told jsonb
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
    v_shown   text;
    v_news    integer;
    v_said    jsonb;
    v_dropped jsonb;
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
        mail := '{}';
        told := '[]';

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

        if v_want ? 'spawns' then
            mail := mail || session.spawn(v_row.tenant_id, v_row.session_id, v_row.active_turn, v_want -> 'spawns');
            v_row.delegates := true;
        end if;
        if v_want ? 'tells' then
            update session.subagent a set told = true
            where a.id in (select jsonb_array_elements_text(v_want -> 'tells')) and a.parent_id = v_row.session_id;
            get diagnostics v_news = row_count;
            v_row.news := v_row.news - v_news;
        end if;
        if v_want ? 'stops' and v_row.delegates then
            mail := mail || session.stop_children(
                v_row.tenant_id, v_row.session_id,
                case when v_want ->> 'stops' = 'turn' then v_row.active_turn end, v_row.interrupt_by);
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
            -- Whoever ends a turn may not know that its question is stored already, or was a moment
            -- ago; nobody is to answer what nobody waits for. Most never asked, and only look.
            if exists (
                select from session.action a
                where a.session_id = v_row.session_id and a.turn_id = v_row.active_turn and a.status = 'open')
            then
                told := session.close_actions(
                    v_row.session_id, v_row.active_turn, v_row.next_seq, coalesce(v_row.interrupt_by, ''),
                    p_batch -> 'stamp');
                v_row.next_seq := v_row.next_seq + jsonb_array_length(told);
            end if;
            -- What nobody told the turn is told behind it.
            if v_row.news > 0 then
                v_said := session.tell(v_row.session_id, v_row.next_seq, p_batch -> 'stamp');
                v_row.next_seq := v_row.next_seq + jsonb_array_length(v_said);
                v_row.news := 0;
                told := told || v_said;
            end if;
            -- A child has ended when nothing waits, and when nothing that waits will run.
            if v_row.subagent is not null and not v_row.reported
               and (v_row.closing or v_row.queued = 0 or v_ends <> 'idle') then
                mail := mail || session.report(v_row);
                v_row.reported := true;
                if v_row.queued > 0 then
                    v_dropped := session.drop_queue(v_row.session_id, v_row.next_seq, p_batch -> 'stamp');
                    v_row.next_seq := v_row.next_seq + jsonb_array_length(v_dropped);
                    v_row.queued := 0;
                    told := told || v_dropped;
                end if;
            end if;
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
        -- A parent hears what its child waits for.
        if v_row.subagent is not null and not v_row.reported then
            v_shown := case when v_row.status like 'waiting%' then v_row.status else 'running' end;
            if v_shown <> v_row.shown then
                v_row.shown := v_shown;
                mail := mail || session.post_to_parent(
                    v_row, 'status:' || v_row.subagent || ':' || v_row.next_seq, 'status',
                    jsonb_build_object('status', v_shown));
            end if;
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
            queued = v_row.queued,
            delegates = v_row.delegates,
            news = v_row.news,
            reported = v_row.reported,
            shown = v_row.shown
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

-- As before; that somebody takes over a turn that has begun counts like a claim.
create or replace function session.adopt(p_replica text, p_session text, p_dead text)
returns table (
    session_id text, tenant_id text, turn_id text, epoch bigint, flush_no bigint, attempts integer, begun boolean,
    context jsonb
)
language plpgsql as $$
#variable_conflict use_column
declare
    v_row   session.run_state;
    v_begun boolean;
    v_again integer;
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
    -- Whoever brings it to its end loads it, and may die of that like those before.
    v_again := case when v_begun then 1 else 0 end;
    update session.run_state r
    set epoch = r.epoch + 1,
        attempts = r.attempts + v_again,
        owner = case when v_begun then p_replica end,
        status = case when v_begun then 'busy' else 'ready' end
    where r.session_id = p_session;
    return query select p_session, v_row.tenant_id, v_row.active_turn, v_row.epoch + 1, v_row.flush_no,
        v_row.attempts + v_again, v_begun, session.context(p_session, v_row.active_turn);
end;
$$;
