//! The scripts against a real Redis, and against the counters in memory.

use std::time::Duration;

use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};
use redis::AsyncCommands as _;
use tokio::time::sleep;

use super::*;
use crate::{
    counters::{Balance, MINUTE},
    limit::{Measure, Window},
    request::{Basis, Status},
};

/// On the Redis that all tests share.
pub fn bus() -> Bus {
    bus_at(&std::env::var("REDIS_URL").unwrap())
}

pub fn bus_at(url: &str) -> Bus {
    Bus::new(Redis::new(&chassis::redis::Args { redis_url: url.into() }).unwrap())
}

struct Rig {
    bus: Bus,
    tenant: Tenant,
    replica: ReplicaId,
    now: Moment,
    epoch: String,
}

impl Rig {
    /// A tenant of its own on the Redis that all tests share.
    async fn new() -> Rig {
        let tenant: Tenant = ReplicaId::new().to_string().try_into().unwrap();
        let now = Moment::of(jiff::Timestamp::now());
        let mut rig =
            Rig { bus: bus(), tenant, replica: ReplicaId::new(), now, epoch: String::new() };
        rig.open(&Counters::default(), &[]).await;
        rig
    }

    async fn open(&mut self, counters: &Counters, held: &[(Row, Vec<Check>)]) {
        self.epoch = ReplicaId::new().to_string();
        let Rig { bus, tenant, now, epoch, .. } = self;
        assert_eq!(bus.begin(tenant, epoch).await.unwrap(), Turn::Yours);
        let rules = Rules::default();
        let turn = bus.rebuild(tenant, epoch, now, &rules, counters, held).await.unwrap();
        assert_eq!(turn, Turn::Yours);
    }

    fn row(&self) -> Row {
        row(self.tenant.as_str(), self.replica, self.now.at)
    }

    async fn admit(&self, checks: &[Check]) -> (ModelRequestId, Answer) {
        let row = self.row();
        (row.id, self.ask(checks, &row).await)
    }

    async fn ask(&self, checks: &[Check], row: &Row) -> Answer {
        self.bus.admit(&self.tenant, &self.epoch, &self.now, checks, row).await.unwrap()
    }

    async fn settle(&self, id: ModelRequestId, tokens: i64, micros: i64) -> Settled {
        self.bus.settle(&self.tenant, id, Worst { tokens, micros }).await.unwrap()
    }

    /// The milliseconds of the clock that the scripts go by.
    async fn clock(&self) -> i64 {
        let mut connection = self.bus.redis.connection();
        let (seconds, micros): (i64, i64) =
            redis::cmd("time").query_async(&mut connection).await.unwrap();
        seconds * 1000 + micros / 1000
    }

    /// Leaves the keys so little time that somebody has to see to it that they stay.
    async fn hurry(&self, keys: &[(String, i64)]) {
        for (name, _) in keys {
            let key = key(&self.tenant, name);
            let found: bool = self.bus.redis.connection().expire(key, 5).await.unwrap();
            assert!(found, "{name}");
        }
    }

    /// Asserts that since `began` somebody gave each of the keys its seconds.
    async fn stay_since(&self, began: i64, keys: &[(String, i64)]) {
        let now = self.clock().await;
        for (name, seconds) in keys {
            let key = key(&self.tenant, name);
            let ends: i64 = self.bus.redis.connection().pexpire_time(key).await.unwrap();
            assert!((began..=now).contains(&(ends - seconds * 1000)), "{name} {began} {ends}");
        }
    }

    /// What a script would find used.
    async fn used(&self, check: &Check) -> i64 {
        // More than there can be: the refusal tells.
        let probe = Check { need: 1 << 50, ..check.clone() };
        match self.admit(&[probe]).await.1 {
            Answer::Refused(blocked) => blocked[0].used,
            other => panic!("{other:?}"),
        }
    }
}

pub fn row(tenant: &str, replica_id: ReplicaId, started_at: jiff::Timestamp) -> Row {
    Row {
        id: ModelRequestId::new(),
        tenant_id: tenant.to_owned(),
        subject: "ada".to_owned(),
        session_id: "ses_1".to_owned(),
        root_session_id: "ses_1".to_owned(),
        turn_id: "turn_1".to_owned(),
        step_id: "step_1".to_owned(),
        provider: "scripted".to_owned(),
        model: "demo".to_owned(),
        budget_id: None,
        replica_id,
        status: Status::Running,
        error_kind: String::new(),
        basis: Basis::None,
        reserved_input: 10,
        reserved_output: 20,
        reserved_micros: 90,
        input: 0,
        output: 0,
        reasoning: 0,
        cache_read: 0,
        cache_write: 0,
        cost_micros: 0,
        currency: "USD".to_owned(),
        started_at,
        first_token_ms: 0,
        duration_ms: 0,
    }
}

