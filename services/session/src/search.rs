//! Finds texts by words: BM25, as search engines rank. No I/O.

use std::collections::{HashMap, HashSet};

/// How soon repeating a word counts no more.
const SATURATION: f64 = 1.2;

/// How much the length of a text counts.
const LENGTH: f64 = 0.75;

/// How often a word in a name counts.
const NAME: usize = 3;

/// The places of the texts that fit a query best, best first; of equals the first. What has no
/// word of the query is not among them.
pub fn best<'a>(
    texts: impl IntoIterator<Item = (&'a str, &'a str)>,
    query: &str,
    most: usize,
) -> Vec<usize> {
    let texts: Vec<HashMap<String, usize>> = texts.into_iter().map(counted).collect();
    let lengths: Vec<f64> =
        texts.iter().map(|words| words.values().sum::<usize>() as f64).collect();
    let usual = (lengths.iter().sum::<f64>() / texts.len().max(1) as f64).max(1.0);
    let asked: HashSet<String> = words(query).collect();
    let weights: HashMap<&String, f64> = asked
        .iter()
        .map(|word| {
            let having = texts.iter().filter(|text| text.contains_key(word)).count() as f64;
            let lacking = texts.len() as f64 - having;
            (word, ((lacking + 0.5) / (having + 0.5)).ln_1p())
        })
        .collect();
    let score = |(text, length): (&HashMap<String, usize>, &f64)| -> f64 {
        let of_word = |(word, weight): (&&String, &f64)| {
            let count = text.get(*word).copied().unwrap_or(0) as f64;
            let norm = SATURATION * (1.0 - LENGTH + LENGTH * length / usual);
            weight * count * (SATURATION + 1.0) / (count + norm)
        };
        weights.iter().map(of_word).sum()
    };
    let scores = texts.iter().zip(&lengths).map(score);
    let mut ranked: Vec<(usize, f64)> =
        scores.enumerate().filter(|(_, score)| *score > 0.0).collect();
    ranked.sort_by(|one, other| other.1.total_cmp(&one.1));
    ranked.into_iter().take(most).map(|(place, _)| place).collect()
}

/// How often each word is in a name and a description.
fn counted((name, description): (&str, &str)) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    words(name).for_each(|word| *counts.entry(word).or_default() += NAME);
    words(description).for_each(|word| *counts.entry(word).or_default() += 1);
    counts
}

/// Words in lower case and without an ending of the plural; `camelCase` is two.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut apart = String::with_capacity(text.len() + 8);
    let mut lower = false;
    for character in text.chars() {
        if lower && character.is_uppercase() {
            apart.push(' ');
        }
        lower = character.is_lowercase();
        apart.extend(character.to_lowercase());
    }
    let words = apart.split(|character: char| !character.is_alphanumeric());
    let words: Vec<String> = words.filter(|word| !word.is_empty()).map(singular).collect();
    words.into_iter()
}

fn singular(word: &str) -> String {
    match word.strip_suffix('s') {
        Some(stem) if stem.chars().count() > 2 && !stem.ends_with('s') => stem.to_owned(),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    const TOOLS: [(&str, &str); 6] = [
        ("github_create_issue", "Opens an issue in a repository."),
        ("github_list_issues", "Lists the issues of a repository, with their labels."),
        ("github_mergepullrequest", "Merges a pull request."),
        ("mail_send", "Sends a mail to people. Do not use it to create an issue."),
        ("calendar_createEvent", "Adds an event to a calendar."),
        ("db_query", "Runs SQL."),
    ];

    #[test]
    fn the_best_fit_comes_first() {
        let mut lines = String::new();
        for query in [
            "create issue",
            "issues",
            "CREATE an event",
            "pull requests",
            "sql",
            "send mails",
            "weather",
            "",
            "!?",
        ] {
            let found: Vec<_> =
                best(TOOLS, query, 3).into_iter().map(|place| TOOLS[place].0).collect();
            lines += &format!("{query:?}: {}\n", found.join(", "));
        }
        expect![[r#"
            "create issue": github_create_issue, mail_send, github_list_issues
            "issues": github_create_issue, github_list_issues, mail_send
            "CREATE an event": calendar_createEvent, github_create_issue, mail_send
            "pull requests": github_mergepullrequest
            "sql": db_query
            "send mails": mail_send
            "weather": 
            "": 
            "!?": 
        "#]]
        .assert_eq(&lines);
    }

    proptest! {
        #[test]
        fn whatever_is_asked_the_answer_is_bounded_and_the_same(
            texts in prop::collection::vec((".{0,12}", ".{0,40}"), 0..8), query in ".{0,40}", most in 0usize..5,
        ) {
            let texts: Vec<(&str, &str)> = texts.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let found = best(texts.clone(), &query, most);
            prop_assert!(found.len() <= most && found.iter().all(|place| *place < texts.len()));
            prop_assert_eq!(found, best(texts, &query, most));
        }
    }
}
