use sqlx::PgPool;

use crate::{
    store::{messages, sessions, turns},
    testing::World,
    turn::Ending,
};

const RULE: &str =
    "insert into session.rule (tenant_id, scope, scope_id, permission, pattern, action, subject)
     values ('acme', $1, $2, 'bash', 'ls', 'allow', 'alice')";

const MEMORY: &str =
    "insert into session.memory (tenant_id, scope, owner, name, description, type, body)
     values ('acme', $1, $2, 'tea', 'Green', 'user', '')";

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_begins_with_whatever_was_decided_or_remembered_alone(db: PgPool) {
    let world = World::new(db).await;
    // What is the person's is there for every session, so it comes last.
    for only in [
        None,
        Some((RULE, "session")),
        Some((RULE, "project")),
        Some((MEMORY, "project")),
        Some((MEMORY, "user")),
    ] {
        let id = world.session().await;
        let session = sessions::get(&world.db, &world.tenant, id).await.unwrap();
        if let Some((insert, scope)) = only {
            let owner = match scope {
                "session" => id.to_string(),
                "project" => session.workspace_id.to_string(),
                _ => "alice".to_owned(),
            };
            sqlx::query(insert).bind(scope).bind(owner).execute(&world.db).await.unwrap();
        }
        world.submit(id, "hello").await;
        let (_, context) = turns::claim(&world.db, world.replica, &[id]).await.unwrap().remove(0);
        let rules = context.rules.iter().map(|rule| (RULE, rule.scope.as_str()));
        let memories = context.memories.iter().map(|line| (MEMORY, line.scope.as_str()));
        assert_eq!(rules.chain(memories).collect::<Vec<_>>(), Vec::from_iter(only));
    }
}

/// What repeats itself takes little room in a table, and all of its own in a process.
#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_looks_at_no_more_text_than_a_process_can_hold(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let mut said = Vec::new();
    for number in 0..6 {
        said.push(world.submit(id, &number.to_string()).await.message_id);
        let claim = world.claim(id).await;
        world.end(&claim, Ending::Completed).await;
    }
    let last = world.submit(id, "last").await;
    said.push(last.message_id);
    let repeat = "update session.chat_parts set data_json = data_json || jsonb_build_object('text', repeat('x', $1))";
    let mut db = world.db.acquire().await.unwrap();
    // Its own message is there whatever it says.
    for (mebibytes, seen) in [(1, 7), (5, 3), (20, 1)] {
        sqlx::query(repeat).bind(mebibytes * 1024 * 1024).execute(&world.db).await.unwrap();
        let visible = messages::visible(&mut db, id, last.turn_id).await.unwrap();
        let past = messages::past(&mut db, id, last.turn_id, true).await.unwrap();
        for stored in [visible, past] {
            let ids: Vec<_> = stored.iter().map(|message| message.id).collect();
            assert_eq!(ids, said[said.len() - seen..], "{mebibytes} MiB each");
        }
    }
}
