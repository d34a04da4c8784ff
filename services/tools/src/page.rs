//! What a page of the web says, made into text. Whoever wrote it may be hostile, so everything
//! in here is bounded by the size of what it is given. Decides and touches nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use html2text::{Element, Handle, RcDom, config};
use html5ever::{
    ParseOpts, parse_document,
    tendril::{StrTendril, TendrilSink as _},
    tree_builder::TreeBuilderOpts,
};

use crate::text::{clean, shorten};

/// How wide a line of text may become. Tables need some width, and a model none.
const WIDTH: usize = 120;

/// How deeply elements may be nested, and how many there may be. What people write is rarely
/// deeper than fifty. Parts of the libraries go down by calling themselves, and a stack that
/// overflows ends the process; others look at all that is open for each that is opened, and
/// repeat what was not closed for each that is, so that a small page can become a large one.
const DEEPEST: usize = 200;
const MOST_NODES: usize = 200_000;

/// How much is parsed before somebody looks what has become of it.
const PIECE: usize = 8 * 1024;

/// How many bytes of a page are searched for the name of its encoding, as browsers do.
const PRESCAN: usize = 1024;

/// How long a title may be, in characters.
const LONGEST_TITLE: usize = 300;

/// What can be made into text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Html,
    Text,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub title: String,
    pub text: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("the page is nested too deeply, or has too many elements, to be read")]
    Nested,
    #[error("the page takes too long to be read")]
    Stopped,
    #[error("the page cannot be read: {0}")]
    Broken(String),
}

impl Kind {
    /// Of a media type, or of the bytes themselves where nobody says. None is what is no text.
    pub fn of(media_type: &str, bytes: &[u8]) -> Option<Kind> {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "" => Kind::guess(bytes),
            "text/html" | "application/xhtml+xml" => Some(Kind::Html),
            "application/json"
            | "application/xml"
            | "application/javascript"
            | "application/x-ndjson"
            | "application/yaml"
            | "application/x-yaml"
            | "application/toml"
            | "application/x-sh" => Some(Kind::Text),
            other if other.starts_with("text/") => Some(Kind::Text),
            other if other.ends_with("+json") || other.ends_with("+xml") => Some(Kind::Text),
            _ => None,
        }
    }

    fn guess(bytes: &[u8]) -> Option<Kind> {
        let start = &bytes[..bytes.len().min(PRESCAN)];
        let text = String::from_utf8_lossy(start).trim_start().to_ascii_lowercase();
        match () {
            () if start.contains(&0) => None,
            () if text.starts_with("<!doctype html") || text.starts_with("<html") => {
                Some(Kind::Html)
            }
            () => Some(Kind::Text),
        }
    }
}

/// Reads a page. `media_type` may name its encoding; `stopped` is asked often.
pub fn read(
    kind: Kind,
    media_type: &str,
    bytes: &[u8],
    stopped: impl Fn() -> bool,
) -> Result<Page, Unreadable> {
    let text = decode(kind, media_type, bytes);
    match kind {
        Kind::Text => Ok(Page { title: String::new(), text: clean(text.as_bytes()) }),
        Kind::Html => render(&text, stopped),
    }
}

fn render(html: &str, stopped: impl Fn() -> bool) -> Result<Page, Unreadable> {
    let broken = |error: html2text::Error| Unreadable::Broken(error.to_string());
    let (document, title) = parse(html, stopped)?;
    let config = config::plain().no_link_wrapping().allow_width_overflow();
    // There are tables that the library panics at.
    let rendered = catch_unwind(AssertUnwindSafe(|| {
        let tree = config.dom_to_render_tree(&document)?;
        config.render_to_string(tree, WIDTH)
    }));
    let text = rendered
        .map_err(|_| Unreadable::Broken("its tables make no sense".into()))?
        .map_err(broken)?;
    Ok(Page { title, text: clean(text.as_bytes()) })
}

/// Parses piece by piece, so that what grows too fast is noticed before it is large.
fn parse(html: &str, stopped: impl Fn() -> bool) -> Result<(RcDom, String), Unreadable> {
    let options = ParseOpts {
        tree_builder: TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() },
        ..ParseOpts::default()
    };
    let mut parser = parse_document(RcDom::default(), options);
    let mut rest = html;
    while !rest.is_empty() {
        if stopped() {
            return Err(Unreadable::Stopped);
        }
        let (piece, later) = rest.split_at(rest.floor_char_boundary(PIECE));
        parser.process(StrTendril::from(piece));
        look(&parser.tokenizer.sink.sink)?;
        rest = later;
    }
    let document = parser.finish();
    let title = look(&document)?;
    Ok((document, title))
}

