//! What a provider wants back with its reasoning. It is meaningless to every other, and a
//! conversation may change its model, so each signature says whose it is.

/// Marks `value` as belonging to `owner`.
pub fn seal(owner: &str, value: &str) -> String {
    format!("{owner}:{value}")
}

/// What `owner` had sealed; `None` if somebody else had.
pub fn open<'a>(owner: &str, signature: &'a str) -> Option<&'a str> {
    signature.strip_prefix(owner)?.strip_prefix(':')
}
