use expect_test::expect;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::{
    error::{Error, Result},
    ids::{MessageId, SessionId},
    message::{MessageStatus, Metadata, Part},
    pending::Owner,
    store::{
        events,
        history::{self, NewFork, Rolled},
        messages::{self, Window},
        queue, sessions,
    },
    testing::{World, completed, delta, pending, stamp, texts},
    turn::{Ending, Step},
};

impl World {
    /// A turn in which the user says `text` and the agent says it back.
    async fn echo(&self, id: SessionId, text: &str) -> MessageId {
        let submitted = self.submit(id, text).await;
        let answer = vec![Part::text(format!("{text}!"))];
        self.say(id, answer, Ending::Completed).await;
        submitted.message_id
    }

    /// Claims the turn that is ready and ends it with this answer.
    async fn say(&self, id: SessionId, parts: Vec<Part>, ending: Ending) -> MessageId {
        let claim = self.claim(id).await;
        let usage =
            proto::event::v1::Usage { input: 10, output: 5, cache_read: 3, ..Default::default() };
        let step = Step {
            message_id: MessageId::new(),
            status: MessageStatus::Completed,
            metadata: Metadata { usage: Some(usage), cost_micros: Some(7), ..Metadata::default() },
            parts,
        };
        let rows = pending(|pending, now| {
            pending.append(delta(step.message_id, "…"), now);
            pending.save_message(claim.turn_id, &step, now);
            (0..step.parts.len()).for_each(|index| pending.save_part(&step, index));
            pending.spend(&usage, 7);
            pending.append(completed(), now);
            pending.end(ending);
        });
        self.flush(&Owner::from(&claim), &rows).await.unwrap();
        step.message_id
    }

    async fn rewind(&self, id: SessionId, message_id: MessageId) -> Result<Rolled> {
        history::rewind(&self.db, &self.tenant, id, message_id, None, &stamp(self.replica)).await
    }

    async fn unrewind(&self, id: SessionId) -> Result<Rolled> {
        history::unrewind(&self.db, &self.tenant, id, &stamp(self.replica)).await
    }

    async fn branch(&self, parent: SessionId, from: Option<MessageId>) -> Result<SessionId> {
        self.branch_as(parent, from, &SessionId::new().to_string()).await
    }

    async fn branch_as(
        &self,
        parent_id: SessionId,
        message_id: Option<MessageId>,
        request_id: &str,
    ) -> Result<SessionId> {
        let new = NewFork {
            id: SessionId::new(),
            tenant: &self.tenant,
            parent_id,
            message_id,
            subject: "bob",
            request_id,
            request_digest: &format!("{message_id:?}"),
            ephemeral: false,
        };
        history::fork(&self.db, new, &stamp(self.replica)).await
    }

