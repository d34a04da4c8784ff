use std::collections::HashSet;

use chassis::Tenant;
use expect_test::expect;
use proto::{
    event::v1::{Event, Payload, TurnFailed},
    session::v1::TurnView,
};
use serde_json::json;
use sqlx::PgPool;

use crate::{
    error::Error,
    ids::{RunId, SessionId, TaskId, WorkspaceId},
    message::Part,
    pending::Owner,
    store::{
        items, runs,
        tasks::{self, Change, Criterion, Filter, Moved, NewTask, Report, RunChange},
        turns::{self, Claim, NewTurn},
    },
    task::{Move, Seen, Status},
    testing::{World, completed, pending, stamp, started},
    turn::Ending,
};

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn creating_twice_creates_once(db: PgPool) {
    let world = World::new(db).await;
    let first = world.task("one", |_| ()).await;
    assert_eq!(world.task("one", |_| ()).await, first);
    let other = world.try_task("one", |new| new.request_digest = "other").await.unwrap_err();
    expect!["request id one was used before for something else"].assert_eq(&other.to_string());
    let create = || world.task("two", |_| ());
    let (a, b, c, d) = tokio::join!(create(), create(), create(), create());
    assert_eq!([b, c, d], [a; 3]);
    expect![[r#"
        1 session.created
        2 thread.started
        3 task.created
        4 task.delegated
        5 task.queued queued
    "#]]
    .assert_eq(&world.log(first.session()).await);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_failed_attempt_stays_and_another_begins(db: PgPool) {
    let world = World::new(db).await;
    let parent = world.task("parent", |_| ()).await;
    let id = world.task("child", |new| new.parent_id = Some(parent)).await;
    let before = world.task("before", |new| new.draft = true).await;
    world.link(before, id, "relates").await.unwrap();
    let first = world.start_task(id).await.unwrap();
    let claim = world.submit_run(id, first).await;
    assert_eq!(world.follow().await, "preparing -> running\n");
    assert_eq!(world.follow().await, "");
    world.end_run(&claim, "provider_error").await;
    assert_eq!(world.follow().await, "running -> failed\n");

    let edges = world.edges(id).await;
    let retry = async |request_id| {
        let change =
            Change { request_id: Some(request_id), ..Change::by_command(Move::Retry, "alice", "") };
        world.apply(id, Move::Retry, change).await
    };
    assert_eq!(retry("again").await.status, "retrying");
    let again = retry("again").await;
    assert_eq!((again.refused, again.status.as_str()), (false, "retrying"));
    assert!(retry("another").await.refused);
    let second = world.start_task(id).await.unwrap();
    assert_ne!(second, first);
    assert_eq!(world.edges(id).await, edges);
    assert_eq!(world.attempts(id).await, "failed provider_error\npreparing \n");

    // Whoever hears late of the first attempt changes nothing.
    let run = RunChange { id: first, status: "completed", error: "" };
    let late = Change { run: Some(run), ..Change::default() };
    assert!(world.apply(id, Move::Complete, late).await.events.is_empty());
    assert_eq!(world.attempts(id).await, "failed provider_error\npreparing \n");
    let facts: Vec<(String, Option<String>, Option<String>)> = sqlx::query_as(
        "select type, task_id, run_id from session.event
         where session_id = $1 and type like 'task.%' order by seq",
    )
    .bind(id.session())
    .fetch_all(&world.db)
    .await
    .unwrap();
    assert!(facts.iter().all(|(_, task_id, _)| *task_id == Some(id.to_string())));
    let of = |run: RunId| {
        let run = run.to_string();
        let facts = facts.iter().filter(move |(_, _, id)| id.as_ref() == Some(&run));
        facts.map(|(name, ..)| name.as_str()).collect::<Vec<_>>().join(" ")
    };
    expect![
        "task.queued task.attempt.started task.started task.updated task.attempt.failed task.failed"
    ]
    .assert_eq(&of(first));
    expect!["task.retrying task.attempt.started task.started"].assert_eq(&of(second));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_host_that_dies_loses_the_attempt(db: PgPool) {
    let world = World::new(db).await;
    let id = world.task("one", |_| ()).await;
    let run = world.start_task(id).await.unwrap();
    let claim = world.submit_run(id, run).await;
    world.end_run(&claim, "host_restart").await;
    assert_eq!(world.follow().await, "preparing -> lost\n");
    assert_eq!(world.attempts(id).await, "failed host_restart\n");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_is_blocked_starts_when_it_may(db: PgPool) {
    let world = World::new(db).await;
    let (a, b) = (world.task("a", |_| ()).await, world.task("b", |_| ()).await);
    let c = world.task("c", |new| new.blocked_by = vec![a, b]).await;
    assert_eq!(world.status(c).await, "blocked");
    assert_eq!(world.start_task(c).await, None);
    for (id, after) in [(a, "blocked"), (b, "queued")] {
        let run = world.start_task(id).await.unwrap();
        let claim = world.submit_run(id, run).await;
        world.end_run(&claim, "").await;
        world.follow().await;
        assert_eq!(world.status(id).await, "completed");
        world.deliver().await;
        assert_eq!(world.status(c).await, after);
    }
    // Archived, they still count as done.
    world.command(a, Move::Archive).await;
    let d = world.task("d", |new| new.blocked_by = vec![a]).await;
    assert_eq!(world.status(d).await, "queued");
    assert!(world.start_task(c).await.is_some());

    // One that is linked before it starts waits, too.
    let e = world.task("e", |_| ()).await;
    world.link(c, e, "blocks").await.unwrap();
    world.deliver().await;
    assert_eq!(world.status(e).await, "blocked");
    let edges = world.edges(e).await;
    assert_eq!(edges, format!("blocked_by {c} open\n"));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn no_edge_makes_a_circle(db: PgPool) {
    let world = World::new(db).await;
    let (a, b, c) = (
        world.task("a", |_| ()).await,
        world.task("b", |_| ()).await,
        world.task("c", |_| ()).await,
    );
    world.link(a, b, "blocks").await.unwrap();
    world.link(b, c, "blocks").await.unwrap();
    world.link(b, c, "blocks").await.unwrap();
    for (from, to) in [(c, a), (b, a), (a, a)] {
        let error = world.link(from, to, "blocks").await.unwrap_err();
        assert!(matches!(error, Error::TaskCycle { .. }), "{error}");
    }
    // Other kinds are other graphs.
    world.link(c, a, "relates").await.unwrap();
    world.link(c, b, "parent").await.unwrap();
    world.link(b, a, "parent").await.unwrap();
    assert!(matches!(world.link(a, c, "parent").await, Err(Error::TaskCycle { .. })));
    assert!(matches!(world.link(c, a, "parent").await, Err(Error::Invalid { .. })));
    let roots: Vec<String> = sqlx::query_scalar("select root_id from session.task order by id")
        .fetch_all(&world.db)
        .await
        .unwrap();
    assert_eq!(roots, [a.to_string(), a.to_string(), a.to_string()]);

    // Two that are good by themselves, at once.
    for round in 0..10 {
        let one = world.task(&format!("one-{round}"), |_| ()).await;
        let other = world.task(&format!("other-{round}"), |_| ()).await;
        let (there, back) =
            tokio::join!(world.link(one, other, "blocks"), world.link(other, one, "blocks"));
        assert!(there.is_ok() != back.is_ok(), "{there:?} {back:?}");
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_command_reaches_what_depends_on_the_task(db: PgPool) {
    let world = World::new(db).await;
    let top = world.task("top", |_| ()).await;
    let child = world.task("child", |new| new.parent_id = Some(top)).await;
    let grandchild = world.task("grandchild", |new| new.parent_id = Some(child)).await;
    let next = world.task("next", |new| new.blocked_by = vec![child]).await;
    let draft = world.task("draft", |new| (new.parent_id, new.draft) = (Some(top), true)).await;
    let alone = world.task("alone", |_| ()).await;
    let all = [top, child, grandchild, next, draft, alone];
    let run = world.start_task(grandchild).await.unwrap();
    let claim = world.submit_run(grandchild, run).await;
    world.follow().await;

    // Somebody paused one of them before, and means it.
    world.command(next, Move::Pause).await;
    world.command(top, Move::Pause).await;
    world.deliver().await;
    expect!["paused paused paused paused draft queued"].assert_eq(&world.statuses(all).await);
    assert_eq!(runs::stopping(&world.db, grandchild).await.unwrap(), [(run, "paused".to_owned())]);
    world.end_run(&claim, "interrupted").await;
    assert_eq!(world.follow().await, "paused -> paused\n");

    world.command(top, Move::Resume).await;
    world.deliver().await;
    expect!["queued queued queued paused draft queued"].assert_eq(&world.statuses(all).await);
    assert_ne!(world.start_task(grandchild).await.unwrap(), run, "an attempt was begun again");

    world.command(top, Move::Cancel).await;
    world.deliver().await;
    expect!["cancelled cancelled cancelling cancelled cancelled queued"]
        .assert_eq(&world.statuses(all).await);
    let refused = world.try_task("late", |new| new.parent_id = Some(top)).await.unwrap_err();
    assert!(matches!(refused, Error::TaskWrongStatus { .. }), "{refused}");

    world.command(top, Move::Archive).await;
    world.deliver().await;
    expect!["archived archived cancelling cancelled archived queued"]
        .assert_eq(&world.statuses(all).await);
    assert_eq!(runs::wishes(&world.db, 10).await.unwrap().len(), 0);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn the_database_refuses_what_the_table_does(db: PgPool) {
    let world = World::new(db).await;
    let id = world.task("one", |_| ()).await;
    for status in Status::ALL {
        for what in Move::ALL {
            sqlx::query(
                "update session.task set status = $2, paused_by = case when $2 = 'paused' then id end
                 where id = $1",
            )
            .bind(id)
            .bind(status.as_str())
            .execute(&world.db)
            .await
            .unwrap();
            let moved = world.apply(id, what, Change::default()).await;
            let after = status.after(what);
            assert_eq!(moved.refused, after.is_none(), "{status:?} {what:?}");
            assert_eq!(world.status(id).await, after.unwrap_or(status).as_str());
        }
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn lists_are_whole_and_in_order(db: PgPool) {
    let world = World::new(db).await;
    let parent = world.task("parent", |_| ()).await;
    let mut ids = vec![parent];
    for number in 0..9 {
        let name = format!("child-{number}");
        ids.push(
            world
                .task(&name, |new| {
                    new.parent_id = Some(parent);
                    new.draft = number % 3 == 0;
                    new.subject = if number % 2 == 0 { "alice" } else { "bob" };
                })
                .await,
        );
    }
    ids.reverse();
    let list = async |filter: Filter<'static>| {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let page = tasks::list(&world.db, &world.tenant, filter, before, 2).await.unwrap();
            let Some(last) = page.last() else { return found };
            before = Some(last.id);
            found.extend(page.iter().map(|task| ids.iter().position(|id| *id == task.id).unwrap()));
        }
    };
    assert_eq!(list(Filter::default()).await, (0..10).collect::<Vec<_>>());
    let children = Filter { parent_id: Some(parent), ..Filter::default() };
    assert_eq!(list(children).await, (0..9).collect::<Vec<_>>());
    let drafts = Filter { status: Some("draft"), ..Filter::default() };
    assert_eq!(list(drafts).await, [2, 5, 8]);
    assert_eq!(list(Filter { owner: Some("bob"), ..drafts }).await, [5]);
    let bobs = Filter { owner: Some("bob"), ..Filter::default() };
    assert_eq!(list(bobs).await, [1, 3, 5, 7]);
    assert_eq!(list(Filter { parent_id: Some(parent), ..bobs }).await, [1, 3, 5, 7]);

    let id = ids[0];
    world.command(id, Move::Cancel).await;
    world.command(id, Move::Archive).await;
    assert_eq!(list(Filter::default()).await, (1..10).collect::<Vec<_>>());
    let archived = Filter { status: Some("archived"), ..Filter::default() };
    assert_eq!(list(archived).await, [0]);
    let rival = "rival".parse().unwrap();
    let nothing = tasks::list(&world.db, &rival, Filter::default(), None, 10).await.unwrap();
    assert!(nothing.is_empty());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn reports_are_kept_and_told(db: PgPool) {
    let world = World::new(db).await;
    let criterion =
        |text: &str, met| Criterion { criterion: text.into(), met, ..Default::default() };
    let criteria = [criterion("small", false), criterion("fast", false)];
    let id = world.task("one", |new| new.acceptance = criteria.to_vec()).await;
    let update = async |report: Report<'_>| {
        let (db, stamp) = (&world.db, stamp(world.replica));
        tasks::update(db, &world.tenant, id, &report, "alice", &stamp).await
    };
    let half = Report { percent: Some(50), message: Some("half"), ..Default::default() };
    update(half).await.unwrap();
    let met = [criterion("fast", true)];
    let report = Report { acceptance: &met, delivery_state: Some("pending"), ..Default::default() };
    update(report).await.unwrap();
    let unknown = [criterion("cheap", true)];
    let refused = update(Report { acceptance: &unknown, ..Default::default() }).await;
    assert!(matches!(refused, Err(Error::Invalid { field: "acceptance", .. })));
    let mut db = world.db.acquire().await.unwrap();
    let (task, ..) = tasks::get(&mut db, &world.tenant, id).await.unwrap();
    assert_eq!((task.percent, task.progress_message.as_str()), (50, "half"));
    assert_eq!(task.acceptance.0, [criterion("small", false), criterion("fast", true)]);
    assert_eq!(task.delivery_state, "pending");
    expect![[r#"
        1 session.created
        2 thread.started
        3 task.created
        4 task.delegated
        5 task.queued queued
        6 task.progress
        7 task.updated queued
    "#]]
    .assert_eq(&world.log(id.session()).await);
}

/// What tests change of a new task.
struct New<'a> {
    request_digest: &'a str,
    subject: &'a str,
    parent_id: Option<TaskId>,
    blocked_by: Vec<TaskId>,
    acceptance: Vec<Criterion>,
    draft: bool,
}

impl World {
    async fn task(&self, request_id: &str, change: impl FnOnce(&mut New<'_>)) -> TaskId {
        self.try_task(request_id, change).await.unwrap()
    }

    async fn try_task(
        &self,
        request_id: &str,
        change: impl FnOnce(&mut New<'_>),
    ) -> Result<TaskId, Error> {
        let mut new = New {
            request_digest: "digest",
            subject: "alice",
            parent_id: None,
            blocked_by: vec![],
            acceptance: vec![],
            draft: false,
        };
        change(&mut new);
        let new = NewTask {
            id: TaskId::new(),
            tenant: &self.tenant,
            subject: new.subject,
            request_id,
            request_digest: new.request_digest,
            title: request_id,
            objective: "do it",
            parent_id: new.parent_id,
            blocked_by: &new.blocked_by,
            agent: "default",
            workspace_id: WorkspaceId::new(),
            acceptance: &new.acceptance,
            timeout_seconds: 0,
            draft: new.draft,
            created: &json!({}),
        };
        tasks::create(&self.db, new, &stamp(self.replica)).await
    }

    async fn link(&self, id: TaskId, target: TaskId, kind: &str) -> Result<(), Error> {
        let stamp = stamp(self.replica);
        tasks::link(&self.db, &self.tenant, id, target, kind, "", &stamp).await.map(drop)
    }

    async fn apply(&self, id: TaskId, what: Move, change: Change<'_>) -> Moved {
        let stamp = stamp(self.replica);
        tasks::apply(&self.db, None, id, Some(what), &change, &stamp).await.unwrap()
    }

    async fn command(&self, id: TaskId, what: Move) {
        let moved = self.apply(id, what, Change::by_command(what, "alice", "")).await;
        assert!(!moved.refused, "{what:?} of {}", moved.status);
    }

    async fn status(&self, id: TaskId) -> String {
        let mut db = self.db.acquire().await.unwrap();
        tasks::get(&mut db, &self.tenant, id).await.unwrap().0.status
    }

    async fn statuses(&self, ids: impl IntoIterator<Item = TaskId>) -> String {
        let mut statuses = Vec::new();
        for id in ids {
            statuses.push(self.status(id).await);
        }
        statuses.join(" ")
    }

    /// The attempts, one line each.
    async fn attempts(&self, id: TaskId) -> String {
        let mut db = self.db.acquire().await.unwrap();
        let (_, runs, _) = tasks::get(&mut db, &self.tenant, id).await.unwrap();
        runs.iter().map(|run| format!("{} {}\n", run.status, run.error)).collect()
    }

    async fn edges(&self, id: TaskId) -> String {
        let mut db = self.db.acquire().await.unwrap();
        let (.., edges) = tasks::get(&mut db, &self.tenant, id).await.unwrap();
        let line =
            |edge: &tasks::Edge| format!("{} {} {}\n", edge.kind, edge.target_id, edge.status);
        edges.iter().map(line).collect()
    }

    async fn start_task(&self, id: TaskId) -> Option<RunId> {
        runs::start(&self.db, id, self.replica, &stamp(self.replica)).await.unwrap().0
    }

    /// Submits the turn of an attempt, claims it, and lets it begin.
    async fn submit_run(&self, id: TaskId, run_id: RunId) -> Claim {
        let new = NewTurn {
            tenant: self.tenant.clone(),
            session_id: id.session(),
            message_id: run_id.message(),
            request_id: run_id.to_string(),
            request_digest: run_id.to_string(),
            parts: vec![Part::text("do it")],
            metadata: json!({}),
            submitted: json!({}),
            subject: "alice".to_owned(),
            trace_parent: None,
            reject: false,
            queue_limit: 3,
        };
        turns::submit(&self.db, &new, None, &stamp(self.replica)).await.unwrap();
        let mut claim = self.claim(id.session()).await;
        assert_eq!(claim.turn_id, run_id.turn());
        let begin = pending(|pending, now| {
            pending.append(started(), now);
            pending.save_turn(claim.turn_id, &Default::default());
        });
        self.flush(&Owner::from(&claim), &begin).await.unwrap();
        claim.flush_no += 1;
        claim
    }

    /// Ends the turn of an attempt, well unless there is a reason.
    async fn end_run(&self, claim: &Claim, reason: &str) {
        let (status, ending) = match reason {
            "" => ("completed", Ending::Completed),
            "interrupted" => ("cancelled", Ending::Cancelled),
            _ => ("failed", Ending::Failed),
        };
        let failed = TurnFailed { reason: reason.to_owned(), ..TurnFailed::default() };
        let event = match reason {
            "" => completed(),
            _ => Event::fact(Payload::TurnFailed(failed)),
        };
        let view = TurnView {
            status: status.to_owned(),
            status_reason: reason.to_owned(),
            ..TurnView::default()
        };
        let end = pending(|pending, now| {
            pending.append(event, now);
            pending.save_turn(claim.turn_id, &view);
            pending.end(ending);
        });
        self.flush(&Owner::from(claim), &end).await.unwrap();
    }

    /// Takes in what became of attempts, one line for each.
    async fn follow(&self) -> String {
        let mut lines = String::new();
        let open = runs::open(&self.db, None, 100).await.unwrap();
        for run in runs::changed(&self.db, &open).await.unwrap() {
            if run.status == run.known {
                continue;
            }
            let before = self.status(run.task_id).await;
            let stopping = run.stopping.as_deref();
            let seen = Seen { status: &run.status, reason: &run.reason, stopping };
            let error = if run.message.is_empty() { "" } else { &run.message };
            let attempt = RunChange { id: run.id, status: seen.attempt(), error };
            let change = Change { run: Some(attempt), error, ..Change::default() };
            self.apply(run.task_id, seen.means().unwrap(), change).await;
            lines += &format!("{before} -> {}\n", self.status(run.task_id).await);
        }
        lines
    }

    /// Delivers all wishes and what follows from them.
    async fn deliver(&self) {
        loop {
            let wishes = runs::wishes(&self.db, 10).await.unwrap();
            if wishes.is_empty() {
                return;
            }
            for wish in wishes {
                let command = match wish.wish.as_str() {
                    "pause" => Move::Pause,
                    "resume" => Move::Resume,
                    "cancel" => Move::Cancel,
                    "archive" => Move::Archive,
                    _ => {
                        let stamp = stamp(self.replica);
                        runs::check(&self.db, wish.task_id, wish.id, &stamp).await.unwrap();
                        continue;
                    }
                };
                let change = Change {
                    wish: Some(wish.id),
                    origin: Some(&wish.origin),
                    ..Change::by_command(command, "alice", "")
                };
                self.apply(wish.task_id, command, change).await;
            }
        }
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn nobodys_tasks_wait_behind_those_of_another(db: PgPool) {
    let ids: Vec<_> = (0..500).map(|_| SessionId::new().to_string()).collect();
    sqlx::query(
        "insert into session.task (id, tenant_id, request_id, request_digest, owner, title, objective, root_id,
                status, run_id)
         select 'task_' || right(id, 26), case when n = 500 then 'other' else 'acme' end, n, '', 'alice', '',
                'do', '', 'queued', ''
         from unnest($1::text[]) with ordinality s(id, n)",
    )
    .bind(&ids)
    .execute(&db)
    .await
    .unwrap();
    let due = runs::due(&db, None, 10).await.unwrap();
    let tenants = || due.iter().map(|(tenant, _)| tenant.to_string());
    assert_eq!(tenants().filter(|tenant| tenant == "other").count(), 1, "{due:?}");
    assert!(due.len() >= 5);

    sqlx::query(
        "insert into session.job (id, tenant_id, request_id, request_digest, subject, instruction, agent,
                output_schema, parallelism, inspectable, status, pending, started_at)
         select 'job_' || right(id, 26), case when n = 90 then 'other' else 'acme' end, n, '', 'alice', '',
                'default', '', 100, true, 'running', 1, now() + n * interval '1 second'
         from unnest($1::text[]) with ordinality s(id, n)",
    )
    .bind(&ids[..90])
    .execute(&db)
    .await
    .unwrap();
    let due = items::due(&db, 2).await.unwrap();
    let due: Vec<_> = due.iter().map(|id| id.session().to_string()).collect();
    assert_eq!(due, [ids[0].clone(), ids[89].clone()]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn of_more_tenants_than_one_look_meets_the_next_ones_come_to_all(db: PgPool) {
    let ids: Vec<_> = (0..1200).map(|_| SessionId::new().to_string()).collect();
    sqlx::query(
        "insert into session.task (id, tenant_id, request_id, request_digest, owner, title, objective, root_id,
                status, run_id)
         select 'task_' || right(id, 26), 't' || lpad(n::text, 4, '0'), n, '', 'alice', '',
                'do', '', 'queued', ''
         from unnest($1::text[]) with ordinality s(id, n)",
    )
    .bind(&ids)
    .execute(&db)
    .await
    .unwrap();
    let tenant = |name: &str| name.parse::<Tenant>().unwrap();
    let due = async |first: Option<&str>| {
        let first = first.map(tenant);
        let due = runs::due(&db, first.as_ref(), 2_000).await.unwrap();
        due.into_iter().map(|(tenant, _)| tenant).collect::<HashSet<_>>()
    };
    let met = due(None).await;
    assert!(met.len() == 1_000 && !met.contains(&tenant("t1200")));
    let met = due(Some("t0700")).await;
    let all = ["t0701", "t1200", "t0001", "t0500"].map(tenant);
    assert!(met.len() == 1_000 && all.iter().all(|one| met.contains(one)));
    assert!(!met.contains(&tenant("t0700")), "it was met the last time");
}
