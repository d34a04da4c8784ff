use serde_json::Value;

use super::{
    DEEPEST, Failure, Fuel, LONGEST_TEMPLATE, MOST_TOKENS, Problem, Scope,
    filter::Filter,
    token::{self, Token},
};

/// An expression that can be read.
#[derive(Debug, Clone, PartialEq)]
pub enum Expression {
    Value(Value),
    Name(String),
    List(Vec<Expression>),
    Index(Box<Expression>, Box<Expression>),
    Filter(Box<Expression>, Filter, Vec<Expression>),
    Defined(Box<Expression>),
    Not(Box<Expression>),
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Compare(Comparison, Box<Expression>, Box<Expression>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

/// Words that mean something and so name nothing.
pub fn is_reserved(word: &str) -> bool {
    matches!(
        word,
        "and" | "or" | "not" | "in" | "is" | "true" | "false" | "null" | "none" | "defined"
    )
}

impl Expression {
    pub fn parse(text: &str) -> Result<Expression, Problem> {
        let failed = |problem| Problem { line: 1, problem };
        if text.len() > LONGEST_TEMPLATE {
            return Err(failed(format!("it is longer than {LONGEST_TEMPLATE} bytes")));
        }
        let (tokens, _) = token::tokens(text, None).map_err(failed)?;
        Parser::new(tokens).whole().map_err(failed)
    }

    /// Whether it holds of `scope`.
    pub fn holds(&self, scope: &Value) -> Result<bool, Failure> {
        let mut fuel = Fuel::full();
        self.evaluate(&Scope::new(scope), &mut fuel)?.truth()
    }
}

pub struct Parser {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
    depth: usize,
}

type Read<T = Expression> = Result<T, String>;

impl Parser {
    pub fn new(tokens: Vec<Token>) -> Parser {
        Parser { tokens: tokens.into_iter().peekable(), depth: 0 }
    }

    /// An expression and nothing behind it.
    pub fn whole(mut self) -> Read {
        if self.tokens.len() > MOST_TOKENS {
            return Err(format!("an expression has more than {MOST_TOKENS} words and signs"));
        }
        let expression = self.any()?;
        match self.tokens.next() {
            None => Ok(expression),
            Some(token) => Err(format!("{} was not expected", said(&token))),
        }
    }

    fn any(&mut self) -> Read {
        if self.depth == DEEPEST {
            return Err(format!("more than {DEEPEST} expressions are in each other"));
        }
        self.depth += 1;
        let mut left = self.all()?;
        while self.word("or") {
            left = Expression::Or(left.into(), self.all()?.into());
        }
        self.depth -= 1;
        Ok(left)
    }

    fn all(&mut self) -> Read {
        let mut left = self.negation()?;
        while self.word("and") {
            left = Expression::And(left.into(), self.negation()?.into());
        }
        Ok(left)
    }

    fn negation(&mut self) -> Read {
        let mut negated = false;
        while self.word("not") {
            negated = !negated;
        }
        let inner = self.comparison()?;
        Ok(if negated { Expression::Not(inner.into()) } else { inner })
    }

    fn comparison(&mut self) -> Read {
        let left = self.filtered()?;
        if self.word("is") {
            let negated = self.word("not");
            if !self.word("defined") {
                return Err("`is` is followed by `defined` or `not defined`".to_owned());
            }
            return Ok(negate(negated, Expression::Defined(left.into())));
        }
        if self.word("not") {
            if !self.word("in") {
                return Err("`not` behind a value is followed by `in`".to_owned());
            }
            let right = self.filtered()?;
            let within = Expression::Compare(Comparison::In, left.into(), right.into());
            return Ok(Expression::Not(within.into()));
        }
        let (comparison, negated) = match self.tokens.peek() {
            Some(Token::Sign("==")) => (Comparison::Equal, false),
            Some(Token::Sign("!=")) => (Comparison::Equal, true),
            Some(Token::Sign("<")) => (Comparison::Less, false),
            Some(Token::Sign("<=")) => (Comparison::LessOrEqual, false),
            Some(Token::Sign(">")) => (Comparison::Greater, false),
            Some(Token::Sign(">=")) => (Comparison::GreaterOrEqual, false),
            Some(Token::Name(word)) if word == "in" => (Comparison::In, false),
            _ => return Ok(left),
        };
        self.tokens.next();
        let right = self.filtered()?;
        Ok(negate(negated, Expression::Compare(comparison, left.into(), right.into())))
    }

    fn filtered(&mut self) -> Read {
        let mut value = self.path()?;
        while self.sign("|") {
            let Some(Token::Name(name)) = self.tokens.next() else {
                return Err("`|` is followed by the name of a filter".to_owned());
            };
            let filter = Filter::named(&name).ok_or_else(|| {
                format!("there is no filter `{name}`, only {}", Filter::names().join(", "))
            })?;
            let arguments = if self.sign("(") { self.list(")")? } else { Vec::new() };
            let wanted = filter.arguments();
            if !wanted.contains(&arguments.len()) {
                let (least, most) = wanted.into_inner();
                let count =
                    if least == most { least.to_string() } else { format!("{least} or {most}") };
                return Err(format!(
                    "the filter `{name}` takes {count}, and not {}",
                    arguments.len()
                ));
            }
            value = Expression::Filter(value.into(), filter, arguments);
        }
        Ok(value)
    }

    fn path(&mut self) -> Read {
        let mut value = self.simple()?;
        loop {
            if self.sign(".") {
                let key = match self.tokens.next() {
                    Some(Token::Name(name)) => Value::String(name),
                    Some(Token::Number(number)) if number.is_u64() => Value::Number(number),
                    _ => return Err("`.` is followed by a name".to_owned()),
                };
                value = Expression::Index(value.into(), Expression::Value(key).into());
            } else if self.sign("[") {
                let key = self.any()?;
                if !self.sign("]") {
                    return Err("`[` has no `]`".to_owned());
                }
                value = Expression::Index(value.into(), key.into());
            } else {
                return Ok(value);
            }
        }
    }

    fn simple(&mut self) -> Read {
        let token = self.tokens.next().ok_or("an expression is missing")?;
        Ok(match token {
            Token::Text(text) => Expression::Value(Value::String(text)),
            Token::Number(number) => Expression::Value(Value::Number(number)),
            Token::Sign("-") => match self.tokens.next() {
                Some(Token::Number(number)) => {
                    let number = format!("-{number}").parse().map_err(|_| "no number")?;
                    Expression::Value(Value::Number(number))
                }
                _ => return Err("`-` is followed by a number".to_owned()),
            },
            Token::Sign("(") => {
                let inner = self.any()?;
                match self.sign(")") {
                    true => inner,
                    false => return Err("`(` has no `)`".to_owned()),
                }
            }
            Token::Sign("[") => Expression::List(self.list("]")?),
            Token::Name(word) => match word.as_str() {
                "true" => Expression::Value(Value::Bool(true)),
                "false" => Expression::Value(Value::Bool(false)),
                "null" | "none" => Expression::Value(Value::Null),
                word if is_reserved(word) => return Err(format!("`{word}` was not expected")),
                _ => Expression::Name(word),
            },
            token => return Err(format!("{} was not expected", said(&token))),
        })
    }

    /// Expressions with commas between them, up to `close`.
    fn list(&mut self, close: &'static str) -> Read<Vec<Expression>> {
        let mut items = Vec::new();
        while !self.sign(close) {
            if !items.is_empty() && !self.sign(",") {
                return Err(format!("a list has no `{close}`"));
            }
            items.push(self.any()?);
        }
        Ok(items)
    }

    fn word(&mut self, word: &str) -> bool {
        self.tokens.next_if(|token| matches!(token, Token::Name(name) if name == word)).is_some()
    }

    fn sign(&mut self, sign: &'static str) -> bool {
        self.tokens.next_if(|token| *token == Token::Sign(sign)).is_some()
    }
}

fn negate(negated: bool, inner: Expression) -> Expression {
    if negated { Expression::Not(inner.into()) } else { inner }
}

fn said(token: &Token) -> String {
    match token {
        Token::Name(name) => format!("`{name}`"),
        Token::Text(text) => format!("{text:?}"),
        Token::Number(number) => format!("`{number}`"),
        Token::Sign(sign) => format!("`{sign}`"),
    }
}