    async fn stored(&self, id: SessionId, hidden: bool) -> Vec<messages::Stored> {
        let mut db = self.db.acquire().await.unwrap();
        let window = Window::Before(i64::MAX, 1000);
        messages::page(&mut db, id, window, hidden, i64::MAX).await.unwrap().0
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_rewind_hides_and_its_undoing_shows(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    world.echo(id, "a").await;
    let b = world.echo(id, "b").await;
    let c = world.echo(id, "c").await;
    let before = sessions::get(&world.db, &world.tenant, id).await.unwrap();
    assert_eq!(before.input_tokens, 39);

    let rolled = world.rewind(id, c).await.unwrap();
    assert_eq!((rolled.messages, rolled.events.len()), (2, 2));
    assert_eq!(texts(&world.db, id).await, ["a", "a!", "b", "b!"]);
    assert_eq!(world.rewind(id, b).await.unwrap().messages, 2);
    assert_eq!(texts(&world.db, id).await, ["a", "a!"]);
    assert_eq!(world.stored(id, true).await.len(), 6, "something was deleted");
    let after = sessions::get(&world.db, &world.tenant, id).await.unwrap();
    assert_eq!((after.input_tokens, after.cost_micros), (39, 21), "what was spent stays spent");

    // The last one first, and each of them only once.
    assert_eq!(world.unrewind(id).await.unwrap().messages, 2);
    assert_eq!(texts(&world.db, id).await, ["a", "a!", "b", "b!"]);
    assert_eq!(world.unrewind(id).await.unwrap().messages, 2);
    assert_eq!(texts(&world.db, id).await, ["a", "a!", "b", "b!", "c", "c!"]);
    assert!(matches!(world.unrewind(id).await.unwrap_err(), Error::NothingToRewind { .. }));

    let log = events::after(&world.db, id, before.last_sequence, 100).await.unwrap();
    let log: Vec<Value> =
        log.iter().map(|event| serde_json::from_str(&event.to_json().unwrap()).unwrap()).collect();
    let line = |event: &Value| {
        let payload = &event["payload"];
        let message = match payload["messageId"] == json!(c) {
            true => "c",
            false => "b",
        };
        let name = event["type"].as_str().unwrap();
        format!("{name} {} {message} {}\n", payload["kind"], payload["messages"])
    };
    expect![[r#"
        history.rollback.started "rewind" c null
        history.rollback.completed "rewind" c 2
        history.rollback.started "rewind" b null
        history.rollback.completed "rewind" b 2
        history.rollback.started "unrewind" b null
        history.rollback.completed "unrewind" b 2
        history.rollback.started "unrewind" c null
        history.rollback.completed "unrewind" c 2
    "#]]
    .assert_eq(&log.iter().map(line).collect::<String>());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_submission_makes_a_rewind_final(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let a = world.echo(id, "a").await;
    world.rewind(id, a).await.unwrap();
    let b = world.echo(id, "b").await;
    assert!(matches!(world.unrewind(id).await.unwrap_err(), Error::NothingToRewind { .. }));
    assert_eq!(texts(&world.db, id).await, ["b", "b!"]);
    // Only what came after it can be undone.
    world.rewind(id, b).await.unwrap();
    world.unrewind(id).await.unwrap();
    assert!(matches!(world.unrewind(id).await.unwrap_err(), Error::NothingToRewind { .. }));
    assert_eq!(texts(&world.db, id).await, ["b", "b!"]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn only_a_visible_user_message_at_rest_is_rewound_to(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let a = world.echo(id, "a").await;
    let b = world.echo(id, "b").await;
    let answer = world.stored(id, false).await[1].id;
    world.rewind(id, b).await.unwrap();
    let other = world.echo(world.session().await, "elsewhere").await;
    let before = world.state(id).await;
    for nothing in [answer, b, other, MessageId::new()] {
        let error = world.rewind(id, nothing).await.unwrap_err();
        assert!(matches!(error, Error::NothingToRewind { .. }), "{error}");
    }
    assert_eq!(world.state(id).await, before);

    let running = world.submit(id, "c").await;
    for busy in [world.rewind(id, a).await, world.unrewind(id).await] {
        let error = busy.unwrap_err();
        assert!(
            matches!(error, Error::NotAtRest { turn_id, .. } if turn_id == Some(running.turn_id))
        );
    }
    let error = world.branch(id, None).await.unwrap_err();
    assert!(matches!(error, Error::NotAtRest { .. }));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_rewind_is_a_way_out_of_an_error_with_a_queue(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let a = world.echo(id, "a").await;
    world.submit(id, "b").await;
    let waits = world.submit(id, "c").await;
    let cancelled = world.submit(id, "d").await;
    world.say(id, vec![], Ending::Broken { message: "too large".into() }).await;
    world.rewind(id, a).await.unwrap();
    // What is taken out of the queue is not shown again with the rest.
    let stamp = stamp(world.replica);
    queue::cancel(&world.db, &world.tenant, id, cancelled.turn_id, "bob", &stamp).await.unwrap();
    assert_eq!(world.unrewind(id).await.unwrap().messages, 4);
    assert_eq!(texts(&world.db, id).await, ["a", "a!", "b"]);
    world.rewind(id, a).await.unwrap();
    queue::resume(&world.db, &world.tenant, id, &stamp).await.unwrap();
    assert_eq!(world.claim(id).await.turn_id, waits.turn_id);
    assert_eq!(texts(&world.db, id).await, ["c"]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_fork_begins_with_what_its_parent_shows(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    world.echo(id, "a").await;
    let b = world.echo(id, "b").await;
    let c = world.echo(id, "c").await;
    world.rewind(id, c).await.unwrap();
    let parent = sessions::get(&world.db, &world.tenant, id).await.unwrap();
    let state = world.state(id).await;

    let fork = world.branch(id, None).await.unwrap();
    assert_eq!(texts(&world.db, fork).await, ["a", "a!", "b", "b!"]);
    let session = sessions::get(&world.db, &world.tenant, fork).await.unwrap();
    assert_eq!(session.title, "(copy)");
    assert_eq!(session.workspace_id, parent.workspace_id);
    assert_eq!(session.parent_id, Some(id.to_string()));
    assert_eq!((session.subject.as_str(), session.last_sequence), ("bob", 2));
    // Of what was copied, and not of what its parent rewound.
    assert_eq!((session.input_tokens, session.output_tokens), (26, 10));
    assert_eq!((session.cost_micros, session.model_calls), (14, 2));
    assert_eq!(world.state(id).await, state, "its parent noticed");

    // Ids are new, and a turn still has the letters of its user message.
    let (old, new) = (world.stored(id, true).await, world.stored(fork, false).await);
    assert!(new.iter().all(|copy| old.iter().all(|message| message.id != copy.id)));
    assert!(new.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert_eq!(new[0].id.turn(), new[0].turn_id);
    assert_eq!(new[0].turn_id, new[1].turn_id);
    assert_eq!(new[2].id.turn(), new[3].turn_id);
    let parts: Vec<_> =
        new.iter().flat_map(|message| message.parts()).map(|part| part.id).collect();
    assert_eq!(parts.len(), 4);
    assert!(parts.windows(2).all(|pair| pair[0] < pair[1]));

    // The conversation goes on behind the copies, on either side.
    world.echo(fork, "d").await;
    assert_eq!(texts(&world.db, fork).await, ["a", "a!", "b", "b!", "d", "d!"]);
    world.rewind(fork, new[2].id).await.unwrap();
    assert_eq!(texts(&world.db, fork).await, ["a", "a!"]);
    assert_eq!(texts(&world.db, id).await, ["a", "a!", "b", "b!"]);

    let short = world.branch(id, Some(b)).await.unwrap();
    assert_eq!(texts(&world.db, short).await, ["a", "a!", "b"]);
    let again = world.branch(short, None).await.unwrap();
    assert_eq!(texts(&world.db, again).await, ["a", "a!", "b"]);
    let log = events::after(&world.db, short, 0, 1).await.unwrap().remove(0);
    let log: Value = serde_json::from_str(&log.to_json().unwrap()).unwrap();
    assert_eq!(log["payload"]["parentSessionId"], json!(id));
    assert_eq!(log["payload"]["parentMessageId"], json!(b));

    let error = world.branch(id, Some(c)).await.unwrap_err();
    assert!(matches!(error, Error::MessageNotFound { message_id, .. } if message_id == c));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn forking_twice_forks_once(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let a = world.echo(id, "a").await;
    let fork = || world.branch_as(id, None, "request");
    let (one, other, third) = tokio::join!(fork(), fork(), fork());
    let first = one.unwrap();
    assert_eq!([other.unwrap(), third.unwrap()], [first; 2]);
    world.submit(id, "busy").await;
    assert_eq!(fork().await.unwrap(), first, "a repeated call is answered while busy");
    let error = world.branch_as(id, Some(a), "request").await.unwrap_err();
    assert!(matches!(error, Error::RequestIdReused(_)));
    let empty = world.branch(world.session().await, None).await.unwrap();
    assert_eq!(texts(&world.db, empty).await, [""; 0]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_copied_compaction_keeps_the_copied_tail(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    world.echo(id, "a").await;
    let tail = world.echo(id, "b").await;
    world.submit(id, "compact").await;
    let compaction = |tail: &str| Part::Data {
        kind: "data-compaction".into(),
        data: json!({"summary": "s", "tail_start_id": tail, "auto": true, "summary_tokens": 1}),
    };
    world.say(id, vec![compaction(&tail.to_string())], Ending::Completed).await;
    world.submit(id, "again").await;
    world.say(id, vec![compaction("")], Ending::Completed).await;
    let fork = world.branch(id, None).await.unwrap();
    let new = world.stored(fork, false).await;
    let copied = |at: usize| new[at].parts()[0].part().unwrap();
    assert_eq!(copied(5), compaction(&new[2].id.to_string()));
    assert_eq!(copied(7), compaction(""));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_long_session_is_forked_and_rewound_in_one_go(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    for statement in [
        "insert into session.chat_messages (session_id, id, role, turn_id, position, status, metadata_json, created_at)
         select $1, 'msg_' || session.forked_id($1, n), case n % 2 when 1 then 'user' else 'assistant' end,
                'turn_' || session.forked_id($1, (n - 1) / 2 * 2 + 1), n + 2, 'completed',
                case n % 2 when 1 then '{}' else '{\"usage\": {\"input\": 1}}'::jsonb end, now()
         from generate_series(1, 20000) n",
        "insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
         select $1, 'msg_' || session.forked_id($1, n), 0, 'prt_' || session.forked_id($1, n), 'text',
                jsonb_build_object('text', repeat('word ', 100)), n + 2
         from generate_series(1, 20000) n",
        "update session.run_state set next_seq = 20003 where session_id = $1",
    ] {
        sqlx::query(statement).bind(id).execute(&world.db).await.unwrap();
    }
    let fork = world.branch(id, None).await.unwrap();
    let session = sessions::get(&world.db, &world.tenant, fork).await.unwrap();
    assert_eq!(session.input_tokens, 10_000);
    let first = {
        let mut db = world.db.acquire().await.unwrap();
        let window = Window::Before(i64::MAX, 100_000);
        let (stored, _) = messages::page(&mut db, fork, window, false, i64::MAX).await.unwrap();
        assert_eq!(stored.len(), 20_000);
        stored[0].id
    };
    assert_eq!(world.rewind(fork, first).await.unwrap().messages, 20_000);
    assert_eq!(world.unrewind(fork).await.unwrap().messages, 20_000);
}