fn check(window: Window, measure: Measure, need: i64, limit: i64) -> Check {
    let counter = format!("{window:?}-{measure:?}");
    Check { window, counter, measure, need, limit, queue_ms: 0, wait_ms: 0 }
}

fn checks(need: i64) -> Vec<Check> {
    vec![
        check(Window::Live, Measure::Calls, 1, 3),
        check(Window::Minute, Measure::Calls, 1, 20),
        check(Window::Minute, Measure::Tokens, need, 200),
        check(Window::Day, Measure::Tokens, need, 400),
        check(Window::Month, Measure::Micros, need, 450),
        check(Window::Budget, Measure::Micros, need, 300),
    ]
}

/// Whatever happens, the scripts decide as the counters in memory do.
#[tokio::test]
async fn scripts_and_memory_agree() {
    let step = prop_oneof![
        3 => (1_i64..60).prop_map(|need| (need, 0_usize, 0_i64)),
        2 => (any::<usize>(), 0_i64..=100).prop_map(|(which, percent)| (0, which, percent)),
    ];
    let strategy = prop::collection::vec(step, 1..60);
    let mut runner = TestRunner::deterministic();
    for _ in 0..16 {
        let steps = strategy.new_tree(&mut runner).unwrap().current();
        let rig = Rig::new().await;
        let (mut memory, mut open) = (Counters::default(), Vec::new());
        // All of it within the minute of the clock on the wall.
        let second = rig.now.second();
        for (need, which, percent) in steps {
            if need > 0 {
                let checks = checks(need);
                let (id, answer) = rig.admit(&checks).await;
                let blocked = memory.admit(&checks, second);
                let admitted = matches!(answer, Answer::Admitted { .. });
                assert_eq!(admitted, blocked.is_empty(), "{answer:?} {blocked:?}");
                if let Answer::Refused(found) = answer {
                    let which = |list: &[Blocked]| -> Vec<_> {
                        list.iter().map(|one| (one.check, one.used)).collect()
                    };
                    assert_eq!(which(&found), which(&blocked));
                } else {
                    open.push((id, checks, need));
                }
            } else if !open.is_empty() {
                let (id, checks, need) = open.swap_remove(which % open.len());
                let took = need * percent / 100;
                assert!(matches!(rig.settle(id, took, took).await, Settled::Done));
                memory.settle(&checks, second, Worst { tokens: took, micros: took }, second);
                assert_eq!(rig.settle(id, took, took).await, Settled::Gone);
            }
        }
        for check in checks(1) {
            let expected = memory.used(check.window, &check.counter, second);
            assert_eq!(rig.used(&check).await, expected, "{check:?}");
        }
        assert_eq!(rig.bus.held(&rig.tenant).await.unwrap().len(), open.len());
    }
}

#[tokio::test]
async fn nothing_is_admitted_by_old_rules_or_without_counters() {
    let mut rig = Rig::new().await;
    let current = std::mem::replace(&mut rig.epoch, "another".to_owned());
    match rig.admit(&[]).await.1 {
        Answer::Stale { epoch, rules } => assert_eq!((epoch, rules), (current, Rules::default())),
        other => panic!("{other:?}"),
    }
    rig.bus.invalidate(&rig.tenant).await.unwrap();
    assert_eq!(rig.admit(&[]).await.1, Answer::Lost);
    assert_eq!(rig.settle(ModelRequestId::new(), 0, 0).await, Settled::Lost);
}

#[tokio::test]
async fn what_was_counted_in_another_life_of_redis_is_lost() {
    let mut rig = Rig::new().await;
    let (id, _) = rig.admit(&checks(10)).await;
    let meta = key(&rig.tenant, "meta");
    let lock = key(&rig.tenant, "building");
    // As a version before this one left it, and as a file or a replica may have it.
    let _: () = rig.bus.redis.connection().hdel(&meta, "life").await.unwrap();
    assert_eq!(rig.admit(&[]).await.1, Answer::Lost);
    let _: () = rig.bus.redis.connection().hset(&meta, "life", "another").await.unwrap();
    assert_eq!(rig.admit(&[]).await.1, Answer::Lost);
    assert_eq!(rig.settle(id, 0, 0).await, Settled::Lost);

    // Whoever was counting then has lost some of it too.
    let _: () = rig.bus.redis.connection().set(&lock, "another builder").await.unwrap();
    assert_eq!(rig.bus.begin(&rig.tenant, "one").await.unwrap(), Turn::Yours);
    assert_eq!(rig.bus.begin(&rig.tenant, "builder").await.unwrap(), Turn::Busy);
    // Nor does a version go on that looks for an epoch and not for its life.
    let epoch: bool = rig.bus.redis.connection().hexists(&meta, "epoch").await.unwrap();
    assert!(!epoch);
    rig.bus.invalidate(&rig.tenant).await.unwrap();
    rig.open(&Counters::default(), &[]).await;
    assert_eq!(rig.settle(id, 0, 0).await, Settled::Gone);
    assert!(matches!(rig.admit(&checks(10)).await.1, Answer::Admitted { .. }));
}

