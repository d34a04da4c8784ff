-- As before, and cheaper for the turn that most are: one that begins, of a session for which nobody
-- decided or remembered anything: all of it is looked for together before any of it is gathered.
create or replace function session.context(p_session text, p_turn text) returns jsonb
language plpgsql stable as $$
declare
    v          record;
    v_ended    jsonb := '[]';
    v_actions  jsonb := '[]';
    v_rules    jsonb := '[]';
    v_memories jsonb := '[]';
begin
    select s.tenant_id, s.agent, s.workspace_id, s.title, s.child, t.status, t.subject, t.trace_parent, t.view,
           r.delegates, r.interrupt_turn, r.interrupt_by, r.interrupt_reason
    into v
    from session.chat_sessions s
    join session.run_state r on r.session_id = s.id
    join session.turn t on t.session_id = s.id
    where s.id = p_session and t.id = p_turn;
    if not found then
        return null;
    end if;

    if v.delegates then
        -- How the children ended that the turn waits for.
        v_ended := (
            select coalesce(jsonb_agg(a.outcome || jsonb_build_object('tool_call_id', a.tool_call_id)), '[]')
            from session.subagent a
            where a.parent_id = p_session and a.parent_turn = p_turn and not a.background and a.outcome is not null);
    end if;
    if exists (
           select from session.action a where a.session_id = p_session and a.turn_id = p_turn)
       or exists (
           select from session.rule u
           where u.tenant_id = v.tenant_id and u.scope = 'session' and u.scope_id = p_session)
       or exists (
           select from session.rule u
           where u.tenant_id = v.tenant_id and u.scope = 'project' and u.scope_id = v.workspace_id)
       or exists (
           select from session.memory m
           where m.tenant_id = v.tenant_id and m.scope = 'user' and m.owner = v.subject)
       or exists (
           select from session.memory m
           where m.tenant_id = v.tenant_id and m.scope = 'project' and m.owner = v.workspace_id)
    then
        v_actions := (
            select coalesce(jsonb_agg(jsonb_build_object(
                'tool_call_id', a.tool_call_id, 'status', a.status, 'resolution', a.resolution)), '[]')
            from session.action a
            where a.session_id = p_session and a.turn_id = p_turn);
        v_rules := (
            select coalesce(jsonb_agg(jsonb_build_object(
                'scope', u.scope, 'permission', u.permission, 'pattern', u.pattern, 'action', u.action)
                order by u.scope, u.permission, u.pattern), '[]')
            from session.rule u
            where u.tenant_id = v.tenant_id
              and (u.scope, u.scope_id) in (('session', p_session), ('project', v.workspace_id)));
        -- The index of what is remembered; 0006 has the table.
        v_memories := (
            select coalesce(jsonb_agg(jsonb_build_object(
                'scope', n.scope, 'name', n.name, 'description', n.description)
                order by n.scope, n.name), '[]')
            from (
                (select m.scope, m.name, m.description from session.memory m
                 where m.tenant_id = v.tenant_id and m.scope = 'user' and m.owner = v.subject
                 order by m.name limit 100)
                union all
                (select m.scope, m.name, m.description from session.memory m
                 where m.tenant_id = v.tenant_id and m.scope = 'project' and m.owner = v.workspace_id
                 order by m.name limit 100)
            ) n);
    end if;

    return jsonb_build_object(
        'agent', v.agent,
        'workspace_id', v.workspace_id,
        'subject', v.subject,
        'trace_parent', v.trace_parent,
        'view', v.view,
        'resumes', v.status = 'waiting',
        'title', v.title,
        'child', v.child,
        'background', v.delegates and exists (
            select from session.subagent a where a.parent_id = p_session and a.background and not a.told),
        'ended', v_ended,
        'interrupt', case when v.interrupt_turn = p_turn then jsonb_build_object(
            'turn_id', p_turn, 'subject', v.interrupt_by, 'reason', v.interrupt_reason) end,
        'actions', v_actions,
        'rules', v_rules,
        'memories', v_memories);
end;
$$;
