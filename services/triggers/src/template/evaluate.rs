use std::{borrow::Cow, cmp::Ordering};

use serde_json::Value;

use super::expression::{Comparison, Expression};

/// How much work there is in one evaluation: about as many bytes are looked at, copied or written.
const FULL: usize = 4 * 1024 * 1024;

/// What is left of that.
#[derive(Debug)]
pub struct Fuel(usize);

/// Why something could not be made of a payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("{0} is not defined")]
    Undefined(String),
    #[error("{0}")]
    Kind(String),
    #[error("the text is longer than {} bytes", super::LONGEST_OUTPUT)]
    TooLong,
    #[error("it takes too long")]
    OutOfFuel,
}

impl Fuel {
    pub fn full() -> Fuel {
        Fuel(FULL)
    }

    pub fn burn(&mut self, bytes: usize) -> Result<(), Failure> {
        self.0 = self.0.checked_sub(bytes).ok_or(Failure::OutOfFuel)?;
        Ok(())
    }

    /// What it takes to look at all of a value.
    pub fn burn_for(&mut self, value: &Value) -> Result<(), Failure> {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => self.burn(8),
            Value::String(text) => self.burn(8 + text.len()),
            Value::Array(items) => {
                self.burn(8)?;
                items.iter().try_for_each(|item| self.burn_for(item))
            }
            Value::Object(fields) => {
                self.burn(8)?;
                fields.iter().try_for_each(|(key, value)| {
                    self.burn(8 + key.len())?;
                    self.burn_for(value)
                })
            }
        }
    }
}

/// The names that mean something: those of the payload, and those of loops.
pub struct Scope<'a> {
    root: &'a Value,
    locals: Vec<(String, Cow<'a, Value>)>,
}

impl<'a> Scope<'a> {
    pub fn new(root: &'a Value) -> Scope<'a> {
        Scope { root, locals: Vec::new() }
    }

    pub fn with<T>(
        &mut self,
        name: &str,
        value: Cow<'a, Value>,
        inner: impl FnOnce(&mut Scope<'a>) -> T,
    ) -> T {
        self.locals.push((name.to_owned(), value));
        let result = inner(self);
        self.locals.pop();
        result
    }

    /// A local is lent where it is borrowed itself, and copied where it was made.
    fn find(&self, name: &str, fuel: &mut Fuel) -> Result<Option<Cow<'a, Value>>, Failure> {
        let local = self.locals.iter().rev().find(|(local, _)| local == name);
        match local {
            Some((_, Cow::Borrowed(value))) => Ok(Some(Cow::Borrowed(value))),
            Some((_, Cow::Owned(value))) => {
                fuel.burn_for(value)?;
                Ok(Some(Cow::Owned(value.clone())))
            }
            None => Ok(self.root.get(name).map(Cow::Borrowed)),
        }
    }
}

/// A value, or what is not there.
#[derive(Debug)]
pub enum Found<'a> {
    Value(Cow<'a, Value>),
    Missing(String),
}

impl Expression {
    pub fn evaluate<'a>(&self, scope: &Scope<'a>, fuel: &mut Fuel) -> Result<Found<'a>, Failure> {
        fuel.burn(1)?;
        let said = |truth| Ok(Found::Value(Cow::Owned(Value::Bool(truth))));
        match self {
            Expression::Value(value) => {
                fuel.burn_for(value)?;
                Ok(Found::Value(Cow::Owned(value.clone())))
            }
            Expression::Name(name) => Ok(match scope.find(name, fuel)? {
                Some(value) => Found::Value(value),
                None => Found::Missing(name.clone()),
            }),
            Expression::List(items) => {
                let mut list = Vec::new();
                for item in items {
                    let value = item.evaluate(scope, fuel)?.value()?;
                    fuel.burn_for(&value)?;
                    list.push(value.into_owned());
                }
                Ok(Found::Value(Cow::Owned(Value::Array(list))))
            }
            Expression::Index(of, key) => {
                let key = key.evaluate(scope, fuel)?.value()?;
                match of.evaluate(scope, fuel)? {
                    Found::Value(of) => index(of, &key, fuel),
                    Found::Missing(name) => Ok(Found::Missing(name)),
                }
            }
            Expression::Filter(value, filter, arguments) => {
                let value = value.evaluate(scope, fuel)?;
                let mut given = Vec::new();
                for argument in arguments {
                    given.push(argument.evaluate(scope, fuel)?.value()?);
                }
                filter.apply(value, given, fuel)
            }
            Expression::Defined(value) => {
                said(matches!(value.evaluate(scope, fuel)?, Found::Value(_)))
            }
            Expression::Not(value) => said(!value.evaluate(scope, fuel)?.truth()?),
            Expression::And(left, right) => {
                let left = left.evaluate(scope, fuel)?.truth()?;
                said(left && right.evaluate(scope, fuel)?.truth()?)
            }
            Expression::Or(left, right) => {
                let left = left.evaluate(scope, fuel)?.truth()?;
                said(left || right.evaluate(scope, fuel)?.truth()?)
            }
            Expression::Compare(comparison, left, right) => {
                let left = left.evaluate(scope, fuel)?.value()?;
                let right = right.evaluate(scope, fuel)?.value()?;
                fuel.burn_for(&left)?;
                fuel.burn_for(&right)?;
                said(compare(*comparison, &left, &right)?)
            }
        }
    }
}

