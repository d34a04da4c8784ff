//! The triggers service: what is due and what is not, and what others send.

mod taker;
mod due;
mod webhooks;

use anyhow::Result;

use crate::{Part, scale::Scale, table::Table};

/// Measures everything, or only one part of it.
pub async fn measure(scale: Scale, table: &mut Table, only: Option<Part>) -> Result<()> {
    if only.is_none_or(|only| only == Part::Due) {
        due::measure(scale, table).await?;
    }
    if only.is_none_or(|only| only == Part::Webhooks) {
        webhooks::measure(scale, table).await?;
    }
    Ok(())
}
