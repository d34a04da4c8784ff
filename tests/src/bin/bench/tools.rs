//! The tools service: sandboxes, outputs, searches.

mod grep;
mod output;
mod spawn;

use anyhow::Result;

use crate::{Part, stage::Stage, table::Table};

/// Measures everything, or only one part of it.
pub async fn measure(stage: &mut Stage, table: &mut Table, only: Option<Part>) -> Result<()> {
    for part in [Part::Spawn, Part::Output, Part::Grep] {
        if only.is_some_and(|only| only != part) {
            continue;
        }
        stage.settle().await?;
        match part {
            Part::Spawn => spawn::measure(stage.scale, table).await?,
            Part::Output => output::measure(stage, table).await?,
            Part::Grep => grep::measure(stage, table).await?,
            Part::Turns | Part::Deltas | Part::Long | Part::Growth | Part::Memory => (),
            Part::Due | Part::Webhooks | Part::Models => (),
        }
    }
    Ok(())
}
