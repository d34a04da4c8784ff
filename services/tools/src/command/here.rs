use super::{Step, Unclear, shell::Shell, word::Word};

/// A here-document whose text has not been read yet.
pub struct HereDocument {
    delimiter: String,

    /// Nothing in it is filled in.
    literal: bool,
    indented: bool,
}

impl HereDocument {
    pub fn new(delimiter: &Word, indented: bool) -> Step<HereDocument> {
        if delimiter.has_hole() || delimiter.odd || delimiter.value().contains('\n') {
            return Err(Unclear("the end of a here-document is not understood"));
        }
        let literal = delimiter.quoted;
        Ok(HereDocument { delimiter: delimiter.value().into_owned(), literal, indented })
    }
}

impl Shell<'_, '_> {
    /// Goes past the end of a line and the here-documents that were begun on it.
    pub fn line_ends(&mut self) -> Step<()> {
        self.at += 1;
        if self.held > 0 {
            return Err(Unclear("a here-document is not where it was begun"));
        }
        for document in std::mem::take(&mut self.here_documents) {
            self.here_document(&document)?;
        }
        Ok(())
    }

    fn here_document(&mut self, document: &HereDocument) -> Step<()> {
        let from = self.at;
        loop {
            let rest = &self.text[self.at..];
            if rest.is_empty() {
                return Err(Unclear("a here-document has no end"));
            }
            let line = rest.split('\n').next().unwrap_or_default();
            let to = self.at;
            self.at += line.len();
            self.takes("\n");
            let end = if document.indented { line.trim_start_matches('\t') } else { line };
            if end == document.delimiter {
                return match document.literal {
                    true => Ok(()),
                    false => self.filled_in(from, to),
                };
            }
            if !document.literal && line.ends_with('\\') {
                return Err(Unclear("a line of a here-document is continued"));
            }
        }
    }

    /// Finds what runs inside of a here-document.
    fn filled_in(&mut self, from: usize, to: usize) -> Step<()> {
        let text = &self.text[from..to];
        let mut body = Shell::new(text, self.found);
        let mut filled = Word::default();
        while let Some(next) = body.peek() {
            match next {
                b'\\' => {
                    body.at +=
                        1 + usize::from(body.sees("\\$") || body.sees("\\`") || body.sees("\\\\"))
                }
                b'`' => body.backquoted(&mut filled, true)?,
                b'$' => body.dollar(&mut filled, true)?,
                _ => body.at += 1,
            }
        }
        Ok(())
    }
}
