//! The way to the session service, where turns go.

use std::time::Duration;

use chassis::{Auth, Caller, Peer, Tenant};
use proto::session::v1::{
    CreateSessionRequest, GetSessionRequest, GetTurnRequest, InterruptTurnRequest,
    SubmitTurnRequest, session_service_client::SessionServiceClient, turn::Status as TurnStatus,
    turn_service_client::TurnServiceClient,
};
use tonic::{Code, Status, transport::Channel};

use crate::config::Config;

/// How long an answer may take. It is shorter than a lease.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Sessions {
    peer: Peer,
    chassis: chassis::Args,
}

/// In whose name a trigger acts: its creator's.
pub fn creator(tenant: &Tenant, subject: &str) -> Caller {
    Caller::service(tenant.clone(), subject)
}

impl Sessions {
    pub fn new(config: &Config, auth: &Auth) -> anyhow::Result<Sessions> {
        let peer = Peer::new("session", &config.session_url, &config.chassis.tls, auth)?;
        Ok(Sessions { peer, chassis: config.chassis.clone() })
    }

    /// Submits a turn and returns its id. The same request again returns the same turn.
    pub async fn submit(
        &self,
        caller: &Caller,
        request: SubmitTurnRequest,
    ) -> Result<String, Status> {
        let request = self.peer.request_within(ANSWER, caller, request);
        let turn = self.turns().submit_turn(request).await?.into_inner().turn;
        Ok(turn.unwrap_or_default().turn_id)
    }

    /// Makes a session and returns its id. The same request again returns the same session.
    pub async fn create(
        &self,
        caller: &Caller,
        request: CreateSessionRequest,
    ) -> Result<String, Status> {
        let request = self.peer.request_within(ANSWER, caller, request);
        let session = self.sessions().create_session(request).await?.into_inner().session;
        Ok(session.unwrap_or_default().session_id)
    }

    /// Whether the caller can see the session.
    pub async fn knows(&self, caller: &Caller, session_id: &str) -> Result<bool, Status> {
        let request = GetSessionRequest { session_id: session_id.to_owned() };
        let request = self.peer.request_within(ANSWER, caller, request);
        match self.sessions().get_session(request).await {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::NotFound => Ok(false),
            Err(status) => Err(self.peer.failed(&status)),
        }
    }

    /// Whether a turn is still to end. One that is gone has ended.
    pub async fn is_open(
        &self,
        caller: &Caller,
        session_id: &str,
        turn_id: &str,
    ) -> Result<bool, Status> {
        let (session_id, turn_id) = (session_id.to_owned(), turn_id.to_owned());
        let request = GetTurnRequest { session_id, turn_id };
        let request = self.peer.request_within(ANSWER, caller, request);
        let turn = match self.turns().get_turn(request).await {
            Ok(answer) => answer.into_inner().turn.unwrap_or_default(),
            Err(status) if status.code() == Code::NotFound => return Ok(false),
            Err(status) => return Err(status),
        };
        Ok(match turn.status() {
            TurnStatus::Accepted
            | TurnStatus::Queued
            | TurnStatus::Running
            | TurnStatus::Waiting => true,
            TurnStatus::Unspecified
            | TurnStatus::Completed
            | TurnStatus::Failed
            | TurnStatus::Cancelled => false,
        })
    }

    /// Stops a turn; one that is over is over.
    pub async fn interrupt(
        &self,
        caller: &Caller,
        session_id: &str,
        turn_id: &str,
    ) -> Result<(), Status> {
        let request = InterruptTurnRequest {
            session_id: session_id.to_owned(),
            turn_id: turn_id.to_owned(),
            reason: "its trigger fired again".to_owned(),
        };
        let request = self.peer.request_within(ANSWER, caller, request);
        match self.turns().interrupt_turn(request).await {
            Ok(_) => Ok(()),
            Err(status) if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) => {
                Ok(())
            }
            Err(status) => Err(status),
        }
    }

    fn turns(&self) -> TurnServiceClient<Channel> {
        chassis::client!(TurnServiceClient::new(self.peer.channel()), self.chassis)
    }

    fn sessions(&self) -> SessionServiceClient<Channel> {
        chassis::client!(SessionServiceClient::new(self.peer.channel()), self.chassis)
    }
}
