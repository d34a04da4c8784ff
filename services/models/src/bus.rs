//! Counters and reservations that all processes share. All the Redis.
//!
//! Everything of a tenant lies under `windlass:models:{tenant}:`, whose braces put it into one slot
//! of a cluster, so that one script sees all of it:
//!
//! - `meta`: the epoch, the rules that hold in it, and the life of Redis that it belongs to. Without
//!   an epoch of this life nothing is admitted: the counters are unknown and are counted anew from
//!   the ledger first.
//! - `live`, `day:…`, `month:…`, `minute:…`, `budgets`: the counters.
//! - `held`: what each call under way has reserved, with the row that the ledger gets.
//! - `line:…`, `seen:…`: who waits for a limit, first come first served.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use chassis::{Redis, Tenant};
use redis::{
    AsyncCommands as _, ErrorKind, ExistenceCheck, RedisError, RedisResult, Script, SetExpiry,
    SetOptions, Value, from_redis_value,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value as Json, json};

use crate::{
    counters::{Blocked, Counters},
    facts::ModelRequestId,
    limit::{Check, Rules, Worst},
    moment::Moment,
    request::{ReplicaId, Row},
};

/// How many values one step of a rebuild sets; Redis does nothing else meanwhile.
const FILL: usize = 1_000;

/// How long a builder may be silent before another begins.
const BUILDER: Duration = Duration::from_secs(5);

/// How often a builder says that it is still at it, so that it may be late several times.
pub const RENEWAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Bus {
    redis: Redis,
    scripts: Arc<Scripts>,
    /// Whether it answered last. While it does not, nobody waits for it but the heartbeat.
    up: Arc<AtomicBool>,
}

struct Scripts {
    admit: Script,
    settle: Script,
    rebuild: Script,
    life: Script,
}

/// What became of a request to reserve.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Admitted {
        /// What the budget has left beside this call's worst case.
        remaining: Option<i64>,
        /// Which checks are near their end, and how much of them is used.
        low: Vec<(usize, i64)>,
    },
    /// There may be room soon. The call stands in line.
    Wait(Vec<Blocked>),
    Refused(Vec<Blocked>),
    /// Other rules hold than the caller decided by.
    Stale {
        epoch: String,
        rules: Rules,
    },
    /// The counters are unknown.
    Lost,
}

#[derive(Debug, PartialEq)]
pub enum Settled {
    Done,
    /// There is no such reservation, any more or at all.
    Gone,
    /// The counters are unknown.
    Lost,
}

/// How far a rebuild may go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Turn {
    Yours,
    /// Another process does it.
    Busy,
    /// It is done.
    Present,
}

/// What a call under way holds, as Redis keeps it.
#[derive(Debug, PartialEq)]
pub struct Held {
    pub replica: ReplicaId,
    pub row: Row,
}

impl Bus {
    pub fn new(redis: Redis) -> Bus {
        let script = |body| Script::new(&[include_str!("bus/common.lua"), body].concat());
        let scripts = Arc::new(Scripts {
            admit: script(include_str!("bus/admit.lua")),
            settle: script(include_str!("bus/settle.lua")),
            rebuild: script(include_str!("bus/rebuild.lua")),
            life: script("return life"),
        });
        Bus { redis, scripts, up: Arc::new(AtomicBool::new(true)) }
    }

    pub fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    /// Checks and reserves in one round trip.
    pub async fn admit(
        &self,
        tenant: &Tenant,
        epoch: &str,
        now: &Moment,
        checks: &[Check],
        row: &Row,
    ) -> RedisResult<Answer> {
        let mut call = self.scripts.admit.prepare_invoke();
        call.key(prefix(tenant))
            .arg(epoch)
            .arg(row.id.to_string())
            .arg(row.replica_id.to_string())
            .arg(&now.day)
            .arg(&now.month)
            .arg(json_of(checks))
            .arg(json_of(row));
        let mut connection = self.redis.connection();
        let answer = self.note(call.invoke_async::<Vec<Value>>(&mut connection).await)?;
        Answer::read(answer)
    }

    /// Replaces a reservation by what the call took.
    pub async fn settle(
        &self,
        tenant: &Tenant,
        id: ModelRequestId,
        taken: Worst,
    ) -> RedisResult<Settled> {
        let mut call = self.scripts.settle.prepare_invoke();
        call.key(prefix(tenant)).arg(id.to_string()).arg(taken.tokens).arg(taken.micros);
        let mut connection = self.redis.connection();
        let answer = self.note(call.invoke_async::<Vec<Value>>(&mut connection).await)?;
        let mut answer = answer.into_iter();
        let word: String = next(&mut answer)?;
        Ok(match word.as_str() {
            "settled" => Settled::Done,
            "gone" => Settled::Gone,
            _ => Settled::Lost,
        })
    }

