//! With many sessions, the cost of an operation is that of its own rows.

use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::{
    ids::{JobId, MessageId, RunId, SessionId, TaskId, TurnId},
    memory::{Note, Scope, Shelf},
    message::Part,
    pending::Owner,
    store::{
        admin, events, flush, history, items, jobs, memories,
        messages::{self, Window},
        queue, replicas, runs, sessions, snapshot, tasks, turns,
    },
    testing::{World, completed, delta, pending, stamp, started, step},
    turn::Ending,
};

const SESSIONS: usize = 10_000;

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn no_operation_scans_a_table(db: PgPool) {
    let world = World::new(one_connection(&db).await).await;
    let ids = fill(&world).await;
    let before = scans(&world.db).await;
    // More often than Postgres looks at the parameters before it plans without them.
    for round in 0..8 {
        a_turn(&world, ids[SESSIONS / 2 + round]).await;
    }
    assert_eq!(scans(&world.db).await, before);
    // Proof that a scan would have been seen.
    sqlx::query("select count(title) from session.chat_sessions").execute(&world.db).await.unwrap();
    assert_ne!(scans(&world.db).await, before);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn flushes_stay_on_their_page(db: PgPool) {
    let world = World::new(one_connection(&db).await).await;
    let claim = world.claimed().await;
    let mut owner = Owner::from(&claim);
    let message_id = MessageId::new();
    let updates =
        "select n_tup_upd - n_tup_hot_upd from pg_stat_user_tables where relname = 'run_state'";
    settle(&world.db).await;
    let before: i64 = sqlx::query_scalar(updates).fetch_one(&world.db).await.unwrap();
    for _ in 0..200 {
        let rows = pending(|pending, now| {
            pending.append(delta(message_id, "x"), now);
        });
        world.flush(&owner, &rows).await.unwrap();
        owner.flush_no += 1;
    }
    settle(&world.db).await;
    let after: i64 = sqlx::query_scalar(updates).fetch_one(&world.db).await.unwrap();
    // A page is cleared when nobody can still see its old rows, which others may delay.
    assert!(after - before <= 10, "{} of 200 flushes left their page", after - before);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn no_look_for_work_scans_a_table(db: PgPool) {
    let world = World::new(one_connection(&db).await).await;
    let ids = fill(&world).await;
    fill_work(&world, &ids).await;
    let (db, tenant) = (&world.db, &world.tenant);
    let job_id = JobId::from_uuid(ids[0].uuid());
    let before = scans(db).await;
    for round in 0..8 {
        let ids: Vec<_> = ids[round * 100..][..100].iter().map(|id| id.uuid()).collect();
        let ids: Vec<_> = ids.into_iter().map(RunId::from_uuid).collect();
        assert_eq!(runs::due(db, None, 100).await.unwrap().len(), 0);
        assert_eq!(runs::open(db, None, 100).await.unwrap().len(), 100);
        assert_eq!(runs::changed(db, &ids).await.unwrap().len(), if round == 0 { 100 } else { 0 });
        assert_eq!(items::due(db, 100).await.unwrap().len(), 0);
        assert_eq!(items::open(db, None, 100).await.unwrap().len(), 100);
        assert_eq!(items::changed(db, &ids).await.unwrap().len(), if round == 0 { 100 } else { 0 });
        assert_eq!(items::stopping(db, 100).await.unwrap().len(), 0);
        let filter = tasks::Filter::default();
        for filter in [
            filter,
            tasks::Filter { owner: Some("alice"), ..filter },
            tasks::Filter { status: Some("completed"), ..filter },
            tasks::Filter { parent_id: Some(TaskId::from_uuid(ids[0].uuid())), ..filter },
        ] {
            tasks::list(db, tenant, filter, None, 10).await.unwrap();
        }
        jobs::list(db, tenant, None, 10).await.unwrap();
        assert_eq!(jobs::items(db, job_id, None, 100, 10, i64::MAX).await.unwrap().len(), 10);
        jobs::items(db, job_id, Some("failed"), 100, 10, i64::MAX).await.unwrap();
    }
    assert_eq!(scans(db).await, before);
}

/// A task for each session, and an item for each of one job; a hundred of both run.
async fn fill_work(world: &World, ids: &[SessionId]) {
    let text: Vec<_> = ids.iter().map(SessionId::to_string).collect();
    for statement in [
        "insert into session.task (id, tenant_id, request_id, request_digest, owner, title, objective, root_id,
                status, run_id)
         select 'task_' || right(id, 26), 'acme', id, '', 'alice', '', 'do', 'task_' || right(id, 26),
                case when n <= 100 then 'preparing' else 'completed' end, 'run_' || right(id, 26)
         from unnest($1::text[]) with ordinality as s(id, n)",
        "insert into session.task_run (id, task_id, number, status, started_at, ended_at)
         select 'run_' || right(id, 26), 'task_' || right(id, 26), 1,
                case when n <= 100 then 'preparing' else 'completed' end, now(), case when n > 100 then now() end
         from unnest($1::text[]) with ordinality as s(id, n)",
        "insert into session.job (id, tenant_id, request_id, request_digest, subject, instruction, agent,
                output_schema, parallelism, inspectable, status, pending)
         select 'job_' || right(id, 26), 'acme', id, '', 'alice', '', 'default', '', 100, true, 'completed', 0
         from unnest($1::text[]) as s(id)",
        "insert into session.job_item (job_id, index, id, input, status, run_id, started_at)
         select 'job_' || right($1[1], 26), n, 'item_' || right(id, 26), '1',
                case when n <= 100 then 'running' else 'completed' end, 'run_' || right(id, 26), now()
         from unnest($1::text[]) with ordinality as s(id, n)",
    ] {
        sqlx::query(statement).bind(&text).execute(&world.db).await.unwrap();
    }
    sqlx::query("analyze").execute(&world.db).await.unwrap();
}

