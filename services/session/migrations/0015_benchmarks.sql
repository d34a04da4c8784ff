-- Benchmarks: trials in sessions, what they earned, and how configurations compare. The facts are
-- in the logs of the sessions; these rows are what comparisons and exports read.

create table session.trial
(
    id                text        primary key,
    tenant_id         text        not null,
    request_id        text        not null,
    request_digest    text        not null,
    session_id        text        not null,
    dataset_id        text        not null,
    dataset_version   text        not null,
    benchmark_task_id text        not null,
    configuration_id  text        not null,
    role              text        not null check (role in ('baseline', 'candidate', 'control')),
    started_at        timestamptz not null default clock_timestamp(),

    -- `{"value", "criteria", "failureCategory"}`, once.
    reward            jsonb,
    rewarded_at       timestamptz,

    unique (tenant_id, request_id),
    check ((reward is null) = (rewarded_at is null))
);

create index trial_dataset on session.trial (tenant_id, dataset_id, id);
create index trial_configuration on session.trial (tenant_id, dataset_id, configuration_id, id)
    where rewarded_at is not null;

-- What was recorded last of each comparison, so that looking again adds nothing.
create table session.trial_comparison
(
    tenant_id     text  not null,
    dataset_id    text  not null,
    baseline_id   text  not null,
    candidate_id  text  not null,
    result        jsonb not null,

    primary key (tenant_id, dataset_id, baseline_id, candidate_id)
);

-- Appends facts, `[{"type", "payload"}]`, to a log whose row the caller holds.
create function session.append_all(p_session text, p_facts jsonb, p_stamp jsonb) returns jsonb
language plpgsql as $$
#variable_conflict use_column
declare
    v_seq    bigint;
    v_events jsonb;
begin
    select r.next_seq into v_seq from session.run_state r where r.session_id = p_session;
    if not found then
        return '[]';
    end if;
    select coalesce(jsonb_agg(session.append(
        p_session, v_seq - 1 + f.place, f.fact ->> 'type', null, f.fact -> 'payload', p_stamp) order by f.place), '[]')
    into v_events
    from jsonb_array_elements(p_facts) with ordinality as f(fact, place);
    update session.run_state r set next_seq = v_seq + jsonb_array_length(v_events) where r.session_id = p_session;
    return v_events;
end;
$$;

-- Records that a trial starts. `outcome` is `started`, `repeated`, `reused` or `not_found`.
create function session.start_trial(
    p_tenant text, p_session text, p_trial text, p_request text, p_digest text, p_new jsonb, p_facts jsonb, p_stamp jsonb
) returns table (outcome text, trial_id text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_other session.trial;
begin
    perform 1 from session.run_state r where r.session_id = p_session and r.tenant_id = p_tenant for update;
    if not found then
        return query select 'not_found', null, '[]'::jsonb;
        return;
    end if;
    insert into session.trial
        (id, tenant_id, request_id, request_digest, session_id, dataset_id, dataset_version, benchmark_task_id,
         configuration_id, role)
    values (p_trial, p_tenant, p_request, p_digest, p_session, p_new ->> 'dataset_id', p_new ->> 'dataset_version',
            p_new ->> 'benchmark_task_id', p_new ->> 'configuration_id', p_new ->> 'role')
    on conflict (tenant_id, request_id) do nothing;
    if not found then
        select * into v_other from session.trial t where t.tenant_id = p_tenant and t.request_id = p_request;
        return query select case when v_other.request_digest = p_digest then 'repeated' else 'reused' end,
            v_other.id, '[]'::jsonb;
        return;
    end if;
    return query select 'started', p_trial, session.append_all(p_session, p_facts, p_stamp);
end;
$$;

-- Records what a trial earned. `outcome` is `recorded`, `repeated`, `rewarded` or `not_found`.
create function session.reward_trial(p_tenant text, p_trial text, p_reward jsonb, p_facts jsonb, p_stamp jsonb)
returns table (outcome text, session_id text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_trial session.trial;
begin
    select * into v_trial from session.trial t where t.id = p_trial and t.tenant_id = p_tenant;
    if not found then
        return query select 'not_found', null, '[]'::jsonb;
        return;
    end if;
    perform 1 from session.run_state r where r.session_id = v_trial.session_id for update;
    update session.trial t set reward = p_reward, rewarded_at = clock_timestamp()
    where t.id = p_trial and t.reward is null;
    if not found then
        select * into v_trial from session.trial t where t.id = p_trial;
        return query select case when v_trial.reward = p_reward then 'repeated' else 'rewarded' end,
            v_trial.session_id, '[]'::jsonb;
        return;
    end if;
    return query select 'recorded', v_trial.session_id,
        session.append_all(v_trial.session_id, p_facts, p_stamp);
end;
$$;

-- Records how two configurations compare, unless it is what was recorded last.
create function session.compare_trials(
    p_tenant text, p_dataset text, p_baseline text, p_candidate text, p_result jsonb, p_stamp jsonb
) returns table (session_id text, events jsonb)
language plpgsql as $$
#variable_conflict use_column
declare
    v_session text;
begin
    select t.session_id into v_session from session.trial t
    where t.tenant_id = p_tenant and t.dataset_id = p_dataset and t.configuration_id = p_candidate
      and t.rewarded_at is not null
    order by t.id desc limit 1;
    if not found then
        return;
    end if;
    perform 1 from session.run_state r where r.session_id = v_session for update;
    insert into session.trial_comparison as c (tenant_id, dataset_id, baseline_id, candidate_id, result)
    values (p_tenant, p_dataset, p_baseline, p_candidate, p_result)
    on conflict (tenant_id, dataset_id, baseline_id, candidate_id) do update set result = excluded.result
    where c.result <> excluded.result;
    if found then
        return query select v_session, session.append_all(v_session, jsonb_build_array(jsonb_build_object(
            'type', 'benchmark.comparison.completed', 'payload', p_result)), p_stamp);
    end if;
end;
$$;
