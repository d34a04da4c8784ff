//! Texts in a script, and the variables in them.

use std::borrow::Cow;

/// A few bytes of script can name a large message many times; what is filled in ends here.
const MAX_FILLED_BYTES: usize = 1024 * 1024;

/// A text with places that the conversation fills in.
#[derive(Debug, Clone, PartialEq)]
pub struct Text(Vec<Piece>);

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Literal(String),
    ToolResult,
    User,
}

/// What the conversation says so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Variables<'a> {
    /// The last tool result, empty before the first.
    pub tool_result: &'a str,
    /// What a person reads of the last user message.
    pub user: &'a str,
}

impl Text {
    /// Text in which nothing is a variable.
    pub fn literal(text: String) -> Text {
        Text(vec![Piece::Literal(text)])
    }

    /// Reads the rest of a line: as it is written, or a JSON string when it starts as one.
    pub fn parse(text: &str) -> Result<Text, String> {
        if !text.starts_with('"') {
            return Text::template(text);
        }
        let text: String = serde_json::from_str(text)
            .map_err(|error| format!("a text that starts with \" is a JSON string: {error}"))?;
        Text::template(&text)
    }

    /// Finds the variables. A name that is not one of ours is an error, because it is
    /// most likely a slip; other braces, like `{{ .Values.name }}`, are only text.
    pub fn template(text: &str) -> Result<Text, String> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(start) = rest.find("{{") {
            let (before, braces) = rest.split_at(start);
            let name = braces[2..].split_once("}}").map(|(name, _)| name).filter(is_name);
            let Some(name) = name else {
                literal.push_str(before);
                literal.push('{');
                rest = &braces[1..];
                continue;
            };
            literal.push_str(before);
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            pieces.push(match name {
                "tool_result" => Piece::ToolResult,
                "user" => Piece::User,
                _ => {
                    return Err(format!("unknown variable {name}: there are tool_result and user"));
                }
            });
            rest = &braces[name.len() + 4..];
        }
        literal.push_str(rest);
        pieces.push(Piece::Literal(literal));
        pieces.retain(|piece| *piece != Piece::Literal(String::new()));
        Ok(Text(pieces))
    }

    pub fn render(&self, variables: Variables<'_>) -> String {
        self.fill(variables, Cow::Borrowed)
    }

    /// Renders JSON whose variables stand inside of strings, which is the only
    /// place where valid JSON can have them.
    pub fn render_json(&self, variables: Variables<'_>) -> String {
        self.fill(variables, |value| {
            let quoted = serde_json::Value::from(value).to_string();
            Cow::Owned(quoted[1..quoted.len() - 1].to_owned())
        })
    }

    fn fill<'a>(
        &self,
        variables: Variables<'a>,
        escape: impl Fn(&'a str) -> Cow<'a, str>,
    ) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            let more = match piece {
                Piece::Literal(literal) => Cow::Borrowed(literal.as_str()),
                Piece::ToolResult => escape(variables.tool_result),
                Piece::User => escape(variables.user),
            };
            let room = MAX_FILLED_BYTES - text.len();
            if more.len() > room {
                text.push_str(&more[..more.floor_char_boundary(room)]);
                break;
            }
            text.push_str(&more);
        }
        text
    }
}

fn is_name(name: &&str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIABLES: Variables = Variables { tool_result: "a \"b\"\n{{user}}", user: "hi" };

    #[test]
    fn variables_are_filled_in_once() {
        let text = Text::template("{{user}}, {{ user }} {{{user}}: {{tool_result}}{{").unwrap();
        assert_eq!(text.render(VARIABLES), "hi, {{ user }} {hi: a \"b\"\n{{user}}{{");
    }

    #[test]
    fn a_small_script_does_not_become_a_huge_text() {
        let text = Text::template(&"{{user}}".repeat(1000)).unwrap();
        let user = "ä".repeat(10_001);
        let filled = text.render(Variables { user: &user, ..Variables::default() });
        assert_eq!(filled.len(), MAX_FILLED_BYTES);
    }

    #[test]
    fn variables_in_json_are_escaped() {
        let text = Text::template(r#"{"text": "<{{tool_result}}>"}"#).unwrap();
        assert_eq!(text.render_json(VARIABLES), r#"{"text": "<a \"b\"\n{{user}}>"}"#);
    }

    #[test]
    fn a_variable_we_do_not_know_is_a_slip() {
        let error = Text::template("{{tool_reslut}}").unwrap_err();
        assert_eq!(error, "unknown variable tool_reslut: there are tool_result and user");
    }
}
