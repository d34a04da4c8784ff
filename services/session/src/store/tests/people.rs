//! What people are asked is answered once, whatever happens at the same moment.

use futures::future::join_all;
use proto::event::v1::{ActionRequired, ActionResolved};
use sqlx::PgPool;

use crate::{
    error::{Error, Result},
    ids::{ActionId, SessionId, ToolCallId, TurnId},
    pending::{Owner, Pending},
    store::{
        actions::{self, Answer, Resolved},
        replicas::{self, Adopted},
        turns::{self, Claim, Interrupted},
    },
    testing::{World, completed, pending, stamp, started, step},
    turn::{Asking, Ending},
};

/// A turn that asks whether a command may run, and how it says so.
struct Waiting {
    claim: Claim,
    owner: Owner,
    action_id: ActionId,
}

impl World {
    /// Asks, and does not wait yet.
    async fn asking(&self, kind: &str) -> Waiting {
        let claim = self.claimed().await;
        let mut owner = Owner::from(&claim);
        let call = ToolCallId::new();
        let ask = pending(|pending, now| {
            pending.append(started(), now);
            let message = step(crate::ids::MessageId::new(), "");
            pending.save_message(claim.turn_id, &message, now);
            let request = ActionRequired { kind: kind.to_owned(), ..ActionRequired::default() };
            let rule = Some(("bash".to_owned(), "ls".to_owned()));
            pending.ask(claim.turn_id, &message, call, &Asking { request, rule }, now);
        });
        self.flush(&owner, &ask).await.unwrap();
        owner.flush_no += 1;
        Waiting { claim, owner, action_id: call.action() }
    }

    async fn park(&self, waiting: &Waiting) -> bool {
        let mut park = Pending::default();
        park.park();
        self.flush(&waiting.owner, &park).await.unwrap().ready
    }

    async fn parked(&self, kind: &str) -> Waiting {
        let waiting = self.asking(kind).await;
        assert!(!self.park(&waiting).await);
        waiting
    }

    async fn answer(&self, waiting: &Waiting, rule: Option<&'static str>) -> Result<Resolved> {
        let resolution = ActionResolved {
            status: "approved".into(),
            decision: rule.unwrap_or("once").into(),
            subject: "alice".into(),
            ..ActionResolved::default()
        };
        let answer = Answer {
            tenant: &self.tenant,
            session_id: waiting.claim.session_id,
            action_id: waiting.action_id,
            kind: "approval",
            resolution: &resolution,
            rule,
        };
        actions::resolve(&self.db, answer, &stamp(self.replica)).await
    }

    async fn interrupt(&self, id: SessionId, turn_id: Option<TurnId>) -> Result<Interrupted> {
        let stamp = stamp(self.replica);
        turns::interrupt(&self.db, &self.tenant, id, turn_id, "bob", "enough", &stamp).await
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_answer_lets_the_turn_go_on_and_counts_once(db: PgPool) {
    let world = World::new(db).await;
    let waiting = world.parked("approval").await;
    let id = waiting.claim.session_id;
    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.owner), ("waiting_on_approval", None));
    assert_eq!(state.active_turn, Some(waiting.claim.turn_id));

    let answers = join_all((0..8).map(|_| world.answer(&waiting, None))).await;
    let stored: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
    assert_eq!(stored.len(), 1);
    assert!(stored[0].ready);
    let refused = |answer: &&Result<Resolved>| matches!(answer, Err(Error::ActionResolved { .. }));
    assert_eq!(answers.iter().filter(refused).count(), 7);

