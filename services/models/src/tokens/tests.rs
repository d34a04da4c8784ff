use expect_test::expect;

use super::*;

/// What prompts are made of, in the proportions of nobody in particular.
const CORPUS: [(&str, &str); 9] = [
    ("English prose", include_str!("corpus/prose.md")),
    ("Rust", include_str!("corpus/code.rs.txt")),
    ("SQL", include_str!("corpus/schema.sql")),
    ("JSON", include_str!("corpus/values.json")),
    ("TOML", include_str!("corpus/settings.toml")),
    ("log", LOG),
    ("German", GERMAN),
    ("Russian", RUSSIAN),
    ("Chinese", CHINESE),
];

const LOG: &str = "\
2026-11-17T19:03:22.481920Z  INFO session::worker: claimed session.id=ses_01jcz8m4q2e7rvwx9k3t5y6b8d epoch=17 waited_ms=12
2026-11-17T19:03:22.502113Z  WARN models::provider::wire: upstream refuses a request status=503 problem=\"overloaded\"
2026-11-17T19:03:23.004871Z ERROR tools::execute: exit status 101 after 4.2s, 1048576 bytes in out_9f86d081884c7d65
thread 'main' panicked at src/main.rs:42:17: index out of bounds: the len is 3 but the index is 7
   0: 0x55d0c8a3f1b2 - std::backtrace::print
   1: 0x55d0c8a41e9c - core::panicking::panic_fmt
";

const GERMAN: &str = "\
Die Sitzung wird beendet, sobald niemand mehr zuhört, und was bis dahin gesagt wurde, bleibt erhalten. \
Wer später zurückkommt, findet alles so vor, wie er es verlassen hat: die Nachrichten, die Werkzeuge \
und die Rechnung. Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz ist ein langes Wort.";

const RUSSIAN: &str = "\
Сессия завершается, когда никто больше не слушает, и всё, что было сказано до этого, сохраняется. \
Тот, кто вернётся позже, найдёт всё таким, каким оставил: сообщения, инструменты и счёт.";

const CHINESE: &str = "\
当没有人再听的时候，会话就结束了，在此之前所说的一切都会被保留。以后回来的人会发现一切都和离开时一样：\
消息、工具和账单。模型服务选择一个模型，传输它的回答，并说明花费了多少。";

/// OpenAI's vocabulary is the one that is public, so it is the ruler.
#[test]
fn the_estimate_is_off_by_this_much() {
    let exact = tiktoken_rs::o200k_base().unwrap();
    let mut lines = String::new();
    let (mut all, mut all_estimated, mut worst) = (0, 0, 0);
    for (name, text) in CORPUS {
        let tokens = exact.encode_ordinary(text).len() as i32;
        let mut size = Size::default();
        size.add(text);
        let estimated = size.tokens(Tokenizer::Openai);
        let (off, plain) =
            (percent(estimated, tokens), percent(size.tokens(Tokenizer::Plain), tokens));
        lines += &format!("{name}: {off:+}% (four characters each: {plain:+}%)\n");
        worst = worst.min(off);
        all += tokens;
        all_estimated += estimated;
    }
    lines += &format!("all: {:+}%\n", percent(all_estimated, all));
    expect![[r#"
        English prose: +1% (four characters each: -10%)
        Rust: +9% (four characters each: +4%)
        SQL: +3% (four characters each: +11%)
        JSON: -5% (four characters each: -18%)
        TOML: +2% (four characters each: -24%)
        log: -6% (four characters each: -40%)
        German: -4% (four characters each: +12%)
        Russian: +13% (four characters each: -10%)
        Chinese: +6% (four characters each: -65%)
        all: +3%
    "#]]
    .assert_eq(&lines);
    // What is too few is found out by the provider, what is too many by nobody.
    assert!(worst >= -10, "{lines}");
}

fn percent(estimated: i32, tokens: i32) -> i32 {
    (f64::from(estimated - tokens) / f64::from(tokens) * 100.0).round() as i32
}

#[test]
fn families_differ_and_an_image_is_an_image() {
    let mut size = Size { images: 1, ..Size::default() };
    size.add(&"word ".repeat(1000));
    let tokens = [Tokenizer::Plain, Tokenizer::Openai, Tokenizer::Anthropic, Tokenizer::Gemini]
        .map(|tokenizer| size.tokens(tokenizer));
    assert_eq!(tokens, [2250, 2000, 2250, 2050]);
    assert_eq!(Size::counted(7).tokens(Tokenizer::Gemini), 7);
}

/// What `measure` does, one character at a time.
fn measured_singly(text: &str) -> (usize, usize) {
    let (mut characters, mut units) = (0, 0);
    let mut run = Run::default();
    for character in text.chars() {
        characters += 1;
        let kind = match character {
            'a'..='z' | 'A'..='Z' => Kind::Letter,
            '0'..='9' => Kind::Digit,
            _ if character.is_whitespace() => Kind::Space,
            _ if character.is_ascii() => Kind::Sign,
            _ => Kind::of(character),
        };
        if kind != run.kind || (character.is_ascii_uppercase() && run.ends_low) {
            units += run.units();
            run = Run { kind, ..Run::default() };
        }
        run.length += 1;
        run.ends_low = character.is_ascii_lowercase();
        run.lines |= character == '\n';
    }
    (characters, units + run.units())
}

#[test]
fn what_is_known_of_a_text_is_what_it_measures() {
    let known = Known { hasher: RandomState::default(), measured: Cache::new(100) };
    let alike = ["a", "A", "7", " ", "\n", "{"].map(|character| character.repeat(LONG));
    let texts = CORPUS.map(|(_, text)| text.repeat(2)).into_iter().chain(alike);
    let texts: Vec<_> = texts.chain(["é".repeat(LONG / 2), "word".repeat(LONG / 4)]).collect();
    // The second time from memory.
    for _ in 0..2 {
        for text in &texts {
            assert!(text.len() >= LONG);
            assert_eq!(known.measure(text), measure(text), "{text}");
            let mut size = Size::default();
            size.add(text);
            assert_eq!((size.characters, size.units), measure(text), "{text}");
        }
    }
    for text in &texts {
        let key = (text.len(), known.hasher.hash_one(text));
        assert_eq!(known.measured.get(&key), Some(measure(text)), "{text}");
    }
}

proptest::proptest! {
    #[test]
    fn stretches_come_to_what_their_characters_come_to(text in "([a-zA-Z0-9 \n\t,.{}\"é×жя中😀]{0,6}|\\PC{0,4}){0,8}") {
        proptest::prop_assert_eq!(measure(&text), measured_singly(&text));
    }
}