/// Goes once through a document: is it small enough, and what is its title?
fn look(document: &RcDom) -> Result<String, Unreadable> {
    let (mut title, mut nodes) = (None, 0);
    let mut rest: Vec<(Handle, usize)> = vec![(document.document.clone(), 0)];
    while let Some((node, depth)) = rest.pop() {
        nodes += 1;
        if depth > DEEPEST || nodes > MOST_NODES {
            return Err(Unreadable::Nested);
        }
        if title.is_none() && node.element_name().as_deref() == Some("title") {
            title = Some(inside(&node));
        }
        if let Element { template_contents, .. } = &node.data {
            rest.extend(template_contents.borrow().iter().map(|child| (child.clone(), depth + 1)));
        }
        // The first is looked at first.
        rest.extend(node.children.borrow().iter().rev().map(|child| (child.clone(), depth + 1)));
    }
    Ok(title.unwrap_or_default())
}

/// The text of an element that can hold nothing else.
fn inside(title: &Handle) -> String {
    let mut markup = Vec::new();
    // A vector takes everything.
    let _ = title.serialize(&mut markup);
    let markup = clean(&markup);
    let text = markup.strip_prefix("<title>").unwrap_or(&markup);
    let text = text.strip_suffix("</title>").unwrap_or(text);
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", " ");
    let text = text.replace("&amp;", "&");
    let words: Vec<_> = text.split_whitespace().collect();
    shorten(&words.join(" "), LONGEST_TITLE)
}

/// The encoding that the bytes themselves show, that the server names, that the page names, or
/// that they can be in.
fn decode(kind: Kind, media_type: &str, bytes: &[u8]) -> String {
    let named = charset(media_type.as_bytes());
    let prescan = &bytes[..bytes.len().min(PRESCAN)];
    let encoding = named
        .or_else(|| if kind == Kind::Html { charset(prescan) } else { None })
        .unwrap_or(match std::str::from_utf8(bytes) {
            // A cut may go through a character.
            Err(error) if error.error_len().is_some() => WINDOWS_1252,
            _ => UTF_8,
        });
    // Looks for a byte order mark before it believes anybody.
    encoding.decode(bytes).0.into_owned()
}

