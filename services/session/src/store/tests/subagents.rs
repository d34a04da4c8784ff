//! What one session tells another arrives once, in order, whatever happens at the same moment.

use futures::future::join_all;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool};

use crate::{
    error::Error,
    ids::{SessionId, SubagentId, ToolCallId},
    pending::Owner,
    store::{
        subagents::{self, Delivered, Delivery},
        turns::{self, Claim},
    },
    subagent::Outcome,
    testing::{World, completed, pending, spawn, stamp, started, step},
    turn::Ending,
};

/// A turn with a child.
struct Parent {
    claim: Claim,
    owner: Owner,
    subagent_id: SubagentId,
}

impl Parent {
    fn child(&self) -> SessionId {
        self.subagent_id.session()
    }
}

impl World {
    /// A turn that has spawned a child and neither waits nor ends yet.
    async fn parent(&self, background: bool) -> Parent {
        let claim = self.claimed().await;
        let mut owner = Owner::from(&claim);
        let call = ToolCallId::new();
        let spawns = pending(|pending, now| {
            pending.append(started(), now);
            pending.save_message(claim.turn_id, &step(crate::ids::MessageId::new(), ""), now);
            pending.spawn(spawn(claim.session_id, call, background));
        });
        let answer = self.flush(&owner, &spawns).await.unwrap();
        assert!(answer.mail.is_empty(), "a child is no news to anybody: it is there");
        owner.flush_no += 1;
        Parent { claim, owner, subagent_id: call.subagent() }
    }

    async fn park_parent(&self, parent: &mut Parent) -> String {
        self.flush(&parent.owner, &pending(|pending, _| pending.park())).await.unwrap();
        parent.owner.flush_no += 1;
        self.state(parent.claim.session_id).await.status
    }

    /// Runs the child to its end. Its parent has mail then.
    async fn end_child(&self, parent: &Parent, ending: Ending) {
        let child = self.claim(parent.child()).await;
        self.end(&child, ending).await;
    }

    /// Delivers what there is, as the courier does.
    async fn post(&self, id: SessionId) -> Delivered {
        let mail = subagents::mail(&self.db, id, 100).await.unwrap().into_iter();
        let mail = mail.map(|mail| Delivery {
            id: mail.id,
            outcome: mail.end.map(|(about, end)| Outcome::new(about, end, &[], false)),
        });
        let mail: Vec<_> = mail.collect();
        subagents::deliver(&self.db, id, &mail, &stamp(self.replica)).await.unwrap()
    }

    async fn post_several_times(&self, id: SessionId) -> Vec<Delivered> {
        join_all((0..5).map(|_| self.post(id))).await
    }

    async fn count(&self, id: SessionId, kind: &str) -> usize {
        self.log(id).await.lines().filter(|line| line.contains(kind)).count()
    }
}

#[sqlx::test]
async fn a_child_is_there_with_its_spawn_and_ends_once_whoever_delivers(db: PgPool) {
    let world = World::new(db).await;
    let mut parent = world.parent(false).await;
    let id = parent.claim.session_id;
    assert_eq!(world.state(parent.child()).await.status, "ready");
    assert_eq!(world.count(parent.child(), "session.created").await, 1);
    assert_eq!(world.park_parent(&mut parent).await, "waiting_on_child");
    let state = world.state(id).await;
    assert_eq!((state.owner, state.active_turn), (None, Some(parent.claim.turn_id)));

    world.end_child(&parent, Ending::Completed).await;
    let told = world.post_several_times(id).await;
    assert_eq!(told.iter().filter(|delivered| delivered.ready).count(), 1);
    assert_eq!(world.count(id, "subagent.").await, 1);
    assert_eq!(world.state(id).await.status, "ready");
    let (_, context) = turns::claim(&world.db, world.replica, &[id]).await.unwrap().remove(0);
    assert_eq!(context.ended.len(), 1);
}

#[sqlx::test]
async fn an_end_that_is_faster_than_the_wait_is_not_waited_for(db: PgPool) {
    let world = World::new(db).await;
    let mut parent = world.parent(false).await;
    world.end_child(&parent, Ending::Completed).await;
    assert!(!world.post(parent.claim.session_id).await.ready, "its owner still has it");
    assert_eq!(world.park_parent(&mut parent).await, "ready");
}

