use std::{sync::Arc, time::Duration};

use chassis::{Place, Tenant};
use tokio::time::timeout;
use tracing::warn;

use super::{
    Rooms,
    answer::Refusal,
    known::{Known, Receiver},
};
use crate::ids::TriggerId;

/// How long a trigger is looked for before the sender has to come again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Lets requests in.
pub struct Door {
    pub known: Known,
    pub room: Rooms,
}

/// Who a request is for, whose it is, and its place.
type Entered = (Option<Arc<Receiver>>, Option<Tenant>, Place);

impl Door {
    /// Finds who a request is for, and takes a place for it among theirs. While it looks, the request is
    /// nobody's: anybody can invent ids.
    pub async fn enter(&self, id: &str) -> Result<Entered, Refusal> {
        let Ok(id) = id.parse::<TriggerId>() else { return self.place(None) };
        if let Some(receiver) = self.known.at_hand(id).await {
            return self.place(receiver);
        }
        let nobodys = self.room.try_take(&None).ok_or(Refusal::Busy)?;
        let receiver = self.find(id).await?;
        drop(nobodys);
        self.place(receiver)
    }

    fn place(&self, receiver: Option<Arc<Receiver>>) -> Result<Entered, Refusal> {
        let owner = receiver.as_ref().map(|receiver| receiver.trigger.tenant.clone());
        let place = self.room.try_take(&owner).ok_or(Refusal::Busy)?;
        Ok((receiver, owner, place))
    }

    /// The trigger that a request is for. One that is not there is nobody's, and is told so only
    /// after as much work as for any other.
    async fn find(&self, id: TriggerId) -> Result<Option<Arc<Receiver>>, Refusal> {
        let found = timeout(PATIENCE, self.known.get(id)).await.map_err(|_| {
            warn!(trigger.id = %id, "trigger {id} was not found within {PATIENCE:?}");
            Refusal::Busy
        })?;
        found.map_err(|error| {
            warn!(%error, trigger.id = %id, "trigger {id} cannot be looked up");
            Refusal::Busy
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use sqlx::PgPool;
    use tokio::time::sleep;

    use super::*;
    use crate::{
        http::a_third,
        sealed::Keys,
        store::tests::{now, put, trigger},
        trigger::{Kind, Source},
    };

    #[sqlx::test(migrator = "crate::MIGRATIONS")]
    async fn invented_ids_are_in_nobodys_way(db: PgPool) {
        let mut trigger = trigger(Source::Api);
        trigger.definition.kind = Kind::Api;
        put(&db, &trigger, now()).await;
        // However slow the machine is.
        let known = Known::lasting(db.clone(), Arc::new(Keys::default()), PATIENCE * 30);
        let door = Door { known, room: a_third(9) };
        let enter = async |id: TriggerId| Ok(door.enter(&id.to_string()).await?.1);
        let tenant = Some(trigger.tenant.clone());
        assert_eq!(enter(trigger.id).await, Ok(tenant.clone()));
        assert_eq!(enter(TriggerId::new()).await, Ok(None));

        // Nothing is found from here on.
        let mut lock = db.begin().await.unwrap();
        sqlx::raw_sql("lock table triggers.trigger").execute(&mut *lock).await.unwrap();
        let strangers = join_all((0..9).map(|_| enter(TriggerId::new())));
        let known = async {
            sleep(Duration::from_millis(50)).await;
            enter(trigger.id).await
        };
        let (strangers, known) = tokio::join!(timeout(PATIENCE * 2, strangers), known);
        lock.rollback().await.unwrap();
        assert_eq!(known, Ok(tenant), "strangers have all the places");
        assert!(strangers.unwrap().iter().all(|entered| *entered == Err(Refusal::Busy)));
        assert_eq!(door.room.taken(), 0);
    }
}
