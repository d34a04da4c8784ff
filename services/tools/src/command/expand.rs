use super::{Step, Unclear, shell::Shell, word::Word};

/// Reading of what the shell fills in. What runs inside of it is found; the rest is a hole.
impl Shell<'_, '_> {
    pub fn dollar(&mut self, word: &mut Word, quoted: bool) -> Step<()> {
        let from = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'(') if self.sees("((") => self.arithmetic()?,
            Some(b'(') => {
                self.at += 1;
                self.parentheses()?;
            }
            Some(b'{') => self.deeper(|shell| shell.braces(quoted))?,
            Some(b'\'') if !quoted => return self.ansi(word),
            // Translated into another language.
            Some(b'"') if !quoted => (),
            Some(b'[') => return Err(Unclear("arithmetic may run commands")),
            Some(b'\\') if self.sees("\\\n") => {
                return Err(Unclear("a line is continued inside of a word"));
            }
            Some(b'0'..=b'9' | b'@' | b'*' | b'#' | b'?' | b'-' | b'$' | b'!') => self.at += 1,
            Some(next) if next == b'_' || next.is_ascii_alphabetic() => self.identifier(),
            _ => {
                word.push("$", quoted);
                return Ok(());
            }
        }
        let raw = &self.text[from..self.at];
        // All of a list are words of their own, also in quotes.
        let list = ["$@", "${@", "[@]"].iter().any(|all| raw.contains(all));
        word.push_hole(raw, !quoted || (list && !raw.starts_with("$(")));
        Ok(())
    }

    fn identifier(&mut self) {
        while self.peek().is_some_and(|next| next == b'_' || next.is_ascii_alphanumeric()) {
            self.at += 1;
        }
    }

    /// The names of variables stand for expressions, and those for commands: only numbers are
    /// certain to run nothing.
    fn arithmetic(&mut self) -> Step<()> {
        let rest = &self.text[self.at..];
        let end = rest.find("))").ok_or(Unclear("arithmetic has no end"))? + 2;
        let harmless = |byte: u8| byte.is_ascii_digit() || b" \t+-*/%()<>=!&|^~?:,".contains(&byte);
        if !rest[..end].bytes().all(harmless) {
            return Err(Unclear("arithmetic may run commands"));
        }
        self.at += end;
        // `((1)+(2))` has two pairs at its end.
        while self.takes(")") {}
        match rest[..self.at - (self.text.len() - rest.len())].bytes().try_fold(0i32, balance) {
            Some(0) => Ok(()),
            _ => Err(Unclear("arithmetic has no end")),
        }
    }

    /// `${…}`, in the forms that cannot run anything by themselves.
    fn braces(&mut self, quoted: bool) -> Step<()> {
        let unusual = Err(Unclear("an unusual expansion may run commands"));
        self.at += 1;
        if !self.sees("#}") {
            self.takes("#");
        }
        let from = self.at;
        self.identifier();
        if from == self.at
            && !["@", "*", "?", "$", "-", "#"].into_iter().any(|name| self.takes(name))
        {
            return unusual;
        }
        if self.takes("[") {
            if !self.takes("@") && !self.takes("*") {
                self.digits();
            }
            if !self.takes("]") {
                return unusual;
            }
        }
        if self.takes("}") {
            return Ok(());
        }
        if self.takes(":") && !self.peek().is_some_and(|next| b"-+?".contains(&next)) {
            // A piece of the text, by numbers.
            let numbers = |byte: u8| byte.is_ascii_digit() || b" :-".contains(&byte);
            while self.peek().is_some_and(numbers) {
                self.at += 1;
            }
            return if self.takes("}") { Ok(()) } else { unusual };
        }
        match self.peek() {
            Some(b'-' | b'+' | b'?' | b'#' | b'%' | b'/' | b'^' | b',') => {
                self.rest_of_braces(quoted)
            }
            _ => unusual,
        }
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|next| next.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn rest_of_braces(&mut self, quoted: bool) -> Step<()> {
        let mut filled = Word::default();
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err(Unclear("an expansion has no end")),
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\'') if !quoted => {
                    let rest = &self.text[self.at + 1..];
                    self.at += rest.find('\'').ok_or(Unclear("a quote has no end"))? + 2;
                }
                // Shells disagree about what these mean here.
                Some(b'\'' | b'\\' | b'<' | b'>' | b'{') => {
                    return Err(Unclear("an unusual expansion may run commands"));
                }
                Some(b'"') => self.double_quoted(&mut filled)?,
                Some(b'`') => self.backquoted(&mut filled, quoted)?,
                Some(b'$') => self.dollar(&mut filled, quoted)?,
                Some(_) => self.at += 1,
            }
        }
    }

    /// A command in backquotes: its own quoting is taken off before it is read.
    pub fn backquoted(&mut self, word: &mut Word, quoted: bool) -> Step<()> {
        let from = self.at;
        let mut script = String::new();
        let mut rest = self.text[self.at + 1..].char_indices();
        let end = loop {
            match rest.next() {
                None => return Err(Unclear("a backquote has no end")),
                Some((at, '`')) => break at,
                Some((_, '\\')) => match rest.next() {
                    Some((_, next @ ('`' | '$' | '\\'))) => script.push(next),
                    Some((_, '"' | '\n')) | None => {
                        return Err(Unclear("shells disagree about this quoting"));
                    }
                    Some((_, next)) => script.extend(['\\', next]),
                },
                Some((_, next)) => script.push(next),
            }
        };
        self.at += end + 2;
        self.found.deeper(|found| Shell::new(&script, found).all())?;
        word.push_hole(&self.text[from..self.at], !quoted);
        Ok(())
    }

    /// `$'…'`. Only the plainest escapes are read, as the others can spell anything.
    fn ansi(&mut self, word: &mut Word) -> Step<()> {
        let from = self.at - 1;
        let mut text = String::new();
        let mut certain = true;
        let mut rest = self.text[self.at + 1..].char_indices();
        let end = loop {
            match rest.next() {
                None => return Err(Unclear("a quote has no end")),
                Some((at, '\'')) => break at,
                Some((_, '\\')) => match rest.next() {
                    Some((_, next @ ('\\' | '\'' | '"'))) => text.push(next),
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some(_) => certain = false,
                    None => return Err(Unclear("a quote has no end")),
                },
                Some((_, next)) => text.push(next),
            }
        };
        self.at += end + 2;
        match certain {
            true => word.push(&text, true),
            false => word.push_hole(&self.text[from..self.at], false),
        }
        Ok(())
    }
}

fn balance(open: i32, byte: u8) -> Option<i32> {
    match byte {
        b'(' => Some(open + 1),
        b')' => Some(open - 1).filter(|open| *open >= 0),
        _ => Some(open),
    }
}
