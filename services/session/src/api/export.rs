//! A session as JSON lines, out.

use chassis::Tenant;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use proto::session::v1 as pb;
use sqlx::{PgConnection, PgPool};
use tonic::Status;

use super::{Api, outgoing::Outgoing, snapshot};
use crate::{
    archive::{Line, MessageLine, PartLine, SessionLine, TurnLine, VERSION},
    error::Result,
    ids::SessionId,
    keeper::SEALED,
    store::{
        events::{self, PAGE_BYTES},
        messages::{self, Stored, Window},
        seals,
        sessions::{self, Session},
        turns,
    },
};

/// How many messages one read takes.
pub const PAGE: i64 = 200;

impl Api {
    pub(super) async fn export(
        &self,
        tenant: Tenant,
        id: SessionId,
        request: pb::ExportSessionRequest,
    ) -> Result<BoxStream<'static, Result<pb::ExportSessionResponse, Status>>> {
        sessions::get(&self.host.db, &tenant, id).await?;
        let db = self.host.db.clone();
        let whose = tenant.clone();
        let write = async move |out| write(&db, &whose, id, &request, &mut Out(out)).await;
        let pieces = self.send(tenant, id, write);
        Ok(pieces.map_ok(|data| pb::ExportSessionResponse { data }).boxed())
    }
}

/// Writes everything as it is at one moment, a piece at a time.
async fn write(
    db: &PgPool,
    tenant: &Tenant,
    id: SessionId,
    request: &pb::ExportSessionRequest,
    out: &mut Out,
) -> Result<()> {
    let mut db = snapshot::one_state(db).await?;
    let session = sessions::get(&mut *db, tenant, id).await?;
    let last = session.last_sequence;
    let first = seals::first_sequence(&mut *db, id).await?;
    let session = session_line(session, first);
    out.line(&mut db, &Line::Session { version: VERSION, session }).await?;

    let hidden = request.include_hidden;
    let mut after = i64::MIN;
    loop {
        let window = Window::After(after, PAGE);
        let (page, more) = messages::page(&mut db, id, window, hidden, PAGE_BYTES).await?;
        after = page.last().and_then(|message| message.position).unwrap_or(after);
        out.messages(&mut db, id, page).await?;
        if !more {
            break;
        }
    }
    let mut after = i64::MIN;
    loop {
        let window = Window::Queued(after, PAGE);
        let (page, more) = messages::page(&mut db, id, window, hidden, PAGE_BYTES).await?;
        after = page.last().and_then(|message| message.queue_rank).unwrap_or(after);
        out.messages(&mut db, id, page).await?;
        if !more {
            break;
        }
    }
    if request.events {
        out.log(&mut db, id, last).await?;
    }
    out.0.flush(Some(&mut db)).await?;
    db.commit().await?;
    Ok(())
}

/// Where lines go.
struct Out(Outgoing);

impl Out {
    async fn messages(
        &mut self,
        db: &mut PgConnection,
        id: SessionId,
        messages: Vec<Stored>,
    ) -> Result<()> {
        let ids: Vec<_> = messages.iter().map(|message| message.turn_id).collect();
        let mut turns = turns::of(&mut *db, id, &ids).await?;
        for message in messages {
            let turn = turns.iter().position(|turn| turn.message_id == message.id);
            let turn = turn.map(|index| turns.swap_remove(index));
            let message = message_line(message, turn)?;
            self.line(db, &Line::Message { message: message.into() }).await?;
        }
        Ok(())
    }

    /// The events, and each seal behind those it covers.
    async fn log(&mut self, db: &mut PgConnection, id: SessionId, last: i64) -> Result<()> {
        let (mut after, mut number) = (0, 0);
        loop {
            let page = seals::after(&mut *db, id, number, 1).await?;
            let Some(seal) = page.into_iter().next() else { break };
            number = seal.number;
            self.events(db, id, after, seal.through_sequence).await?;
            after = seal.through_sequence;
            self.line(db, &Line::Seal { seal }).await?;
        }
        self.events(db, id, after, last).await
    }

    async fn events(
        &mut self,
        db: &mut PgConnection,
        id: SessionId,
        mut after: i64,
        through: i64,
    ) -> Result<()> {
        loop {
            let rows = events::rows(&mut *db, id, after, through, SEALED, PAGE_BYTES).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.seq;
            for row in rows {
                self.line(db, &Line::Event { event: row.into_envelope()? }).await?;
            }
        }
    }

    async fn line(&mut self, db: &mut PgConnection, line: &Line) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.0.add(Some(db), text).await
    }
}

pub fn session_line(session: Session, first_sequence: i64) -> SessionLine {
    SessionLine {
        session_id: session.id,
        title: session.title,
        agent: session.agent,
        subject: session.subject,
        status: session.status,
        created_at: session.created_at.to_jiff(),
        updated_at: session.updated_at.to_jiff(),
        metadata: session.metadata.0,
        input_tokens: session.input_tokens,
        output_tokens: session.output_tokens,
        cost_micros: session.cost_micros,
        model_calls: session.model_calls,
        first_sequence,
        last_sequence: session.last_sequence,
    }
}

pub fn message_line(message: Stored, turn: Option<turns::Recorded>) -> Result<MessageLine> {
    let parts = message.parts().iter().map(|row| {
        Ok(PartLine {
            part_id: row.id,
            index: row.index,
            r#type: row.r#type.clone(),
            data: row.part()?.data(),
        })
    });
    Ok(MessageLine {
        message_id: message.id,
        turn_id: message.turn_id,
        role: message.role.0,
        status: message.status.clone(),
        synthetic: message.synthetic,
        created_at: message.created_at.to_jiff(),
        hidden_at: message.hidden_at.map(|at| -> Timestamp { at.to_jiff() }),
        metadata: message.metadata.0.clone(),
        parts: parts.collect::<Result<_>>()?,
        turn: turn.map(|turn| TurnLine {
            turn_id: turn.id,
            status: turn.status,
            subject: turn.subject,
            submitted_at: turn.submitted_at.to_jiff(),
            view: turn.view.0,
        }),
    })
}