#[tokio::test]
async fn a_redis_that_may_not_tell_of_its_life_is_known() {
    let url = std::env::var("REDIS_URL").unwrap();
    let place = url.trim_start_matches("redis://").rsplit('@').next().unwrap();
    let name = ReplicaId::new().to_string();
    let rig = Rig::new().await;
    let mut connection = rig.bus.redis.connection();
    let acl = |words: &str| {
        let mut command = redis::cmd("ACL");
        command.arg(words.split(' ').collect::<Vec<_>>());
        command
    };
    let user = format!("SETUSER {name} on >secret ~* &* +@all -info");
    let () = acl(&user).query_async(&mut connection).await.unwrap();
    let silent = bus_at(&format!("redis://{name}:secret@{place}"));
    assert!(!silent.tells_lives().await.unwrap());
    assert!(rig.bus.tells_lives().await.unwrap());
    let () = acl(&format!("DELUSER {name}")).query_async(&mut connection).await.unwrap();
}

#[tokio::test]
async fn what_is_counted_anew_counts_like_what_was() {
    let mut rig = Rig::new().await;
    let second = rig.now.second();
    let counters = Counters {
        live: [("Live-Calls".to_owned(), 2)].into(),
        minute: [(
            "Minute-Calls".to_owned(),
            [(second - MINUTE - 5, 7), (second - 3, 4), (second, 1)].into(),
        )]
        .into(),
        day: [("Day-Tokens".to_owned(), 50)].into(),
        month: [("Month-Micros".to_owned(), 1 << 51)].into(),
        budgets: [("Budget-Micros".to_owned(), Balance { spent: 10, held: 90 })].into(),
    };
    let held = (rig.row(), checks(30));
    rig.bus.invalidate(&rig.tenant).await.unwrap();
    rig.open(&counters, std::slice::from_ref(&held)).await;
    let all = checks(1);
    let mut used = Vec::new();
    for check in &all {
        used.push(rig.used(check).await);
    }
    assert_eq!(used, [2, 5, 0, 50, 1 << 51, 100]);
    let found = rig.bus.held(&rig.tenant).await.unwrap();
    assert_eq!(found, [(held.0.id, Held { replica: rig.replica, row: held.0.clone() })]);

    let settled = rig.settle(held.0.id, 10, 10).await;
    assert_eq!(settled, Settled::Done);
    let mut used = Vec::new();
    for check in &all {
        used.push(rig.used(check).await);
    }
    assert_eq!(used, [1, 5, 0, 30, (1 << 51) - 20, 80]);
}

/// For as long as it counts, and not for ever.
#[tokio::test]
async fn a_counter_stays_whoever_wrote_it_last() {
    let mut rig = Rig::new().await;
    let (day, month) = (format!("day:{}", rig.now.day), format!("month:{}", rig.now.month));
    let all = [
        ("minute:Minute-Calls".to_owned(), 62),
        ("minute:Minute-Tokens".to_owned(), 62),
        (day, 172_800),
        (month, 2_764_800),
    ];
    let minutes = &all[..2];
    let checks = checks(10);
    let admit = async |rig: &Rig| {
        let (id, answer) = rig.admit(&checks).await;
        assert!(matches!(answer, Answer::Admitted { .. }), "{answer:?}");
        id
    };
    let next_second = || sleep(Duration::from_secs(1));

    let began = rig.clock().await;
    let first = admit(&rig).await;
    rig.stay_since(began, &all).await;

    rig.hurry(minutes).await;
    next_second().await;
    let began = rig.clock().await;
    let second = admit(&rig).await;
    rig.stay_since(began, minutes).await;

    // Nothing is left of what was taken but that there were calls.
    for id in [first, second] {
        assert_eq!(rig.settle(id, 0, 0).await, Settled::Done);
    }
    rig.hurry(&all[1..]).await;
    let began = rig.clock().await;
    admit(&rig).await;
    rig.stay_since(began, &all[1..]).await;

    let by_second: BTreeMap<_, _> = [(rig.now.second(), 10)].into();
    let counters = Counters {
        minute: ["Minute-Calls", "Minute-Tokens"]
            .map(|counter| (counter.to_owned(), by_second.clone()))
            .into(),
        day: [("Day-Tokens".to_owned(), 10)].into(),
        month: [("Month-Micros".to_owned(), 10)].into(),
        ..Counters::default()
    };
    rig.bus.invalidate(&rig.tenant).await.unwrap();
    let began = rig.clock().await;
    rig.open(&counters, &[]).await;
    rig.stay_since(began, &all).await;

    rig.hurry(minutes).await;
    next_second().await;
    let began = rig.clock().await;
    admit(&rig).await;
    rig.stay_since(began, minutes).await;
}

