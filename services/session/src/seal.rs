//! The chain of seals, without I/O: what the digest of an event is, what a seal vouches
//! for, and whether what is left of a log is what was sealed.

use std::{collections::BTreeMap, fmt::Write as _, iter::Peekable};

use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};
use sha2::{Digest as _, Sha256};

/// A SHA-256.
pub type Digest = [u8; 32];

/// A seal as it is stored and exported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seal {
    pub session_id: String,
    pub number: i32,
    pub first_sequence: i64,
    pub through_sequence: i64,
    /// The digest of the seal before; empty for the first.
    pub previous: String,
    /// Those of its events. None: the events were removed, and the digests with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<Vec<String>>,
    pub digest: String,
    /// What retention joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Replaced>,
}

/// A stretch of deltas of which one event is left, in the place of the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replaced {
    pub first: i64,
    pub through: i64,
    pub digest: String,
}

/// Where a chain breaks, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Break {
    pub sequence: i64,
    pub problem: String,
}

impl Seal {
    /// The next seal of a chain, over these events.
    pub fn next(
        session_id: String,
        before: Option<(i32, i64, String)>,
        digests: &[Digest],
    ) -> Seal {
        let (number, through, previous) = before.unwrap_or_default();
        let mut seal = Seal {
            session_id,
            number: number + 1,
            first_sequence: through + 1,
            through_sequence: through + digests.len() as i64,
            previous,
            digests: Some(digests.iter().map(|digest| hex(digest)).collect()),
            digest: String::new(),
            replaced: vec![],
        };
        seal.digest = seal.compute();
        seal
    }

    /// Over everything but itself and what was joined later.
    fn compute(&self) -> String {
        let sealed = json!({
            "sessionId": self.session_id,
            "number": self.number,
            "firstSequence": self.first_sequence,
            "throughSequence": self.through_sequence,
            "previous": self.previous,
            "digests": self.digests,
        });
        // Without fractions, a value is as good as its text.
        hex(&Sha256::digest(canonical(&sealed.to_string()).unwrap_or_default()))
    }

    /// Checks this seal against the one before and against the events that are left of it, in
    /// order. `first` is where the log begins. Returns how many events were joined away.
    pub fn check(
        &self,
        before: Option<&Seal>,
        events: &[(i64, Digest)],
        first: i64,
    ) -> Result<i64, Break> {
        self.follows(before)?;
        self.holds(events, first, |_| false)
    }

    /// Checks that it is the next one.
    pub fn follows(&self, before: Option<&Seal>) -> Result<(), Break> {
        let broken = |sequence, problem: String| Err(Break { sequence, problem });
        let (number, through, previous) = match before {
            Some(seal) => (seal.number, seal.through_sequence, seal.digest.as_str()),
            None => (0, 0, ""),
        };
        if (self.number, self.first_sequence) != (number + 1, through + 1) {
            return broken(through + 1, format!("seal {} is missing", number + 1));
        }
        if self.previous != previous {
            return broken(
                self.first_sequence,
                format!("seal {} does not follow from seal {number}", self.number),
            );
        }
        Ok(())
    }

    /// Checks that these are its events, but for those that are `elsewhere`.
    pub fn holds(
        &self,
        events: &[(i64, Digest)],
        first: i64,
        elsewhere: impl Fn(i64) -> bool,
    ) -> Result<i64, Break> {
        let broken = |sequence, problem: String| Err(Break { sequence, problem });
        let Some(digests) = &self.digests else {
            return match self.through_sequence < first && events.is_empty() {
                true => Ok(0),
                false => broken(
                    self.first_sequence,
                    format!(
                        "seal {} has no digests, and its events were not removed by policy",
                        self.number
                    ),
                ),
            };
        };
        let count = self.through_sequence - self.first_sequence + 1;
        if digests.len() as i64 != count || self.compute() != self.digest {
            return broken(self.first_sequence, format!("seal {} was altered", self.number));
        }
        self.check_events(digests, &mut events.iter().copied().peekable(), elsewhere)
    }

    fn check_events(
        &self,
        digests: &[String],
        events: &mut Peekable<impl Iterator<Item = (i64, Digest)>>,
        elsewhere: impl Fn(i64) -> bool,
    ) -> Result<i64, Break> {
        let broken = |sequence, what: &str| {
            Err(Break { sequence, problem: format!("event {sequence} {what}") })
        };
        let mut joined = 0;
        for (sequence, sealed) in (self.first_sequence..).zip(digests) {
            let stretch = self
                .replaced
                .iter()
                .find(|stretch| stretch.first <= sequence && sequence <= stretch.through);
            let found = events.next_if(|(next, _)| *next == sequence);
            match (stretch, found) {
                (_, None) if elsewhere(sequence) => {}
                (Some(stretch), None) if sequence < stretch.through => joined += 1,
                (Some(stretch), Some((_, digest)))
                    if sequence == stretch.through && hex(&digest) == stretch.digest => {}
                (None, Some((_, digest))) if hex(&digest) == *sealed => {}
                (_, Some(_)) => return broken(sequence, "was altered"),
                (_, None) => return broken(sequence, "is missing"),
            }
        }
        match events.next() {
            Some((sequence, _)) => broken(sequence, "is not covered by its seal"),
            None => Ok(joined),
        }
    }
}

