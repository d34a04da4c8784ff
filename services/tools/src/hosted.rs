//! Tools that run in the session service, next to what they act on. They are in the catalogue
//! like any other, so that schema, capability and rules are checked in one place.

mod task;
mod wakeups;
mod work;

use serde_json::{Value, json};

use crate::catalog::{About, Effect};

/// Shows nothing but the agent's own tools, so every agent has it.
pub const TOOL_SEARCH: &str = "tool_search";

/// The kinds of memory that agents are told about; a tenant may have others.
const TYPES: &str = "`user`, `feedback`, `project`, `reference`";

pub fn tools() -> [About; 11] {
    [
        question(),
        memory_write(),
        memory_read(),
        memory_list(),
        memory_delete(),
        wakeups::request(),
        wakeups::cancel(),
        work::todo(),
        work::skill(),
        work::tool_search(),
        task::task(),
    ]
}

fn question() -> About {
    about(
        "question",
        "Asks the person you work for, waits for the answers and returns them in the order of \
         the questions. Use it when you cannot go on well without something that only a person \
         can decide or know: a choice between ways that differ in what they want, a missing \
         fact, a preference. Do not use it for what you can find out yourself, to report \
         progress, or to ask for permission: calls that need it are put to the person without \
         you. Ask everything you need at once, with options where you can name the likely \
         answers, and the one you recommend first.",
        Effect::Asks,
        json!({
            "questions": {
                "type": "array",
                "minItems": 1,
                "maxItems": 10,
                "items": {
                    "type": "object",
                    "properties": {
                        "prompt": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 2_000,
                            "description": "The question, complete in itself.",
                        },
                        "options": {
                            "type": "array",
                            "maxItems": 20,
                            "items": {
                                "type": "object",
                                "properties": {
                                    "value": {
                                        "type": "string",
                                        "minLength": 1,
                                        "maxLength": 200,
                                        "description": "What you get back when it is chosen.",
                                    },
                                    "label": {
                                        "type": "string",
                                        "minLength": 1,
                                        "maxLength": 200,
                                        "description": "What the person reads.",
                                    },
                                },
                                "required": ["value", "label"],
                                "additionalProperties": false,
                            },
                            "description": "What can be chosen. Without options, the person \
                                answers in their own words.",
                        },
                        "multi_select": {
                            "type": "boolean",
                            "description": "Whether several options may be chosen. Default: false.",
                        },
                        "free_text": {
                            "type": "boolean",
                            "description": "Whether the person may also answer in their own \
                                words. Default: false.",
                        },
                    },
                    "required": ["prompt"],
                    "additionalProperties": false,
                },
                "description": "The questions, the most important first.",
            },
        }),
        &["questions"],
    )
}

fn memory_write() -> About {
    about(
        "memory_write",
        "Keeps a piece of text across sessions, in place of one with the same scope and name. \
         Use it when you learn something that will matter later and cannot be seen from the \
         files: who the person is and what they prefer, a correction they gave you and why, a \
         decision or deadline of the project, where something is to be found. Do not keep \
         what is in the code or its history, or what matters only now. Look at the memories \
         you know of first, and improve one rather than writing a second about the same.",
        Effect::Changes,
        json!({
            "scope": scope(),
            "name": name(),
            "description": {
                "type": "string",
                "minLength": 1,
                "maxLength": 200,
                "pattern": r"^[^\r\n]*$",
                "description": "One line that says what it is about: it is all you will see \
                    until you read the memory.",
            },
            "type": {
                "type": "string",
                "maxLength": 64,
                "pattern": KEBAB_CASE,
                "description": format!("What kind of memory it is: {TYPES}."),
            },
            "body": {
                "type": "string",
                "minLength": 1,
                "maxLength": 65_536,
                "description": "The text itself, in Markdown, at most 64 KiB.",
            },
        }),
        &["scope", "name", "description", "type", "body"],
    )
}

fn memory_read() -> About {
    about(
        "memory_read",
        "Returns the body of a memory. Use it when a memory whose name and description you \
         know may help with what you are doing. What it says was true when it was written: \
         check before you rely on it.",
        Effect::Reads,
        json!({ "scope": scope(), "name": name() }),
        &["scope", "name"],
    )
}

fn memory_list() -> About {
    about(
        "memory_list",
        "Lists the memories there are, with name, type and description. Use it to find one, \
         or to see whether one exists before you write.",
        Effect::Reads,
        json!({ "scope": scope() }),
        &[],
    )
}

