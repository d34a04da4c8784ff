//! What a server says of its tools, as agents get to see it. Decides and touches nothing.

use std::collections::BTreeMap;

use jsonschema::Validator;
use rmcp::model::Tool;
use serde_json::{Map, Value};

use super::{name, schema};
use crate::{
    catalog::{About, Effect},
    text::shorten,
};

/// How many tools of one server are taken.
pub const MOST_TOOLS: usize = 200;

const LONGEST_NAME: usize = 128;

/// In characters.
const LONGEST_DESCRIPTION: usize = 4_000;

/// How much all descriptions and schemas of one server may be, in bytes: every model that has
/// the tools reads them.
const MOST_BYTES: usize = 512 * 1024;

/// A tool that can be used.
pub struct Described {
    /// What the server calls it.
    pub original: String,
    pub about: About,
    pub validator: Validator,
}

/// The tools of a server that can be used, and what is wrong with the others.
pub fn tools(
    server: &str,
    trusted: bool,
    listed: Vec<Tool>,
    taken: impl Fn(&str) -> bool,
) -> (Vec<Described>, Vec<String>) {
    let mut left_out = Vec::new();
    let mut unique: BTreeMap<String, Tool> = BTreeMap::new();
    let total = listed.len();
    for tool in listed.into_iter().take(MOST_TOOLS) {
        let name = tool.name.to_string();
        match (1..=LONGEST_NAME).contains(&name.chars().count()) {
            true => drop(unique.entry(name).or_insert(tool)),
            false => left_out.push(format!("{:?} is no name", shorten(&clean(&name), 40))),
        }
    }
    if total > MOST_TOOLS {
        left_out.push(format!("{total} tools are more than {MOST_TOOLS}"));
    }
    let names = name::names(server, unique.keys().map(String::as_str), taken);
    let (mut described, mut bytes) = (Vec::new(), 0);
    for (original, name) in names {
        let tool = &unique[original];
        match describe(server, trusted, name.clone(), tool) {
            Ok((about, validator)) => {
                bytes += about.description.len() + about.input_schema.to_string().len();
                if bytes > MOST_BYTES {
                    left_out.push(format!("what is behind {name} is more than 512 KiB"));
                    break;
                }
                described.push(Described { original: original.to_owned(), about, validator });
            }
            Err(problem) => left_out.push(format!("{name}: {problem}")),
        }
    }
    (described, left_out)
}

fn describe(
    server: &str,
    trusted: bool,
    name: String,
    tool: &Tool,
) -> Result<(About, Validator), String> {
    let mut input_schema = Value::Object(Map::clone(&tool.input_schema));
    // Where a schema is at home matters to nobody here.
    if let Some(keywords) = input_schema.as_object_mut() {
        keywords.remove("$id");
        keywords.entry("type").or_insert_with(|| "object".into());
    }
    clean_texts(&mut input_schema);
    let validator = schema::compile(&input_schema)?;
    let description = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
    let description = shorten(clean(description).trim(), LONGEST_DESCRIPTION);
    let about = About {
        name: name.into(),
        description: format!("{description}\n(A tool of the MCP server {server}.)").into(),
        input_schema,
        effect: effect(trusted, tool),
        command: None,
        path: None,
        url: None,
    };
    Ok((about, validator))
}

/// The worst that a tool may do. A server that nobody trusts may say what it wants.
fn effect(trusted: bool, tool: &Tool) -> Effect {
    let Some(hints) = tool.annotations.as_ref().filter(|_| trusted) else {
        return Effect::Destroys;
    };
    match (hints.read_only_hint, hints.destructive_hint) {
        (Some(true), _) => Effect::Reads,
        (_, Some(false)) => Effect::Changes,
        _ => Effect::Destroys,
    }
}

/// Text without what nobody can see: control characters, and those that hide or reorder others.
pub fn clean(text: &str) -> String {
    let visible = |character: &char| match character {
        '\n' | '\t' => true,
        '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{e0000}'..='\u{e0fff}' => false,
        character => !character.is_control(),
    };
    text.chars().filter(visible).collect()
}

/// Cleans what a schema says to people and models.
fn clean_texts(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text)
                        if matches!(key.as_str(), "description" | "title" | "$comment") =>
                    {
                        *text = shorten(&clean(text), LONGEST_DESCRIPTION);
                    }
                    value => clean_texts(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(clean_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => (),
    }
}

/// A tool as a server would list it.
#[cfg(test)]
pub fn tool(json: Value) -> Tool {
    serde_json::from_value(json).unwrap()
}

/// One sentence about what was left out, if anything was.
pub fn explain(left_out: &[String]) -> String {
    match left_out {
        [] => String::new(),
        left_out => format!("left out: {}", clean(&left_out.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_trusted_server_is_believed() {
        let mut lines = String::new();
        for hints in [
            json!(null),
            json!({ "readOnlyHint": true }),
            json!({ "readOnlyHint": true, "destructiveHint": true }),
            json!({ "destructiveHint": false }),
            json!({ "readOnlyHint": false }),
        ] {
            let tool = tool(json!({ "name": "t", "inputSchema": {}, "annotations": hints }));
            let [untrusted, trusted] = [false, true].map(|trusted| effect(trusted, &tool));
            lines += &format!("{hints}: {untrusted:?}, trusted {trusted:?}\n");
        }
        expect![[r#"
            null: Destroys, trusted Destroys
            {"readOnlyHint":true}: Destroys, trusted Reads
            {"destructiveHint":true,"readOnlyHint":true}: Destroys, trusted Reads
            {"destructiveHint":false}: Destroys, trusted Changes
            {"readOnlyHint":false}: Destroys, trusted Destroys
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn nothing_invisible_is_passed_on() {
        let tag = "a\u{e0041}b\u{202e}c\u{200b}d\x1b[31me\0f\u{85}g\nh\ti";
        assert_eq!(clean(tag), "abcd[31mefg\nh\ti");
        let listed = vec![tool(json!({
            "name": "t",
            "description": tag,
            "inputSchema": {
                "type": "object",
                "properties": { "a": { "description": tag, "const": "\u{200b}" } },
            },
        }))];
        let (described, left_out) = tools("s", false, listed, |_| false);
        assert_eq!(left_out, [""; 0]);
        let about = &described[0].about;
        assert_eq!(about.description, "abcd[31mefg\nh\ti\n(A tool of the MCP server s.)");
        let property = &about.input_schema["properties"]["a"];
        assert_eq!(property["description"], "abcd[31mefg\nh\ti");
        // What an input is compared with stays as it is.
        assert_eq!(property["const"], "\u{200b}");
    }

    #[test]
    fn what_cannot_be_used_is_left_out_and_named() {
        let good = |name: &str| tool(json!({ "name": name, "inputSchema": { "type": "object" } }));
        let bad = tool(json!({ "name": "bad", "inputSchema": { "$ref": "http://example.com" } }));
        let listed = vec![good("a"), good("a"), bad, good(""), good(&"x".repeat(129))];
        let (described, left_out) = tools("s", false, listed, |_| false);
        let names: Vec<_> = described.iter().map(|tool| &*tool.about.name).collect();
        assert_eq!(names, ["s_a"]);
        expect![[r#"left out: "" is no name; "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…" is no name; s_bad: its schema refers to something outside of it"#]]
            .assert_eq(&explain(&left_out));

        let many = (0..MOST_TOOLS + 1).map(|number| good(&format!("t{number}"))).collect();
        let (described, left_out) = tools("s", false, many, |_| false);
        assert_eq!((described.len(), left_out.len()), (MOST_TOOLS, 1));
    }
}