impl<'a> Found<'a> {
    pub fn value(self) -> Result<Cow<'a, Value>, Failure> {
        match self {
            Found::Value(value) => Ok(value),
            Found::Missing(name) => Err(Failure::Undefined(name)),
        }
    }

    /// What is empty, zero or nothing is not true.
    pub fn truth(self) -> Result<bool, Failure> {
        Ok(match &*self.value()? {
            Value::Null => false,
            Value::Bool(truth) => *truth,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
        })
    }

    /// As it is printed: text as it is, and everything else as JSON.
    pub fn shown(self, fuel: &mut Fuel) -> Result<String, Failure> {
        let value = self.value()?;
        fuel.burn_for(&value)?;
        Ok(match value {
            Cow::Owned(Value::String(text)) => text,
            Cow::Borrowed(Value::String(text)) => text.clone(),
            value => value.to_string(),
        })
    }

    /// What a loop goes over: the items of a list, or the keys of an object.
    pub fn items(self, fuel: &mut Fuel) -> Result<Vec<Cow<'a, Value>>, Failure> {
        let keys = |fields: &serde_json::Map<String, Value>| {
            fields.keys().map(|key| Cow::Owned(Value::String(key.clone()))).collect()
        };
        match self.value()? {
            Cow::Borrowed(Value::Array(items)) => {
                fuel.burn(items.len())?;
                Ok(items.iter().map(Cow::Borrowed).collect())
            }
            Cow::Owned(Value::Array(items)) => Ok(items.into_iter().map(Cow::Owned).collect()),
            Cow::Borrowed(Value::Object(fields)) => {
                fuel.burn(fields.keys().map(String::len).sum())?;
                Ok(keys(fields))
            }
            Cow::Owned(Value::Object(fields)) => Ok(keys(&fields)),
            value => Err(Failure::Kind(format!("{} is no list", kind(&value)))),
        }
    }
}

fn index<'a>(of: Cow<'a, Value>, key: &Value, fuel: &mut Fuel) -> Result<Found<'a>, Failure> {
    let missing = || Found::Missing(key.as_str().map_or_else(|| key.to_string(), str::to_owned));
    let found = match of {
        Cow::Borrowed(of) => at(of, key).map(Cow::Borrowed),
        Cow::Owned(of) => match at(&of, key) {
            Some(value) => {
                fuel.burn_for(value)?;
                Some(Cow::Owned(value.clone()))
            }
            None => None,
        },
    };
    Ok(found.map_or_else(missing, Found::Value))
}

fn at<'a>(of: &'a Value, key: &Value) -> Option<&'a Value> {
    match key {
        Value::String(key) => of.as_object()?.get(key),
        Value::Number(place) => of.as_array()?.get(usize::try_from(place.as_u64()?).ok()?),
        _ => None,
    }
}

fn compare(comparison: Comparison, left: &Value, right: &Value) -> Result<bool, Failure> {
    let ordered = || order(left, right);
    Ok(match comparison {
        Comparison::Equal => is_equal(left, right),
        Comparison::Less => ordered()?.is_lt(),
        Comparison::LessOrEqual => ordered()?.is_le(),
        Comparison::Greater => ordered()?.is_gt(),
        Comparison::GreaterOrEqual => ordered()?.is_ge(),
        Comparison::In => match (left, right) {
            (Value::String(part), Value::String(text)) => text.contains(part.as_str()),
            (Value::String(key), Value::Object(fields)) => fields.contains_key(key),
            (left, Value::Array(items)) => items.iter().any(|item| is_equal(left, item)),
            _ => return Err(not_together(left, right)),
        },
    })
}

/// 1 and 1.0 are the same number.
fn is_equal(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => left == right,
    }
}

fn order(left: &Value, right: &Value) -> Result<Ordering, Failure> {
    let order = match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => {
            left.as_f64().zip(right.as_f64()).and_then(|(left, right)| left.partial_cmp(&right))
        }
        _ => None,
    };
    order.ok_or_else(|| not_together(left, right))
}

fn not_together(left: &Value, right: &Value) -> Failure {
    Failure::Kind(format!("{} cannot be compared with {}", kind(left), kind(right)))
}

pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
