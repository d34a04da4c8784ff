//! Whether somebody else's JSON Schema can be worked with. Decides and touches nothing.
//!
//! A schema is a program: it can refer to itself for ever, to the same thing a million times,
//! to files and hosts, and its regular expressions can take longer than anybody lives. What
//! checking a value costs is bounded by what is accepted here.

use jsonschema::PatternOptions;
pub use jsonschema::Validator;
use serde_json::Value;

const LARGEST: usize = 64 * 1024;
const DEEPEST: usize = 32;

/// How many schemas there are when every reference is replaced by what it refers to.
const MOST: usize = 2_000;

/// How large a compiled regular expression may be, in bytes.
const LARGEST_PATTERN: usize = 256 * 1024;

/// Checks a schema and makes what checks values. Says what is wrong with it, if anything is: a
/// verb and what follows.
pub fn compile(schema: &Value) -> Result<Validator, String> {
    if schema.to_string().len() > LARGEST {
        return Err("is larger than 64 KiB".into());
    }
    let mut walk = Walk { root: schema, seen: 0, within: vec![] };
    walk.visit(schema, 0)?;
    let patterns = PatternOptions::regex().size_limit(LARGEST_PATTERN);
    jsonschema::options()
        .with_pattern_options(patterns)
        .build(schema)
        .map_err(|error| format!("is none: {error}"))
}

/// Keywords with a schema, a list of schemas, or schemas by name.
const ONE: [&str; 13] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "extends",
];
const LIST: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
const NAMED: [&str; 4] = ["dependencies", "dependentSchemas", "patternProperties", "properties"];

/// Keywords that change what a reference means.
const MOVING: [&str; 6] =
    ["$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef"];

