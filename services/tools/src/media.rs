/// How much of a file is looked at to see what it is.
pub const SAMPLE: usize = 8 * 1024;

/// What files begin with that are no text.
const SIGNATURES: [(&[u8], &str); 16] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"\xfd7zXZ\0", "application/x-xz"),
    (b"BZh", "application/x-bzip2"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"\x7fELF", "application/x-elf"),
    (b"\0asm", "application/wasm"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"\xff\xfe", "text/plain; charset=utf-16le"),
    (b"\xfe\xff", "text/plain; charset=utf-16be"),
];

/// The likely media type of a file that is no text, by how it begins; nothing for text.
pub fn binary(sample: &[u8]) -> Option<&'static str> {
    let broken = std::str::from_utf8(sample).is_err_and(|error| error.error_len().is_some());
    if !sample.contains(&0) && !broken {
        return None;
    }
    let found = SIGNATURES.iter().find(|(start, _)| sample.starts_with(start));
    match found {
        Some((_, media_type)) => Some(media_type),
        // Text in an older encoding can be read for the most part.
        None if !sample.contains(&0) => None,
        None => Some("application/octet-stream"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_text_is_known_by_its_beginning() {
        assert_eq!(binary(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), Some("image/png"));
        assert_eq!(binary(b"\x7fELF\x02\x01\x01\0"), Some("application/x-elf"));
        assert_eq!(binary(b"\xff\xfeh\0i\0"), Some("text/plain; charset=utf-16le"));
        assert_eq!(binary(b"a\0b"), Some("application/octet-stream"));
        assert_eq!(binary(b"caf\xe9 in Latin-1"), None);
        assert_eq!(binary(b"BMW is a car"), None);
        assert_eq!(binary(b""), None);
    }

    proptest! {
        #[test]
        fn text_is_never_binary(text in "[^\0]*", cut in 0usize..8) {
            let bytes = text.as_bytes();
            prop_assert_eq!(binary(&bytes[..bytes.len().saturating_sub(cut)]), None);
        }
    }
}
