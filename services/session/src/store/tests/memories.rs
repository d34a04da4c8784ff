use sqlx::PgPool;

use crate::{
    compaction::Marker,
    ids::{MessageId, SessionId, TurnId},
    memory::{MOST, Note, Scope, Shelf},
    message::{MessageStatus, Metadata, Part},
    pending::Owner,
    store::{
        memories::{Fence, delete, list, read, write},
        messages, turns,
    },
    testing::{World, completed, pending, started},
    turn::{Ending, Step},
};

fn note(name: &str, body: &str) -> Note {
    Note {
        name: name.into(),
        description: format!("About {name}"),
        r#type: "user".into(),
        body: body.into(),
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_memory_is_found_by_its_owner_alone(db: PgPool) {
    let shelf = |tenant: &str, scope, owner: &str| Shelf {
        tenant: tenant.parse().unwrap(),
        scope,
        owner: owner.into(),
    };
    let mine = shelf("acme", Scope::User, "ann");
    write(&db, &mine, &note("tea", "green"), None).await.unwrap().unwrap();
    write(&db, &mine, &note("tea", "black"), None).await.unwrap().unwrap();
    assert_eq!(read(&db, &mine, "tea").await.unwrap().unwrap().body, "black");
    for other in [
        shelf("acme", Scope::User, "bob"),
        shelf("acme", Scope::Project, "ann"),
        shelf("other", Scope::User, "ann"),
    ] {
        assert!(read(&db, &other, "tea").await.unwrap().is_none());
        assert!(list(&db, &other, "", 10).await.unwrap().is_empty());
        assert!(!delete(&db, &other, "tea", None).await.unwrap());
    }
    write(&db, &mine, &note("cake", "any"), None).await.unwrap().unwrap();
    let names = list(&db, &mine, "", 10).await.unwrap();
    assert_eq!(names.iter().map(|memory| &memory.name[..]).collect::<Vec<_>>(), ["cake", "tea"]);
    assert_eq!(list(&db, &mine, "cake", 10).await.unwrap().len(), 1);
    assert!(delete(&db, &mine, "tea", None).await.unwrap());
    assert!(!delete(&db, &mine, "tea", None).await.unwrap());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_shelf_is_full_at_some_point(db: PgPool) {
    let shelf = Shelf { tenant: "acme".parse().unwrap(), scope: Scope::User, owner: "ann".into() };
    sqlx::query(
        "insert into session.memory (tenant_id, scope, owner, name, description, type, body)
         select 'acme', 'user', 'ann', 'n' || n, 'd', 'user', '' from generate_series(1, $1) n",
    )
    .bind(MOST)
    .execute(&db)
    .await
    .unwrap();
    assert!(write(&db, &shelf, &note("more", ""), None).await.unwrap().is_none());
    // What is there can still be changed.
    assert!(write(&db, &shelf, &note("n1", "new"), None).await.unwrap().is_some());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_owner_that_lost_its_session_cannot_write_memories(db: PgPool) {
    let world = World::new(db.clone()).await;
    let claim = world.claimed().await;
    let shelf = Shelf { tenant: world.tenant.clone(), scope: Scope::User, owner: "ann".into() };
    let fence = |epoch| Some(Fence { session_id: claim.session_id, epoch });
    assert!(write(&db, &shelf, &note("a", ""), fence(claim.epoch)).await.unwrap().is_some());
    assert!(write(&db, &shelf, &note("b", ""), fence(claim.epoch - 1)).await.unwrap().is_none());
    assert!(!delete(&db, &shelf, "a", fence(claim.epoch - 1)).await.unwrap());
    assert!(delete(&db, &shelf, "a", fence(claim.epoch)).await.unwrap());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_begins_with_the_index_of_its_users_memories(db: PgPool) {
    let world = World::new(db.clone()).await;
    let id = world.session().await;
    world.submit(id, "hello").await;
    let project: String = sqlx::query_scalar("select workspace_id from session.chat_sessions")
        .fetch_one(&db)
        .await
        .unwrap();
    for (scope, owner) in [
        (Scope::User, "alice"),
        (Scope::User, "bob"),
        (Scope::Project, &project),
        (Scope::Project, "kitchen"),
    ] {
        let shelf = Shelf { tenant: world.tenant.clone(), scope, owner: owner.into() };
        write(&db, &shelf, &note(&format!("tea of {owner}"), ""), None).await.unwrap();
    }
    let (_, context) = turns::claim(&db, world.replica, &[id]).await.unwrap().remove(0);
    let lines = context.memories.iter().map(|line| (line.scope, line.name.clone()));
    let expected =
        [(Scope::Project, format!("tea of {project}")), (Scope::User, "tea of alice".into())];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

/// Runs a turn that says `text`, and compacts before it does if there is a marker.
async fn turn(world: &World, id: SessionId, text: &str, marker: Option<Marker>) -> TurnId {
    let submitted = world.submit(id, text).await;
    let claim = world.claim(id).await;
    let answer = |parts| Step {
        message_id: MessageId::new(),
        status: MessageStatus::Completed,
        metadata: Metadata::default(),
        parts,
    };
    let steps = marker.iter().map(|marker| answer(vec![marker.part()]));
    let steps: Vec<_> = steps.chain([answer(vec![Part::text(format!("re {text}"))])]).collect();
    let rows = pending(|pending, now| {
        for step in &steps {
            pending.append(started(), now);
            pending.save_message(claim.turn_id, step, now);
            pending.save_part(step, 0);
        }
        pending.append(completed(), now);
        pending.end(Ending::Completed);
    });
    world.flush(&Owner::from(&claim), &rows).await.unwrap();
    submitted.turn_id
}

/// What a new turn would know: one word per message.
async fn visible(world: &World, id: SessionId) -> Vec<String> {
    let mut db = world.db.acquire().await.unwrap();
    let stored = messages::visible(&mut db, id, TurnId::new()).await.unwrap();
    let word = |part: Part| match part {
        Part::Text(text) => text.text,
        other => other.kind(),
    };
    stored.iter().map(|message| word(message.parts()[0].part().unwrap())).collect()
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_loads_what_the_last_marker_left_and_all_of_it_when_that_is_hidden(db: PgPool) {
    let world = World::new(db.clone()).await;
    let id = world.session().await;
    let marker = |tail_start_id| {
        let summary = "so far".to_owned();
        Some(Marker { summary, tail_start_id, auto: true, summary_tokens: 2 })
    };
    turn(&world, id, "a", None).await;
    let kept = turn(&world, id, "b", None).await;
    assert_eq!(visible(&world, id).await, ["a", "re a", "b", "re b"]);

    let kept: MessageId =
        sqlx::query_scalar("select message_id from session.turn where session_id = $1 and id = $2")
            .bind(id)
            .bind(kept)
            .fetch_one(&db)
            .await
            .unwrap();
    turn(&world, id, "c", marker(Some(kept))).await;
    assert_eq!(visible(&world, id).await, ["b", "re b", "c", "data-compaction", "re c"]);
    turn(&world, id, "d", marker(None)).await;
    assert_eq!(visible(&world, id).await, ["d", "data-compaction", "re d"]);

    sqlx::query("update session.chat_messages set hidden_at = now() where synthetic")
        .execute(&db)
        .await
        .unwrap();
    let all = ["a", "re a", "b", "re b", "c", "re c", "d", "re d"];
    assert_eq!(visible(&world, id).await, all);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_loads_no_more_than_a_model_could_read(db: PgPool) {
    let world = World::new(db.clone()).await;
    let id = world.session().await;
    let first = turn(&world, id, "a", None).await;
    turn(&world, id, "b", None).await;
    // Letters that do not compress.
    sqlx::query(
        "update session.chat_parts set data_json = jsonb_build_object('text',
             (select string_agg(md5(random()::text), '') from generate_series(1, 300000)))
         where session_id = $1 and data_json ->> 'text' = 're a'",
    )
    .bind(id)
    .execute(&db)
    .await
    .unwrap();
    assert_eq!(visible(&world, id).await, ["b", "re b"]);
    let mut connection = db.acquire().await.unwrap();
    // The turn itself is always there.
    let stored = messages::visible(&mut connection, id, first).await.unwrap();
    assert_eq!(stored.len(), 4);
}