#[tokio::test]
async fn only_one_process_counts_anew() {
    let rig = Rig::new().await;
    let Rig { bus, tenant, now, .. } = &rig;
    bus.invalidate(tenant).await.unwrap();
    assert_eq!(bus.begin(tenant, "one").await.unwrap(), Turn::Yours);
    assert_eq!(bus.begin(tenant, "two").await.unwrap(), Turn::Busy);
    let (rules, none) = (Rules::default(), Counters::default());
    let turn = async |token| bus.rebuild(tenant, token, now, &rules, &none, &[]).await.unwrap();
    assert_eq!(turn("two").await, Turn::Busy);

    // Rules that change in between end the work of whoever had read the old ones.
    bus.invalidate(tenant).await.unwrap();
    assert_eq!(turn("one").await, Turn::Busy);
    assert_eq!(bus.renew(tenant, "one").await.unwrap(), Turn::Busy);
    assert_eq!(bus.begin(tenant, "one").await.unwrap(), Turn::Yours);
    assert_eq!(turn("one").await, Turn::Yours);
    assert_eq!(bus.begin(tenant, "two").await.unwrap(), Turn::Present);
}

#[tokio::test]
async fn a_claim_lasts_for_as_long_as_it_is_renewed() {
    let rig = Rig::new().await;
    rig.bus.invalidate(&rig.tenant).await.unwrap();
    assert_eq!(rig.bus.begin(&rig.tenant, "one").await.unwrap(), Turn::Yours);
    let claim = [("building".to_owned(), BUILDER.as_secs() as i64)];
    let began = rig.clock().await;
    sleep(Duration::from_millis(5)).await;
    assert_eq!(rig.bus.renew(&rig.tenant, "one").await.unwrap(), Turn::Yours);
    rig.stay_since(began, &claim).await;
    assert_eq!(rig.bus.renew(&rig.tenant, "two").await.unwrap(), Turn::Busy);
}

/// Whoever came first goes first, and whoever left is not waited for.
#[tokio::test]
async fn a_line_is_served_in_order() {
    let rig = Rig::new().await;
    let one =
        Check { queue_ms: 60_000, wait_ms: 60_000, ..check(Window::Live, Measure::Calls, 1, 1) };
    let one = std::slice::from_ref(&one);
    let (holder, _) = rig.admit(one).await;
    let (first, second) = (rig.row(), rig.row());
    assert!(matches!(rig.ask(one, &first).await, Answer::Wait(_)));
    sleep(Duration::from_millis(5)).await;
    assert!(matches!(rig.ask(one, &second).await, Answer::Wait(_)));
    rig.settle(holder, 0, 0).await;

    let newcomer = rig.row();
    assert!(matches!(rig.ask(one, &newcomer).await, Answer::Wait(_)));
    assert!(matches!(rig.ask(one, &second).await, Answer::Wait(_)));
    assert!(matches!(rig.ask(one, &first).await, Answer::Admitted { .. }));
    rig.settle(first.id, 0, 0).await;

    // The second is not heard of any more.
    let mut served = false;
    for _ in 0..60 {
        served = matches!(rig.ask(one, &newcomer).await, Answer::Admitted { .. });
        if served {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert!(served);
    let wait = key(&rig.tenant, "line:Live-Calls");
    let left: i64 = rig.bus.redis.connection().zcard(wait).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn nearing_the_end_is_told_once() {
    let rig = Rig::new().await;
    let quota = [check(Window::Day, Measure::Tokens, 40, 100)];
    let mut told = Vec::new();
    for _ in 0..2 {
        match rig.admit(&quota).await.1 {
            Answer::Admitted { low, .. } => told.push(low),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, [vec![], vec![(0, 80)]]);
    let more = [check(Window::Day, Measure::Tokens, 1, 100)];
    assert_eq!(rig.admit(&more).await.1, Answer::Admitted { remaining: None, low: vec![] });
}
