//! How the providers are, as far as this replica has seen.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    breaker::{Breaker, Permit, State},
    catalogue::{Catalogue, Kind, Model},
    provider::Failure,
};

pub struct Health {
    /// What moments are counted from.
    start: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// By provider.
    breakers: HashMap<String, Breaker>,
    /// By provider and model.
    models: HashMap<(String, String), Record>,
}

#[derive(Default)]
struct Record {
    /// Before this moment it wants to hear nothing from us.
    limited_until: Duration,
    /// Until its first word, over the last requests.
    first_token: Option<Duration>,
}

/// What routing has to know about a model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Vitals {
    pub breaker: State,
    /// Its provider is left alone for so long.
    pub rests: Option<Duration>,
    /// It asked us to wait for so long.
    pub limited: Option<Duration>,
    pub first_token: Option<Duration>,
}

/// Each new request counts for this much.
const WEIGHT: f64 = 0.2;

impl Health {
    pub fn new() -> Arc<Health> {
        Arc::new(Health { start: Instant::now(), seen: Mutex::default() })
    }

    pub fn of(&self, model: &Model) -> Vitals {
        if model.kind == Kind::Scripted {
            return Vitals::default();
        }
        let now = self.start.elapsed();
        let seen = self.seen();
        let breaker = seen.breakers.get(&model.provider).copied().unwrap_or_default();
        let known = seen.models.get(&(model.provider.clone(), model.model.clone()));
        let limited = known.and_then(|known| known.limited_until.checked_sub(now));
        Vitals {
            breaker: breaker.state(now),
            rests: breaker.rest(now),
            limited: limited.filter(|wait| !wait.is_zero()),
            first_token: known.and_then(|known| known.first_token),
        }
    }

    /// A request to `model` begins; `None`: its provider is left alone just now.
    pub fn begin(self: &Arc<Health>, model: &Model) -> Option<Attempt> {
        let began = self.start.elapsed();
        let permit = match model.kind {
            // It is in this process, and fails when a script says so.
            Kind::Scripted => None,
            _ => {
                Some(self.seen().breakers.entry(model.provider.clone()).or_default().begin(began)?)
            }
        };
        let (provider, model) = (model.provider.clone(), model.model.clone());
        Some(Attempt { health: self.clone(), permit, provider, model, began, settled: false })
    }

    /// What `/health` says.
    pub fn explain(&self, catalogue: &Catalogue) -> Value {
        let now = self.start.elapsed();
        let seen = self.seen();
        let providers = catalogue.providers.iter().filter(|one| one.kind != Kind::Scripted);
        let states = providers.map(|provider| {
            let breaker = seen.breakers.get(&provider.name).copied().unwrap_or_default();
            (provider.name.clone(), json!(breaker.state(now).as_str()))
        });
        Value::Object(states.collect())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way. Dropped without a word, it counts neither way.
pub struct Attempt {
    health: Arc<Health>,
    /// `None`: nobody keeps a record of this one.
    permit: Option<Permit>,
    provider: String,
    model: String,
    began: Duration,
    settled: bool,
}

impl Attempt {
    /// The first word came, so a provider that was being tried lives.
    pub fn answered(&mut self) {
        let took = self.health.start.elapsed() - self.began;
        self.note(|breaker, record, permit, _| {
            if permit.decides() {
                breaker.succeeded(permit);
            }
            let average = record.first_token.unwrap_or(took).as_secs_f64();
            let average = average + WEIGHT * (took.as_secs_f64() - average);
            record.first_token = Some(Duration::from_secs_f64(average));
        });
    }

    /// The last word came.
    pub fn finished(mut self) {
        self.note(|breaker, _, permit, _| breaker.succeeded(permit));
    }

    pub fn failed(mut self, failure: &Failure) {
        self.note(|breaker, record, permit, now| match failure {
            Failure::Transient(_) | Failure::Cut => breaker.failed(permit, now),
            Failure::RateLimited { retry_after } => {
                breaker.succeeded(permit);
                record.limited_until = now + *retry_after;
            }
            // Whoever refuses us in these ways is well.
            Failure::Auth
            | Failure::Overflow
            | Failure::Refused
            | Failure::Invalid(_)
            | Failure::Script(_) => breaker.succeeded(permit),
        });
    }

    fn note(&mut self, change: impl FnOnce(&mut Breaker, &mut Record, Permit, Duration)) {
        let Some(permit) = self.permit else { return };
        self.settled = true;
        let now = self.health.start.elapsed();
        let mut seen = self.health.seen();
        let Seen { breakers, models } = &mut *seen;
        let breaker = breakers.entry(self.provider.clone()).or_default();
        let record = models.entry((self.provider.clone(), self.model.clone())).or_default();
        change(breaker, record, permit, now);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let (Some(permit), false) = (self.permit, self.settled)
            && let Some(breaker) = self.health.seen().breakers.get_mut(&self.provider)
        {
            breaker.abandoned(permit);
        }
    }
}
