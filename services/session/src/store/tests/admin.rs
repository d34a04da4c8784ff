use expect_test::expect;
use sqlx::PgPool;

use crate::{
    error::{Error, Result},
    ids::{MessageId, SessionId, TurnId},
    purge,
    store::{
        admin::{delete, dependents, update},
        history::{self, NewFork},
        imports, seals,
        sessions::{self, Filter},
        turns,
    },
    testing::{World, stamp},
    turn::Ending,
};

impl World {
    async fn update(&self, id: SessionId, title: Option<&str>, archived: Option<bool>) -> usize {
        let stamp = stamp(self.replica);
        update(&self.db, &self.tenant, id, title, archived, &stamp).await.unwrap().len()
    }

    async fn delete(&self, id: SessionId) -> Result<()> {
        delete(&self.db, &self.tenant, id).await
    }

    async fn list(&self, filter: Filter) -> Vec<SessionId> {
        let list = sessions::list(&self.db, &self.tenant, filter, None, 100).await.unwrap();
        list.into_iter().map(|session| session.id).collect()
    }

    async fn fork(&self, parent_id: SessionId, ephemeral: bool) -> SessionId {
        let id = SessionId::new();
        let new = NewFork {
            id,
            tenant: &self.tenant,
            parent_id,
            message_id: None,
            subject: "alice",
            request_id: &id.to_string(),
            request_digest: "",
            ephemeral,
        };
        history::fork(&self.db, new, &stamp(self.replica)).await.unwrap()
    }

