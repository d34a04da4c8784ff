use std::time::Duration;

use local::{Fleet, Plan, Servers, Service};

use crate::Client;

/// Everything a person can be allowed to do.
const SCOPES: &str = "read,run,configure,admin";

/// Seconds without a heartbeat after which somebody takes over. Short, and still long enough
/// for a process that only waits for its share of a busy machine.
pub const LEASE: Duration = Duration::from_secs(2);

/// A fleet whose dead are found soon.
pub fn plan() -> Plan {
    Fleet::plan().env_of(Service::Session, "HEARTBEAT", "0.25").env_of(
        Service::Session,
        "LEASE",
        LEASE.as_secs().to_string(),
    )
}

/// A whole system that nobody else uses, on a database of its own.
pub struct World {
    // First, because fields are dropped in order: first the services, then what they stand on.
    pub fleet: Fleet,
    pub servers: Servers,
}

impl World {
    /// One process of each service.
    pub async fn start() -> World {
        World::planned(Fleet::plan()).await
    }

    pub async fn planned(plan: Plan) -> World {
        World::on(Servers::throwaway().await.unwrap(), plan).await
    }

    /// On servers that somebody has plans with.
    pub async fn on(servers: Servers, plan: Plan) -> World {
        let fleet = plan.start(&servers).await.unwrap();
        World { fleet, servers }
    }

    /// Somebody of `tenant` who may do everything, with an agent that plays scripts.
    pub async fn client(&mut self, tenant: &str) -> Client {
        let client = self.client_who_may(tenant, SCOPES).await;
        client.put_agent().await;
        client
    }

    /// Somebody of `tenant` who may do what `scopes` say.
    pub async fn client_who_may(&mut self, tenant: &str, scopes: &str) -> Client {
        let key = self.fleet.mint_key(tenant, "ann", scopes).await.unwrap();
        self.client_with(Some(&key))
    }

    /// Somebody with this key, or with none.
    pub fn client_with(&mut self, key: Option<&str>) -> Client {
        Client::new(&mut self.fleet, key)
    }
}
