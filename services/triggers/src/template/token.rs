use super::Problem;

/// A part of a template.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    Text(String),
    Print { line: usize, tokens: Vec<Token> },
    Tag { line: usize, tokens: Vec<Token> },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    Name(String),
    Text(String),
    Number(serde_json::Number),
    Sign(&'static str),
}

/// Longer ones first, because the first that fits is taken.
const SIGNS: [&str; 14] =
    ["==", "!=", "<=", ">=", "<", ">", "(", ")", "[", "]", ".", ",", "|", "-"];

/// Takes a template apart. A `-` beside a delimiter takes the white space beyond it away.
pub fn pieces(source: &str) -> Result<Vec<Piece>, Problem> {
    let mut pieces = Vec::new();
    let (mut rest, mut line) = (source, 1);
    let mut trim = false;
    loop {
        let open = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min();
        let (text, found) = rest.split_at(open.unwrap_or(rest.len()));
        let mut shown = if trim { text.trim_start() } else { text };
        line += lines(text);
        if found.is_empty() {
            push(&mut pieces, shown);
            return Ok(pieces);
        }
        let (open, inside) = found.split_at(2);
        let close = match open {
            "{{" => "}}",
            "{%" => "%}",
            _ => "#}",
        };
        let unclosed = || Problem { line, problem: format!("`{open}` has no `{close}`") };
        let inside = match inside.strip_prefix('-') {
            Some(inside) => {
                shown = shown.trim_end();
                inside
            }
            None => inside,
        };
        push(&mut pieces, shown);
        let (tokens, after) = match open {
            "{#" => {
                let end = inside.find(close).ok_or_else(unclosed)?;
                trim = inside[..end].ends_with('-');
                (None, &inside[end + 2..])
            }
            _ => {
                let (tokens, after) =
                    tokens(inside, Some(close)).map_err(|problem| Problem { line, problem })?;
                let after = after.ok_or_else(unclosed)?;
                trim = inside[..inside.len() - after.len() - 2].ends_with('-');
                (Some(tokens), after)
            }
        };
        let begun = line;
        line += lines(&inside[..inside.len() - after.len()]);
        match (open, tokens) {
            ("{{", Some(tokens)) => pieces.push(Piece::Print { line: begun, tokens }),
            ("{%", Some(tokens)) => pieces.push(Piece::Tag { line: begun, tokens }),
            _ => (),
        }
        rest = after;
    }
}

fn push(pieces: &mut Vec<Piece>, text: &str) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text.to_owned()));
    }
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// The tokens up to `close`, and what comes after it; without one, all there are.
pub fn tokens<'a>(
    source: &'a str,
    close: Option<&str>,
) -> Result<(Vec<Token>, Option<&'a str>), String> {
    let mut tokens = Vec::new();
    let mut rest = source.trim_start();
    while let Some(first) = rest.chars().next() {
        if let Some(close) = close {
            let trimmed = rest.strip_prefix('-').unwrap_or(rest);
            if let Some(after) = trimmed.strip_prefix(close) {
                return Ok((tokens, Some(after)));
            }
        }
        let (token, after) = match first {
            '\'' | '"' => text(rest, first)?,
            '0'..='9' => number(rest)?,
            'a'..='z' | 'A'..='Z' | '_' => {
                let end = rest.find(|next: char| !next.is_ascii_alphanumeric() && next != '_');
                let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
                (Token::Name(name.to_owned()), after)
            }
            _ => {
                let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
                let sign = sign.ok_or_else(|| format!("`{first}` means nothing here"))?;
                (Token::Sign(sign), &rest[sign.len()..])
            }
        };
        tokens.push(token);
        rest = after.trim_start();
    }
    Ok((tokens, None))
}

/// A text in quotes, in which `\` takes the next character as it is, and `\n` and `\t` are what
/// they are everywhere.
fn text(source: &str, quote: char) -> Result<(Token, &str), String> {
    let mut text = String::new();
    let mut characters = source.char_indices().skip(1);
    while let Some((place, next)) = characters.next() {
        match next {
            '\\' => match characters.next() {
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                Some((_, next)) => text.push(next),
                None => break,
            },
            next if next == quote => return Ok((Token::Text(text), &source[place + 1..])),
            next => text.push(next),
        }
    }
    Err(format!("a text has no closing `{quote}`"))
}

fn number(source: &str) -> Result<(Token, &str), String> {
    let end = source.find(|next: char| !next.is_ascii_digit() && next != '.');
    let (digits, after) = source.split_at(end.unwrap_or(source.len()));
    let number = digits.parse().map_err(|_| format!("`{digits}` is no number"))?;
    Ok((Token::Number(number), after))
}