/// What stands behind `charset=`, in a header or in a page.
fn charset(text: &[u8]) -> Option<&'static Encoding> {
    const NAME: &[u8] = b"charset";
    let text = text.to_ascii_lowercase();
    let mut rest = text.as_slice();
    while let Some(start) = rest.windows(NAME.len()).position(|window| window == NAME) {
        rest = &rest[start + NAME.len()..];
        let Some(value) = rest.trim_ascii_start().strip_prefix(b"=") else { continue };
        let value = value.trim_ascii_start();
        let value = value.strip_prefix(b"\"").or(value.strip_prefix(b"'")).unwrap_or(value);
        let end = |next: &u8| matches!(next, b'"' | b'\'' | b';' | b'>' | b'/' | b' ' | b',');
        let end = value.iter().position(end).unwrap_or(value.len());
        if let Some(encoding) = Encoding::for_label(&value[..end]) {
            return Some(encoding);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    fn html(text: &str) -> Page {
        read(Kind::Html, "text/html", text.as_bytes(), || false).unwrap()
    }

    #[test]
    fn a_page_becomes_what_a_person_would_read() {
        let page = html(
            r#"<!doctype html><html><head><title> A
               title </title><style>p { color: red }</style><script>alert(1)</script></head>
            <body><h1>Heading</h1><p>Some <b>bold</b> text with a
            <a href="https://example.com/a?b=c">link</a>.</p>
            <ul><li>one</li><li>two</li></ul>
            <pre>let x = 1;
  let y = 2;</pre>
            <table><tr><th>k</th><th>v</th></tr><tr><td>a</td><td>1</td></tr></table>
            <img src="x.png" alt="a picture"></body></html>"#,
        );
        assert_eq!(page.title, "A title");
        expect![[r#"
            # Heading

            Some **bold** text with a [link][1].
            * one
            * two

            let x = 1;
              let y = 2;

            ─┬─
            k│v
            ─┼─
            a│1
            ─┴─
            [a picture]

            [1]: https://example.com/a?b=c
        "#]]
        .assert_eq(&page.text);
    }

    #[test]
    fn what_is_no_text_is_known_by_its_type() {
        let kind = |media_type| Kind::of(media_type, b"");
        for (media_type, expected) in [
            ("text/html; charset=utf-8", Some(Kind::Html)),
            ("TEXT/HTML", Some(Kind::Html)),
            ("text/plain", Some(Kind::Text)),
            ("application/json", Some(Kind::Text)),
            ("application/problem+json", Some(Kind::Text)),
            ("image/svg+xml", Some(Kind::Text)),
            ("application/pdf", None),
            ("image/png", None),
            ("application/octet-stream", None),
        ] {
            assert_eq!(kind(media_type), expected, "{media_type}");
        }
        assert_eq!(Kind::of("", b"\n <!DOCTYPE HTML>"), Some(Kind::Html));
        assert_eq!(Kind::of("", b"hello"), Some(Kind::Text));
        assert_eq!(Kind::of("", b"\x7fELF\0"), None);
    }

    #[test]
    fn letters_are_what_their_encoding_says() {
        let text =
            |media_type, bytes: &[u8]| read(Kind::Text, media_type, bytes, || false).unwrap().text;
        assert_eq!(text("text/plain", "ä€".as_bytes()), "ä€");
        assert_eq!(text("text/plain", b"\xe4 \x80"), "ä €");
        assert_eq!(text("text/plain; charset=\"ISO-8859-1\"", b"\xe4"), "ä");
        assert_eq!(text("text/plain; charset=shift_jis", b"\x93\xfa\x96\x7b"), "日本");
        assert_eq!(text("text/plain; charset=utf-8", b"a\xffb\0c"), "a\u{fffd}b\u{fffd}c");
        assert_eq!(text("text/plain; charset=latin1", b"\xef\xbb\xbf\xc3\xa4"), "ä");
        assert_eq!(text("text/plain; charset=nonsense", "ä".as_bytes()), "ä");
        let bytes = b"<meta charset=windows-1251><p>\xcf\xf0";
        let page = read(Kind::Html, "text/html", bytes, || false);
        assert_eq!(page.unwrap().text.trim(), "Пр");
        // Cut in the middle of a character.
        assert_eq!(text("text/plain", &"aä".as_bytes()[..2]), "a\u{fffd}");
    }

    #[test]
    fn a_page_that_is_nested_without_end_is_refused() {
        let repeated: String = (0..150).map(|index| format!("<b id={index}>")).collect();
        for (start, element) in [
            ("", "<div>"),
            ("", "<b>"),
            ("", "<table><tr><td>"),
            ("", "<ul><li>"),
            ("", "<blockquote>"),
            ("", "<template>"),
            ("<table>", "<div>"),
            // Each of these repeats all that was not closed in the first.
            (&format!("<p>{repeated}"), "<p>x"),
        ] {
            let deep = start.to_owned() + &element.repeat(200_000);
            let begun = std::time::Instant::now();
            let found = read(Kind::Html, "text/html", deep.as_bytes(), || false);
            assert_eq!(found, Err(Unreadable::Nested), "{element}");
            assert!(begun.elapsed().as_secs() < 20, "{element}");
        }
        let long = "<p>x".repeat(PIECE);
        let stopped = read(Kind::Html, "text/html", long.as_bytes(), || true);
        assert_eq!(stopped, Err(Unreadable::Stopped));
        for element in ["<div>", "<table><tr><td>", "<ul><li>", "<blockquote>", "<b>"] {
            let fine = element.repeat(40) + "text";
            assert!(html(&fine).text.contains("text"), "{element}");
        }
    }

    #[test]
    fn a_table_that_breaks_the_library_is_an_error() {
        let table = "<table><td colspan=9><td rowspan=99><td colspan=9>";
        let found = read(Kind::Html, "", table.as_bytes(), || false);
        assert_eq!(found, Err(Unreadable::Broken("its tables make no sense".into())));
    }

    proptest! {
        #[test]
        fn whatever_is_sent_becomes_text_or_an_error(
            pieces in prop::collection::vec(
                "(<(table|tr|td colspan=9|td rowspan=99|ul|ol start=-5|li|a href='x'|pre|p|b|h1|svg|math|template|img alt='x'|title|!--)>|</(table|td|ul|a|pre|p|b)>|[ -~é\u{0}\u{200b}]{0,8})", 0..40,
            ),
        ) {
            let page = read(Kind::Html, "", pieces.concat().as_bytes(), || false);
            if let Ok(page) = page {
                prop_assert!(!page.text.contains('\0') && !page.title.contains('\0'));
            }
        }
    }
}
