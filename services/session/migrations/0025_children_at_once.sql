-- A child is there as soon as its parent's log says so: whoever reads of it may look for it at once.
-- The transaction that says so makes it, which nobody else knows yet, so there is no row of another
-- session to wait for. Mail of the kind `spawn` is what versions before this one left.

-- As before, with the sessions of the children, ready to be claimed. The caller holds the parent's
-- row, as its owner.
create or replace function session.spawn(p_tenant text, p_session text, p_turn text, p_spawns jsonb) returns text[]
language plpgsql as $$
#variable_conflict use_column
declare
    v_spawn jsonb;
    v_stamp jsonb;
begin
    select jsonb_build_object('runtime_id', r.owner, 'ids', '{}'::jsonb) into v_stamp
    from session.run_state r where r.session_id = p_session;
    for v_spawn in select s.value from jsonb_array_elements(p_spawns) s
    loop
        insert into session.subagent
            (id, tenant_id, parent_id, parent_turn, parent_message_id, child_id, tool_call_id, step_id, agent,
             background, inspectable, depth, permissions)
        select c.subagent_id, p_tenant, p_session, p_turn, c.parent_message_id, c.session_id, c.tool_call_id,
               v_spawn ->> 'step_id', c.agent, c.background, c.inspectable, c.depth, c.permissions
        from jsonb_to_record(v_spawn -> 'origin') as c(
            subagent_id text, parent_message_id text, session_id text, tool_call_id text, agent text,
            background boolean, inspectable boolean, depth integer, permissions jsonb);
        perform session.create_child(p_tenant, v_spawn, v_stamp);
    end loop;
    return '{}';
end;
$$;
