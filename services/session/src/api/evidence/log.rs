//! The log of a pack: the events, gaps where some are not in it, and each seal behind the events
//! that it covers.

use serde_json::{Value, json, value::RawValue};
use sqlx::PgConnection;

use super::pack::Pack;
use crate::{
    error::Result,
    evidence::{Fact, Gap, Log, Tally, Why, fact},
    ids::SessionId,
    keeper::SEALED,
    store::{
        events::{PAGE_BYTES, Row},
        evidence::{self as store, Selection},
        seals,
    },
};

const SECTION: &str = "log";

/// Where the events of a selection are.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    pub from: i64,
    pub through: i64,
    /// Where the log begins.
    pub first: i64,
    last: i64,
    /// Whether any event is there.
    pub any: bool,
}

impl Extent {
    pub async fn of(db: &mut PgConnection, selection: &Selection, last: i64) -> Result<Extent> {
        let first = seals::first_sequence(&mut *db, selection.session_id).await?;
        let extent = store::extent(&mut *db, selection).await?;
        let (from, through) = match (selection.whole, extent) {
            (true, _) => (1, last),
            (false, Some(extent)) => extent,
            (false, None) => (first, first - 1),
        };
        // What was said before the log begins was in it once.
        let place = store::place(&mut *db, selection).await?;
        let from = place.filter(|place| *place < first).map_or(from, |place| place.min(from));
        Ok(Extent { from, through, first, last, any: extent.is_some() })
    }

    /// How many sequences retention removed.
    pub fn removed(&self) -> i64 {
        (self.first.min(self.through + 1) - self.from).max(0)
    }
}

/// Writes a session's log, page by page.
pub async fn write(
    db: &mut PgConnection,
    selection: &Selection,
    extent: Extent,
    pack: &mut Pack,
    tally: &mut Tally,
) -> Result<()> {
    let Extent { from, through, first, last, .. } = extent;
    let head = Log {
        session_id: selection.session_id.to_string(),
        whole: selection.whole,
        from,
        through,
        first_sequence: first,
        last_sequence: last,
    };
    pack.line(Some(db), SECTION, &json!({ "log": head })).await?;
    let mut writing = Writing { db, selection, pack, tally, next: from };
    if extent.removed() > 0 {
        writing.gap(first.min(through + 1) - 1, Why::Removed).await?;
    }
    let id = selection.session_id;
    let number = match selection.whole {
        true => Some(1),
        false => seals::covering(&mut *writing.db, id, from).await?,
    };
    let mut next = number.unwrap_or(1) - 1;
    while let Some(seal) = next_seal(writing.db, id, next).await? {
        if seal.first_sequence > through {
            break;
        }
        next = seal.number;
        let end = seal.through_sequence.min(through);
        writing.events(end).await?;
        if writing.next <= end && !selection.whole {
            writing.gap(end, Why::Elsewhere).await?;
        }
        writing.pack.sealed.seals += 1;
        writing.pack.line(Some(writing.db), SECTION, &json!({ "seal": seal })).await?;
    }
    let unsealed = writing.events(through).await?;
    writing.pack.sealed.unsealed_events += unsealed;
    Ok(())
}

async fn next_seal(
    db: &mut PgConnection,
    id: SessionId,
    number: i32,
) -> Result<Option<crate::seal::Seal>> {
    Ok(seals::after(db, id, number, 1).await?.into_iter().next())
}

struct Writing<'a> {
    db: &'a mut PgConnection,
    selection: &'a Selection,
    pack: &'a mut Pack,
    tally: &'a mut Tally,
    /// The sequence that comes next.
    next: i64,
}

impl Writing<'_> {
    /// Writes the selected events up to one; returns how many there are.
    async fn events(&mut self, through: i64) -> Result<u64> {
        let mut count = 0;
        let mut after = self.next - 1;
        loop {
            let rows = page(self.db, self.selection, after, through, &[]).await?;
            let Some(last) = rows.last() else { return Ok(count) };
            after = last.seq;
            for row in rows {
                let event = row.into_envelope()?;
                self.event(&event).await?;
                count += 1;
            }
        }
    }

    async fn event(&mut self, event: &RawValue) -> Result<()> {
        let fact = fact(event)?;
        if fact.first() > self.next && !self.selection.whole {
            self.gap(fact.first() - 1, Why::Elsewhere).await?;
        }
        self.next = fact.sequence + 1;
        self.tally.note(&fact);
        self.pack.sealed.events += 1;
        self.pack.line(Some(self.db), SECTION, &json!({ "event": event })).await
    }

    async fn gap(&mut self, through: i64, why: Why) -> Result<()> {
        let first = std::mem::replace(&mut self.next, through + 1);
        let through = match why {
            Why::Removed => through,
            Why::Elsewhere => self.reached(first, through).await?,
        };
        if through < first {
            return Ok(());
        }
        let gap = Gap { first, through, why };
        self.pack.line(Some(self.db), SECTION, &json!({ "gap": gap })).await
    }

    /// How far the log has something in these places. What it has lost is in no gap, so that
    /// whoever checks the pack misses it.
    async fn reached(&mut self, first: i64, through: i64) -> Result<i64> {
        let whole = Selection { whole: true, ..self.selection.clone() };
        let mut next = first;
        loop {
            let rows = page(self.db, &whole, next - 1, through, &[]).await?;
            if rows.is_empty() {
                return Ok(next - 1);
            }
            for row in rows {
                if row.first() != next {
                    return Ok(next - 1);
                }
                next = row.seq + 1;
            }
        }
    }
}

/// A page of the selected events with these names.
pub async fn page(
    db: &mut PgConnection,
    selection: &Selection,
    after: i64,
    through: i64,
    names: &[&str],
) -> Result<Vec<Row>> {
    store::rows(db, selection, after, through, names, SEALED, PAGE_BYTES).await
}

/// Sections that are made from events.
pub struct Derived<'a> {
    pub db: &'a mut PgConnection,
    pub extents: &'a [(&'a Selection, Extent)],
    pub pack: &'a mut Pack,
}

impl Derived<'_> {
    /// Goes through the events with these names once; returns how many lines became of them.
    pub async fn pass(
        &mut self,
        section: &'static str,
        names: &[&str],
        mut make: impl FnMut(&Fact, &RawValue) -> Vec<Value>,
    ) -> Result<u64> {
        let mut count = 0;
        for (selection, extent) in self.extents {
            let mut after = extent.from - 1;
            loop {
                let page = page(self.db, selection, after, extent.through, names).await?;
                let Some(last) = page.last() else { break };
                after = last.seq;
                for row in page {
                    let event = row.into_envelope()?;
                    for mut line in make(&fact(&event)?, &event) {
                        if line.get("event").is_none() {
                            line["sessionId"] = json!(selection.session_id);
                        }
                        self.pack.line(Some(self.db), section, &line).await?;
                        count += 1;
                    }
                }
            }
        }
        Ok(count)
    }
}