    /// Has the counters counted anew, by new rules perhaps, before the next call.
    pub async fn invalidate(&self, tenant: &Tenant) -> RedisResult<()> {
        let mut pipeline = redis::pipe();
        // Together with the builder's claim, who may have read the old rules.
        pipeline.atomic().hdel(key(tenant, "meta"), "epoch").ignore();
        pipeline.del(key(tenant, "building")).ignore();
        self.note(pipeline.query_async(&mut self.redis.connection()).await)
    }

    /// Claims the rebuild, or learns that there is none to do.
    pub async fn begin(&self, tenant: &Tenant, token: &str) -> RedisResult<Turn> {
        self.step(tenant, "begin", token, &[]).await
    }

    /// Keeps the claim. One that was lost does not come back: others may have built since, and rules
    /// may have changed.
    pub async fn renew(&self, tenant: &Tenant, token: &str) -> RedisResult<Turn> {
        self.step(tenant, "renew", token, &[]).await
    }

    /// Sets everything and opens the new epoch, whose name is the builder's token.
    pub async fn rebuild(
        &self,
        tenant: &Tenant,
        token: &str,
        now: &Moment,
        rules: &Rules,
        counters: &Counters,
        held: &[(Row, Vec<Check>)],
    ) -> RedisResult<Turn> {
        let windows = [now.day.as_str(), now.month.as_str()];
        let mut turn = self.step(tenant, "clear", token, &windows).await?;
        for entries in contents(now, counters, held).chunks(FILL) {
            if turn != Turn::Yours {
                return Ok(turn);
            }
            turn = self.step(tenant, "fill", token, &[&json_of(&entries)]).await?;
        }
        let [day, month] = windows;
        self.step(tenant, "finish", token, &[day, month, &json_of(rules)]).await
    }

    async fn step(
        &self,
        tenant: &Tenant,
        step: &str,
        token: &str,
        more: &[&str],
    ) -> RedisResult<Turn> {
        let mut call = self.scripts.rebuild.prepare_invoke();
        call.key(prefix(tenant)).arg(step).arg(token).arg(BUILDER.as_millis() as u64);
        for argument in more {
            call.arg(*argument);
        }
        let mut connection = self.redis.connection();
        let turn: String = self.note(call.invoke_async(&mut connection).await)?;
        Ok(match turn.as_str() {
            "yours" => Turn::Yours,
            "busy" => Turn::Busy,
            _ => Turn::Present,
        })
    }

    /// Everything that is reserved, by whomever.
    pub async fn held(&self, tenant: &Tenant) -> RedisResult<Vec<(ModelRequestId, Held)>> {
        let connection = &mut self.redis.connection();
        let all: BTreeMap<String, String> =
            self.note(connection.hgetall(key(tenant, "held")).await)?;
        let entries =
            all.into_iter().filter_map(|(id, text)| Some((id.parse().ok()?, Held::read(&text)?)));
        Ok(entries.collect())
    }

    /// Whether Redis tells one life of it from another. One that does not may be behind, and nobody
    /// can see it.
    pub async fn tells_lives(&self) -> RedisResult<bool> {
        let call = self.scripts.life.key("windlass:models:");
        let mut connection = self.redis.connection();
        let life: String = self.note(call.invoke_async(&mut connection).await)?;
        Ok(!life.is_empty())
    }

    /// Says that a process lives, and whose calls it serves. `false`: it was sent away.
    pub async fn live(
        &self,
        replica: ReplicaId,
        tenants: &[Tenant],
        lease: Duration,
    ) -> RedisResult<bool> {
        let mut pipeline = redis::pipe();
        pipeline
            .pset_ex(format!("windlass:models:alive:{replica}"), "", lease.as_millis() as u64)
            .ignore();
        if !tenants.is_empty() {
            let names: Vec<_> = tenants.iter().map(Tenant::as_str).collect();
            let served = served(replica);
            pipeline.sadd(&served, names).ignore().expire(&served, 86_400).ignore();
        }
        pipeline.exists(sent_away(replica));
        let (away,): (bool,) =
            self.note(pipeline.query_async(&mut self.redis.connection()).await)?;
        Ok(!away)
    }

    /// Has a process give itself up. `false`: somebody else does already.
    pub async fn send_away(&self, replica: ReplicaId) -> RedisResult<bool> {
        let once = SetOptions::default()
            .conditional_set(ExistenceCheck::NX)
            .with_expiration(SetExpiry::EX(86_400));
        let mut connection = self.redis.connection();
        let set: Option<String> =
            self.note(connection.set_options(sent_away(replica), "", once).await)?;
        Ok(set.is_some())
    }

    pub async fn is_alive(&self, replica: ReplicaId) -> RedisResult<bool> {
        self.note(self.redis.connection().exists(format!("windlass:models:alive:{replica}")).await)
    }