/// Everything that is asked of the store while a turn runs.
async fn a_turn(world: &World, id: SessionId) {
    let db = &world.db;
    world.submit(id, "question").await;
    world.submit(id, "follow-up").await;
    assert_eq!(turns::ready(db, None, &[], 10).await.unwrap(), [(world.tenant.clone(), id)]);
    let claim = world.claim(id).await;

    let mut owner = Owner::from(&claim);
    let message_id = MessageId::new();
    let rows = pending(|pending, now| {
        pending.append(started(), now);
        pending.append(delta(message_id, "Hello"), now);
        pending.save_message(claim.turn_id, &step(message_id, "Hello"), now);
        pending.save_part(&step(message_id, "Hello"), 0);
        pending.save_turn(claim.turn_id, &Default::default());
        pending.save_prompt("digest".into(), "be kind".into());
        pending.spend(&Default::default(), 1);
    });
    world.flush(&owner, &rows).await.unwrap();
    owner.flush_no += 1;
    read(world, id, claim.turn_id).await;
    remember(world).await;
    for _ in 0..2 {
        replicas::beat(db, world.replica).await.unwrap();
        replicas::orphans(db, world.replica).await.unwrap();
        flush::states(db, &[id]).await.unwrap();
    }
    change(world, id).await;
    let end = pending(|pending, now| {
        pending.append(completed(), now);
        pending.end(Ending::Completed);
    });
    world.flush(&owner, &end).await.unwrap();
    let (next, context) = turns::claim(db, world.replica, &[id]).await.unwrap().remove(0);
    // The first had nothing to gather, this one has.
    assert_eq!(context.memories.len(), 1);
    world.flush(&Owner::from(&next), &end).await.unwrap();
    forget(world).await;
    go_back(world, id).await;
}

/// Everything that is done to a queue.
async fn change(world: &World, id: SessionId) {
    let (db, tenant, stamp) = (&world.db, &world.tenant, stamp(world.replica));
    let waits = queue::list(db, id).await.unwrap().remove(0).id;
    let other = world.submit(id, "another").await.turn_id;
    queue::edit(db, tenant, id, other, &[Part::text("again")], &stamp).await.unwrap();
    queue::promote(db, tenant, id, other, &stamp).await.unwrap();
    queue::reorder(db, tenant, id, &[waits, other], &stamp).await.unwrap();
    queue::cancel(db, tenant, id, other, "alice", &stamp).await.unwrap();
    queue::resume(db, tenant, id, &stamp).await.unwrap();
    admin::update(db, tenant, id, Some("title"), Some(true), &stamp).await.unwrap();
    admin::update(db, tenant, id, None, Some(false), &stamp).await.unwrap();
}

/// Everything that is done to a history, and to what branches off.
async fn go_back(world: &World, id: SessionId) {
    let (db, tenant, stamp) = (&world.db, &world.tenant, stamp(world.replica));
    let first = MessageId::from_uuid(id.uuid());
    history::rewind(db, tenant, id, first, None, &stamp).await.unwrap();
    history::unrewind(db, tenant, id, &stamp).await.unwrap();
    let new = history::NewFork {
        id: SessionId::new(),
        tenant,
        parent_id: id,
        message_id: Some(first),
        subject: "alice",
        request_id: &SessionId::new().to_string(),
        request_digest: "",
        ephemeral: true,
    };
    let fork = history::fork(db, new, &stamp).await.unwrap();
    let filter = sessions::Filter { ephemeral: true, archived: true, parent_id: Some(id) };
    assert_eq!(sessions::list(db, tenant, filter, None, 10).await.unwrap().len(), 1);
    let all = sessions::Filter { parent_id: None, ..filter };
    assert_eq!(sessions::list(db, tenant, all, None, 10).await.unwrap()[0].id, fork);
    assert_eq!(admin::dependents(db, tenant, id, 10).await.unwrap(), [fork]);
    admin::delete(db, tenant, fork).await.unwrap();
    while admin::purge(db, 100).await.unwrap() {}
}

async fn remember(world: &World) {
    let (db, shelf) = (&world.db, shelf(world));
    let note = Note {
        name: "likes-tea".into(),
        description: "Drinks tea".into(),
        r#type: "user".into(),
        body: "Green.".into(),
    };
    memories::write(db, &shelf, &note, None).await.unwrap().unwrap();
    memories::read(db, &shelf, "likes-tea").await.unwrap().unwrap();
    assert_eq!(memories::list(db, &shelf, "", 10).await.unwrap().len(), 1);
}