struct Walk<'a> {
    root: &'a Value,
    seen: usize,
    /// The references that led here.
    within: Vec<&'a str>,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, schema: &'a Value, depth: usize) -> Result<(), String> {
        let Some(keywords) = schema.as_object() else { return Ok(()) };
        self.seen += 1;
        if depth > DEEPEST || self.seen > MOST {
            return Err("is too deep, or refers to too much".into());
        }
        let moving = MOVING.iter().find(|keyword| keywords.contains_key(**keyword));
        if let Some(keyword) = moving {
            return Err(format!("uses {keyword}"));
        }
        if let Some(reference) = keywords.get("$ref") {
            self.follow(reference.as_str().unwrap_or_default(), depth)?;
        }
        for (keyword, value) in keywords {
            let keyword = keyword.as_str();
            match value {
                Value::Array(schemas) if LIST.contains(&keyword) => {
                    schemas.iter().try_for_each(|schema| self.visit(schema, depth + 1))?;
                }
                Value::Object(schemas) if NAMED.contains(&keyword) => {
                    schemas.values().try_for_each(|schema| self.visit(schema, depth + 1))?;
                }
                value if ONE.contains(&keyword) => self.visit(value, depth + 1)?,
                _ => (),
            }
        }
        Ok(())
    }

    fn follow(&mut self, reference: &'a str, depth: usize) -> Result<(), String> {
        let Some(pointer) = reference.strip_prefix('#') else {
            return Err("refers to something outside of it".into());
        };
        if self.within.contains(&reference) || pointer.is_empty() {
            return Err("refers to itself".into());
        }
        let Some(target) = self.root.pointer(pointer) else {
            return Err("refers to something that is not there".into());
        };
        self.within.push(reference);
        self.visit(target, depth + 1)?;
        self.within.pop();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn with(extra: Value) -> Value {
        let mut schema = json!({ "type": "object" });
        schema.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        schema
    }

    #[test]
    fn a_schema_that_cannot_be_worked_with_is_refused() {
        let doubling = |levels: usize| {
            let definitions = (0..levels).map(|level| {
                let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
                (format!("d{level}"), json!({ "anyOf": [next, next] }))
            });
            let mut definitions: serde_json::Map<_, _> = definitions.collect();
            definitions.insert(format!("d{levels}"), json!({}));
            json!({ "$defs": definitions, "properties": { "a": { "$ref": "#/$defs/d0" } } })
        };
        let deep = (0..40).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }));
        let mut lines = String::new();
        for (what, extra) in [
            ("nothing", json!({})),
            ("properties", json!({ "properties": { "a": { "type": "string" } } })),
            ("a property named $id", json!({ "properties": { "$id": { "type": "string" } } })),
            (
                "definitions",
                json!({ "$defs": { "a": {} }, "properties": { "a": { "$ref": "#/$defs/a" } } }),
            ),
            ("draft 7", json!({ "$schema": "http://json-schema.org/draft-07/schema#" })),
            ("a draft nobody knows", json!({ "$schema": "https://example.com/schema" })),
            ("a file", json!({ "$ref": "file:///etc/passwd" })),
            ("a host", json!({ "properties": { "a": { "$ref": "http://169.254.169.254/" } } })),
            ("an id", json!({ "$id": "http://169.254.169.254/" })),
            ("an anchor", json!({ "properties": { "a": { "$dynamicRef": "#a" } } })),
            ("itself", json!({ "$ref": "#" })),
            ("itself, later", json!({ "properties": { "a": { "$ref": "#" } } })),
            (
                "a circle",
                json!({
                    "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } },
                    "allOf": [{ "$ref": "#/$defs/a" }],
                }),
            ),
            ("nothing there", json!({ "$ref": "#/$defs/a" })),
            ("doubling a little", doubling(5)),
            ("doubling a lot", doubling(30)),
            ("deep", deep),
            ("a pattern", json!({ "properties": { "a": { "pattern": "^[a-z]+$" } } })),
            (
                "a pattern that looks back",
                json!({ "properties": { "a": { "pattern": "(a)\\1" } } }),
            ),
            ("a huge pattern", json!({ "properties": { "a": { "pattern": "(a{1000}){1000}" } } })),
            ("a wrong keyword", json!({ "properties": 1 })),
            ("much", json!({ "description": "x".repeat(70_000) })),
        ] {
            let verdict = compile(&with(extra)).map_or_else(|problem| problem, |_| "ok".into());
            lines += &format!("{what}: {verdict}\n");
        }
        expect![[r#"
            nothing: ok
            properties: ok
            a property named $id: ok
            definitions: ok
            draft 7: ok
            a draft nobody knows: is none: Unknown meta-schema: 'https://example.com/schema'. Custom meta-schemas must be registered in the registry before use
            a file: refers to something outside of it
            a host: refers to something outside of it
            an id: uses $id
            an anchor: uses $dynamicRef
            itself: refers to itself
            itself, later: refers to itself
            a circle: refers to itself
            nothing there: refers to something that is not there
            doubling a little: ok
            doubling a lot: is too deep, or refers to too much
            deep: is too deep, or refers to too much
            a pattern: ok
            a pattern that looks back: is none: "(a)\\1" is not a "regex"
            a huge pattern: is none: "(a{1000}){1000}" is not a "regex"
            a wrong keyword: is none: 1 is not of type "object"
            much: is larger than 64 KiB
        "#]].assert_eq(&lines);
    }

    fn arbitrary() -> impl Strategy<Value = Value> {
        let reference =
            prop::sample::select(vec!["#", "#/$defs/a", "#/properties/a", "x", "#/$defs/b"]);
        let leaf = prop_oneof![
            Just(json!({})),
            Just(json!(true)),
            Just(json!({ "type": "string" })),
            reference.prop_map(|reference| json!({ "$ref": reference })),
        ];
        leaf.prop_recursive(5, 24, 3, |inner| {
            let keyword = prop::sample::select(
                ONE.iter()
                    .chain(&LIST)
                    .chain(&NAMED)
                    .chain(&["$defs"])
                    .copied()
                    .collect::<Vec<_>>(),
            );
            prop_oneof![
                (keyword.clone(), inner.clone())
                    .prop_map(|(keyword, inner)| json!({ keyword: inner })),
                (keyword.clone(), prop::collection::vec(inner.clone(), 0..3))
                    .prop_map(|(keyword, inner)| json!({ keyword: inner })),
                (keyword, inner.clone(), inner)
                    .prop_map(|(keyword, a, b)| json!({ keyword: { "a": a, "b": b } })),
            ]
        })
    }

    proptest! {
        /// Neither making the validator nor using it recurses for ever.
        #[test]
        fn whatever_is_accepted_can_be_used(
            schema in arbitrary(), definition in arbitrary(), property in arbitrary(),
        ) {
            let mut schema = schema;
            if let Some(keywords) = schema.as_object_mut() {
                keywords.insert("type".into(), json!("object"));
                keywords.insert("$defs".into(), json!({ "a": definition, "b": {} }));
                keywords.insert("properties".into(), json!({ "a": property }));
            }
            if let Ok(validator) = compile(&schema) {
                let _ = validator.is_valid(&json!({ "a": { "a": { "a": [1, { "a": "b" }] } } }));
            }
        }
    }
}