    /// Whose calls a process served.
    pub async fn served(&self, replica: ReplicaId) -> RedisResult<Vec<Tenant>> {
        let names: Vec<String> =
            self.note(self.redis.connection().smembers(served(replica)).await)?;
        Ok(names.into_iter().filter_map(|name| name.try_into().ok()).collect())
    }

    fn note<T>(&self, result: RedisResult<T>) -> RedisResult<T> {
        self.up.store(result.is_ok(), Relaxed);
        result
    }
}

impl Answer {
    fn read(answer: Vec<Value>) -> RedisResult<Answer> {
        let mut answer = answer.into_iter();
        let word: String = next(&mut answer)?;
        Ok(match word.as_str() {
            "admitted" => {
                Answer::Admitted { remaining: left(next(&mut answer)?), low: next(&mut answer)? }
            }
            "wait" => Answer::Wait(blocked(next(&mut answer)?)),
            "refused" => Answer::Refused(blocked(next(&mut answer)?)),
            "stale" => {
                let (epoch, rules): (String, String) = (next(&mut answer)?, next(&mut answer)?);
                Answer::Stale { epoch, rules: parse(&rules)? }
            }
            _ => Answer::Lost,
        })
    }
}

impl Held {
    /// Process, second, day, month, checks and row, each on its line.
    fn read(text: &str) -> Option<Held> {
        let mut lines = text.splitn(6, '\n');
        let replica = lines.next()?.parse().ok()?;
        Some(Held { replica, row: serde_json::from_str(lines.nth(4)?).ok()? })
    }

    fn write(now: &Moment, row: &Row, checks: &[Check]) -> String {
        let (second, checks, body) = (now.second().to_string(), json_of(checks), json_of(row));
        let replica = row.replica_id.to_string();
        [&replica, &second, &now.day, &now.month, &checks, &body].map(String::as_str).join("\n")
    }
}

/// Key, field and value of everything; a key alone is to be emptied first.
fn contents(now: &Moment, counters: &Counters, held: &[(Row, Vec<Check>)]) -> Vec<[Json; 3]> {
    let mut entries = Vec::new();
    let windows = [
        ("live".to_owned(), &counters.live),
        (format!("day:{}", now.day), &counters.day),
        (format!("month:{}", now.month), &counters.month),
    ];
    for (home, window) in windows {
        entries.extend(
            window.iter().map(|(counter, used)| [json!(home), json!(counter), text(*used)]),
        );
    }
    for (counter, seconds) in &counters.minute {
        let home = format!("minute:{counter}");
        let from = seconds.keys().next().copied().unwrap_or_default();
        entries.push([json!(home), Json::Null, Json::Null]);
        entries.push([json!(home), json!("from"), text(from)]);
        entries.push([json!(home), json!("sum"), text(seconds.values().sum())]);
        let by_second = seconds.iter();
        entries.extend(by_second.map(|(second, used)| [json!(home), text(*second), text(*used)]));
    }
    for (id, balance) in &counters.budgets {
        entries.push([json!("budgets"), json!(format!("{id}:spent")), text(balance.spent)]);
        entries.push([json!("budgets"), json!(format!("{id}:held")), text(balance.held)]);
    }
    for (row, checks) in held {
        let began = Moment::of(row.started_at);
        let record = Held::write(&began, row, checks);
        entries.push([json!("held"), json!(row.id.to_string()), json!(record)]);
    }
    entries
}

/// As text, because a script's numbers are not whole.
fn text(number: i64) -> Json {
    Json::String(number.to_string())
}

fn left(remaining: i64) -> Option<i64> {
    Some(remaining).filter(|remaining| *remaining >= 0)
}

fn blocked(list: Vec<(usize, i64, i64, i64)>) -> Vec<Blocked> {
    list.into_iter().map(|(check, used, retry_ms, _)| Blocked { check, used, retry_ms }).collect()
}

fn next<T: redis::FromRedisValue>(answer: &mut impl Iterator<Item = Value>) -> RedisResult<T> {
    let value =
        answer.next().ok_or((ErrorKind::UnexpectedReturnType, "the script said too little"))?;
    Ok(from_redis_value(value)?)
}

fn parse<T: DeserializeOwned>(text: &str) -> RedisResult<T> {
    let problem = |_| {
        RedisError::from((ErrorKind::UnexpectedReturnType, "Redis holds what we did not write"))
    };
    serde_json::from_str(text).map_err(problem)
}

fn json_of<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn prefix(tenant: &Tenant) -> String {
    key(tenant, "")
}

fn key(tenant: &Tenant, name: &str) -> String {
    format!("windlass:models:{{{}}}:{name}", tenant.as_str())
}

fn sent_away(replica: ReplicaId) -> String {
    format!("windlass:models:away:{replica}")
}

fn served(replica: ReplicaId) -> String {
    format!("windlass:models:served:{replica}")
}

#[cfg(test)]
pub mod tests;
