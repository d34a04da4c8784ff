use std::time::Duration;

use chassis::Tenant;
use proto::tools::v1::{self as pb, fact_service_server::FactService};
use sqlx::PgPool;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{invalid, parse};
use crate::{call::SessionId, error::Result, processes::Processes, store::facts};

/// Limits that the contract promises.
const LARGEST_BATCH: i32 = 500;
const USUAL_BATCH: i32 = 100;
const LONGEST_WAIT_MS: i32 = 30_000;

/// How long facts belong to whoever took them.
const LEASE: Duration = Duration::from_secs(15);

/// How often somebody who waits looks for facts of other replicas. Of ours it is told.
const LOOK: Duration = Duration::from_secs(1);

pub struct Api {
    pub db: PgPool,
    pub processes: Processes,
    pub stop: CancellationToken,
}

#[tonic::async_trait]
impl FactService for Api {
    async fn take_facts(
        &self,
        request: Request<pb::TakeFactsRequest>,
    ) -> Result<Response<pb::TakeFactsResponse>, Status> {
        let request = request.into_inner();
        let limit = match request.limit {
            0 => USUAL_BATCH,
            limit @ 1..=LARGEST_BATCH => limit,
            _ => return Err(invalid("limit", "is not between 0 and 500").into()),
        };
        let wait = match request.wait_ms {
            wait @ 0..=LONGEST_WAIT_MS => Duration::from_millis(wait as u64),
            _ => return Err(invalid("wait_ms", "is not between 0 and 30000").into()),
        };
        let deadline = Instant::now() + wait;
        loop {
            let mut news = std::pin::pin!(self.processes.news().notified());
            news.as_mut().enable();
            let facts = facts::take(&self.db, limit, LEASE).await?;
            let now = Instant::now();
            if !facts.is_empty() || now >= deadline || self.stop.is_cancelled() {
                return Ok(Response::new(pb::TakeFactsResponse { facts }));
            }
            let rest = timeout_at(deadline.min(now + LOOK), news);
            let _ = self.stop.run_until_cancelled(rest).await;
        }
    }

    async fn acknowledge_facts(
        &self,
        request: Request<pb::AcknowledgeFactsRequest>,
    ) -> Result<Response<pb::AcknowledgeFactsResponse>, Status> {
        let sessions = request.into_inner().sessions;
        if sessions.len() > LARGEST_BATCH as usize {
            return Err(invalid("sessions", "are more than 500").into());
        }
        let decode = |through: &pb::acknowledge_facts_request::Through| {
            let tenant: Tenant = parse("sessions.tenant_id", &through.tenant_id)?;
            let session_id: SessionId = parse("sessions.session_id", &through.session_id)?;
            Ok((tenant, session_id, through.number))
        };
        for (tenant, session_id, number) in
            sessions.iter().map(decode).collect::<Result<Vec<_>>>()?
        {
            facts::forget(&self.db, &tenant, session_id, number).await?;
        }
        Ok(Response::new(pb::AcknowledgeFactsResponse {}))
    }
}