async fn forget(world: &World) {
    assert!(memories::delete(&world.db, &shelf(world), "likes-tea", None).await.unwrap());
}

fn shelf(world: &World) -> Shelf {
    Shelf { tenant: world.tenant.clone(), scope: Scope::User, owner: "alice".into() }
}

async fn read(world: &World, id: SessionId, turn_id: TurnId) {
    let db = &world.db;
    sessions::get(db, &world.tenant, id).await.unwrap();
    sessions::last_sequences(db, &[id]).await.unwrap();
    let filter = sessions::Filter::default();
    let page = sessions::list(db, &world.tenant, filter, None, 10).await.unwrap();
    let last = page.last().unwrap();
    let after = sessions::Cursor { updated_at: last.updated_at.to_jiff(), id: last.id };
    assert_eq!(sessions::list(db, &world.tenant, filter, Some(after), 10).await.unwrap().len(), 10);
    events::after(db, id, 0, 100).await.unwrap();
    let mut connection = db.acquire().await.unwrap();
    for window in [Window::Before(i64::MAX, 10), Window::Queued(i64::MIN, 10)] {
        messages::page(&mut connection, id, window, false, i64::MAX).await.unwrap();
    }
    snapshot::turns(&mut connection, id, 10).await.unwrap();
    let seen = messages::visible(&mut connection, id, turn_id).await.unwrap();
    assert_eq!(seen.len(), 3);
    assert_eq!(snapshot::queue(&mut connection, id).await.unwrap().len(), 1);
}

/// Sessions that have had one turn each, the first half of them with rules.
async fn fill(world: &World) -> Vec<SessionId> {
    let ids: Vec<_> = (0..SESSIONS).map(|_| SessionId::new()).collect();
    let text: Vec<_> = ids.iter().map(SessionId::to_string).collect();
    for statement in [
        "insert into session.chat_sessions (id, tenant_id, subject, request_id, request_digest, title, agent,
                workspace_id, updated_at)
         select id, 'acme', 'alice', id, '', '', 'default', 'ws_' || substr(id, 5), now() - n * interval '1 second'
         from unnest($1::text[]) with ordinality as s(id, n)",
        "insert into session.run_state (session_id, tenant_id, next_seq)
         select id, 'acme', 11 from unnest($1::text[]) as s(id)",
        "insert into session.event (session_id, seq, type, runtime_id, created_at, payload)
         select id, n, 'thread.started', 'rep', now(), '{}' from unnest($1::text[]) as s(id), generate_series(1, 10) n",
        "insert into session.chat_messages (session_id, id, role, turn_id, position, status, created_at)
         select id, 'msg_' || substr(id, 5), 'user', 'turn_' || substr(id, 5), 3, 'accepted', now()
         from unnest($1::text[]) as s(id)",
        "insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
         select id, 'msg_' || substr(id, 5), 0, 'prt_' || substr(id, 5), 'text', '{\"text\": \"hi\"}', 3
         from unnest($1::text[]) as s(id)",
        "insert into session.memory (tenant_id, scope, owner, name, description, type, body)
         select 'acme', 'user', id, 'some', 'thing', 'user', '' from unnest($1::text[]) as s(id)",
        "insert into session.rule (tenant_id, scope, scope_id, permission, pattern, action, subject)
         select 'acme', r.scope, r.scope_id, 'bash', 'ls', 'allow', 'alice'
         from unnest($1::text[]) with ordinality as s(id, n),
              lateral (values ('session', id), ('project', 'ws_' || substr(id, 5))) as r(scope, scope_id)
         where n <= cardinality($1::text[]) / 2",
        "insert into session.turn (session_id, id, message_id, status, subject, submitted_at)
         select id, 'turn_' || substr(id, 5), 'msg_' || substr(id, 5), 'completed', 'alice', now()
         from unnest($1::text[]) as s(id)",
    ] {
        sqlx::query(statement).bind(&text).execute(&world.db).await.unwrap();
    }
    sqlx::query("analyze").execute(&world.db).await.unwrap();
    ids
}

/// A pool whose statistics are those of its one connection, and so are all there are.
async fn one_connection(db: &PgPool) -> PgPool {
    let options = (*db.connect_options()).clone();
    PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap()
}

/// How many rows of each table were read one after the other.
async fn scans(db: &PgPool) -> Vec<(String, i64)> {
    settle(db).await;
    sqlx::query_as(
        "select relname::text, seq_tup_read from pg_stat_user_tables
         where schemaname = 'session' and relname not in ('replica', 'deleted') order by relname",
    )
    .fetch_all(db)
    .await
    .unwrap()
}

async fn settle(db: &PgPool) {
    sqlx::query("select pg_stat_force_next_flush()").execute(db).await.unwrap();
    sqlx::query("select pg_stat_clear_snapshot()").execute(db).await.unwrap();
}