#[sqlx::test]
async fn a_child_in_the_background_is_told_of_behind_the_turn_or_at_rest(db: PgPool) {
    let world = World::new(db).await;
    for while_it_runs in [true, false] {
        let parent = world.parent(true).await;
        let id = parent.claim.session_id;
        world.end_child(&parent, Ending::Broken { message: "no".into() }).await;
        let end = pending(|pending, now| {
            pending.append(completed(), now);
            pending.end(Ending::Completed);
        });
        if while_it_runs {
            world.post_several_times(id).await;
            assert_eq!(world.count(id, "subagent.failed").await, 0, "a turn is under way");
        }
        let answer = world.flush(&parent.owner, &end).await.unwrap();
        assert_eq!(answer.told.len(), usize::from(while_it_runs));
        world.post_several_times(id).await;
        assert_eq!(world.count(id, "subagent.failed").await, 1);
        assert_eq!(world.state(id).await.status, "idle");
        let messages = world.messages(id).await;
        assert_eq!(messages.lines().count(), 3, "{messages}");
    }
}

#[sqlx::test]
async fn a_child_that_has_ended_takes_nothing_more(db: PgPool) {
    let world = World::new(db).await;
    let parent = world.parent(false).await;
    let child = world.claim(parent.child()).await;
    world.submit(parent.child(), "more").await;
    world.end(&child, Ending::Completed).await;
    assert_eq!(world.state(parent.child()).await.status, "ready", "what waits goes first");
    let child = world.claim(parent.child()).await;
    world.submit(parent.child(), "never").await;
    world.end(&child, Ending::Broken { message: "no".into() }).await;
    let state = world.state(parent.child()).await;
    assert_eq!((state.status.as_str(), state.queued), ("error", 0));
    let refused = world.try_submit(parent.child(), "late", "late", |_| ()).await;
    assert!(matches!(refused, Err(Error::ChildFinished(_))), "{refused:?}");
    // What was submitted before is still found by its request.
    world.submit(parent.child(), "more").await;
    world.post(parent.claim.session_id).await;
    assert_eq!(world.count(parent.claim.session_id, "subagent.input").await, 2);
    assert_eq!(world.count(parent.claim.session_id, "subagent.failed").await, 1);
}

#[sqlx::test]
async fn a_child_that_is_to_end_before_it_begins_begins_and_ends(db: PgPool) {
    let world = World::new(db).await;
    let parent = world.parent(false).await;
    let stops = pending(|pending, now| {
        pending.append(completed(), now);
        pending.stop_children(crate::turn::Stopping::All);
        pending.end(Ending::Cancelled);
    });
    world.flush(&parent.owner, &stops).await.unwrap();
    world.post_several_times(parent.child()).await;
    let (child, context) =
        turns::claim(&world.db, world.replica, &[parent.child()]).await.unwrap().remove(0);
    assert_eq!(context.interrupt.unwrap().reason, "aborted by parent");
    world.end(&child, Ending::Cancelled).await;
    world.post(parent.claim.session_id).await;
    assert_eq!(world.count(parent.claim.session_id, "subagent.closed").await, 1);
}

#[sqlx::test]
async fn a_child_that_a_version_before_asked_for_is_made_once(db: PgPool) {
    let world = World::new(db).await;
    let parent = world.parent(false).await;
    let call = ToolCallId::from_uuid(parent.subagent_id.uuid());
    let asked = json!(spawn(parent.claim.session_id, call, false));
    // That version stored what it asks for and nothing of the child.
    for table in ["turn", "chat_parts", "chat_messages", "event", "run_state"] {
        let forget = format!("delete from session.{table} where session_id = $1");
        sqlx::query(AssertSqlSafe(forget)).bind(parent.child()).execute(&world.db).await.unwrap();
    }
    let forget = "delete from session.chat_sessions where id = $1";
    sqlx::query(forget).bind(parent.child()).execute(&world.db).await.unwrap();
    let ask = "select session.post($1, $2, 'spawn:' || $3, 'spawn', $3, $4)";
    let ask = sqlx::query(ask).bind(&parent.claim.tenant).bind(parent.child());
    ask.bind(parent.subagent_id).bind(asked).execute(&world.db).await.unwrap();

    let made = world.post_several_times(parent.child()).await;
    assert_eq!(made.iter().filter(|delivered| delivered.ready).count(), 1);
    assert_eq!(world.count(parent.child(), "session.created").await, 1);
}
