use super::{Found, Kind, Part, Step, git, options::WRAPPERS, runs, variable, word::Word};

/// What a command starts besides itself.
pub enum Inside {
    Nothing,

    /// Other commands, each by its words.
    Commands(Vec<Vec<Word>>),

    /// A script in the language of the shell.
    Script(String),

    /// Something, or so it seems; why it cannot be told what.
    Anything(&'static str),
}

impl Found {
    /// A program and its arguments, and what it starts.
    pub fn simple(&mut self, words: &[Word]) -> Step<()> {
        let Some(name) = words.first() else { return Ok(()) };
        let mut part = Part::new(Kind::Program, words.to_vec());
        let inside = match () {
            () if name.has_hole() => Inside::Anything("its name is filled in by the shell"),
            () if name.odd => Inside::Anything("its name has characters that cannot be seen"),
            () => inside(words),
        };
        if words.iter().any(|word| word.odd) {
            part.unclear = Some("it has characters that cannot be seen");
        }
        variable::check_builtin(&mut part);
        git::check(&mut part);
        if let Inside::Anything(why) = inside {
            part.may_be_anything(why);
            return self.push(part);
        }
        if matches!(inside, Inside::Commands(_) | Inside::Script(_)) && is_mere_wrapper(part.name())
        {
            part.kind = Kind::Wrapper;
        }
        self.push(part)?;
        match inside {
            Inside::Script(script) => self.script(&script),
            Inside::Commands(commands) => {
                for words in commands {
                    self.deeper(|found| found.inner(&words))?;
                }
            }
            Inside::Nothing | Inside::Anything(_) => (),
        }
        Ok(())
    }

    /// A command behind a wrapper. `env` and `sudo` set variables in front of it.
    fn inner(&mut self, words: &[Word]) -> Step<()> {
        let sets = |word: &&Word| word.start().contains('=');
        let count = words.iter().take_while(sets).count();
        for word in &words[..count] {
            let mut part = Part::new(Kind::Assignment, vec![word.clone()]);
            part.unclear = variable::argument(word);
            self.push(part)?;
        }
        match words[count..].first() {
            Some(name) if name.start().starts_with('-') => {
                self.push(Part::unknown(&name.value(), "an option is not understood"))
            }
            _ => self.simple(&words[count..]),
        }
    }
}

pub const OPTION: Inside = Inside::Anything("an option is not understood");

fn is_mere_wrapper(name: &str) -> bool {
    let changes = ["sudo", "doas", "exec", "flock"];
    (WRAPPERS.iter().any(|wrapper| wrapper.name == name) && !changes.contains(&name))
        || SHELLS.contains(&name)
        || name == "eval"
}

/// Shells whose language we read.
pub const SHELLS: [&str; 4] = ["sh", "bash", "dash", "ash"];

fn inside(words: &[Word]) -> Inside {
    let name = words[0].base();
    let rest = &words[1..];
    if SHELLS.contains(&name) {
        return shell(rest);
    }
    match name {
        "eval" => script(rest),
        "trap" => match rest.first() {
            Some(word) if word.is("-p") || word.is("-l") || word.is("-") => Inside::Nothing,
            Some(word) if word.is("--") => script(&rest[1..rest.len().min(2)]),
            word => script(word.map_or(&[], std::slice::from_ref)),
        },
        "command" if rest.first().is_some_and(|word| word.is("-v") || word.is("-V")) => {
            Inside::Nothing
        }
        "find" => find(rest),
        "git" => git::inside(words),
        _ => match WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
            Some(wrapper) => wrapper.inside(rest),
            None => runs::inside(words),
        },
    }
}

/// A script in several words, as `eval` reads it.
pub fn script(words: &[Word]) -> Inside {
    if words.iter().any(Word::has_hole) {
        return Inside::Anything("it runs what the shell fills in");
    }
    let values: Vec<_> = words.iter().map(Word::value).collect();
    match values.is_empty() {
        true => Inside::Nothing,
        false => Inside::Script(values.join(" ")),
    }
}

fn shell(words: &[Word]) -> Inside {
    let mut reads_script = false;
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let value = word.value();
        let letters = value.strip_prefix('-').unwrap_or_default();
        match &*value {
            _ if word.has_hole() && word.may_be_option() => return OPTION,
            "--version" | "--help" => return Inside::Nothing,
            "--norc" | "--noprofile" | "--posix" | "--login" => (),
            "--" if reads_script => {
                return script(rest.next().map_or(&[], std::slice::from_ref));
            }
            _ if !letters.is_empty() && letters.bytes().all(|byte| b"ceuxlvn".contains(&byte)) => {
                reads_script |= letters.contains('c');
            }
            "-o" | "+o" => drop(rest.next()),
            _ if value.starts_with(['-', '+']) => return OPTION,
            _ if reads_script => return script(std::slice::from_ref(word)),
            // A file, which is looked at no more than any other program.
            _ => return Inside::Nothing,
        }
    }
    Inside::Anything("it runs whatever it is given to read")
}

fn find(words: &[Word]) -> Inside {
    let runs = |word: &Word| word.has_hole() && word.is_option(&["-exec", "-ok"]);
    if words.iter().any(|word| word.may_be_option() || runs(word)) {
        return Inside::Anything("an option of find may run anything");
    }
    let mut commands = vec![];
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        if !["-exec", "-execdir", "-ok", "-okdir"].iter().any(|option| word.is(option)) {
            continue;
        }
        let mut command = vec![];
        loop {
            match rest.next() {
                None => return OPTION,
                Some(word) if word.is(";") => break,
                Some(word) if word.is("+") && command.last().is_some_and(Word::has_hole) => break,
                Some(word) if word.value().contains("{}") => {
                    command.push(Word::hole(&word.value()))
                }
                Some(word) => command.push(word.clone()),
            }
        }
        commands.push(command);
    }
    match commands.is_empty() {
        true => Inside::Nothing,
        false => Inside::Commands(commands),
    }
}