fn memory_delete() -> About {
    about(
        "memory_delete",
        "Deletes a memory. Use it when the person asks you to forget something, or when a \
         memory has turned out to be wrong and there is nothing right to put in its place.",
        // What a session wrote stays in its log, so nothing is lost for good.
        Effect::Changes,
        json!({ "scope": scope(), "name": name() }),
        &["scope", "name"],
    )
}

const KEBAB_CASE: &str = "^[a-z0-9]+(-[a-z0-9]+)*$";

fn scope() -> Value {
    json!({
        "type": "string",
        "enum": ["user", "project"],
        "description": "`user`: kept for the person in everything they do. `project`: kept \
            for this project.",
    })
}

fn name() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 64,
        "pattern": KEBAB_CASE,
        "description": "The memory's name in kebab-case, like `prefers-short-answers`.",
    })
}

fn about(
    name: &'static str,
    description: &'static str,
    effect: Effect,
    properties: Value,
    required: &[&str],
) -> About {
    let input_schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    About {
        name: name.into(),
        description: description.into(),
        input_schema,
        effect,
        command: None,
        path: None,
        url: None,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// What each schema takes, at its bounds and just beyond them.
    #[test]
    fn inputs_are_bounded() {
        let memory = |change: Value| {
            let mut input = json!({
                "scope": "user",
                "name": "likes-tea",
                "description": "Drinks tea",
                "type": "user",
                "body": "With milk.",
            });
            let fields = input.as_object_mut().unwrap();
            fields.extend(change.as_object().unwrap().clone());
            input
        };
        let questions = |count| json!({ "questions": vec![json!({ "prompt": "?" }); count] });
        let asked = |change: Value| {
            let mut question = json!({ "prompt": "?", "multi_select": true, "free_text": true });
            question.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            json!({ "questions": [question] })
        };
        let task = |change: Value| {
            let mut input = json!({ "subagent_type": "explore", "prompt": "Where is it?" });
            input.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            input
        };
        let option = json!({ "value": "a", "label": "A" });
        let items = |count: usize, text: &str| json!({ "items": vec![json!({ "text": text, "status": "pending" }); count] });
        let cases = [
            ("question", "one question", questions(1)),
            ("question", "10 questions", questions(10)),
            ("question", "no questions", questions(0)),
            ("question", "11 questions", questions(11)),
            ("question", "a long prompt", asked(json!({ "prompt": "é".repeat(2_000) }))),
            ("question", "a longer prompt", asked(json!({ "prompt": "é".repeat(2_001) }))),
            ("question", "no prompt", asked(json!({ "prompt": "" }))),
            ("question", "no options", asked(json!({ "options": [] }))),
            ("question", "20 options", asked(json!({ "options": vec![option.clone(); 20] }))),
            ("question", "21 options", asked(json!({ "options": vec![option; 21] }))),
            ("question", "half an option", asked(json!({ "options": [{ "value": "a" }] }))),
            ("question", "another field", asked(json!({ "header": "a" }))),
            ("memory_write", "a memory", memory(json!({}))),
            ("memory_write", "another scope", memory(json!({ "scope": "team" }))),
            ("memory_write", "camel case", memory(json!({ "name": "likesTea" }))),
            ("memory_write", "a path as name", memory(json!({ "name": "../tea" }))),
            ("memory_write", "a name that ends in a line", memory(json!({ "name": "tea\n" }))),
            ("memory_write", "a long name", memory(json!({ "name": "n".repeat(64) }))),
            ("memory_write", "a longer name", memory(json!({ "name": "n".repeat(65) }))),
            ("memory_write", "two lines", memory(json!({ "description": "a\nb" }))),
            ("memory_write", "a long line", memory(json!({ "description": "d".repeat(201) }))),
            ("memory_write", "a type of the tenant's", memory(json!({ "type": "house-rule" }))),
            ("memory_write", "64 KiB", memory(json!({ "body": "b".repeat(65_536) }))),
            ("memory_write", "more", memory(json!({ "body": "b".repeat(65_537) }))),
            ("memory_read", "a name", json!({ "scope": "project", "name": "a" })),
            ("memory_read", "no scope", json!({ "name": "a" })),
            ("memory_list", "nothing", json!({})),
            ("memory_list", "a scope", json!({ "scope": "project" })),
            ("memory_delete", "a name", json!({ "scope": "user", "name": "a-1" })),
            ("memory_delete", "no name", json!({ "scope": "user" })),
            ("request_wakeup", "a delay", json!({ "message": "look", "delay_seconds": 60 })),
            ("request_wakeup", "no delay", json!({ "message": "look", "delay_seconds": 0 })),
            (
                "request_wakeup",
                "a pattern",
                json!({ "message": "look", "cron": "0 9 * * *", "time_zone": "Europe/Berlin" }),
            ),
            (
                "request_wakeup",
                "a time",
                json!({ "message": "look", "at": "2030-01-01T09:00:00Z" }),
            ),
            ("request_wakeup", "no message", json!({ "delay_seconds": 60 })),
            (
                "request_wakeup",
                "a long message",
                json!({ "message": "m".repeat(16_384), "delay_seconds": 60 }),
            ),
            (
                "request_wakeup",
                "a longer message",
                json!({ "message": "m".repeat(16_385), "delay_seconds": 60 }),
            ),
            ("cancel_wakeup", "an id", json!({ "wakeup_id": "trg_00000000000000000000000000" })),
            (
                "cancel_wakeup",
                "another id",
                json!({ "wakeup_id": "ses_00000000000000000000000000" }),
            ),
            ("todo", "nothing to do", json!({ "items": [] })),
            ("todo", "100 items", items(100, "a")),
            ("todo", "101 items", items(101, "a")),
            ("todo", "a long text", items(1, &"é".repeat(500))),
            ("todo", "a longer text", items(1, &"é".repeat(501))),
            ("todo", "no text", items(1, "")),
            ("todo", "another status", json!({ "items": [{ "text": "a", "status": "done" }] })),
            ("skill", "a name", json!({ "name": "pdf" })),
            ("skill", "no name", json!({})),
            ("task", "a task", task(json!({}))),
            ("task", "in background", task(json!({ "background": true, "metadata": { "a": 1 } }))),
            ("task", "no prompt", task(json!({ "prompt": "" }))),
            ("task", "no name of an agent", task(json!({ "subagent_type": "A b" }))),
            ("task", "metadata that is a list", task(json!({ "metadata": [] }))),
            ("task", "another field", task(json!({ "model": "m" }))),
            ("tool_search", "a query", json!({ "query": "issue" })),
            ("tool_search", "10 tools", json!({ "query": "issue", "limit": 10 })),
            ("tool_search", "11 tools", json!({ "query": "issue", "limit": 11 })),
        ];
        let tools = tools();
        let mut lines = String::new();
        for (name, what, input) in cases {
            let about = tools.iter().find(|about| about.name == name).unwrap();
            let taken = jsonschema::is_valid(&about.input_schema, &input);
            lines += &format!("{name}: {what} {}\n", if taken { "ok" } else { "refused" });
        }
        expect![[r#"
            question: one question ok
            question: 10 questions ok
            question: no questions refused
            question: 11 questions refused
            question: a long prompt ok
            question: a longer prompt refused
            question: no prompt refused
            question: no options ok
            question: 20 options ok
            question: 21 options refused
            question: half an option refused
            question: another field refused
            memory_write: a memory ok
            memory_write: another scope refused
            memory_write: camel case refused
            memory_write: a path as name refused
            memory_write: a name that ends in a line refused
            memory_write: a long name ok
            memory_write: a longer name refused
            memory_write: two lines refused
            memory_write: a long line refused
            memory_write: a type of the tenant's ok
            memory_write: 64 KiB ok
            memory_write: more refused
            memory_read: a name ok
            memory_read: no scope refused
            memory_list: nothing ok
            memory_list: a scope ok
            memory_delete: a name ok
            memory_delete: no name refused
            request_wakeup: a delay ok
            request_wakeup: no delay refused
            request_wakeup: a pattern ok
            request_wakeup: a time ok
            request_wakeup: no message refused
            request_wakeup: a long message ok
            request_wakeup: a longer message refused
            cancel_wakeup: an id ok
            cancel_wakeup: another id refused
            todo: nothing to do ok
            todo: 100 items ok
            todo: 101 items refused
            todo: a long text ok
            todo: a longer text refused
            todo: no text refused
            todo: another status refused
            skill: a name ok
            skill: no name refused
            task: a task ok
            task: in background ok
            task: no prompt refused
            task: no name of an agent refused
            task: metadata that is a list refused
            task: another field refused
            tool_search: a query ok
            tool_search: 10 tools ok
            tool_search: 11 tools refused
        "#]]
        .assert_eq(&lines);
    }
}
