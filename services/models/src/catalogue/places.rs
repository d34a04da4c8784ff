//! Where in a JSON text a value is, so that a complaint can name its line and its field.

/// Every value of a text, in the order in which they begin.
pub struct Places(Vec<Place>);

struct Place {
    /// `models[1].price`.
    path: String,
    /// Line and column of its first character, and of the one after its last.
    start: (usize, usize),
    end: (usize, usize),
}

impl Places {
    /// Follows the text as far as it is JSON.
    pub fn of(text: &str) -> Places {
        let mut walk = Walk { bytes: text.as_bytes(), at: 0, line: 1, start: 0, found: Vec::new() };
        // What is not JSON any more has no more places.
        let _ = walk.value(String::new(), 0);
        Places(walk.found)
    }

    /// The line on which the value at `path` begins, or the nearest thing around it.
    pub fn line(&self, path: &str) -> usize {
        let around = self.0.iter().filter(|place| {
            path.strip_prefix(&place.path).is_some_and(|rest| {
                rest.is_empty() || place.path.is_empty() || rest.starts_with(['.', '['])
            })
        });
        around.max_by_key(|place| place.path.len()).map_or(1, |place| place.start.0)
    }

    /// The innermost value that this place is in, or that ends there.
    pub fn value_at(&self, place: (usize, usize)) -> &str {
        self.innermost(|one| one.start <= place && place <= one.end)
    }

    /// The innermost value that this place is in, its last character included.
    pub fn value_around(&self, place: (usize, usize)) -> &str {
        self.innermost(|one| one.start <= place && place < one.end)
    }

    fn innermost(&self, holds: impl Fn(&Place) -> bool) -> &str {
        let holding = self.0.iter().filter(|place| holds(place));
        holding.max_by_key(|place| place.path.len()).map_or("", |place| &place.path)
    }
}

/// Deeper than any catalogue, and never deep enough to hurt.
const MAX_DEPTH: usize = 16;

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    line: usize,
    /// Where the line begins.
    start: usize,
    found: Vec<Place>,
}

impl Walk<'_> {
    fn value(&mut self, path: String, depth: usize) -> Option<()> {
        let next = self.peek()?;
        // Whatever does not end, ends nowhere.
        let end = (usize::MAX, 0);
        self.found.push(Place { path: path.clone(), start: self.here(), end });
        let index = self.found.len() - 1;
        if depth > MAX_DEPTH {
            return None;
        }
        match next {
            b'{' => self.list(b'}', |walk, _| {
                let key = walk.string()?;
                (walk.peek()? == b':').then_some(())?;
                walk.at += 1;
                let dot = if path.is_empty() { "" } else { "." };
                walk.value(format!("{path}{dot}{key}"), depth + 1)
            }),
            b'[' => {
                self.list(b']', |walk, index| walk.value(format!("{path}[{index}]"), depth + 1))
            }
            b'"' => self.string().map(|_| ()),
            _ => {
                let rest = &self.bytes[self.at..];
                let end = rest.iter().position(|byte| b",]} \t\r\n".contains(byte));
                self.at += end.unwrap_or(rest.len()).max(1);
                Some(())
            }
        }?;
        self.found[index].end = self.here();
        Some(())
    }

    fn here(&self) -> (usize, usize) {
        (self.line, self.at - self.start + 1)
    }

    fn list(
        &mut self,
        close: u8,
        mut item: impl FnMut(&mut Self, usize) -> Option<()>,
    ) -> Option<()> {
        self.at += 1;
        for index in 0.. {
            match self.peek()? {
                byte if byte == close => break,
                b',' => self.at += 1,
                _ => (),
            }
            self.peek()?;
            item(self, index)?;
        }
        self.at += 1;
        Some(())
    }

    fn string(&mut self) -> Option<String> {
        (self.peek()? == b'"').then_some(())?;
        let start = self.at + 1;
        let mut end = start;
        loop {
            match self.bytes.get(end)? {
                b'"' => break,
                b'\\' => end += 2,
                _ => end += 1,
            }
        }
        self.at = end + 1;
        Some(String::from_utf8_lossy(self.bytes.get(start..end)?).into_owned())
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes.get(self.at)?;
            match byte {
                b'\n' => {
                    self.line += 1;
                    self.start = self.at + 1;
                }
                b' ' | b'\t' | b'\r' => (),
                _ => return Some(byte),
            }
            self.at += 1;
        }
    }
}
