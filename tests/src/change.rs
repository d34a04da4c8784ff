//! What people do to a session besides talking in it.

use proto::session::v1::{
    CancelQueuedTurnRequest, DeleteSessionRequest, EditQueuedTurnRequest, ForkSessionRequest,
    ListQueueRequest, ListQueueResponse, Message, PromoteQueuedTurnRequest, ReorderQueueRequest,
    ResumeQueueRequest, RewindSessionRequest, Session as Shown, Turn, UnrewindSessionRequest, part,
};
use tonic::Status;

use crate::{Session, request_id};

impl Session {
    /// The queue, and what it stands still for.
    pub async fn queue(&self) -> ListQueueResponse {
        let request = ListQueueRequest { session_id: self.id.clone() };
        self.client.turns().list_queue(request).await.unwrap().into_inner()
    }

    /// The turns in the queue, by id.
    pub async fn queued(&self) -> Vec<String> {
        self.queue().await.turns.into_iter().map(|turn| turn.turn_id).collect()
    }

    pub async fn edit(&self, turn_id: &str, script: &str) -> Result<Turn, Status> {
        let request = EditQueuedTurnRequest {
            session_id: self.id.clone(),
            turn_id: turn_id.into(),
            parts: self.turn(script).parts,
        };
        let response = self.client.turns().edit_queued_turn(request).await?;
        Ok(response.into_inner().turn.unwrap())
    }

    pub async fn cancel(&self, turn_id: &str) -> Result<Turn, Status> {
        let request =
            CancelQueuedTurnRequest { session_id: self.id.clone(), turn_id: turn_id.into() };
        let response = self.client.turns().cancel_queued_turn(request).await?;
        Ok(response.into_inner().turn.unwrap())
    }

    pub async fn promote(&self, turn_id: &str) -> Result<Turn, Status> {
        let request =
            PromoteQueuedTurnRequest { session_id: self.id.clone(), turn_id: turn_id.into() };
        let response = self.client.turns().promote_queued_turn(request).await?;
        Ok(response.into_inner().turn.unwrap())
    }

    pub async fn reorder(&self, turn_ids: &[&str]) -> Result<Vec<Turn>, Status> {
        let turn_ids = turn_ids.iter().map(|id| (*id).to_owned()).collect();
        let request = ReorderQueueRequest { session_id: self.id.clone(), turn_ids };
        Ok(self.client.turns().reorder_queue(request).await?.into_inner().turns)
    }

    pub async fn resume_queue(&self) -> Shown {
        let request = ResumeQueueRequest { session_id: self.id.clone() };
        let response = self.client.turns().resume_queue(request).await.unwrap();
        response.into_inner().session.unwrap()
    }

    pub async fn rewind(&self, message_id: &str) -> Result<i32, Status> {
        let request = RewindSessionRequest {
            session_id: self.id.clone(),
            message_id: message_id.into(),
            ..RewindSessionRequest::default()
        };
        let response = self.client.sessions().rewind_session(request).await?;
        Ok(response.into_inner().hidden_messages)
    }

    pub async fn unrewind(&self) -> Result<i32, Status> {
        let request = UnrewindSessionRequest { session_id: self.id.clone() };
        let response = self.client.sessions().unrewind_session(request).await?;
        Ok(response.into_inner().shown_messages)
    }

    /// Branches off behind a message, or at the end.
    pub async fn fork(&self, message_id: &str, ephemeral: bool) -> Result<Session, Status> {
        let request = ForkSessionRequest {
            request_id: request_id(),
            session_id: self.id.clone(),
            message_id: message_id.into(),
            ephemeral,
        };
        let response = self.client.sessions().fork_session(request).await?;
        let id = response.into_inner().session.unwrap().session_id;
        Ok(Session { client: self.client.clone(), id })
    }

    pub async fn delete(&self) -> Result<(), Status> {
        let request = DeleteSessionRequest { session_id: self.id.clone() };
        self.client.sessions().delete_session(request).await.map(drop)
    }

    /// What is said in the session, one text per message.
    pub async fn texts(&self) -> Vec<String> {
        let text = |message: &Message| {
            let parts = message.parts.iter().filter_map(|part| match &part.content {
                Some(part::Content::Text(text)) => Some(text.text.as_str()),
                _ => None,
            });
            parts.collect()
        };
        self.messages().await.iter().map(text).collect()
    }
}
