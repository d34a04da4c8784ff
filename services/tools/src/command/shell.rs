use super::{Found, Part, Step, Unclear, here::HereDocument, variable, word::Word};

/// Reads a script from its beginning to its end, and puts what it finds with the rest.
///
/// It is more lenient than bash about what may follow what: a script that bash would refuse has
/// parts here, and nothing is lost by that.
pub struct Shell<'s, 'f> {
    pub text: &'s str,
    pub at: usize,
    pub found: &'f mut Found,

    /// Begun on this line, to be read from the next.
    pub here_documents: Vec<HereDocument>,

    /// What comes next reads from a pipe.
    piped: bool,

    /// How many here-documents of the commands around this one are not read yet.
    pub held: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    End,
    Parenthesis,
    EndOfCase,
}

/// How a list of commands ended.
#[derive(PartialEq, Eq)]
pub enum Ended {
    Here,
    Case,
}

/// A command while it is read.
#[derive(Default)]
pub struct Simple {
    assignments: Vec<Word>,
    words: Vec<Word>,
    pub writes: Vec<Part>,
    pub reads: bool,
}

impl Simple {
    fn is_untouched(&self) -> bool {
        self.assignments.is_empty()
            && self.words.is_empty()
            && self.writes.is_empty()
            && !self.reads
    }
}

impl<'s, 'f> Shell<'s, 'f> {
    pub fn new(text: &'s str, found: &'f mut Found) -> Shell<'s, 'f> {
        Shell { text, at: 0, found, here_documents: vec![], piped: false, held: 0 }
    }

    pub fn all(&mut self) -> Step<()> {
        if self.text.contains('\0') {
            return Err(Unclear("it has a NUL"));
        }
        self.list(Until::End)?;
        match self.here_documents.is_empty() {
            true => Ok(()),
            false => Err(Unclear("a here-document has no end")),
        }
    }

    /// Does something one level deeper.
    pub fn deeper<T>(&mut self, step: impl FnOnce(&mut Self) -> Step<T>) -> Step<T> {
        if self.found.depth >= super::DEEPEST {
            return Err(Unclear("it is nested too deeply"));
        }
        self.found.depth += 1;
        let result = step(self);
        self.found.depth -= 1;
        result
    }

    /// Commands up to a closing parenthesis, whose opening one has been read.
    pub fn parentheses(&mut self) -> Step<()> {
        let outer = std::mem::take(&mut self.here_documents);
        self.held += outer.len();
        self.piped = false;
        self.deeper(|shell| shell.list(Until::Parenthesis))?;
        self.held -= outer.len();
        match self.here_documents.is_empty() {
            true => self.here_documents = outer,
            false => return Err(Unclear("a here-document has no end")),
        }
        Ok(())
    }

    pub fn list(&mut self, until: Until) -> Step<Ended> {
        loop {
            self.blanks()?;
            match self.peek() {
                None if until == Until::End => return Ok(Ended::Here),
                None => return Err(Unclear("something has no end")),
                Some(b'\n') => self.line_ends()?,
                Some(b';') if self.sees(";;") || self.sees(";&") => {
                    if until != Until::EndOfCase {
                        return Err(Unclear("a case ends where none began"));
                    }
                    self.at += 2;
                    self.takes("&");
                    return Ok(Ended::Here);
                }
                Some(b'|') => {
                    self.piped = !self.takes("||") && self.takes("|");
                    self.takes("&");
                }
                Some(b';') => self.at += 1,
                Some(b'&') if !self.sees("&>") => self.at += 1,
                Some(b')') if until == Until::Parenthesis => {
                    self.at += 1;
                    return Ok(Ended::Here);
                }
                Some(b')') => return Err(Unclear("a parenthesis ends where none began")),
                Some(b'(') if self.sees("((") => {
                    return Err(Unclear("arithmetic may run commands"));
                }
                Some(b'(') => {
                    self.at += 1;
                    self.parentheses()?;
                }
                Some(_) => {
                    if self.command(until)? == Ended::Case {
                        return Ok(Ended::Case);
                    }
                }
            }
        }
    }

