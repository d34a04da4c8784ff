use std::sync::Arc;

use proto::tools::v1::{self as pb, output_service_server::OutputService};
use tonic::{Request, Response, Status};

use super::{invalid, parse};
use crate::{call::OutputRef, error::Result, outputs::Outputs};

/// Limits that the contract promises.
const LARGEST_PIECE: i32 = 1024 * 1024;

pub struct Api {
    pub outputs: Arc<Outputs>,
}

#[tonic::async_trait]
impl OutputService for Api {
    async fn read_output(
        &self,
        request: Request<pb::ReadOutputRequest>,
    ) -> Result<Response<pb::ReadOutputResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let output_ref: OutputRef = parse("output_ref", &request.output_ref)?;
        let offset = u64::try_from(request.offset).map_err(|_| invalid("offset", "is negative"))?;
        let limit = match request.limit {
            0 => LARGEST_PIECE,
            limit @ 1..=LARGEST_PIECE => limit,
            _ => return Err(invalid("limit", "is not between 0 and 1048576").into()),
        };
        let (data, stored) = self.outputs.read(&tenant, output_ref, offset, limit as u64).await?;
        let expires_at = stored.expires_at.to_jiff();
        Ok(Response::new(pb::ReadOutputResponse {
            data,
            total_bytes: stored.bytes,
            digest: stored.digest,
            expire_time: Some(pbjson_types::Timestamp {
                seconds: expires_at.as_second(),
                nanos: expires_at.subsec_nanosecond(),
            }),
        }))
    }
}
