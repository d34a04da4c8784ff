//! What an item of a job is asked, and what its answer is worth. No I/O.

use chassis::schema::{self, Validator};
use serde_json::Value;

/// How much of an answer is a result.
pub const LARGEST_RESULT: usize = 256 * 1024;

/// What the agent is given: the instruction, and below it the item. One that is a string is
/// given as text, because nobody wants to read escapes.
pub fn message(instruction: &str, input_json: &str) -> String {
    let input = match serde_json::from_str(input_json) {
        Ok(Value::String(text)) => text,
        _ => input_json.to_owned(),
    };
    match instruction {
        "" => input,
        instruction => format!("{instruction}\n\n{input}"),
    }
}

/// What checks results, if the job has a schema.
pub fn checker(schema_json: &str) -> Result<Option<Validator>, String> {
    if schema_json.is_empty() {
        return Ok(None);
    }
    let schema: Value =
        serde_json::from_str(schema_json).map_err(|error| format!("is not JSON: {error}"))?;
    if !schema.is_object() {
        return Err("is not an object".into());
    }
    schema::compile(&schema).map(Some)
}

/// The result that an answer is, as JSON, or why it is none.
pub fn result(checker: Option<&Validator>, answer: &str) -> Result<String, String> {
    if answer.len() > LARGEST_RESULT {
        return Err("the answer is longer than 256 KiB".into());
    }
    let Some(validator) = checker else {
        return Ok(Value::String(answer.to_owned()).to_string());
    };
    let value: Value = serde_json::from_str(unfenced(answer))
        .map_err(|error| format!("the answer is not JSON: {error}"))?;
    match validator.iter_errors(&value).next() {
        None => Ok(value.to_string()),
        Some(error) => {
            let (place, problem) = (error.instance_path().to_string(), short(&error.to_string()));
            let place = if place.is_empty() { "the answer".into() } else { place };
            Err(format!("the answer does not match the schema: {place}: {problem}"))
        }
    }
}

/// Models like to put JSON into a block of code.
fn unfenced(answer: &str) -> &str {
    let answer = answer.trim();
    let inner = answer.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inner.map_or(answer, |inner| inner.strip_prefix("json").unwrap_or(inner))
}

/// A problem quotes the value, which may be large.
fn short(problem: &str) -> String {
    problem.chars().take(500).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn an_item_stands_below_the_instruction() {
        assert_eq!(message("Translate.", r#"{"word":"tea"}"#), "Translate.\n\n{\"word\":\"tea\"}");
        assert_eq!(message("Translate.", r#""one\ntwo""#), "Translate.\n\none\ntwo");
        assert_eq!(message("", "[1]"), "[1]");
    }

    #[test]
    fn an_answer_is_what_the_schema_says_or_it_is_none() {
        let schema =
            r#"{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}"#;
        let checker = checker(schema).unwrap();
        let mut lines = String::new();
        for answer in [
            r#"{"n": 1}"#,
            "```json\n{\"n\": 2}\n```",
            "``` {\"n\": 3} ```",
            r#"{"n": "one"}"#,
            "{}",
            "forty-two",
            "",
        ] {
            lines += &format!("{answer:?}: {:?}\n", result(checker.as_ref(), answer));
        }
        expect![[r#"
            "{\"n\": 1}": Ok("{\"n\":1}")
            "```json\n{\"n\": 2}\n```": Ok("{\"n\":2}")
            "``` {\"n\": 3} ```": Ok("{\"n\":3}")
            "{\"n\": \"one\"}": Err("the answer does not match the schema: /n: \"one\" is not of type \"integer\"")
            "{}": Err("the answer does not match the schema: the answer: \"n\" is a required property")
            "forty-two": Err("the answer is not JSON: expected ident at line 1 column 2")
            "": Err("the answer is not JSON: EOF while parsing a value at line 1 column 0")
        "#]].assert_eq(&lines);
        assert_eq!(result(None, "forty-two"), Ok("\"forty-two\"".to_owned()));
        let long = "x".repeat(LARGEST_RESULT + 1);
        assert_eq!(result(None, &long), Err("the answer is longer than 256 KiB".to_owned()));
        let wide = format!("[{}]", "1,".repeat(10_000) + "1");
        assert!(result(checker.as_ref(), &wide).unwrap_err().len() < 700);
    }

    #[test]
    fn a_schema_that_cannot_be_worked_with_is_refused() {
        let mut lines = String::new();
        for schema in ["", "{}", "{", "true", r#"{"$ref": "http://here/"}"#, r##"{"$ref": "#"}"##] {
            let verdict = checker(schema).map(|checker| checker.is_some());
            lines += &format!("{schema}: {verdict:?}\n");
        }
        expect![[r##"
            : Ok(false)
            {}: Ok(true)
            {: Err("is not JSON: EOF while parsing an object at line 1 column 1")
            true: Err("is not an object")
            {"$ref": "http://here/"}: Err("refers to something outside of it")
            {"$ref": "#"}: Err("refers to itself")
        "##]]
        .assert_eq(&lines);
    }
}
