//! Templates and expressions on a payload: from what somebody sent to what an agent is told.
//!
//! The language is a small part of Jinja's: text with `{{ expressions }}`, `{% if %}` and
//! `{% for %}`. Tenants write it and strangers choose what it is run on, so whatever is done costs
//! [`Fuel`], by the byte: nothing a template says can take longer or become larger than that, and
//! there is nothing in it that reads anything but its payload.

mod token;
mod expression;
mod evaluate;
mod filter;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use evaluate::{Failure, Fuel, Scope};
pub use expression::Expression;
use expression::Parser;
use token::{Piece, Token};

/// The longest template, in bytes, as the contract has it.
pub const LONGEST_TEMPLATE: usize = 16 * 1024;

/// The longest text that a template may become, in bytes.
pub const LONGEST_OUTPUT: usize = 128 * 1024;

/// How deep blocks and parentheses may be in each other.
const DEEPEST: usize = 32;

/// How many words and signs one expression may have, which is also how deep it may be.
const MOST_TOKENS: usize = 500;

/// Something that cannot be read, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct Problem {
    pub line: usize,
    pub problem: String,
}

/// A template that can be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Text(String),
    Print(Expression),
    If(Vec<(Expression, Vec<Node>)>, Vec<Node>),
    For { name: String, over: Expression, body: Vec<Node> },
}

impl Template {
    pub fn parse(text: &str) -> Result<Template, Problem> {
        if text.len() > LONGEST_TEMPLATE {
            let problem = format!("it is longer than {LONGEST_TEMPLATE} bytes");
            return Err(Problem { line: 1, problem });
        }
        let mut blocks = Blocks { pieces: token::pieces(text)?.into_iter(), depth: 0 };
        let (nodes, end) = blocks.until_end()?;
        match end {
            None => Ok(Template { nodes }),
            Some((line, word, _)) => {
                Err(Problem { line, problem: format!("`{word}` belongs to nothing") })
            }
        }
    }

    /// What an agent is told about `scope`.
    pub fn render(&self, scope: &Value) -> Result<String, Failure> {
        let mut fuel = Fuel::full();
        let mut output = String::new();
        print_nodes(&self.nodes, &mut Scope::new(scope), &mut fuel, &mut output)?;
        Ok(output)
    }
}

/// Why a text is no template.
pub fn check(text: &str) -> Result<(), Problem> {
    Template::parse(text).map(drop)
}

/// Fills in a template. What it names and nobody sent is an error.
pub fn render(template: &str, scope: &Value) -> Result<String, Failure> {
    let template =
        Template::parse(template).map_err(|problem| Failure::Kind(problem.to_string()))?;
    template.render(scope)
}

fn print_nodes(
    nodes: &[Node],
    scope: &mut Scope<'_>,
    fuel: &mut Fuel,
    output: &mut String,
) -> Result<(), Failure> {
    for node in nodes {
        fuel.burn(1)?;
        match node {
            Node::Text(text) => print(text, fuel, output)?,
            Node::Print(expression) => {
                let shown = expression.evaluate(scope, fuel)?.shown(fuel)?;
                print(&shown, fuel, output)?;
            }
            Node::If(branches, otherwise) => {
                let mut chosen = otherwise;
                for (condition, body) in branches {
                    if condition.evaluate(scope, fuel)?.truth()? {
                        chosen = body;
                        break;
                    }
                }
                print_nodes(chosen, scope, fuel, output)?;
            }
            Node::For { name, over, body } => {
                let items = over.evaluate(scope, fuel)?.items(fuel)?;
                for item in items {
                    scope.with(name, item, |scope| print_nodes(body, scope, fuel, output))?;
                }
            }
        }
    }
    Ok(())
}

fn print(text: &str, fuel: &mut Fuel, output: &mut String) -> Result<(), Failure> {
    fuel.burn(text.len())?;
    if output.len() + text.len() > LONGEST_OUTPUT {
        return Err(Failure::TooLong);
    }
    output.push_str(text);
    Ok(())
}

