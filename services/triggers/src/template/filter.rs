use std::{borrow::Cow, ops::RangeInclusive};

use serde_json::Value;

use super::{
    Failure, Fuel, LONGEST_OUTPUT,
    evaluate::{Found, kind},
};

/// What can be done to a value on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    Default,
    First,
    Join,
    Json,
    Last,
    Length,
    Lower,
    Replace,
    StartsWith,
    EndsWith,
    Trim,
    Truncate,
    Upper,
}

const FILTERS: [(&str, Filter); 13] = [
    ("default", Filter::Default),
    ("ends_with", Filter::EndsWith),
    ("first", Filter::First),
    ("join", Filter::Join),
    ("json", Filter::Json),
    ("last", Filter::Last),
    ("length", Filter::Length),
    ("lower", Filter::Lower),
    ("replace", Filter::Replace),
    ("starts_with", Filter::StartsWith),
    ("trim", Filter::Trim),
    ("truncate", Filter::Truncate),
    ("upper", Filter::Upper),
];

impl Filter {
    pub fn named(name: &str) -> Option<Filter> {
        FILTERS.iter().find(|(known, _)| *known == name).map(|(_, filter)| *filter)
    }

    pub fn names() -> [&'static str; FILTERS.len()] {
        FILTERS.map(|(name, _)| name)
    }

    /// How many it takes.
    pub fn arguments(self) -> RangeInclusive<usize> {
        match self {
            Filter::First | Filter::Json | Filter::Last | Filter::Length => 0..=0,
            Filter::Lower | Filter::Trim | Filter::Upper => 0..=0,
            Filter::Default | Filter::StartsWith | Filter::EndsWith | Filter::Truncate => 1..=1,
            Filter::Join => 0..=1,
            Filter::Replace => 2..=2,
        }
    }

    pub fn apply<'a>(
        self,
        found: Found<'a>,
        arguments: Vec<Cow<'a, Value>>,
        fuel: &mut Fuel,
    ) -> Result<Found<'a>, Failure> {
        if self == Filter::Default {
            return Ok(match found {
                Found::Value(value) if !value.is_null() => Found::Value(value),
                _ => Found::Value(arguments.into_iter().next().unwrap_or_default()),
            });
        }
        let value = found.value()?;
        fuel.burn_for(&value)?;
        let argument = |place: usize| {
            let text = arguments.get(place).and_then(|argument| argument.as_str());
            text.ok_or_else(|| Failure::Kind("an argument of a filter is no text".to_owned()))
        };
        let made = match self {
            Filter::Default => unreachable!("returned above"),
            Filter::First | Filter::Last => {
                let Value::Array(items) = &*value else { return Err(wrong(self, &value)) };
                let item = if self == Filter::First { items.first() } else { items.last() };
                match item {
                    Some(item) => item.clone(),
                    None => return Ok(Found::Missing("an item of an empty list".to_owned())),
                }
            }
            Filter::Join => {
                let Value::Array(items) = &*value else { return Err(wrong(self, &value)) };
                let between = if arguments.is_empty() { "" } else { argument(0)? };
                let mut joined = String::new();
                for (place, item) in items.iter().enumerate() {
                    if place > 0 {
                        extend(&mut joined, between, fuel)?;
                    }
                    match item {
                        Value::String(text) => extend(&mut joined, text, fuel)?,
                        item => extend(&mut joined, &item.to_string(), fuel)?,
                    }
                }
                Value::String(joined)
            }
            Filter::Json => Value::String(value.to_string()),
            Filter::Length => Value::from(match &*value {
                Value::String(text) => text.chars().count(),
                Value::Array(items) => items.len(),
                Value::Object(fields) => fields.len(),
                value => return Err(wrong(self, value)),
            }),
            Filter::Lower => Value::String(self.text(&value)?.to_lowercase()),
            Filter::Upper => Value::String(self.text(&value)?.to_uppercase()),
            Filter::Trim => Value::String(self.text(&value)?.trim().to_owned()),
            Filter::StartsWith => Value::Bool(self.text(&value)?.starts_with(argument(0)?)),
            Filter::EndsWith => Value::Bool(self.text(&value)?.ends_with(argument(0)?)),
            Filter::Replace => {
                let (old, new) = (argument(0)?, argument(1)?);
                if old.is_empty() {
                    return Err(Failure::Kind("nothing cannot be replaced".to_owned()));
                }
                let mut replaced = String::new();
                for (place, piece) in self.text(&value)?.split(old).enumerate() {
                    if place > 0 {
                        extend(&mut replaced, new, fuel)?;
                    }
                    extend(&mut replaced, piece, fuel)?;
                }
                Value::String(replaced)
            }
            Filter::Truncate => {
                let most = arguments.first().and_then(|most| most.as_u64());
                let most = most.and_then(|most| usize::try_from(most).ok());
                let most = most.ok_or_else(|| {
                    Failure::Kind("`truncate` takes a number of characters".to_owned())
                })?;
                let text = self.text(&value)?;
                match text.char_indices().nth(most) {
                    Some((end, _)) => Value::String(format!("{}…", &text[..end])),
                    None => value.into_owned(),
                }
            }
        };
        Ok(Found::Value(Cow::Owned(made)))
    }

    fn text(self, value: &Value) -> Result<&str, Failure> {
        value.as_str().ok_or_else(|| wrong(self, value))
    }

    fn name(self) -> &'static str {
        FILTERS.iter().find(|(_, filter)| *filter == self).map_or("", |(name, _)| name)
    }
}

/// Whatever is made is no longer than what may be printed.
fn extend(text: &mut String, more: &str, fuel: &mut Fuel) -> Result<(), Failure> {
    fuel.burn(1 + more.len())?;
    if text.len() + more.len() > LONGEST_OUTPUT {
        return Err(Failure::TooLong);
    }
    text.push_str(more);
    Ok(())
}

fn wrong(filter: Filter, value: &Value) -> Failure {
    Failure::Kind(format!("`{}` cannot be done to {}", filter.name(), kind(value)))
}
