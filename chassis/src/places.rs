use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::Tenant;

/// What only so many may do at once, and of one owner fewer, so that nobody is in the way of
/// everybody.
#[derive(Debug)]
pub struct Places<Owner = Tenant> {
    all: Arc<Semaphore>,
    most: usize,
    of_one: usize,
    /// Of those who have a place or wait for one.
    owners: Mutex<HashMap<Owner, Weak<Semaphore>>>,
}

/// It is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    of_all: OwnedSemaphorePermit,
    of_owner: Option<OwnedSemaphorePermit>,
}

impl<Owner: Clone + Eq + Hash> Places<Owner> {
    pub fn new(most: usize, of_one: usize) -> Places<Owner> {
        Places { all: Arc::new(Semaphore::new(most)), most, of_one, owners: Mutex::default() }
    }

    /// One owner may have three quarters.
    pub fn shared(most: usize) -> Places<Owner> {
        Places::new(most, most - most / 4)
    }

    /// Waits for a place.
    pub async fn take(&self, owner: &Owner) -> Result<Place, AcquireError> {
        let of_owner = Some(self.of(owner).acquire_owned().await?);
        Ok(Place { of_all: self.all.clone().acquire_owned().await?, of_owner })
    }

    /// A place, if one is free.
    pub fn try_take(&self, owner: &Owner) -> Option<Place> {
        self.try_take_many(owner, 1)
    }

    /// As much room as so many places.
    pub fn try_take_many(&self, owner: &Owner, count: u32) -> Option<Place> {
        let of_owner = Some(self.of(owner).try_acquire_many_owned(count).ok()?);
        Some(Place { of_all: self.all.clone().try_acquire_many_owned(count).ok()?, of_owner })
    }

    /// A place for somebody of whom it is not known yet who they are.
    pub fn try_enter(&self) -> Option<Place> {
        self.try_enter_many(1)
    }

    /// As much room as so many places, for somebody who has no part.
    pub fn try_enter_many(&self, count: u32) -> Option<Place> {
        Some(Place { of_all: self.all.clone().try_acquire_many_owned(count).ok()?, of_owner: None })
    }

    /// From here on it is one of the owner's, if they may have another one.
    pub fn try_own(&self, place: Place, owner: &Owner) -> Option<Place> {
        Some(Place { of_owner: Some(self.of(owner).try_acquire_owned().ok()?), ..place })
    }

    /// Waits until there is one for somebody, and says how many there are.
    pub async fn free(&self) -> usize {
        drop(self.all.acquire().await);
        self.all.available_permits()
    }

    pub fn taken(&self) -> usize {
        self.most.saturating_sub(self.all.available_permits())
    }

    /// How many are the owner's.
    pub fn taken_by(&self, owner: &Owner) -> usize {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let places = owners.get(owner).and_then(Weak::upgrade);
        places.map_or(0, |places| self.of_one.saturating_sub(places.available_permits()))
    }

    /// Whether the owner can have no other one before they give one back.
    pub fn is_full(&self, owner: &Owner) -> bool {
        self.taken_by(owner) >= self.of_one
    }

    /// Those of whom that is so.
    pub fn full(&self) -> Vec<Owner> {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |places: &Weak<Semaphore>| {
            places.upgrade().is_some_and(|places| places.available_permits() == 0)
        };
        owners.iter().filter(|(_, places)| full(places)).map(|(owner, _)| owner.clone()).collect()
    }

    fn of(&self, owner: &Owner) -> Arc<Semaphore> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = owners.get(owner).and_then(Weak::upgrade) {
            return known;
        }
        // Instead of growing it forgets those who left.
        if owners.len() == owners.capacity() {
            owners.retain(|_, places| places.strong_count() > 0);
        }
        let new = Arc::new(Semaphore::new(self.of_one));
        owners.insert(owner.clone(), Arc::downgrade(&new));
        new
    }
}

impl Place {
    /// Adds what the same owner has of the same places.
    pub fn merge(&mut self, more: Place) {
        self.of_all.merge(more.of_all);
        match (&mut self.of_owner, more.of_owner) {
            (Some(held), Some(more)) => held.merge(more),
            (held, more) => *held = held.take().or(more),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn nobody_has_all_of_them() {
        let places = Places::new(3, 2);
        let held = [places.try_take(&"acme").unwrap(), places.try_take(&"acme").unwrap()];
        assert!(places.try_take(&"acme").is_none(), "one has more than their part");
        let other = places.try_take(&"other").unwrap();
        assert!(places.try_take(&"third").is_none(), "there are more than there should be");
        assert!(places.try_enter().is_none());
        assert_eq!(
            (places.taken(), places.taken_by(&"acme"), places.taken_by(&"third")),
            (3, 2, 0)
        );
        assert_eq!(places.full(), ["acme"]);
        assert!(places.is_full(&"acme") && !places.is_full(&"other"));
        assert!(places.free().now_or_never().is_none());

        let mut waiting = std::pin::pin!(places.take(&"acme"));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(other);
        assert_eq!(places.free().now_or_never(), Some(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        let entered = places.try_enter().unwrap();
        assert!(places.try_own(entered, &"acme").is_none());
        drop(held);
        let first = waiting.now_or_never().unwrap().unwrap();
        let second = places.try_own(places.try_enter().unwrap(), &"acme").unwrap();
        assert!(places.try_take(&"acme").is_none());
        drop((first, second));
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn places_are_merged_and_given_back_together() {
        let places = Places::new(8, 4);
        let mut held = places.try_take_many(&1, 2).unwrap();
        held.merge(places.try_take_many(&1, 2).unwrap());
        assert!(places.try_take(&1).is_none());
        assert_eq!(places.taken(), 4);
        drop(held);
        assert!(places.try_take_many(&1, 4).is_some());
    }

    #[test]
    fn those_who_left_are_forgotten() {
        let places = Places::shared(4);
        let _held = places.try_take(&0);
        for owner in 1..1_000 {
            drop(places.try_take(&owner));
        }
        assert!(places.owners.lock().unwrap().len() < 10);
    }
}