    fn command(&mut self, until: Until) -> Step<Ended> {
        let mut simple = Simple::default();
        // Behind a pipe, `time` is a program like any other.
        let mut piped = std::mem::take(&mut self.piped);
        loop {
            self.blanks()?;
            match self.peek() {
                Some(b'&') if self.sees("&>") => self.redirection(&mut simple)?,
                None | Some(b'\n' | b';' | b'&' | b'|' | b')') => break,
                Some(b'<' | b'>') if !self.sees("<(") && !self.sees(">(") => {
                    self.redirection(&mut simple)?;
                }
                Some(b'(') if simple.is_untouched() => return Ok(Ended::Here),
                Some(b'(') => return self.function(&simple).map(|()| Ended::Here),
                Some(_) => {
                    let word = self.word()?;
                    if word.is_bare() && simple.is_untouched() {
                        match &*word.value() {
                            "!" | "{" | "}" | "if" | "then" | "elif" | "else" | "fi" | "do"
                            | "done" | "while" | "until" => {
                                piped = false;
                                continue;
                            }
                            "time" if !piped && self.times()? => continue,
                            "for" | "select" => return self.each().map(|()| Ended::Here),
                            "case" => return self.deeper(Shell::case).map(|()| Ended::Here),
                            "esac" if until == Until::EndOfCase => return Ok(Ended::Case),
                            "esac" => return Err(Unclear("a case ends where none began")),
                            "function" => {
                                self.blanks()?;
                                self.word()?;
                                self.no_arguments()?;
                                return Ok(Ended::Here);
                            }
                            "[[" => {
                                self.condition()?;
                                continue;
                            }
                            "coproc" => return Err(Unclear("coproc is not understood")),
                            _ => (),
                        }
                    }
                    self.take(&mut simple, word)?;
                }
            }
        }
        self.finish(simple)?;
        Ok(Ended::Here)
    }

    fn take(&mut self, simple: &mut Simple, word: Word) -> Step<()> {
        let digits = |word: &Word| word.value().bytes().all(|byte| byte.is_ascii_digit());
        if word.is_bare() && digits(&word) && matches!(self.peek(), Some(b'<' | b'>')) {
            // The number of what is redirected.
        } else if simple.words.is_empty() && variable::assigned(&word).is_some() {
            let mut word = word;
            if self.peek() == Some(b'(') && word.value().ends_with('=') {
                self.array(&mut word)?;
            }
            simple.assignments.push(word);
        } else {
            simple.words.push(word);
        }
        Ok(())
    }

    fn finish(&mut self, simple: Simple) -> Step<()> {
        for word in &simple.assignments {
            self.found.push(variable::part(word))?;
        }
        for part in simple.writes {
            self.found.push(part)?;
        }
        self.found.simple(&simple.words)
    }

    /// `name=(…)`
    fn array(&mut self, word: &mut Word) -> Step<()> {
        let from = self.at;
        self.at += 1;
        loop {
            self.blanks_and_lines()?;
            let before = self.at;
            if self.takes(")") {
                break;
            }
            self.word()?;
            if self.at == before {
                return Err(Unclear("a list of values is not understood"));
            }
        }
        word.push_hole(&self.text[from..self.at], false);
        Ok(())
    }

    /// `name()`: what follows is its body, and a part wherever it is called.
    fn function(&mut self, simple: &Simple) -> Step<()> {
        let named = simple.words.len() == 1 && simple.assignments.is_empty();
        match named && self.no_arguments()? {
            true => Ok(()),
            false => Err(Unclear("a parenthesis is where none belongs")),
        }
    }

    fn no_arguments(&mut self) -> Step<bool> {
        self.blanks()?;
        let found = self.takes("(");
        self.blanks()?;
        match found && !self.takes(")") {
            true => Err(Unclear("a parenthesis is where none belongs")),
            false => Ok(found),
        }
    }

    /// `time` is a keyword, unless it has options like the program.
    fn times(&mut self) -> Step<bool> {
        self.blanks()?;
        Ok(!self.sees("-") || self.takes("-p ") || self.takes("-- "))
    }
}