/// The digest of JSON text, however it is written.
pub fn digest(json: &str) -> serde_json::Result<Digest> {
    Ok(Sha256::digest(canonical(json)?).into())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// JSON as RFC 8785 writes it. Works on text, because a number that was read as a
/// `serde_json::Value` may be off by the last bit.
pub fn canonical(json: &str) -> serde_json::Result<String> {
    let mut text = String::with_capacity(json.len());
    write_value(&mut text, serde_json::from_str(json)?)?;
    Ok(text)
}

fn write_value(text: &mut String, value: &RawValue) -> serde_json::Result<()> {
    let json = value.get();
    match json.as_bytes().first() {
        Some(b'{') => {
            let fields: BTreeMap<String, &RawValue> = serde_json::from_str(json)?;
            let mut fields: Vec<_> = fields.into_iter().collect();
            fields.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
            text.push('{');
            for (index, (name, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&serde_json::to_string(&name)?);
                text.push(':');
                write_value(text, value)?;
            }
            text.push('}');
        }
        Some(b'[') => {
            text.push('[');
            let values: Vec<&RawValue> = serde_json::from_str(json)?;
            for (index, value) in values.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_value(text, value)?;
            }
            text.push(']');
        }
        // Escapes exactly what the RFC does, and in the same way.
        Some(b'"') => {
            text.push_str(&serde_json::to_string(&serde_json::from_str::<String>(json)?)?);
        }
        Some(b'-' | b'0'..=b'9') => text.push_str(&write_number(json)),
        _ => text.push_str(json),
    }
    Ok(())
}

/// Numbers are doubles, written as ECMAScript does.
fn write_number(json: &str) -> String {
    let value: f64 = json.parse().unwrap_or_default();
    if value == 0.0 {
        return "0".to_owned();
    }
    let sign = if value < 0.0 { "-" } else { "" };
    // The fewest digits that say which double it is.
    let scientific = format!("{:e}", value.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits = mantissa.replace('.', "");
    let (count, point) = (digits.len() as i32, exponent.parse::<i32>().unwrap_or_default() + 1);
    let zeros = |count: i32| "0".repeat(count.max(0) as usize);
    let plain = match point {
        1..=21 if count <= point => format!("{digits}{}", zeros(point - count)),
        1..=21 => format!("{}.{}", &digits[..point as usize], &digits[point as usize..]),
        -5..=0 => format!("0.{}{digits}", zeros(-point)),
        _ => {
            let exponent = point - 1;
            let plus = if exponent < 0 { "" } else { "+" };
            match count {
                1 => format!("{digits}e{plus}{exponent}"),
                _ => format!("{}.{}e{plus}{exponent}", &digits[..1], &digits[1..]),
            }
        }
    };
    format!("{sign}{plain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_written_as_the_rfc_says() {
        let json = r#"{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001, -0.0, 1e21, 1e20, 123e-8, 9007199254740993],
                "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false],
                "\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\ud83d\ude00": 5, "\u0080": 6, "\u00f6": 7}"#;
        assert_eq!(
            canonical(json).unwrap(),
            "{\"\\r\":2,\"1\":4,\"literals\":[null,true,false],\
             \"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27,0,1e+21,100000000000000000000,0.00000123,9007199254740992],\
             \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\",\
             \"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}"
        );
    }

    fn event(sequence: i64) -> (i64, Digest) {
        (sequence, digest(&format!(r#"{{"sequence": {sequence}}}"#)).unwrap())
    }

    fn seal(before: Option<&Seal>, count: i64) -> Seal {
        let before = before.map(|seal| (seal.number, seal.through_sequence, seal.digest.clone()));
        let first = before.as_ref().map_or(1, |(_, through, _)| through + 1);
        let digests: Vec<_> = (first..first + count).map(|sequence| event(sequence).1).collect();
        Seal::next("ses".into(), before, &digests)
    }

    fn at(broken: Result<i64, Break>) -> i64 {
        broken.unwrap_err().sequence
    }

    #[test]
    fn whatever_is_altered_is_found_where_it_is() {
        let one = seal(None, 3);
        let two = seal(Some(&one), 4);
        let events: Vec<_> = (4..=7).map(event).collect();
        assert_eq!(two.check(Some(&one), &events, 1), Ok(0));

        for index in 0..events.len() {
            let (mut altered, mut missing) = (events.clone(), events.clone());
            altered[index].1[31] ^= 1;
            missing.remove(index);
            assert_eq!(at(two.check(Some(&one), &altered, 1)), 4 + index as i64);
            assert_eq!(at(two.check(Some(&one), &missing, 1)), 4 + index as i64);
        }
        assert_eq!(at(two.check(None, &events, 1)), 1);
        assert_eq!(at(two.check(Some(&seal(None, 2)), &events, 1)), 3);
        let another = Seal { digest: "another".into(), ..one.clone() };
        assert_eq!(at(two.check(Some(&another), &events, 1)), 4);
        let resealed = Seal { digests: seal(None, 4).digests, ..two.clone() };
        assert_eq!(at(resealed.check(Some(&one), &events, 1)), 4);
    }

    #[test]
    fn what_policy_removed_breaks_nothing() {
        let mut one = seal(None, 5);
        let joined = digest("\"joined\"").unwrap();
        one.replaced = vec![Replaced { first: 2, through: 4, digest: hex(&joined) }];
        let left = [event(1), (4, joined), event(5)];
        assert_eq!(one.check(None, &left, 1), Ok(2));
        assert_eq!(at(one.check(None, &[event(1), event(4), event(5)], 1)), 4);
        assert_eq!(at(one.check(None, &[event(1), event(5)], 1)), 4);

        let gone = Seal { digests: None, replaced: vec![], ..one.clone() };
        assert_eq!(gone.check(None, &[], 6), Ok(0));
        assert_eq!(at(gone.check(None, &[], 5)), 1);
    }
}
