use std::{sync::Arc, time::Duration};

use chassis::Tenant;
use proto::tools::v1::{self as pb, mcp_event_service_server::McpEventService};
use sqlx::PgPool;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, codegen::BoxStream};

use super::{invalid, mcp_servers};
use crate::{
    error::{Error, Result},
    mcp::{Address, Server, Servers, Wanted, Watch, is_server_id},
    store,
};

/// Limits that the contract promises.
const LONGEST_SUBSCRIPTION: usize = 2_000;

/// How long a server that was changed is watched as it was.
const LOOK: Duration = Duration::from_secs(5);

pub struct Api {
    pub db: PgPool,
    pub servers: Arc<Servers>,
    pub stop: CancellationToken,
}

#[tonic::async_trait]
impl McpEventService for Api {
    async fn watch_mcp_server(
        &self,
        request: Request<pb::WatchMcpServerRequest>,
    ) -> Result<Response<BoxStream<pb::WatchMcpServerResponse>>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let pb::WatchMcpServerRequest { project, mcp_server_id: id, subscription } =
            request.into_inner();
        if !(1..=LONGEST_SUBSCRIPTION).contains(&subscription.chars().count()) {
            return Err(invalid("subscription", "expected 1 to 2,000 characters").into());
        }
        let project = mcp_servers::project(project)?;
        if !is_server_id(&id) {
            return Err(Error::PolicyNotFound(id).into());
        }
        let server = load(&self.db, &tenant, &project, &id).await?;
        let Address::Url(url) = &server.address else {
            let problem = "is a command, and only servers that have a url can be watched";
            return Err(invalid("mcp_server_id", problem).into());
        };
        let watching = self.servers.watch(&tenant, &server, url, Wanted::new(&subscription));
        let watch = self.stop.run_until_cancelled(watching).await;
        let watch = watch.unwrap_or_else(|| Err(stopping(&id)))?;
        let (db, stop) = (self.db.clone(), self.stop.clone());
        let stream = async_stream::try_stream! {
            yield pb::WatchMcpServerResponse::default();
            let mut watch = watch;
            loop {
                let followed = follow(&mut watch, &db, &tenant, &project, &server);
                let next = match stop.run_until_cancelled(followed).await {
                    Some(next) => next,
                    None => Err(stopping(&id)),
                };
                yield pb::WatchMcpServerResponse { notification_json: next? };
            }
        };
        Ok(Response::new(Box::pin(stream)))
    }
}

/// The next notification, as long as the server is what it was.
async fn follow(
    watch: &mut Watch,
    db: &PgPool,
    tenant: &Tenant,
    project: &str,
    server: &Server,
) -> Result<String> {
    let gone = |why: String| Error::McpUnavailable { id: server.id.clone(), why };
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.tick().await;
    loop {
        tokio::select! {
            next = watch.next() => return next.map_err(gone),
            _ = looks.tick() => {
                if load(db, tenant, project, &server.id).await? != *server {
                    return Err(gone("its configuration has changed".to_owned()));
                }
            }
        }
    }
}

async fn load(db: &PgPool, tenant: &Tenant, project: &str, id: &str) -> Result<Server> {
    let found = store::mcp_servers::get(db, tenant, project, id).await?;
    found.ok_or_else(|| Error::PolicyNotFound(id.to_owned()))
}

fn stopping(id: &str) -> Error {
    Error::McpUnavailable { id: id.to_owned(), why: "this server is stopping".to_owned() }
}
