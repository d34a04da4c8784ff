use local::{Fleet, Plan, Servers};

use crate::Client;

/// Everything a person can be allowed to do.
const SCOPES: &str = "read,run,configure,admin";

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