/// Reads blocks out of pieces.
struct Blocks {
    pieces: std::vec::IntoIter<Piece>,
    depth: usize,
}

/// The tag that ended a block: where, its word, and the rest of it.
type End = (usize, String, Vec<Token>);

impl Blocks {
    /// Nodes up to a tag that is not the beginning of a block, or to the end of everything.
    fn until_end(&mut self) -> Result<(Vec<Node>, Option<End>), Problem> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            match piece {
                Piece::Text(text) => nodes.push(Node::Text(text)),
                Piece::Print { line, tokens } => nodes.push(Node::Print(whole(line, tokens)?)),
                Piece::Tag { line, tokens } => {
                    let mut tokens = tokens.into_iter();
                    let Some(Token::Name(word)) = tokens.next() else {
                        let problem = "a tag begins with `if`, `for` or their ends".to_owned();
                        return Err(Problem { line, problem });
                    };
                    let rest: Vec<Token> = tokens.collect();
                    match word.as_str() {
                        "if" => {
                            nodes.push(self.nested(line, |blocks| blocks.branches(line, rest))?)
                        }
                        "for" => nodes.push(self.nested(line, |blocks| blocks.each(line, rest))?),
                        "elif" | "else" | "endif" | "endfor" => {
                            return Ok((nodes, Some((line, word, rest))));
                        }
                        _ => {
                            let problem = format!("there is no tag `{word}`");
                            return Err(Problem { line, problem });
                        }
                    }
                }
            }
        }
        Ok((nodes, None))
    }

    fn nested(
        &mut self,
        line: usize,
        read: impl FnOnce(&mut Blocks) -> Result<Node, Problem>,
    ) -> Result<Node, Problem> {
        if self.depth == DEEPEST {
            let problem = format!("more than {DEEPEST} blocks are in each other");
            return Err(Problem { line, problem });
        }
        self.depth += 1;
        let node = read(self);
        self.depth -= 1;
        node
    }

    fn branches(&mut self, mut line: usize, mut condition: Vec<Token>) -> Result<Node, Problem> {
        let mut branches = Vec::new();
        loop {
            let parsed = whole(line, condition)?;
            let (body, end) = self.until_end()?;
            branches.push((parsed, body));
            match end {
                Some((at, word, rest)) if word == "elif" => (line, condition) = (at, rest),
                Some((at, word, rest)) if word == "else" => {
                    nothing_more(at, &word, &rest)?;
                    let (otherwise, end) = self.until_end()?;
                    closed(line, "endif", end)?;
                    return Ok(Node::If(branches, otherwise));
                }
                end => {
                    closed(line, "endif", end)?;
                    return Ok(Node::If(branches, Vec::new()));
                }
            }
        }
    }

    fn each(&mut self, line: usize, tokens: Vec<Token>) -> Result<Node, Problem> {
        let mut tokens = tokens.into_iter();
        let (Some(Token::Name(name)), Some(Token::Name(word))) = (tokens.next(), tokens.next())
        else {
            return Err(Problem { line, problem: "expected `for name in list`".to_owned() });
        };
        if word != "in" || expression::is_reserved(&name) {
            return Err(Problem { line, problem: "expected `for name in list`".to_owned() });
        }
        let over = whole(line, tokens.collect())?;
        let (body, end) = self.until_end()?;
        closed(line, "endfor", end)?;
        Ok(Node::For { name, over, body })
    }
}

fn whole(line: usize, tokens: Vec<Token>) -> Result<Expression, Problem> {
    Parser::new(tokens).whole().map_err(|problem| Problem { line, problem })
}

fn nothing_more(line: usize, word: &str, rest: &[Token]) -> Result<(), Problem> {
    match rest.is_empty() {
        true => Ok(()),
        false => Err(Problem { line, problem: format!("nothing may follow `{word}`") }),
    }
}

fn closed(line: usize, wanted: &str, end: Option<End>) -> Result<(), Problem> {
    match end {
        Some((at, word, rest)) if word == wanted => nothing_more(at, &word, &rest),
        _ => Err(Problem { line, problem: format!("this block has no `{wanted}`") }),
    }
}
