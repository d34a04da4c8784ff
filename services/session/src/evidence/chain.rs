//! Whether the events of a pack are what was sealed, and whether one is missing.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Gap, Head, Log, Scope, Sealed, Why, facts::Fact, joins::Joins, verify::Broken, verify::read,
};
use crate::seal::{Digest, Seal, digest};

/// A line of the section `log`: exactly one is there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogLine<'a> {
    log: Option<Log>,
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    gap: Option<Gap>,
    seal: Option<Seal>,
}

/// The logs of a pack, one session after the other.
#[derive(Debug, Default)]
pub struct Chain {
    scope: Option<Scope>,
    log: Option<Log>,
    /// The sequence that comes next.
    next: i64,
    seal: Option<Seal>,
    /// What no seal has covered so far.
    events: Vec<(i64, Digest)>,
    gaps: Vec<Gap>,
    sealed: Sealed,
    joined: u64,
    removed: u64,
    elsewhere: u64,
}

impl Chain {
    pub fn begin(&mut self, head: &Head) {
        self.scope = Some(head.scope.clone());
    }

    pub fn line(
        &mut self,
        data: &RawValue,
        place: Broken,
        joins: &mut Joins,
    ) -> Result<(), Broken> {
        let line: LogLine<'_> = serde_json::from_str(data.get()).map_err(|error| Broken {
            problem: format!("does not hold what it should: {error}"),
            ..place.clone()
        })?;
        match (line.log, line.event, line.gap, line.seal) {
            (Some(log), None, None, None) => self.log(log, place),
            (None, Some(event), None, None) => self.event(event, place, joins),
            (None, None, Some(gap), None) => self.gap(gap, place),
            (None, None, None, Some(seal)) => self.seal(seal, place),
            _ => Err(Broken { problem: "holds none or several things".into(), ..place }),
        }
    }

    fn log(&mut self, log: Log, place: Broken) -> Result<(), Broken> {
        self.finish(&place)?;
        self.next = log.from;
        self.seal = None;
        self.gaps.clear();
        if self.scope.as_ref().is_some_and(|scope| scope.kind == "session") && !log.whole {
            let problem = "a session's log is to be whole".to_owned();
            return Err(Broken { field: Some("whole".into()), problem, ..place });
        }
        self.log = Some(log);
        Ok(())
    }

    fn open(&self, place: &Broken) -> Result<&Log, Broken> {
        self.log.as_ref().ok_or_else(|| Broken {
            problem: "stands before the log it belongs to".into(),
            ..place.clone()
        })
    }

    fn event(&mut self, event: &RawValue, place: Broken, joins: &mut Joins) -> Result<(), Broken> {
        let fact: Fact = read(event, &place)?;
        let place = Broken { sequence: Some(fact.sequence), ..place };
        let log = self.open(&place)?;
        let wrong = |field: &str, problem: String| {
            Err(Broken { field: Some(field.to_owned()), problem, ..place.clone() })
        };
        if fact.session_id != log.session_id {
            return wrong(
                "sessionId",
                format!("is of {} and not of {}", fact.session_id, log.session_id),
            );
        }
        if fact.first() != self.next {
            let next = self.next;
            return wrong(
                "sequence",
                format!("event {next} is missing before event {}", fact.first()),
            );
        }
        match &self.scope {
            Some(scope) if scope.kind == "turn" && fact.turn_id.as_ref() != Some(&scope.id) => {
                return wrong("turnId", format!("is not of {}", scope.id));
            }
            _ => {}
        }
        let digest = digest(event.get())
            .map_err(|error| Broken { problem: error.to_string(), ..place.clone() })?;
        self.next = fact.sequence + 1;
        self.sealed.events += 1;
        joins.event(&fact, digest);
        self.events.push((fact.sequence, digest));
        Ok(())
    }

    fn gap(&mut self, gap: Gap, place: Broken) -> Result<(), Broken> {
        let place = Broken { sequence: Some(gap.first), ..place };
        let log = self.open(&place)?;
        let wrong = |field: &str, problem: &str| {
            Err(Broken {
                field: Some(field.to_owned()),
                problem: problem.to_owned(),
                ..place.clone()
            })
        };
        if gap.first != self.next || gap.through < gap.first {
            return wrong("first", "the gap does not follow what is before it");
        }
        let count = (gap.through - gap.first + 1).unsigned_abs();
        match gap.why {
            Why::Elsewhere if log.whole => return wrong("why", "a whole log has no such gap"),
            Why::Removed if gap.through >= log.first_sequence => {
                return wrong("why", "the log still has these");
            }
            Why::Elsewhere => self.elsewhere += count,
            Why::Removed => self.removed += count,
        }
        self.next = gap.through + 1;
        self.gaps.push(gap);
        Ok(())
    }

    fn seal(&mut self, seal: Seal, place: Broken) -> Result<(), Broken> {
        let log = self.open(&place)?;
        let broken = |broken: crate::seal::Break| Broken {
            sequence: Some(broken.sequence),
            problem: broken.problem,
            ..place.clone()
        };
        if seal.session_id != log.session_id {
            let problem = "the seal is of another session".to_owned();
            return Err(Broken { field: Some("sessionId".into()), problem, ..place });
        }
        // What the first one follows from is in the pack only if the pack has all of them.
        if log.whole || self.seal.is_some() {
            seal.follows(self.seal.as_ref()).map_err(broken)?;
        }
        let (from, through) = (log.from, log.through);
        let elsewhere = |sequence: i64| {
            let gap = |gap: &Gap| gap.first <= sequence && sequence <= gap.through;
            sequence < from || sequence > through || self.gaps.iter().any(gap)
        };
        let joined = seal.holds(&self.events, log.first_sequence, elsewhere).map_err(broken)?;
        self.joined += joined.unsigned_abs();
        self.sealed.seals += 1;
        self.events.clear();
        self.gaps.retain(|gap| gap.through > seal.through_sequence);
        self.seal = Some(seal);
        Ok(())
    }

    /// Closes the log that is open; returns how far seals reach in all.
    pub fn finish(&mut self, place: &Broken) -> Result<Sealed, Broken> {
        if let Some(log) = self.log.take()
            && self.next != log.through + 1
        {
            let problem = format!("the log ends before event {}", self.next);
            return Err(Broken { sequence: Some(self.next), problem, ..place.clone() });
        }
        self.sealed.unsealed_events += std::mem::take(&mut self.events).len() as u64;
        Ok(self.sealed.clone())
    }

    /// How many events retention joined or removed, or belong to something else.
    pub fn left_out(&self) -> (u64, u64, u64) {
        (self.joined, self.removed, self.elsewhere)
    }
}
