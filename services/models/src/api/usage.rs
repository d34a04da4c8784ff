//! What models were asked and what it cost.

use chassis::caller;
use proto::{
    event::v1::Usage,
    models::v1::{
        self as pb, query_usage_response::Row as Sum, usage_service_server::UsageService,
    },
};
use sqlx::PgPool;
use tonic::{Request, Response, Status};

use super::decode;
use crate::{
    error::{Error, Result},
    facts::ModelRequestId,
    request::{self, Row},
    store::{
        requests,
        usage::{self, DIMENSIONS, Group},
    },
    time::to_proto,
};

pub struct Usages {
    pub db: PgPool,
}

#[tonic::async_trait]
impl UsageService for Usages {
    async fn query_usage(
        &self,
        request: Request<pb::QueryUsageRequest>,
    ) -> Result<Response<pb::QueryUsageResponse>, Status> {
        let tenant = caller(&request)?.tenant;
        let request = request.into_inner();
        let size = decode::size(request.page_size, 100, 1_000)?;
        let after: Option<Group> = decode::page_token(&request.page_token)?;
        let question = decode::question(request)?;
        let mut sums =
            usage::sums(&self.db, &tenant, &question, after.as_ref(), size as i64 + 1).await?;
        let more = sums.len() > size;
        sums.truncate(size);
        let last = sums.last().filter(|_| more);
        let next_page_token =
            last.map(|last| decode::to_page_token(&last.group)).unwrap_or_default();
        let rows = sums.into_iter().map(|sum| shown(sum, question.by)).collect();
        Ok(Response::new(pb::QueryUsageResponse { rows, next_page_token }))
    }

    async fn list_model_requests(
        &self,
        request: Request<pb::ListModelRequestsRequest>,
    ) -> Result<Response<pb::ListModelRequestsResponse>, Status> {
        let tenant = caller(&request)?.tenant;
        let request = request.into_inner();
        let size = decode::size(request.page_size, 50, 500)?;
        let before: Option<ModelRequestId> = match request.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| Error::InvalidCursor)?),
        };
        let session_id = decode::named("session_id", request.session_id)?;
        let turn_id = decode::named("turn_id", request.turn_id)?;
        let limit = size as i64 + 1;
        let mut rows =
            requests::list(&self.db, &tenant, &session_id, &turn_id, before, limit).await?;
        let more = rows.len() > size;
        rows.truncate(size);
        let last = rows.last().filter(|_| more);
        let next_page_token = last.map(|last| last.id.to_string()).unwrap_or_default();
        let model_requests = rows.into_iter().map(Into::into).collect();
        Ok(Response::new(pb::ListModelRequestsResponse { model_requests, next_page_token }))
    }
}

fn shown(sum: usage::Usage, by: [bool; 6]) -> Sum {
    let asked = DIMENSIONS.iter().zip(&sum.group).zip(by).filter(|(_, asked)| *asked);
    Sum {
        group: asked.map(|((name, value), _)| ((*name).to_owned(), value.clone())).collect(),
        requests: sum.requests,
        input: sum.input,
        output: sum.output,
        reasoning: sum.reasoning,
        cache_read: sum.cache_read,
        cache_write: sum.cache_write,
        cost_micros: sum.cost_micros,
        currency: sum.group[6].clone(),
    }
}

impl From<Row> for pb::ModelRequest {
    fn from(row: Row) -> pb::ModelRequest {
        pb::ModelRequest {
            model_request_id: row.id.to_string(),
            session_id: row.session_id,
            turn_id: row.turn_id,
            step_id: row.step_id,
            provider: row.provider,
            model: row.model,
            status: match row.status {
                request::Status::Running => "running",
                request::Status::Completed => "completed",
                request::Status::Failed => "failed",
                request::Status::Cancelled => "cancelled",
            }
            .to_owned(),
            error_kind: row.error_kind,
            usage: Some(Usage {
                input: row.input,
                output: row.output,
                reasoning: row.reasoning,
                cache_read: row.cache_read,
                cache_write: row.cache_write,
            }),
            cost_micros: row.cost_micros,
            start_time: Some(to_proto(row.started_at)),
            first_token_ms: row.first_token_ms,
            duration_ms: row.duration_ms,
            basis: match row.basis {
                request::Basis::None => "",
                request::Basis::Exact => "exact",
                request::Basis::Estimated => "estimated",
                request::Basis::WorstCase => "worst_case",
            }
            .to_owned(),
        }
    }
}
