use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

/// Prints a script as it was understood, one action a line.
fn check(script: &str, expect: Expect) {
    let mut lines = String::new();
    for Step { actions, usage, finish } in Script::parse(script).unwrap().steps {
        lines += &format!("step: {usage:?}, {finish:?}\n");
        for action in actions {
            lines += &format!("  {action:?}\n");
        }
    }
    expect.assert_eq(&lines);
}

#[test]
fn every_verb_has_a_meaning() {
    check(
        concat!(
            "# a comment\n\n",
            "  say  two spaces \n",
            "think \"a\\nb\"\n",
            "chunk 3\n",
            "pace 1.5s\n",
            "repeat 2 {{user}}!\r\n",
            "call read {\"path\": \"{{tool_result}}\"}\n",
            "call list\n",
            "call broken \"{\"\n",
            "delay 200ms\n",
            "usage output=2 input=1 reasoning=1\n",
            "finish length\n",
            "fail rate_limit 2m 3\n",
            "fail auth\n",
            "hang\n",
            "cut\n",
        ),
        expect![[r#"
            step: Some(Usage { input: 1, output: 2, reasoning: 1, cache_read: 0, cache_write: 0 }), Some(Length)
              Say { text: Text([Literal(" two spaces ")]), rhythm: Rhythm { chunk: None, pace: 0ns } }
              Think { text: Text([Literal("a\nb")]), rhythm: Rhythm { chunk: None, pace: 0ns } }
              Repeat { count: 2, text: Text([User, Literal("!")]), rhythm: Rhythm { chunk: Some(3), pace: 1.5s } }
              Call { tool: "read", input: Text([Literal("{\"path\": \""), ToolResult, Literal("\"}")]), rhythm: Rhythm { chunk: Some(3), pace: 1.5s } }
              Call { tool: "list", input: Text([Literal("{}")]), rhythm: Rhythm { chunk: Some(3), pace: 1.5s } }
              Call { tool: "broken", input: Text([Literal("{")]), rhythm: Rhythm { chunk: Some(3), pace: 1.5s } }
              Delay(200ms)
              Fail { fault: RateLimit(120s), attempts: First(3) }
              Fail { fault: Auth, attempts: All }
              Hang
              Cut
        "#]],
    );
}

#[test]
fn steps_are_separated_and_may_be_empty() {
    check(
        "say a\n --- \n---\nsay b",
        expect![[r#"
        step: None, None
          Say { text: Text([Literal("a")]), rhythm: Rhythm { chunk: None, pace: 0ns } }
        step: None, None
        step: None, None
          Say { text: Text([Literal("b")]), rhythm: Rhythm { chunk: None, pace: 0ns } }
    "#]],
    );
}

#[test]
fn how_a_text_is_streamed_holds_for_all_lines_below() {
    check(
        "say a\nchunk 2\n---\nsay b",
        expect![[r#"
        step: None, None
          Say { text: Text([Literal("a")]), rhythm: Rhythm { chunk: None, pace: 0ns } }
        step: None, None
          Say { text: Text([Literal("b")]), rhythm: Rhythm { chunk: Some(2), pace: 0ns } }
    "#]],
    );
}

#[test]
fn errors_name_the_line_and_the_problem() {
    let mut errors = String::new();
    for line in [
        "sya hello",
        "say",
        "say \"half",
        "say \"whole\" and more",
        "say {{tool_reslut}}",
        "think ",
        "repeat",
        "repeat 0 a",
        "repeat 100001 a",
        "repeat 3",
        "call",
        "call read [1]",
        "call read {\"path\": ",
        "call read {{user}}",
        "call read {\"path\": \"{{me}}\"}",
        "delay",
        "delay 5",
        "delay 1h",
        "delay 11m",
        "delay -1s",
        "delay 1..5s",
        "pace s",
        "chunk 0",
        "chunk many",
        "usage tokens=1",
        "usage input",
        "usage input=-1",
        "usage output=1 reasoning=2",
        "finish",
        "finish early",
        "fail",
        "fail badly",
        "fail rate_limit",
        "fail rate_limit 1s 0",
        "fail transient 1 2",
        "hang 1s",
        "cut here",
        "finish stop\nfinish stop",
        "usage\nusage",
    ] {
        let error = Script::parse(&format!("say hi\n\n{line}")).unwrap_err();
        errors += &format!("{line:?}: {error}\n");
    }
    expect![[r#"
        "sya hello": script line 3: unknown verb "sya": there are say, think, repeat, call, delay, chunk, pace, usage, finish, fail, hang and cut
        "say": script line 3: expected a text
        "say \"half": script line 3: a text that starts with " is a JSON string: EOF while parsing a string at line 1 column 5
        "say \"whole\" and more": script line 3: a text that starts with " is a JSON string: trailing characters at line 1 column 9
        "say {{tool_reslut}}": script line 3: unknown variable tool_reslut: there are tool_result and user
        "think ": script line 3: expected a text
        "repeat": script line 3: expected how often to repeat, from 1 to 100000
        "repeat 0 a": script line 3: expected how often to repeat, from 1 to 100000
        "repeat 100001 a": script line 3: expected how often to repeat, from 1 to 100000
        "repeat 3": script line 3: expected a text
        "call": script line 3: expected a tool
        "call read [1]": script line 3: expected a JSON object as the tool's input: invalid type: sequence, expected a map at line 1 column 0
        "call read {\"path\": ": script line 3: expected a JSON object as the tool's input: EOF while parsing a value at line 1 column 8
        "call read {{user}}": script line 3: expected a JSON object as the tool's input: key must be a string at line 1 column 2
        "call read {\"path\": \"{{me}}\"}": script line 3: unknown variable me: there are tool_result and user
        "delay": script line 3: expected a duration like 200ms, 1.5s or 2m, at most 10m
        "delay 5": script line 3: expected a duration like 200ms, 1.5s or 2m, at most 10m
        "delay 1h": script line 3: expected a duration like 200ms, 1.5s or 2m, at most 10m
        "delay 11m": script line 3: expected a duration like 200ms, 1.5s or 2m, at most 10m
        "delay -1s": script line 3: expected a duration like 200ms, 1.5s or 2m, at most 10m
        "delay 1..5s": script line 3: expected a duration like 200ms, 1.5s or 2m, at most 10m
        "pace s": script line 3: expected a duration like 200ms, 1.5s or 2m, at most 10m
        "chunk 0": script line 3: expected a number of characters, from 1 to 65536
        "chunk many": script line 3: expected a number of characters, from 1 to 65536
        "usage tokens=1": script line 3: expected input=, output=, reasoning=, cache_read= or cache_write=
        "usage input": script line 3: expected a number of tokens, from 0 to 1000000000
        "usage input=-1": script line 3: expected a number of tokens, from 0 to 1000000000
        "usage output=1 reasoning=2": script line 3: reasoning is a part of output and cannot be more
        "finish": script line 3: expected stop, length, tool_calls or refused
        "finish early": script line 3: expected stop, length, tool_calls or refused
        "fail": script line 3: expected transient, rate_limit, auth, overflow, refused or invalid
        "fail badly": script line 3: expected transient, rate_limit, auth, overflow, refused or invalid
        "fail rate_limit": script line 3: expected a duration like 200ms, 1.5s or 2m, at most 10m
        "fail rate_limit 1s 0": script line 3: expected how many attempts fail, from 1 to 1000
        "fail transient 1 2": script line 3: unexpected "2"
        "hang 1s": script line 3: unexpected "1s"
        "cut here": script line 3: unexpected "here"
        "finish stop\nfinish stop": script line 4: this step has a finish line already
        "usage\nusage": script line 4: this step has a usage line already
    "#]].assert_eq(&errors);
}

#[test]
fn scripts_are_bounded() {
    let lines = Script::parse(&"#\n".repeat(1_001)).unwrap_err();
    let bytes = Script::parse(&format!("say a\nsay {}", "b".repeat(64 * 1024))).unwrap_err();
    expect!["script line 1001: a script has at most 1000 lines"].assert_eq(&lines.to_string());
    expect!["script line 2: a script has at most 65536 bytes"].assert_eq(&bytes.to_string());
    assert!(Script::parse(&"#\n".repeat(1_000)).is_ok());
}

#[test]
fn a_script_begins_below_its_marker() {
    for (text, expected) in [
        ("hello", ("hello", None)),
        ("#!script", ("", Some(""))),
        ("hello\n\n#!script \r\nsay a", ("hello", Some("say a"))),
        ("#!script\n#!script\n", ("", Some("#!script\n"))),
        ("> #!script\nsay a", ("> #!script\nsay a", None)),
        (" #!script\nsay a", (" #!script\nsay a", None)),
        ("#!scripted\nsay a", ("#!scripted\nsay a", None)),
    ] {
        assert_eq!(split(text), expected, "{text:?}");
    }
}

proptest! {
    #[test]
    fn no_text_breaks_the_parser(text in any::<String>()) {
        let _ = split(&text);
        let _ = Script::parse(&text);
    }

    #[test]
    fn no_line_breaks_the_parser(
        lines in prop::collection::vec(
            "(say|think|repeat|call|delay|chunk|pace|usage|finish|fail|hang|cut|---)[ \"{}0-9a-z_=.é]{0,20}",
            0..20,
        ),
    ) {
        if let Err(error) = Script::parse(&lines.join("\n")) {
            prop_assert!((1..=lines.len()).contains(&error.line));
        }
    }
}
