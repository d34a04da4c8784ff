use super::{
    Kind, Part, Step, Unclear,
    shell::{Ended, Shell, Until},
    variable,
    word::Word,
};

/// Reading of what is more than a program and its arguments. Its keyword has been read.
impl Shell<'_, '_> {
    /// `for name in words`
    pub fn each(&mut self) -> Step<()> {
        self.blanks()?;
        let name = self.word()?;
        if !name.is_bare() || self.peek() == Some(b'(') {
            return Err(Unclear("arithmetic may run commands"));
        }
        if variable::is_special(&name.value()) {
            let mut part = Part::new(Kind::Assignment, vec![name]);
            part.unclear = Some(variable::SPECIAL);
            self.found.push(part)?;
        }
        self.blanks_and_lines()?;
        let before = self.at;
        let word = self.word()?;
        match &*word.value() {
            "in" if word.is_bare() => (),
            "" => return Ok(()),
            "do" if word.is_bare() => {
                self.at = before;
                return Ok(());
            }
            _ => return Err(Unclear("a loop is not understood")),
        }
        self.words()
    }

    /// Words that are only values.
    fn words(&mut self) -> Step<()> {
        loop {
            self.blanks()?;
            let before = self.at;
            self.word()?;
            if self.at == before {
                return Ok(());
            }
        }
    }

    /// `case word in pattern) commands;; esac`
    pub fn case(&mut self) -> Step<()> {
        self.blanks()?;
        self.word()?;
        self.blanks_and_lines()?;
        let word = self.word()?;
        if !word.is_bare() || word.value() != "in" {
            return Err(Unclear("a case is not understood"));
        }
        loop {
            self.blanks_and_lines()?;
            let opened = self.takes("(");
            self.blanks()?;
            let pattern = self.word()?;
            if !opened && pattern.is_bare() && pattern.value() == "esac" {
                return Ok(());
            }
            loop {
                self.blanks()?;
                if !self.takes("|") {
                    break;
                }
                self.blanks()?;
                self.word()?;
            }
            if !self.takes(")") {
                return Err(Unclear("a case is not understood"));
            }
            if self.list(Until::EndOfCase)? == Ended::Case {
                return Ok(());
            }
        }
    }

    /// `[[ … ]]`, whose beginning has been read. Numbers are compared as arithmetic.
    pub fn condition(&mut self) -> Step<()> {
        let mut words = vec![Word::literal("[[")];
        loop {
            self.blanks_and_lines()?;
            let before = self.at;
            let word = self.word()?;
            if self.at == before {
                match self.peek() {
                    Some(b'<' | b'>' | b'(' | b')' | b'&' | b'|') => self.at += 1,
                    _ => return Err(Unclear("a condition has no end")),
                }
                continue;
            }
            let last = word.is_bare() && word.value() == "]]";
            words.push(word);
            if last {
                break;
            }
        }
        let mut part = Part::new(Kind::Program, words);
        variable::check_condition(&mut part);
        self.found.push(part)
    }
}
