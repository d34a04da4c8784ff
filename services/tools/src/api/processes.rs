mod attach;

use std::sync::Arc;

use proto::tools::v1::{self as pb, process_service_server::ProcessService};
use sandbox::{Signal, Size, Streams};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, codegen::BoxStream};

use super::{LONGEST_ID, invalid, parse};
use crate::{
    call::{ProcessId, SessionId},
    error::{Error, Result},
    outputs::Outputs,
    processes::{Order, Processes, Wanted},
};

/// Limits that the contract promises.
const LONGEST_COMMAND: usize = 64 * 1024;
const LARGEST_WRITE: usize = 64 * 1024;
const LARGEST_PAGE: i32 = 500;
const USUAL_PAGE: i32 = 50;
const LARGEST_SIDE: i32 = 1000;
const USUAL_ROWS: u16 = 24;
const USUAL_COLUMNS: u16 = 80;

#[derive(Clone)]
pub struct Api {
    pub processes: Processes,
    pub outputs: Arc<Outputs>,
    pub stop: CancellationToken,
}

#[tonic::async_trait]
impl ProcessService for Api {
    async fn start_process(
        &self,
        request: Request<pb::StartProcessRequest>,
    ) -> Result<Response<pb::StartProcessResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        if request.request_id.is_empty() || request.request_id.chars().count() > LONGEST_ID {
            return Err(invalid("request_id", "is not 1 to 100 characters long").into());
        }
        if request.command.trim().is_empty() || request.command.len() > LONGEST_COMMAND {
            return Err(invalid("command", "is empty or larger than 64 KiB").into());
        }
        if request.command.contains('\0') || request.request_id.contains('\0') {
            return Err(invalid("command", "contains NUL").into());
        }
        let streams = match request.pty {
            true => Streams::Terminal(Size {
                rows: side("rows", request.rows)?.unwrap_or(USUAL_ROWS),
                columns: side("columns", request.columns)?.unwrap_or(USUAL_COLUMNS),
            }),
            false if request.rows != 0 || request.columns != 0 => {
                return Err(invalid("rows", "is the size of a terminal, which needs `pty`").into());
            }
            false => Streams::Piped,
        };
        let wanted = Wanted {
            tenant,
            session_id: parse("session_id", &request.session_id)?,
            workspace_id: parse("workspace_id", &request.workspace_id)?,
            request_id: request.request_id,
            command: request.command,
            streams,
        };
        let row = self.processes.start(wanted).await?;
        Ok(Response::new(pb::StartProcessResponse { process: Some(row.into()) }))
    }

    async fn list_processes(
        &self,
        request: Request<pb::ListProcessesRequest>,
    ) -> Result<Response<pb::ListProcessesResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let session_id: SessionId = parse("session_id", &request.session_id)?;
        let size = match request.page_size {
            0 => USUAL_PAGE,
            size @ 1..=LARGEST_PAGE => size,
            _ => return Err(invalid("page_size", "is not between 0 and 500").into()),
        } as usize;
        let before = match request.page_token.as_str() {
            "" => i64::MAX,
            token => token.parse().map_err(|_| Error::InvalidCursor)?,
        };
        let limit = size as i64 + 1;
        let mut rows = self.processes.list(&tenant, session_id, before, limit).await?;
        let more = rows.len() > size;
        rows.truncate(size);
        let next_page_token = match rows.last() {
            Some(last) if more => last.number.to_string(),
            _ => String::new(),
        };
        let processes = rows.into_iter().map(pb::Process::from).collect();
        Ok(Response::new(pb::ListProcessesResponse { processes, next_page_token }))
    }

    async fn attach_process(
        &self,
        request: Request<pb::AttachProcessRequest>,
    ) -> Result<Response<BoxStream<pb::AttachProcessResponse>>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let id = parse("process_id", &request.process_id)?;
        let offset = u64::try_from(request.offset).map_err(|_| invalid("offset", "is negative"))?;
        Ok(Response::new(attach::attach(self.clone(), tenant, id, offset).await?))
    }

    async fn write_process_stdin(
        &self,
        request: Request<pb::WriteProcessStdinRequest>,
    ) -> Result<Response<pb::WriteProcessStdinResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: ProcessId = parse("process_id", &request.process_id)?;
        let (data, close, subject) = (request.data, request.close, caller.subject);
        if data.len() > LARGEST_WRITE {
            return Err(invalid("data", "is larger than 64 KiB").into());
        }
        if data.is_empty() && !close {
            return Err(invalid("data", "is empty, which is only good for closing").into());
        }
        let order = |answer| Order::Write { data, close, subject, answer };
        self.processes.order(&caller.tenant, id, order).await?;
        Ok(Response::new(pb::WriteProcessStdinResponse {}))
    }

    async fn resize_process(
        &self,
        request: Request<pb::ResizeProcessRequest>,
    ) -> Result<Response<pb::ResizeProcessResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: ProcessId = parse("process_id", &request.process_id)?;
        let missing = |field| invalid(field, "is not between 1 and 1000");
        let size = Size {
            rows: side("rows", request.rows)?.ok_or_else(|| missing("rows"))?,
            columns: side("columns", request.columns)?.ok_or_else(|| missing("columns"))?,
        };
        let order = |answer| Order::Resize { size, subject: caller.subject, answer };
        self.processes.order(&caller.tenant, id, order).await?;
        Ok(Response::new(pb::ResizeProcessResponse {}))
    }

    async fn signal_process(
        &self,
        request: Request<pb::SignalProcessRequest>,
    ) -> Result<Response<pb::SignalProcessResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: ProcessId = parse("process_id", &request.process_id)?;
        let (signal, name) = signal(&request.signal)?;
        let order = |answer| Order::Signal { signal, name, subject: caller.subject, answer };
        self.processes.order(&caller.tenant, id, order).await?;
        Ok(Response::new(pb::SignalProcessResponse {}))
    }

    async fn terminate_process(
        &self,
        request: Request<pb::TerminateProcessRequest>,
    ) -> Result<Response<pb::TerminateProcessResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let id = parse("process_id", &request.into_inner().process_id)?;
        let reason = format!("{} terminated it", caller.subject);
        let row = self.processes.terminate(&caller.tenant, id, &reason).await?;
        Ok(Response::new(pb::TerminateProcessResponse { process: Some(row.into()) }))
    }

    async fn end_session(
        &self,
        request: Request<pb::EndSessionRequest>,
    ) -> Result<Response<pb::EndSessionResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let session_id = parse("session_id", &request.into_inner().session_id)?;
        self.processes.end_session(&tenant, session_id).await?;
        Ok(Response::new(pb::EndSessionResponse {}))
    }
}

fn signal(name: &str) -> Result<(Signal, &'static str)> {
    Ok(match name {
        "INT" => (Signal::Int, "INT"),
        "TERM" => (Signal::Term, "TERM"),
        "KILL" => (Signal::Kill, "KILL"),
        "HUP" => (Signal::Hup, "HUP"),
        "USR1" => (Signal::Usr1, "USR1"),
        "USR2" => (Signal::Usr2, "USR2"),
        _ => return Err(invalid("signal", "is none of INT, TERM, KILL, HUP, USR1 and USR2")),
    })
}

/// One side of a terminal; nothing for zero.
fn side(field: &'static str, size: i32) -> Result<Option<u16>> {
    match size {
        0 => Ok(None),
        1..=LARGEST_SIDE => Ok(Some(size as u16)),
        _ => Err(invalid(field, "is not between 1 and 1000")),
    }
}