    assert_eq!(world.state(id).await.status, "ready");
    let (claim, context) = turns::claim(&world.db, world.replica, &[id]).await.unwrap().remove(0);
    assert_eq!((claim.turn_id, claim.attempts), (waiting.claim.turn_id, 1));
    assert!(!context.resumes, "nothing said that the turn waits");
    assert_eq!(context.actions[0].status, "approved");
    let log = world.log(id).await;
    assert_eq!(log.matches("action.resolved").count(), 1, "{log}");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_answer_may_be_faster_than_the_wait(db: PgPool) {
    let world = World::new(db).await;
    let waiting = world.asking("approval").await;
    assert!(!world.answer(&waiting, None).await.unwrap().ready);
    assert_eq!(world.state(waiting.claim.session_id).await.status, "busy");
    assert!(world.park(&waiting).await);
    let state = world.state(waiting.claim.session_id).await;
    assert_eq!((state.status.as_str(), state.owner), ("ready", None));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_answer_fits_the_question(db: PgPool) {
    let world = World::new(db).await;
    let waiting = world.parked("question").await;
    let id = waiting.claim.session_id;
    assert_eq!(world.state(id).await.status, "waiting_on_user_input");
    let answer = world.answer(&waiting, None).await;
    assert!(matches!(answer, Err(Error::ActionWrongAnswer { .. })));
    let stranger = Waiting { action_id: ToolCallId::new().action(), ..waiting };
    assert!(matches!(world.answer(&stranger, None).await, Err(Error::ActionNotFound { .. })));
    assert_eq!(world.state(id).await.status, "waiting_on_user_input");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_decision_for_more_than_one_call_is_a_rule(db: PgPool) {
    let world = World::new(db).await;
    for scope in ["session", "project"] {
        let waiting = world.parked("approval").await;
        world.answer(&waiting, Some(scope)).await.unwrap();
        let ids = [waiting.claim.session_id];
        let (_, context) = turns::claim(&world.db, world.replica, &ids).await.unwrap().remove(0);
        let rule = &context.rules[0];
        assert_eq!(
            (rule.scope.as_str(), rule.permission.as_str(), rule.pattern.as_str()),
            (scope, "bash", "ls")
        );
        assert_eq!(rule.action, "allow");
    }
    // Others have rules of their own.
    let other = world.session().await;
    world.submit(other, "hello").await;
    let (_, context) = turns::claim(&world.db, world.replica, &[other]).await.unwrap().remove(0);
    assert!(context.rules.is_empty());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn who_stops_a_turn_that_waits_withdraws_its_question(db: PgPool) {
    let world = World::new(db).await;
    let waiting = world.parked("approval").await;
    let id = waiting.claim.session_id;
    let interrupted = world.interrupt(id, None).await.unwrap();
    assert!(interrupted.ready);
    assert_eq!(interrupted.events.len(), 1);
    let answer = world.answer(&waiting, None).await;
    assert!(matches!(answer, Err(Error::ActionResolved { .. })));
    let (_, context) = turns::claim(&world.db, world.replica, &[id]).await.unwrap().remove(0);
    let interrupt = context.interrupt.unwrap();
    assert_eq!((interrupt.subject.as_str(), interrupt.reason.as_str()), ("bob", "enough"));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_is_stopped_where_it_is_and_only_while_it_runs(db: PgPool) {
    let world = World::new(db).await;
    let idle = world.session().await;
    assert!(matches!(world.interrupt(idle, None).await, Err(Error::NothingRuns(_))));
    let unknown = world.interrupt(idle, Some(TurnId::new())).await;
    assert!(matches!(unknown, Err(Error::TurnNotFound { .. })));

    let claim = world.claimed().await;
    let (id, owner) = (claim.session_id, Owner::from(&claim));
    let interrupted = world.interrupt(id, Some(claim.turn_id)).await.unwrap();
    assert_eq!((interrupted.owner, interrupted.ready), (Some(world.replica), false));
    let found = turns::interrupts(&world.db, world.replica).await.unwrap();
    assert_eq!((found.len(), found[0].0, found[0].1.turn_id), (1, id, claim.turn_id));

    let end = pending(|pending, now| {
        pending.append(started(), now);
        pending.end(Ending::Cancelled);
    });
    world.flush(&owner, &end).await.unwrap();
    assert!(turns::interrupts(&world.db, world.replica).await.unwrap().is_empty());
    assert!(matches!(world.interrupt(id, None).await, Err(Error::NothingRuns(_))));
}

/// A wish to stop that comes while the turn is about to wait is not slept through.
#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_should_stop_does_not_wait(db: PgPool) {
    let world = World::new(db).await;
    let waiting = world.asking("approval").await;
    world.interrupt(waiting.claim.session_id, None).await.unwrap();
    assert!(world.park(&waiting).await);
    assert_eq!(world.state(waiting.claim.session_id).await.status, "ready");
}

/// Whoever is to stop it may have come while its question was on the way to the log.
#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_ends_leaves_no_question_open(db: PgPool) {
    let world = World::new(db).await;
    // It was to be stopped before it could wait.
    let waiting = world.asking("approval").await;
    let id = waiting.claim.session_id;
    world.submit(id, "second").await;
    world.interrupt(id, Some(waiting.claim.turn_id)).await.unwrap();
    assert!(world.park(&waiting).await);
    let claim = world.claim(id).await;
    let end = pending(|pending, now| {
        pending.append(completed(), now);
        pending.end(Ending::Cancelled);
    });
    let answer = world.flush(&Owner::from(&claim), &end).await.unwrap();
    assert_eq!(answer.told.0.len(), 1);
    let resolved = answer.told.0.into_iter().next().unwrap().into_event().unwrap();
    assert_eq!(resolved.action_id, waiting.action_id.to_string());
    assert_eq!(resolved.sequence, answer.base + 1);
    assert!(matches!(world.answer(&waiting, None).await, Err(Error::ActionResolved { .. })));
    let log = world.log(id).await;
    assert!(
        log.ends_with("turn.completed\n8 action.resolved cancelled\n9 queue.changed fired 0\n"),
        "{log}"
    );
    assert_eq!(world.state(id).await.next_seq, 10);
    let list = actions::list(&world.db, &world.tenant, Some(id), true, None, 10).await.unwrap();
    assert_eq!(list[0].resolution.as_ref().unwrap().subject, "bob");

    // It failed, and nobody withdrew anything.
    let waiting = world.asking("approval").await;
    let broken = pending(|pending, _| pending.end(Ending::Broken { message: "oh".into() }));
    world.flush(&waiting.owner, &broken).await.unwrap();
    let answer = world.answer(&waiting, Some("project")).await;
    assert!(matches!(answer, Err(Error::ActionResolved { .. })));
    assert!(actions::open(&world.db, waiting.claim.session_id).await.unwrap().is_empty());

    // It asks and ends in one breath.
    let claim = world.claimed().await;
    let call = ToolCallId::new();
    let both = pending(|pending, now| {
        let message = step(crate::ids::MessageId::new(), "");
        let request = ActionRequired { kind: "question".into(), ..ActionRequired::default() };
        pending.ask(claim.turn_id, &message, call, &Asking { request, rule: None }, now);
        pending.end(Ending::Failed);
    });
    world.flush(&Owner::from(&claim), &both).await.unwrap();
    assert!(actions::open(&world.db, claim.session_id).await.unwrap().is_empty());
}

/// A worker that died right after it took a turn that had waited said nothing yet.
#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_goes_on_after_a_wait_goes_back_like_one_that_never_began(db: PgPool) {
    let world = World::new(db).await;
    let waiting = world.parked("approval").await;
    sqlx::query("update session.turn set status = 'waiting'").execute(&world.db).await.unwrap();
    world.answer(&waiting, None).await.unwrap();
    let id = waiting.claim.session_id;
    let (_, context) = turns::claim(&world.db, world.replica, &[id]).await.unwrap().remove(0);
    assert!(context.resumes);
    let judge = world.another_replica().await;
    replicas::leave(&world.db, world.replica).await.unwrap();
    let adopted = replicas::adopt(&world.db, judge, id, world.replica).await.unwrap();
    assert!(matches!(adopted, Adopted::Ready));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn only_the_owner_withdraws_for_its_turn(db: PgPool) {
    let world = World::new(db).await;
    let waiting = world.asking("approval").await;
    let stranger = world.another_replica().await;
    let events = actions::cancel(&world.db, &waiting.claim, stranger).await.unwrap();
    assert!(events.is_empty());
    let events = actions::cancel(&world.db, &waiting.claim, world.replica).await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].action_id, waiting.action_id.to_string());
    let answer = world.answer(&waiting, None).await;
    assert!(matches!(answer, Err(Error::ActionResolved { .. })));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_expires_is_found(db: PgPool) {
    let world = World::new(db).await;
    let waiting = world.parked("approval").await;
    assert!(actions::due(&world.db, 10).await.unwrap().is_empty());
    sqlx::query("update session.action set expires_at = now() - interval '1 second'")
        .execute(&world.db)
        .await
        .unwrap();
    let due = actions::due(&world.db, 10).await.unwrap();
    assert_eq!(due.iter().map(|due| due.id).collect::<Vec<_>>(), [waiting.action_id]);
}
