//! A pack on its way out.

use chassis::Caller;
use proto::event::v1::{EvidenceChanged, Payload};
use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    api::{outgoing::Outgoing, sessions::payload, stamp},
    error::Result,
    evidence::{FORMAT, Head, Kind, Scope, Sealed, Signal, VERSION, Writer},
    host::Host,
    ids::{EvidenceId, SessionId, TurnId},
    store::evidence as store,
    time,
};

pub struct Pack {
    writer: Writer,
    out: Outgoing,
    first: Option<Vec<u8>>,
    pub sealed: Sealed,
}

impl Pack {
    pub fn begin(
        host: &Host,
        caller: &Caller,
        kind: Kind,
        scope: &Scope,
        out: Outgoing,
    ) -> Result<Pack> {
        let key = host.evidence_key.as_ref();
        let head = Head {
            format: FORMAT.to_owned(),
            version: VERSION,
            evidence_id: EvidenceId::new().to_string(),
            kind,
            scope: scope.clone(),
            tenant_id: caller.tenant.to_string(),
            subject: caller.subject.clone(),
            exported_at: time::now().to_string(),
            runtime_id: host.replica.to_string(),
            service_version: env!("CARGO_PKG_VERSION").to_owned(),
            key_id: key.map_or("unsigned", |key| key.id()).to_owned(),
        };
        let (writer, first) = Writer::new(head)?;
        Ok(Pack { writer, out, first: Some(first), sealed: Sealed::default() })
    }

    /// Adds a line; `db` is the transaction that waits for the reader.
    pub async fn line(
        &mut self,
        mut db: Option<&mut PgConnection>,
        section: &'static str,
        data: &impl Serialize,
    ) -> Result<()> {
        if let Some(first) = self.first.take() {
            self.out.add(db.as_deref_mut(), first).await?;
        }
        let line = self.writer.line(section, data)?;
        self.out.add(db, line).await
    }

    /// Closes the pack, and puts on record that there is one.
    pub async fn finish(
        self,
        host: &Host,
        caller: &Caller,
        signals: Vec<Signal>,
        home: SessionId,
        turn: Option<TurnId>,
    ) -> Result<()> {
        let Pack { writer, mut out, first, sealed } = self;
        let head = writer.head().clone();
        let (lines, digest) = writer.finish(signals, sealed, host.evidence_key.as_ref())?;
        if let Some(first) = first {
            out.add(None, first).await?;
        }
        out.add(None, lines).await?;
        out.flush(None).await?;
        let changed = Payload::EvidenceChanged(EvidenceChanged {
            evidence_id: head.evidence_id,
            scope: head.scope.kind,
            change: head.kind.change().to_owned(),
            digest,
        });
        let (tenant, stamp) = (&caller.tenant, stamp(host.replica));
        let events = store::note(&host.db, tenant, home, turn, &payload(&changed)?, &stamp).await?;
        host.bus.publish(tenant, home, events, false);
        Ok(())
    }
}
