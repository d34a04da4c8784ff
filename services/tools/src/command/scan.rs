use super::{Step, Unclear, shell::Shell, word::Word};

/// Reading of characters and words.
impl Shell<'_, '_> {
    pub fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub fn sees(&self, text: &str) -> bool {
        self.text.as_bytes()[self.at..].starts_with(text.as_bytes())
    }

    /// Takes `text` if it is next.
    pub fn takes(&mut self, text: &str) -> bool {
        let seen = self.sees(text);
        self.at += if seen { text.len() } else { 0 };
        seen
    }

    /// Goes past blanks, comments and continued lines. A line that is continued anywhere else
    /// than behind a blank may join two characters to an operator.
    pub fn blanks(&mut self) -> Step<()> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t') => self.at += 1,
                Some(b'\\') if self.sees("\\\n") => {
                    if !matches!(self.before(), None | Some(b' ' | b'\t' | b'\n')) {
                        return Err(Unclear("a line is continued inside of a word"));
                    }
                    self.at += 2;
                }
                Some(b'#') if self.begins_word() => {
                    let line = &self.text.as_bytes()[self.at..];
                    self.at += line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
                }
                _ => return Ok(()),
            }
        }
    }

    fn before(&self) -> Option<u8> {
        self.at.checked_sub(1).map(|at| self.text.as_bytes()[at])
    }

    fn begins_word(&self) -> bool {
        self.before().is_none_or(|byte| b" \t\n;&|()<>".contains(&byte))
    }

    pub fn blanks_and_lines(&mut self) -> Step<()> {
        loop {
            self.blanks()?;
            match self.peek() {
                Some(b'\n') => self.line_ends()?,
                _ => return Ok(()),
            }
        }
    }

    /// A word; an empty one if there is none.
    pub fn word(&mut self) -> Step<Word> {
        let mut word = Word::default();
        while let Some(next) = self.peek() {
            match next {
                b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'(' | b')' => break,
                b'<' | b'>' if self.sees("<(") || self.sees(">(") => {
                    let from = self.at;
                    self.at += 2;
                    self.parentheses()?;
                    word.push_hole(&self.text[from..self.at], false);
                }
                b'<' | b'>' => break,
                b'\\' => self.escaped(&mut word)?,
                b'\'' => {
                    self.at += 1;
                    let text = self.until('\'')?;
                    word.push(text, true);
                }
                b'"' => self.double_quoted(&mut word)?,
                b'`' => self.backquoted(&mut word, false)?,
                b'$' => self.dollar(&mut word, false)?,
                b'*' | b'?' | b'[' | b'{' | b'~' => self.pattern(&mut word, next),
                _ => self.character(&mut word),
            }
        }
        Ok(word)
    }

    /// The text up to a quote, which is taken as well.
    fn until(&mut self, quote: char) -> Step<&str> {
        let rest = &self.text[self.at..];
        let end = rest.find(quote).ok_or(Unclear("a quote has no end"))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    fn escaped(&mut self, word: &mut Word) -> Step<()> {
        self.at += 1;
        match self.text[self.at..].chars().next() {
            None => Err(Unclear("it ends with a backslash")),
            Some('\n') => Err(Unclear("a line is continued inside of a word")),
            Some(next) => {
                self.at += next.len_utf8();
                word.push(next.encode_utf8(&mut [0; 4]), true);
                Ok(())
            }
        }
    }

    pub fn double_quoted(&mut self, word: &mut Word) -> Step<()> {
        self.at += 1;
        word.push("", true);
        loop {
            match self.peek() {
                None => return Err(Unclear("a quote has no end")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'`') => self.backquoted(word, true)?,
                Some(b'$') => self.dollar(word, true)?,
                Some(b'\\') => self.escaped_in_quotes(word)?,
                Some(_) => {
                    let rest = &self.text[self.at..];
                    let end = rest.find(['"', '`', '$', '\\']).unwrap_or(rest.len());
                    word.push(&rest[..end], true);
                    self.at += end;
                }
            }
        }
    }

    fn escaped_in_quotes(&mut self, word: &mut Word) -> Step<()> {
        let joins = self.before() == Some(b'$');
        self.at += 1;
        match self.peek() {
            Some(b'\n') if joins => return Err(Unclear("a line is continued inside of a word")),
            Some(b'\n') => self.at += 1,
            Some(next @ (b'$' | b'`' | b'"' | b'\\')) => {
                self.at += 1;
                word.push(char::from(next).encode_utf8(&mut [0; 4]), true);
            }
            Some(_) | None => word.push("\\", true),
        }
        Ok(())
    }

    /// A character that may make the shell look for files, or write several words.
    fn pattern(&mut self, word: &mut Word, next: u8) {
        let alone = |text: &str| {
            let after = self.text.as_bytes().get(self.at + text.len());
            word.is_empty()
                && self.sees(text)
                && after.is_none_or(|byte| b" \t\n;&|)".contains(byte))
        };
        let literal = ["{}", "{", "[[", "["].into_iter().find(|text| alone(text));
        if let Some(text) = literal {
            word.push(text, false);
            self.at += text.len();
            return;
        }
        let home = word.is_empty() || matches!(self.before(), Some(b'=' | b':'));
        let text = &self.text[self.at..=self.at];
        match next {
            b'~' if !home => word.push(text, false),
            _ => word.push_hole(text, false),
        }
        self.at += 1;
    }

    /// Anything that stands for itself.
    fn character(&mut self, word: &mut Word) {
        let rest = &self.text[self.at..];
        let special =
            |next: char| next.is_ascii_whitespace() || ";&|()<>\\'\"`$*?[{~".contains(next);
        let end = rest.char_indices().skip(1).find(|(_, next)| special(*next));
        let text = &rest[..end.map_or(rest.len(), |(at, _)| at)];
        word.odd |= text.chars().any(is_odd);
        word.push(text, false);
        self.at += text.len();
    }
}

/// Looks like a blank to people or to some shells, or cannot be seen.
fn is_odd(next: char) -> bool {
    next.is_control()
        || next.is_whitespace()
        || matches!(next, '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(next, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{2800}' | '\u{3164}')
}
