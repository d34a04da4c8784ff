use sqlx::PgPool;

use crate::{
    store::{sessions, turns},
    testing::World,
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
