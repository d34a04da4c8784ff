use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

#[test]
fn a_line_is_bounded_in_depth_and_parts() {
    let deep = [
        "(".repeat(50_000),
        "$(".repeat(40_000),
        "{ ".repeat(40_000),
        "\"$(".repeat(30_000),
        "${x:-".repeat(20_000),
        "<(".repeat(40_000),
        "case x in x) ".repeat(7_000),
        "env ".repeat(20_000),
        "find . -exec ".repeat(7_000) + "rm x" + &" ';'".repeat(7_000),
        "`".repeat(99_999),
        "a=(".repeat(30_000),
        "\\".repeat(99_999),
        "cat <<A ".repeat(12_000) + &"\nA".repeat(12_000),
    ];
    for line in &deep {
        let parts = Line::split(line).parts;
        assert!(parts.len() <= MOST_PARTS + DEEPEST, "{} parts", parts.len());
    }
    let many = Line::split(&"a;".repeat(50_000)).parts;
    assert_eq!(many.len(), MOST_PARTS + 1);
    assert_eq!(many.last().unwrap().unclear, Some("it has too many parts"));
    assert!(Line::split(&deep[0]).parts.iter().all(|part| part.unclear.is_some()));
}

/// Eight times the text takes about eight times as long; quadratic would be sixty-four times.
/// Other work on the machine can make one measurement longer, but not every one.
#[test]
fn time_grows_with_the_length_of_a_line() {
    let took = |line: &str| {
        let begun = Instant::now();
        Line::split(line);
        begun.elapsed()
    };
    for piece in [
        "a ",
        "'a' ",
        "\"$x\" ",
        "$(a) ",
        "`a` ",
        "a\\ b",
        "*",
        "${x:-y}",
        "x=(a b) ",
        "# a\n",
        "<(a) ",
        "cat <<A\nx\nA\n",
        "é",
        "$((1))",
        "[[ a ]] ",
        "> a ",
        "{a,b}",
        "2>&1 ",
        "env ",
        "$'a'",
        "if ",
    ] {
        let short = piece.repeat(12_500 / piece.len());
        let long = piece.repeat(100_000 / piece.len());
        let linear = |_| took(&long) < took(&short) * 24 + Duration::from_millis(5);
        assert!((0..20).any(linear), "{piece:?} takes too long");
    }
}

/// Pieces of shell in any order: most of it is nonsense, and some of it is clever.
pub fn nonsense() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "a",
        "rm x",
        " ",
        "\n",
        ";",
        "&",
        "|",
        "(",
        ")",
        "{",
        "}",
        "<",
        ">",
        "<<",
        "<<-",
        "A",
        "'",
        "\"",
        "`",
        "$",
        "$(",
        "${",
        "$((",
        "))",
        "\\",
        "#",
        "*",
        "?",
        "[",
        "]",
        "[[ ",
        " ]]",
        "~",
        "=",
        "x=",
        "if ",
        "then ",
        "fi",
        "for ",
        "in ",
        "do ",
        "done",
        "case ",
        "esac",
        ";;",
        "function ",
        "eval ",
        "env ",
        "bash -c ",
        "xargs ",
        "find ",
        "-exec ",
        "git ",
        "-c",
        "é",
        "\u{a0}",
        "\r",
        "\t",
        "1",
        "&>",
        "<(",
        "$'",
        ":-",
        "!",
        "time ",
        "sudo ",
        "\0",
        "--",
        "{}",
        "+",
        ",",
    ]);
    prop::collection::vec(pieces, 0..40).prop_map(|pieces| pieces.concat())
}

/// A command of plain words, none of which is a keyword of the shell.
fn plain() -> impl Strategy<Value = Vec<String>> {
    const KEYWORDS: [&str; 17] = [
        "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if",
        "in", "select", "then", "time", "until", "while",
    ];
    let word =
        "[a-z][a-z0-9./_-]{0,6}".prop_filter("a keyword", |word| !KEYWORDS.contains(&&**word));
    prop::collection::vec(word, 1..5)
}

proptest! {
    #[test]
    fn no_line_is_too_strange(line in nonsense()) {
        let parts = Line::split(&line).parts;
        prop_assert!(!parts.is_empty() && parts.len() <= MOST_PARTS + DEEPEST);
        for text in parts.iter().flat_map(Part::texts) {
            prop_assert!(text.text.is_char_boundary(text.certain));
        }
    }

    #[test]
    fn no_text_is_too_strange(line in any::<String>()) {
        prop_assert!(!Line::split(&line).parts.is_empty());
    }

    /// Whatever is before it, around it or behind it, and whatever separates them.
    #[test]
    fn each_part_of_a_line_is_found(
        lines in prop::collection::vec(plain(), 1..6),
        separator in prop::sample::select(vec![";", "&&", "||", "|", "\n", "&", " ; ", "|&"]),
        around in prop::sample::select(vec![("", ""), ("(", ")"), ("{ ", "; }"), ("x $(", ")"), ("x `", "`"),
            ("if ", "; then b; fi"), ("bash -c '", "'"), ("x <(", ")"), ("f() { ", "; }"), ("x \"$(", ")\""),
            ("cat <<E\n$(", ")\nE"), ("eval '", "'"), ("case x in x) ", ";; esac")]),
    ) {
        let lines: Vec<String> = lines.iter().map(|words| words.join(" ")).collect();
        let line = format!("{}{}{}", around.0, lines.join(separator), around.1);
        let parts = Line::split(&line).parts;
        for expected in &lines {
            prop_assert!(parts.iter().any(|part| part.text() == expected), "{expected} in {line}");
        }
    }

    #[test]
    fn quotes_change_nothing(words in plain(), how in prop::collection::vec(0..5usize, 4)) {
        let quote = |(word, how): (&String, &usize)| match how {
            0 => format!("'{word}'"),
            1 => format!("\"{word}\""),
            2 => word.chars().flat_map(|next| ['\\', next]).collect(),
            3 => format!("{}''{}", &word[..1], &word[1..]),
            _ => word.clone(),
        };
        let quoted: Vec<String> = words.iter().zip(&how).map(quote).collect();
        prop_assert_eq!(shown(&quoted.join(" ")), shown(&words.join(" ")));
    }

    /// What is shown of a part is a command that has this one part.
    #[test]
    fn a_part_that_is_clear_can_be_read_again(line in nonsense()) {
        for part in Line::split(&line).parts {
            let certain = part.unclear.is_none() && part.shown().certain == part.text().len();
            // Behind `command`, nothing is a keyword; but some words would be its options.
            let first = part.words[..].first().map(Word::value).unwrap_or_default();
            let named = !first.starts_with(['-', '#']) && !first.contains('=') && first != "[[";
            if part.kind == Kind::Program && certain && named {
                let again = Line::split(&format!("command {}", part.text()));
                let found = again.parts.iter().any(|other| other.text() == part.text());
                prop_assert!(found, "{line:?}: {:?}", part.text());
            }
        }
    }
}
