//! Which sessions this process drives.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{ids::SessionId, store::turns::Claim};

/// The claims that somebody in this process works on.
///
/// Postgres may say that we own more: when the answer to a claim was lost, nobody here
/// knows of it, and the session would be busy for ever.
#[derive(Clone, Default)]
pub struct Driven(Arc<Mutex<HashSet<(SessionId, i64)>>>);

/// A claim that is worked on until this is dropped.
pub struct Driving(Driven, (SessionId, i64));

impl Driven {
    pub fn begin(&self, claim: &Claim) -> Driving {
        let key = (claim.session_id, claim.epoch);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        Driving(self.clone(), key)
    }

    pub fn contains(&self, session_id: SessionId, epoch: i64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&(session_id, epoch))
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        let Driving(driven, key) = self;
        driven.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