    async fn rows(&self, table: &str, id: SessionId) -> i64 {
        let sql = format!("select count(*) from session.{table} where session_id = $1");
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).bind(id).fetch_one(&self.db).await.unwrap()
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn only_what_changes_is_on_record(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    assert_eq!(world.update(id, Some("Lunch"), None).await, 1);
    assert_eq!(world.update(id, Some("Lunch"), Some(false)).await, 0);
    assert_eq!(world.update(id, None, Some(true)).await, 1);
    assert_eq!(world.update(id, None, None).await, 0);
    let session = sessions::get(&world.db, &world.tenant, id).await.unwrap();
    assert_eq!((session.title.as_str(), session.archived), ("Lunch", true));
    let events = crate::store::events::after(&world.db, id, 2, 10).await.unwrap();
    let events: Vec<_> = events.iter().map(|event| event.to_json().unwrap()).collect();
    assert!(events[0].contains(r#""payload":{"title":"Lunch"}"#), "{}", events[0]);
    assert!(events[1].contains(r#""payload":{"archived":true}"#), "{}", events[1]);

    let stranger = "other".parse().unwrap();
    let stamp = stamp(world.replica);
    let error = update(&world.db, &stranger, id, Some("Mine"), None, &stamp).await.unwrap_err();
    assert!(matches!(error, Error::SessionNotFound(_)));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn lists_show_what_they_are_asked_for(db: PgPool) {
    let world = World::new(db).await;
    let plain = world.session().await;
    let archived = world.session().await;
    let fork = world.fork(plain, false).await;
    let sidecar = world.fork(plain, true).await;
    let old_sidecar = world.fork(plain, true).await;
    world.update(archived, None, Some(true)).await;
    world.update(old_sidecar, None, Some(true)).await;
    world.update(plain, Some("touched"), None).await;

    let filter = Filter::default();
    assert_eq!(world.list(filter).await, [plain, fork]);
    let ephemeral = Filter { ephemeral: true, ..filter };
    assert_eq!(world.list(ephemeral).await, [plain, sidecar, fork]);
    let away = Filter { archived: true, ..filter };
    assert_eq!(world.list(away).await, [plain, archived, fork]);
    let all = Filter { ephemeral: true, archived: true, parent_id: None };
    assert_eq!(world.list(all).await, [plain, old_sidecar, archived, sidecar, fork]);
    let children = Filter { parent_id: Some(plain), ..filter };
    assert_eq!(world.list(children).await, [fork]);
    let children = Filter { parent_id: Some(plain), ..all };
    assert_eq!(world.list(children).await, [old_sidecar, sidecar, fork]);

    // Pages go through all of them.
    let mut after = None;
    let mut seen = vec![];
    loop {
        let page = sessions::list(&world.db, &world.tenant, all, after, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(sessions::Cursor { updated_at: last.updated_at.to_jiff(), id: last.id });
        seen.extend(page.iter().map(|session| session.id));
    }
    assert_eq!(seen, world.list(all).await);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_deleted_session_leaves_nothing(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let id = claim.session_id;
    let error = world.delete(id).await.unwrap_err();
    assert!(matches!(error, Error::NotAtRest { turn_id: Some(turn), .. } if turn == claim.turn_id));
    world.submit(id, "waits").await;
    world.end(&claim, Ending::Broken { message: "broken".into() }).await;
    let error = world.delete(id).await.unwrap_err();
    expect!["session … is not at rest: turns wait in its queue"]
        .assert_eq(&error.to_string().replace(&id.to_string(), "…"));
    let stamp = stamp(world.replica);
    crate::store::queue::resume(&world.db, &world.tenant, id, &stamp).await.unwrap();
    world.end(&world.claim(id).await, Ending::Completed).await;

    // To another tenant it is not there, and so already deleted.
    let other = world.session().await;
    delete(&world.db, &"other".parse().unwrap(), id).await.unwrap();
    assert_eq!(world.list(Filter::default()).await, [other, id]);

    world.delete(id).await.unwrap();
    world.delete(id).await.unwrap();
    assert_eq!(world.list(Filter::default()).await, [other]);
    purge::some(&world.db).await.unwrap();
    for table in ["run_state", "event", "chat_messages", "chat_parts", "turn", "deleted"] {
        assert_eq!(world.rows(table, id).await, 0, "{table}");
    }
    assert_eq!(world.rows("event", other).await, 2);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_long_log_is_removed_in_pieces(db: PgPool) {
    let world = World::new(db).await;
    let (id, next) = (world.session().await, world.session().await);
    sqlx::query(
        "insert into session.event (session_id, seq, type, runtime_id, created_at, payload)
         select $1, n, 'thread.started', 'rep', now(), '{}' from generate_series(3, 12000) n",
    )
    .bind(id)
    .execute(&world.db)
    .await
    .unwrap();
    world.delete(id).await.unwrap();
    world.delete(next).await.unwrap();
    assert!(crate::store::admin::purge(&world.db, 5000).await.unwrap());
    assert_eq!(world.rows("event", id).await, 7000);
    // Whoever comes next goes on where the last one was, until nothing is left.
    purge::some(&world.db).await.unwrap();
    assert_eq!((world.rows("event", id).await, world.rows("event", next).await), (0, 0));
    assert!(!crate::store::admin::purge(&world.db, 5000).await.unwrap());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn forks_outlive_their_parent_and_sidecars_are_found(db: PgPool) {
    let world = World::new(db).await;
    let parent = world.session().await;
    let (fork, sidecar) = (world.fork(parent, false).await, world.fork(parent, true).await);
    world.delete(parent).await.unwrap();
    assert_eq!(dependents(&world.db, &world.tenant, parent, 10).await.unwrap(), [sidecar]);
    assert_eq!(world.list(Filter::default()).await, [fork]);
}

/// Has the session's first message say this many things more.
async fn says_more(world: &World, id: SessionId, parts: i32) {
    sqlx::query(
        "insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
         select m.session_id, m.id, n, 'part_' || n, 'text', '{}', 0
         from (select * from session.chat_messages where session_id = $1 limit 1) m, generate_series(1000, 999 + $2) n",
    )
    .bind(id)
    .bind(parts)
    .execute(&world.db)
    .await
    .unwrap();
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_long_conversation_is_nobodys_at_once_and_removed_in_pieces(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let (id, turn_id, old) = (claim.session_id, claim.turn_id, TurnId::new());
    world.end(&claim, Ending::Completed).await;
    says_more(&world, id, 12_000).await;
    sqlx::query("update session.turn set status = 'completed'").execute(&world.db).await.unwrap();
    // One that was over long ago, and so is sealed: it is removed with the rest.
    sqlx::query(
        "insert into session.turn (session_id, id, message_id, status, subject, submitted_at, sealed)
         values ($1, $2, $3, 'completed', 'alice', now(), true)",
    )
    .bind(id)
    .bind(old)
    .bind(MessageId::new())
    .execute(&world.db)
    .await
    .unwrap();
    assert_eq!(seals::unsealed(&world.db, 10).await.unwrap(), [id]);
    assert_eq!(turns::of(&world.db, id, &[old]).await.unwrap().len(), 1);

    world.delete(id).await.unwrap();
    assert!(world.rows("chat_parts", id).await > 12_000, "all of it went in one statement");
    assert!(world.list(Filter::default()).await.is_empty());
    let found = sessions::get(&world.db, &world.tenant, id).await;
    assert!(matches!(found.unwrap_err(), Error::SessionNotFound(_)));
    let found = turns::get(&world.db, &world.tenant, id, turn_id).await;
    assert!(matches!(found.unwrap_err(), Error::TurnNotFound { .. }));
    // What is left of its turns, as what runs tasks and reads evidence would ask for it.
    assert!(turns::of(&world.db, id, &[old]).await.unwrap().is_empty());
    assert!(seals::unsealed(&world.db, 10).await.unwrap().is_empty());

    let mut left = vec![];
    while crate::store::admin::purge(&world.db, 5_000).await.unwrap() {
        left.push(world.rows("chat_parts", id).await);
    }
    assert_eq!(left, [7_002, 2_002, 0]);
    for table in ["chat_messages", "turn", "event", "deleted"] {
        assert_eq!(world.rows(table, id).await, 0, "{table}");
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_import_that_was_given_up_is_removed_in_pieces_and_grows_no_more(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    world.end(&claim, Ending::Completed).await;
    let (id, other) = (claim.session_id, world.session().await);
    says_more(&world, id, 6_000).await;
    // As one stands that is not finished.
    for sql in [
        "update session.chat_sessions set request_id = 'import:' || id, created_at = now() - interval '3 hours'",
        "delete from session.run_state",
    ] {
        sqlx::query(sql).execute(&world.db).await.unwrap();
    }
    // Somebody finishes the other one at this moment.
    let mut finishing = world.db.begin().await.unwrap();
    sqlx::query("select from session.chat_sessions where id = $1 for update")
        .bind(other)
        .execute(&mut *finishing)
        .await
        .unwrap();
    imports::drop_old(&world.db).await.unwrap();
    finishing.commit().await.unwrap();

    let gone = "select not exists (select from session.chat_sessions where id = $1)";
    let gone = async |id: SessionId| -> bool {
        sqlx::query_scalar(gone).bind(id).fetch_one(&world.db).await.unwrap()
    };
    assert!(gone(id).await && !gone(other).await);
    assert!(world.rows("chat_parts", id).await > 6_000, "all of it went in one statement");
    let late = imports::add(&world.db, id, &[], &[]).await.unwrap_err();
    assert!(format!("{late:?}").contains("was given up"), "{late:?}");
    imports::add(&world.db, other, &[], &[]).await.unwrap();
    purge::some(&world.db).await.unwrap();
    for table in ["chat_messages", "chat_parts", "turn", "event", "deleted"] {
        assert_eq!(world.rows(table, id).await, 0, "{table}");
    }
    imports::drop(&world.db, &world.tenant, other).await.unwrap();
    assert!(gone(other).await);
}
